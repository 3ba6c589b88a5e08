//! A wake-up call for one waiting thread, by futex: calls are never lost and cost nothing while it is awake.

use crate::crowd::Crowd;
use crate::futex::{self, AtomicU32, Ordering};
use crate::time::now_ns;
use std::time::Duration;

const IDLE: u32 = 0;
const WAITING: u32 = 1;
const CALLED: u32 = 2;

/// The call, and whether someone waits for it; `SHARED` with other processes, or not.
#[derive(Debug, Default)]
pub struct Event<const SHARED: bool = false>(AtomicU32);

impl<const SHARED: bool> Event<SHARED> {
    /// Ends the present or the next `wait`.
    pub fn call(&self) {
        // Even if it is called already: who is awake may have looked before this caller's work was there to see.
        if self.0.swap(CALLED, Ordering::Release) == WAITING {
            futex::wake::<SHARED>(&self.0, 1);
        }
    }

    /// Whether the next `wait` returns at once.
    pub fn is_called(&self) -> bool {
        self.0.load(Ordering::Relaxed) == CALLED
    }

    /// As [`Event::wait`], but awake for the first `awake` of it. In a virtual machine a processor that goes idle
    /// takes 20-50 us to come back, and draws threads that wake up to it (the kernel's haltpoll governor exists for
    /// this). Where others want the processor, it is theirs, and the thread sleeps at once.
    pub fn wait_awake(&self, awake: Duration, timeout: Duration, crowd: &mut Crowd) {
        const PAUSES: u32 = 64;
        let until = now_ns().saturating_add(u64::try_from(awake.as_nanos()).unwrap_or(u64::MAX));
        let mut stays = !crowd.is_there();
        while stays && !self.is_called() && now_ns() < until {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            stays = crowd.make_way();
        }
        self.wait(timeout);
    }

    /// Waits for a call, or until the time is over.
    pub fn wait(&self, timeout: Duration) {
        if self.0.compare_exchange(IDLE, WAITING, Ordering::Acquire, Ordering::Acquire).is_ok() {
            futex::wait::<SHARED>(&self.0, WAITING, Some(timeout));
        }
        // Takes up the last call, and with it what the caller has done.
        self.0.swap(IDLE, Ordering::Acquire);
    }

    /// Forgets calls and waiters: in a forked child, where the waiter no longer exists.
    pub fn reset(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
}
