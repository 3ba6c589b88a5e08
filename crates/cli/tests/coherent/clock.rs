//! The clock that bounds go by: it passes as time does while the machine lets this program work, and slower where it
//! does not. A tick has passed when so much time has, this clock's own thread has had its turn, and the others have
//! done so much. So a bound is one for the mount, and not for who else uses the processors.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(20);
/// What sixteen threads do in a fraction of a tick, where two processors are theirs.
const TURNS: u64 = 32;

#[derive(Default)]
pub struct Clock {
    ticks: AtomicU64,
    turns: AtomicU64,
}

impl Clock {
    /// How much has passed.
    pub fn now(&self) -> Duration {
        TICK * u32::try_from(self.ticks.load(SeqCst)).unwrap()
    }

    pub fn since(&self, then: Duration) -> Duration {
        self.now().saturating_sub(then)
    }

    /// A thread has done something.
    pub fn turn(&self) {
        self.turns.fetch_add(1, SeqCst);
    }

    /// Goes while others work.
    pub fn go(&self, ended: &AtomicBool) {
        while !ended.load(SeqCst) {
            let before = self.turns.load(SeqCst);
            std::thread::sleep(TICK);
            while self.turns.load(SeqCst) < before + TURNS && !ended.load(SeqCst) {
                std::thread::sleep(TICK / 20);
            }
            self.ticks.fetch_add(1, SeqCst);
        }
    }

    /// Waits until more has passed, while others work.
    pub fn wait(&self, time: Duration, ended: &AtomicBool) {
        let begun = self.now();
        while self.since(begun) <= time && !ended.load(SeqCst) {
            std::thread::sleep(TICK / 20);
        }
    }

    /// Lets so much pass, and a tick for what began within one, while nobody works.
    pub fn rest(&self, most: Duration) {
        let end = self.now() + most;
        while !most.is_zero() && self.now() <= end {
            std::thread::sleep(TICK);
            self.ticks.fetch_add(1, SeqCst);
        }
    }
}
