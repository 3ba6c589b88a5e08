//! Whether a program hangs, told by its progress: the wall clock tells how busy others keep the machine.
//!
//! The measure is the processor time of the whole tree, of children that have ended included. A tree that hangs asleep
//! uses next to none of it; `ramfold run` itself then uses about a thousandth of the time. A tree that spins uses more
//! than any test needs.

use super::memory::tree;
use ramfold_budget::process::Stat;
use std::time::{Duration, Instant};

/// Looks at one tree of processes, as often as it is asked to.
#[derive(Debug)]
pub struct Progress {
    root: u32,
    patience: Duration,
    since: Instant,
    used: Duration,
}

impl Progress {
    pub fn new(root: u32, patience: Duration) -> Self {
        Self { root, patience, since: Instant::now(), used: Duration::ZERO }
    }

    /// Why the tree counts as hanging: within `patience` it used less than a hundredth of it, or it used all that the
    /// machine has in `patience` and has not ended.
    pub fn hangs(&mut self) -> Option<String> {
        if self.since.elapsed() < self.patience {
            return None;
        }
        let used = tree(self.root).into_iter().map(processor_time).sum();
        let last = Duration::saturating_sub(used, self.used);
        if used > all_of(self.patience) || last < self.patience / 100 {
            return Some(format!(
                "{used:?} of processor time, {last:?} in the last {:?}",
                self.since.elapsed()
            ));
        }
        (self.since, self.used) = (Instant::now(), used);
        None
    }
}

/// The processor time that the machine has in so much time.
pub fn all_of(time: Duration) -> Duration {
    time * std::thread::available_parallelism()
        .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// What a process and the children that it has waited for used; nothing if it has ended.
fn processor_time(pid: u32) -> Duration {
    Stat::of(pid).map_or(Duration::ZERO, |stat| stat.ran + stat.children_ran)
}
