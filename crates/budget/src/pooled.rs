//! A door that keeps nothing in memory beside the store: a disk, a cache of files. What it has to give is its pool.
//!
//! Others ask the member whose pages have been in memory for longest, by the budget's clock, which counts pages that
//! leave memory. The store has a clock of its own ([`ramfold::Age`]). So it is noted now and then what both say, and
//! the age of the page that would leave next is told by the budget's.
//!
//! A page that leaves the pool is read from a device when it is wanted again; one that leaves a program's resident
//! memory is only compressed. The longer a page was not used, the less often it is wanted. So one that costs more is
//! kept for longer: pages of the pool count as younger than they are ([`WORTH`]).
//!
//! Guarantee: where the budget has other members, a page comes in only if it fits; who brings it makes room first, or
//! is refused.

use crate::door::{Door, Given};
use crate::effort::until_fits;
use crate::member::Member;
use crate::segment::Counter;
use crate::time::now_ns;
use ramfold::{Age, PAGE_SIZE, Shrunk};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Bytes that are given up in a turn.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 1 << 20;
/// How many times as old as a program's resident page a page of the pool has to be to leave before it.
const WORTH: u64 = 4;
/// Moments at which both clocks were noted.
const MARKS: usize = 256;
/// How long nothing is tried again after nothing could be given up, or no room was to be had, in nanoseconds.
const PAUSE: u64 = 1_000_000_000;

const NOTHING: u64 = u64::MAX;

/// The door.
#[derive(Debug)]
pub struct Pooled {
    is_closing: AtomicBool,
    marks: Mutex<Marks>,
    /// When the page that would leave next was used last, by the budget's clock; or [`NOTHING`].
    oldest: AtomicU64,
    /// Until then there is nothing to give, and no room for more pages, by [`now_ns`].
    spent_until: AtomicU64,
    full_until: AtomicU64,
    /// Pages that had left memory when they were counted last.
    counted: AtomicU64,
}

impl Default for Pooled {
    fn default() -> Self {
        let [spent_until, full_until, counted] = [(); 3].map(|()| AtomicU64::new(0));
        let (is_closing, marks, oldest) = (AtomicBool::new(false), Mutex::default(), NOTHING.into());
        Self { is_closing, marks, oldest, spent_until, full_until, counted }
    }
}

impl Pooled {
    /// It is closing from now on.
    pub fn close(&self) {
        self.is_closing.store(true, Relaxed);
    }

    /// To be called now and then: counts the pages that have left memory, and how old the rest is.
    pub fn look(&self, member: &Member) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let (store, stats) = (member.store(), member.store().stats());
        let left = stats.written_back_pages + stats.dropped_pages;
        member.count(Counter::EvictedPages, left.saturating_sub(self.counted.swap(left, Relaxed)));
        let clock = member.segment().clock();
        marks.note(store.time(), clock);
        let is_spent = now_ns() < self.spent_until.load(Relaxed);
        let oldest = store.oldest().filter(|_| !is_spent).map(|age| worth(marks.clock_of(age), clock));
        self.oldest.store(oldest.unwrap_or(NOTHING), Relaxed);
    }

    /// Gives up what others have asked for or the member is over its mark, in part.
    pub fn give(&self, member: &Member) -> Given {
        let wanted = member.asked().max(member.over_low(0)).clamp(LEAST, MOST);
        let Shrunk { freed_bytes, written_back, dropped, .. } = member.store().reclaim(wanted);
        if written_back + dropped == 0 {
            self.spent_until.store(now_ns() + PAUSE, Relaxed);
        }
        self.look(member);
        let pages = usize::try_from(freed_bytes).unwrap_or(usize::MAX).div_ceil(PAGE_SIZE);
        Given { pages, refused: 0, looked_at: 1 }
    }

    /// Whether one more page fits, after room was made for it if need be. Where none was to be had, nobody waits for it
    /// again for a while.
    pub fn fits(&self, member: &Member) -> bool {
        if !member.is_shared() || member.has_room(0) {
            return true;
        }
        if now_ns() < self.full_until.load(Relaxed) {
            return false;
        }
        let fits = until_fits(member, self, || self.give(member));
        if !fits {
            self.full_until.store(now_ns() + PAUSE, Relaxed);
        }
        fits
    }
}

impl Door for Pooled {
    fn resident(&self) -> u64 {
        0
    }

    fn candidates(&self) -> usize {
        0
    }

    fn oldest(&self) -> Option<u64> {
        Some(self.oldest.load(Relaxed)).filter(|clock| *clock != NOTHING)
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }
}

/// When a page of the pool that was used last at `since` counts as used last, both by the budget's clock.
fn worth(since: u64, clock: u64) -> u64 {
    clock - clock.saturating_sub(since) / WORTH
}

/// What the store's time was when the budget's clock went on, in order.
#[derive(Debug, Default)]
struct Marks(VecDeque<(u32, u64)>);

impl Marks {
    fn note(&mut self, time: u32, clock: u64) {
        if self.0.back().is_some_and(|(_, noted)| *noted == clock) {
            return;
        }
        if self.0.len() == MARKS {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.0.push_back((time, clock));
    }

    /// What the budget's clock said then, or earlier.
    fn clock_of(&self, age: Age) -> u64 {
        let back = age.now.wrapping_sub(age.since);
        let before = self.0.iter().rev().find(|(time, _)| age.now.wrapping_sub(*time) >= back);
        before.or(self.0.front()).map_or(0, |(_, clock)| *clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_s_time_is_told_by_the_budget_s_clock() {
        let mut marks = Marks::default();
        let start = u32::MAX - 5;
        for step in 0..1000_u32 {
            marks.note(start.wrapping_add(step), u64::from(step / 2) * 10);
        }
        let now = start.wrapping_add(1000);
        let at = |step: u32| marks.clock_of(Age { since: start.wrapping_add(step), now });
        assert_eq!(at(999), 4990, "the last");
        assert!((0..1000).all(|step| at(step) <= u64::from(step / 2) * 10), "never younger than it is");
        assert!((0..999).all(|step| at(step) <= at(step + 1)) && at(900) > 4400, "{}", at(900));
        assert!(marks.0.len() <= MARKS);
    }

    #[test]
    fn a_page_of_the_pool_leaves_after_one_that_is_a_quarter_as_old() {
        assert_eq!((worth(1000, 1000), worth(600, 1000), worth(0, 1000)), (1000, 900, 750));
        assert_eq!(worth(1001, 1000), 1000, "noted after the clock was read");
    }
}
