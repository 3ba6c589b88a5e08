//! Whether others want the processor of a thread that waits awake.
//!
//! A thread that waits awake yields in between, which costs nothing where the processor has nothing else to do. Where
//! it has, a yield gives away a whole turn of the scheduler's, some milliseconds, and what was waited for comes
//! meanwhile. A thread that sleeps fares better there: it is preferred when it is woken. So a yield is timed, and after
//! one that took long its thread sleeps for a while in the place of waiting awake.
//!
//! Price: two looks at the clock a yield.

use crate::time::now_ns;

/// A yield that takes longer, in nanoseconds, was one to a thread that computes: a turn of the scheduler's is longer
/// (`base_slice_ns`, 0.7 ms and more). What a client, a fault's thread or the program itself does until it waits is
/// shorter.
const TURN: u64 = 500_000;
/// For how long there is a crowd then, in nanoseconds.
const STAYS: u64 = 100_000_000;

/// What a waiting thread knows of the others.
#[derive(Debug, Default)]
pub struct Crowd {
    until: u64,
}

impl Crowd {
    /// Gives the processor to who wants it. Whether it was given for so short a time that to wait awake is no loss.
    pub fn make_way(&mut self) -> bool {
        let before = now_ns();
        std::thread::yield_now();
        let after = now_ns();
        if after - before > TURN {
            self.until = after + STAYS;
        }
        !self.is_there()
    }

    /// Whether others wanted the processor a short time ago.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.until != 0 && now_ns() < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_there_for_a_while() {
        let mut crowd = Crowd::default();
        assert!(!crowd.is_there());
        crowd.until = now_ns() + 60_000_000_000;
        assert!(crowd.is_there() && !crowd.make_way());
        crowd.until = now_ns() - 1;
        assert!(!crowd.is_there());
    }
}
