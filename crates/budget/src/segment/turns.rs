//! Turns: where processes at work crowd each other out, those that begin wait until there is room for them.
//!
//! When more processes work than memory holds, each takes from the next what that is about to touch, and most of the
//! time goes into bringing pages back (thrashing; Denning, "The working set model for program behavior", 1968, and load
//! control after it). A process that has just begun is the one that loses nothing by waiting. So a newcomer takes a
//! turn, of which whoever looks after the run leaves so many as there is room for, and waits if none is left.
//!
//! The price: processes that begin together no longer end together. The guarantee: nobody waits for longer than
//! [`LONGEST`], nor when nobody looks after the run any more; a turn that is lost (its taker was killed) is given anew.

use super::{Counter, Segment};
use crate::futex::{self, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nobody counts the turns; otherwise there is one less than the number says.
const OPEN: u32 = 0;
const NONE: u32 = 1;
/// No newcomer waits longer.
const LONGEST: Duration = Duration::from_secs(30);
/// Who looks after the run says so more often than this.
const SILENCE: Duration = Duration::from_millis(500);
/// Newcomers that are remembered until they are looked up.
const RECENT: usize = 64;

/// The part of it in the segment.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Turns {
    /// Turns left, counted from [`NONE`], or [`OPEN`].
    left: AtomicU32,
    /// Newcomers that wait; one that was killed meanwhile stays counted.
    waiting: AtomicU32,
    /// Changes as long as somebody looks after the run.
    beat: AtomicU32,
    /// How often turns were counted.
    counts: AtomicU32,
    /// Turns that were taken, and who took the last of them.
    taken: AtomicU32,
    recent: [AtomicU32; RECENT],
}

impl Turns {
    fn take(&self) -> bool {
        let one_less = |left| match left {
            OPEN => Some(OPEN),
            NONE => None,
            more => Some(more - 1),
        };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn wait(&self) {
        let begun = Instant::now();
        let (mut beat, mut heard) = (self.beat.load(Ordering::Relaxed), begun);
        while !self.take() && begun.elapsed() < LONGEST && heard.elapsed() < SILENCE {
            futex::wait::<true>(&self.left, NONE, Some(SILENCE));
            let now = self.beat.load(Ordering::Relaxed);
            if now != beat {
                (beat, heard) = (now, Instant::now());
            }
        }
    }
}

/// Turns.
impl Segment {
    /// For a process that begins to take memory: returns when there is room for it, and which count the turn is of.
    pub fn await_turn(&self) -> u32 {
        let turns = &self.header().turns;
        if !turns.take() {
            self.add(Counter::Waits, 1);
            turns.waiting.fetch_add(1, Ordering::Relaxed);
            turns.wait();
            turns.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let place = turns.taken.fetch_add(1, Ordering::Relaxed) as usize % RECENT;
        turns.recent[place].store(std::process::id(), Ordering::Relaxed);
        turns.counts.load(Ordering::Relaxed)
    }

    /// For a process that has had its turn, of such a count, and ends: the next may begin at once. If turns were
    /// counted since, it has been seen whether the process is at work.
    pub fn return_turn(&self, count: u32) {
        let turns = &self.header().turns;
        if turns.counts.load(Ordering::Relaxed) == count {
            let one_more = |left: u32| (left != OPEN).then_some(left.saturating_add(1));
            let _ = turns.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        }
    }

    /// Somebody looks after the run: to be called at least four times a second once turns are counted.
    pub fn beat(&self) {
        self.header().turns.beat.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves so many turns; from now on they are counted.
    pub fn leave_turns(&self, count: u32) {
        let turns = &self.header().turns;
        turns.counts.fetch_add(1, Ordering::Relaxed);
        turns.left.store(count.saturating_add(NONE), Ordering::Relaxed);
        if count > 0 && turns.waiting.load(Ordering::Relaxed) > 0 {
            futex::wake::<true>(&turns.left, count.min(futex::ALL));
        }
    }

    /// Newcomers that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.header().turns.waiting.load(Ordering::Relaxed)
    }

    /// The processes that took a turn since the `seen`th, which is brought up to date; of very many the last.
    pub fn newcomers(&self, seen: &mut u32) -> Vec<u32> {
        let turns = &self.header().turns;
        let taken = turns.taken.load(Ordering::Relaxed);
        let count = (taken.wrapping_sub(*seen) as usize).min(RECENT);
        *seen = taken;
        let places = (0..count).map(|back| (taken as usize).wrapping_sub(back + 1) % RECENT);
        places.map(|place| turns.recent[place].load(Ordering::Relaxed)).filter(|pid| *pid != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;

    #[test]
    fn who_finds_no_turn_waits_for_one() {
        let (_fd, segment) = segment(0);
        segment.await_turn();
        segment.leave_turns(1);
        let count = segment.await_turn();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| segment.await_turn());
            while segment.waiting() == 0 {
                segment.beat();
            }
            segment.return_turn(count);
            segment.beat();
            let next = waits.join().unwrap();
            assert_eq!((next, segment.waiting(), segment.total(Counter::Waits)), (count, 0, 1));
        });
        let mut seen = 0;
        assert_eq!(segment.newcomers(&mut seen), [std::process::id(); 3]);
        assert!(seen == 3 && segment.newcomers(&mut seen).is_empty());
    }

    #[test]
    fn a_turn_that_was_counted_since_is_not_returned() {
        let (_fd, segment) = segment(0);
        segment.return_turn(0);
        assert!(segment.header().turns.take(), "nobody counts");
        segment.leave_turns(2);
        let count = segment.await_turn();
        segment.return_turn(count);
        segment.leave_turns(0);
        segment.return_turn(count);
        assert!(!segment.header().turns.take());
    }

    #[test]
    fn nobody_waits_where_nobody_looks_after_the_run() {
        let (_fd, segment) = segment(0);
        segment.leave_turns(0);
        let begun = Instant::now();
        segment.await_turn();
        assert!(begun.elapsed() >= SILENCE);
    }
}
