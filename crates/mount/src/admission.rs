//! Admission: which pages are worth compressing once the pool is full.
//!
//! While there is room, all are. Once the pool is full, a page that comes in pushes out the one that was used least
//! lately, which pays only if pages are read again before they are pushed out. Whoever reads in turn a little more than
//! fits would push out each page just before it is wanted. So it is measured how many pages are asked for between two
//! reads of the same place, over a sample of all places (SHARDS: Waldspurger and others, FAST 2015). As long as most
//! places come back within what the pool holds, all pages come in. If most come back later, one request in [`SELDOM`]
//! does (bimodal insertion: Qureshi and others, ISCA 2007): the pool then keeps a part that is found, and still
//! follows when the readers turn to something else.
//!
//! Price: a look into a table of at most [`MOST`] places for one request in several, and 64 KiB.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Pages that make a place.
const PLACE: u64 = 64;
/// Of so many requests, one is let in while places come back too late.
const SELDOM: u32 = 32;
/// Places in the sample.
const MOST: usize = 2048;
/// The sample reaches so many times further than the pool.
const REACH: u64 = 16;
/// How much one place changes what is thought of all, as one part of so many.
const WEIGHT: u32 = 16;
/// What is thought when all places come back too late.
const ALL: u32 = 1 << 16;

/// Places that were read, and when.
#[derive(Debug)]
struct Sample {
    places: HashMap<u64, u64>,
    /// One place of so many is in the sample.
    rate: u64,
}

/// The judge of pages.
#[derive(Debug)]
pub(crate) struct Admission {
    sample: Mutex<Sample>,
    /// A copy, for who only looks whether a place is in the sample.
    rate: AtomicU64,
    hasher: RandomState,
    /// Pages asked for so far: the clock of the sample.
    clock: AtomicU64,
    /// Which part of the places comes back too late, of [`ALL`].
    late: AtomicU32,
    /// Pages that the pool holds when it is full.
    capacity: AtomicU64,
    is_full: AtomicBool,
    turn: AtomicU32,
}

impl Sample {
    /// Makes room: places that were read too long ago go, then every other one.
    fn thin(&mut self, now: u64, reach: u64) {
        self.places.retain(|_, last| now - *last <= reach);
        if self.places.len() > MOST / 2 {
            self.rate *= 2;
            let rate = self.rate;
            self.places.retain(|place, _| place.is_multiple_of(rate));
        } else if self.places.len() < MOST / 8 {
            self.rate = (self.rate / 2).max(1);
        }
    }
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            sample: Mutex::new(Sample { places: HashMap::new(), rate: 1 }),
            rate: AtomicU64::new(1),
            hasher: RandomState::new(),
            clock: AtomicU64::new(0),
            late: AtomicU32::new(0),
            capacity: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            turn: AtomicU32::new(0),
        }
    }

    /// How many pages the pool holds when it is full, and whether it is.
    pub(crate) fn set_room(&self, capacity: u64, is_full: bool) {
        self.capacity.store(capacity, Relaxed);
        self.is_full.store(is_full, Relaxed);
    }

    /// Notes that so many pages are asked for, from this one on.
    pub(crate) fn note(&self, file: u64, page: u64, count: u64) {
        let now = self.clock.fetch_add(count, Relaxed);
        let place = self.hasher.hash_one((file, page / PLACE));
        if !place.is_multiple_of(self.rate.load(Relaxed)) {
            return;
        }
        let capacity = self.capacity.load(Relaxed);
        let mut sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        // What follows at once is the same reader's next request.
        let between = sample.places.insert(place, now).map(|before| now.saturating_sub(before));
        if let Some(between) = between.filter(|between| *between > 2 * PLACE) {
            self.learn(between > capacity);
        }
        if sample.places.len() > MOST {
            let now = self.clock.load(Relaxed);
            sample.thin(now, capacity.saturating_mul(REACH));
            self.rate.store(sample.rate, Relaxed);
        }
    }

    fn learn(&self, is_late: bool) {
        let late = self.late.load(Relaxed);
        let one = if is_late { ALL / WEIGHT } else { 0 };
        self.late.store(late - late / WEIGHT + one, Relaxed);
    }

    /// Whether what a request has read should be kept.
    pub(crate) fn admits(&self) -> bool {
        if !self.is_full.load(Relaxed) || self.late.load(Relaxed) <= ALL / 2 {
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

    /// Files of so many pages each, `pages` in all.
    fn read_in_turn(admission: &Admission, pages: u64, a_file: u64, times: u64) {
        for page in (0..times * pages).step_by(a_file.min(32) as usize) {
            let at = page % pages;
            admission.note(at / a_file, at % a_file, a_file.min(32));
        }
    }

    fn let_in(admission: &Admission) -> usize {
        (0..320).filter(|_| admission.admits()).count()
    }

    #[test]
    fn what_fits_comes_in_and_what_goes_round_seldom_does() {
        for a_file in [1 << 20, 4] {
            let admission = full();
            assert_eq!(let_in(&admission), 320, "nothing is known yet");
            read_in_turn(&admission, CAPACITY * 2, a_file, 4);
            assert_eq!(let_in(&admission), 10, "files of {a_file} pages");
            read_in_turn(&admission, CAPACITY / 2, a_file, 6);
            assert_eq!(let_in(&admission), 320, "the readers have turned to less than fits");
        }
    }

    #[test]
    fn with_room_all_comes_in() {
        let admission = full();
        read_in_turn(&admission, CAPACITY * 2, 1 << 20, 4);
        admission.set_room(CAPACITY, false);
        assert_eq!(let_in(&admission), 320);
    }

    #[test]
    fn a_sample_stays_small() {
        for a_file in [1 << 20, 4] {
            let admission = full();
            read_in_turn(&admission, CAPACITY * 100, a_file, 2);
            assert!(admission.sample.lock().unwrap().places.len() <= MOST + 1);
        }
    }
}
