//! Admission: which pages are worth compressing once the pool is full.
//!
//! While there is room, all are. Once the pool is full, a page that comes in pushes out the one that was used least
//! lately, which pays only if pages are read again before they are pushed out. Whoever reads in turn a little more than
//! fits would push out each page just before it is wanted. So the distance between two reads of the same place is
//! measured, in pages read elsewhere between them, over a sample of all places (SHARDS: Waldspurger and others, FAST
//! 2015). As long as it is less than the pool holds, all pages come in. If it is more, one request in [`SELDOM`] does
//! (bimodal insertion: Qureshi and others, ISCA 2007): the pool then keeps a part that is found, and still follows.
//!
//! Price: a look into a table of at most [`MOST`] places for one request in several, and 64 KiB.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Pages that make a place.
pub(crate) const PLACE: u64 = 64;
/// Of so many requests that come too far apart, one is let in.
pub(crate) const SELDOM: u32 = 32;
/// Places in the sample.
const MOST: usize = 2048;
/// The sample reaches so many times further than the pool.
const REACH: u64 = 4;
/// How much one measurement changes the mean, as one part of so many.
const WEIGHT: u64 = 16;

/// The judge of pages.
#[derive(Debug)]
pub(crate) struct Admission {
    /// When each sampled place was read last.
    sample: Mutex<HashMap<u64, u64>>,
    hasher: RandomState,
    /// Reads of sampled places so far: the clock of the sample.
    clock: AtomicU64,
    /// The mean distance, in pages.
    distance: AtomicU64,
    /// Pages that the pool holds when it is full.
    capacity: AtomicU64,
    is_full: AtomicBool,
    turn: AtomicU32,
}

impl Admission {
    pub(crate) fn new() -> Self {
        let [clock, distance, capacity] = [(); 3].map(|()| AtomicU64::new(0));
        let (sample, hasher) = (Mutex::default(), RandomState::new());
        let (is_full, turn) = (AtomicBool::new(false), AtomicU32::new(0));
        Self { sample, hasher, clock, distance, capacity, is_full, turn }
    }

    /// How many pages the pool holds when it is full, and whether it is.
    pub(crate) fn set_room(&self, capacity: u64, is_full: bool) {
        self.capacity.store(capacity, Relaxed);
        self.is_full.store(is_full, Relaxed);
    }

    /// Notes that something was read at this page.
    pub(crate) fn note(&self, file: u64, page: u64) {
        let place = self.hasher.hash_one((file, page / PLACE));
        let rate = self.rate();
        if !place.is_multiple_of(rate) {
            return;
        }
        let now = self.clock.fetch_add(1, Relaxed);
        let mut sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        match sample.insert(place, now) {
            // The next request of the same reader.
            Some(before) if before + 1 == now => {}
            Some(before) => {
                let between = sample.values().filter(|last| **last > before).count() as u64;
                self.learn(between * rate * PLACE);
            }
            None if sample.len() > MOST => {
                // The older half goes: what comes back later than that is far.
                let mut times: Vec<u64> = sample.values().copied().collect();
                let (_, middle, _) = times.select_nth_unstable(MOST / 2);
                let middle = *middle;
                sample.retain(|_, last| *last >= middle);
            }
            None => {}
        }
    }

    fn learn(&self, distance: u64) {
        let mean = self.distance.load(Relaxed);
        self.distance.store(mean - mean / WEIGHT + distance / WEIGHT, Relaxed);
    }

    /// One place of so many is in the sample.
    fn rate(&self) -> u64 {
        (self.capacity.load(Relaxed) * REACH / PLACE / MOST as u64).max(1)
    }

    /// Whether what a request has read should be kept.
    pub(crate) fn admits(&self) -> bool {
        if !self.is_full.load(Relaxed) || self.distance.load(Relaxed) <= self.capacity.load(Relaxed) {
            return true;
        }
        self.turn.fetch_add(1, Relaxed).is_multiple_of(SELDOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 1 << 15;

    fn full() -> Admission {
        let admission = Admission::new();
        admission.set_room(CAPACITY, true);
        admission
    }

    fn read_in_turn(admission: &Admission, pages: u64, times: u64) {
        for page in (0..times * pages).step_by(32) {
            admission.note(1, page % pages);
        }
    }

    fn let_in(admission: &Admission) -> usize {
        (0..320).filter(|_| admission.admits()).count()
    }

    #[test]
    fn what_fits_comes_in_and_what_goes_round_seldom_does() {
        let admission = full();
        assert_eq!(let_in(&admission), 320, "nothing is known yet");
        read_in_turn(&admission, CAPACITY * 2, 4);
        assert_eq!(let_in(&admission), 10);
        read_in_turn(&admission, CAPACITY / 2, 6);
        assert_eq!(let_in(&admission), 320, "the readers have turned to less than fits");
    }

    #[test]
    fn with_room_all_comes_in() {
        let admission = full();
        read_in_turn(&admission, CAPACITY * 2, 4);
        admission.set_room(CAPACITY, false);
        assert_eq!(let_in(&admission), 320);
    }

    #[test]
    fn a_sample_stays_small() {
        let admission = full();
        read_in_turn(&admission, CAPACITY * 100, 2);
        assert!(admission.sample.lock().unwrap().len() <= MOST + 1);
    }
}
