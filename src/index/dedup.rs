//! Duplicates: a table that remembers, for the hash of a page's stored bytes, where such a page was stored.
//!
//! The table is a set-associative cache of hints. A set is one cache line: ten tags of 16 bits with ten places
//! of 32. A hint may be out of date or mean another page with the same tag; whoever uses it compares the bytes.
//! So nothing has to be taken out when an entry goes, the hash need not be kept, and a full set just forgets.
//!
//! It has two slots for five stored pages, about 2.6 bytes a page. To grow smoothly it is 64 tables, each of a power
//! of two of sets, that double one after the other (each has a slightly different threshold). The tag holds the bits
//! of the hash that follow those which chose the set when the table was made, so a set can be split without the full
//! hash; when more than six have been used up in this way, the table starts anew.

use super::spot::Place;
use crate::bits::{low_size, low16};
use crate::prefetch::prefetch;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

const TABLES: usize = 64;
const WAYS: usize = 10;
/// Tag bits that growth may use up.
const SPENT_BITS: u32 = 6;
const NO_PLACE: u32 = u32::MAX;

/// One cache line of hints.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Set {
    tags: [u16; WAYS],
    places: [u32; WAYS],
    /// Slot that is overwritten next.
    hand: u16,
}

impl Set {
    const EMPTY: Self = Self { tags: [0; WAYS], places: [NO_PLACE; WAYS], hand: 0 };

    fn find(&self, tag: u16) -> Option<usize> {
        (0..WAYS).find(|&way| self.tags[way] == tag && self.places[way] != NO_PLACE)
    }

    fn put(&mut self, way: usize, tag: u16, place: u32) {
        (self.tags[way], self.places[way]) = (tag, place);
    }
}

/// A 64th of the table.
#[derive(Debug, Default)]
struct Table {
    /// A power of two, or none.
    sets: Vec<Set>,
    /// The bit of the hash at which the tags begin.
    window: u32,
}

impl Table {
    fn split(&self, hash: u64) -> (usize, u16) {
        (low_size(hash) & (self.sets.len() - 1), low16(hash >> self.window))
    }

    fn find(&self, hash: u64) -> Option<u32> {
        if self.sets.is_empty() {
            return None;
        }
        let (set, tag) = self.split(hash);
        let set = &self.sets[set];
        set.find(tag).map(|way| set.places[way])
    }

    /// Enters the hint. `wanted` is how many sets there may be.
    fn insert(&mut self, hash: u64, place: u32, wanted: usize) {
        if self.sets.is_empty() || self.sets.len() / 8 > wanted {
            self.start(wanted);
        }
        let (at, tag) = self.split(hash);
        let sets = self.sets.len();
        let set = &mut self.sets[at];
        if let Some(way) = set.find(tag).or_else(|| set.places.iter().position(|&place| place == NO_PLACE)) {
            return set.put(way, tag, place);
        }
        if sets * 2 <= wanted {
            self.double(wanted);
            return self.insert(hash, place, self.sets.len());
        }
        let way = usize::from(set.hand) % WAYS;
        set.hand = set.hand.wrapping_add(1);
        set.put(way, tag, place);
    }

    /// An empty table of at most `wanted` sets.
    fn start(&mut self, wanted: usize) {
        let bits = wanted.max(1).ilog2();
        *self = Self { sets: vec![Set::EMPTY; 1 << bits], window: bits };
    }

    /// Splits every set in two, by the tag bit that the larger table uses to choose the set.
    fn double(&mut self, wanted: usize) {
        let used = self.sets.len().ilog2() - self.window;
        if used >= SPENT_BITS {
            return self.start(wanted);
        }
        let len = self.sets.len();
        self.sets.reserve_exact(len);
        self.sets.resize(len * 2, Set::EMPTY);
        let (low, high) = self.sets.split_at_mut(len);
        for (set, sibling) in low.iter_mut().zip(high) {
            for way in 0..WAYS {
                if set.tags[way] >> used & 1 != 0 {
                    sibling.put(way, set.tags[way], set.places[way]);
                    set.places[way] = NO_PLACE;
                }
            }
        }
    }
}

/// A table, and where its sets lie, or lay: no more than a prefetch needs to know, and that without a lock.
#[derive(Debug, Default)]
struct Guarded {
    table: Mutex<Table>,
    sets: AtomicPtr<Set>,
    mask: AtomicUsize,
}

/// The table of hints.
#[derive(Debug)]
pub(crate) struct Dedup {
    tables: Box<[Guarded]>,
}

impl Dedup {
    pub(crate) fn new() -> Self {
        Self { tables: (0..TABLES).map(|_| Guarded::default()).collect() }
    }

    /// Tells that the hash will be looked for soon.
    pub(crate) fn prefetch(&self, hash: u64) {
        let Guarded { sets, mask, .. } = &self.tables[Self::table(hash)];
        prefetch(sets.load(Relaxed).wrapping_add(low_size(hash) & mask.load(Relaxed)));
    }

    /// Where a page of this hash was last stored, perhaps.
    pub(crate) fn find(&self, hash: u64) -> Option<Place> {
        crate::lock(&self.tables[Self::table(hash)].table).find(hash).map(Place)
    }

    /// Remembers where a page of this hash is. `pages` is the number of pages stored, more or less.
    pub(crate) fn insert(&self, hash: u64, place: Place, pages: usize) {
        let number = Self::table(hash);
        let even = pages * 2 / (5 * WAYS);
        let wanted = (even + even * number / TABLES) / TABLES;
        let Guarded { table, sets, mask } = &self.tables[number];
        let mut table = crate::lock(table);
        table.insert(hash, place.0, wanted);
        sets.store(table.sets.as_mut_ptr(), Relaxed);
        mask.store(table.sets.len() - 1, Relaxed);
    }

    /// Forgets everything and gives the memory back.
    pub(crate) fn clear(&self) {
        self.tables.iter().for_each(|guarded| *crate::lock(&guarded.table) = Table::default());
    }

    /// Bytes of memory.
    pub(crate) fn meta_bytes(&self) -> usize {
        let sets = self.tables.iter().map(|guarded| crate::lock(&guarded.table).sets.capacity());
        sets.sum::<usize>() * size_of::<Set>()
    }

    fn table(hash: u64) -> usize {
        low_size(hash >> 58)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u32) -> u64 {
        crate::objects::hash(&number.to_ne_bytes())
    }

    #[test]
    fn recent_pages_are_found_while_the_table_grows() {
        let dedup = Dedup::new();
        for number in 0..20_000u32 {
            let place = Place::new(0, number >> 6, number & 63).unwrap();
            dedup.insert(hash(number), place, number as usize);
            assert_eq!(dedup.find(hash(number)), Some(place));
        }
        let found = (0..20_000).filter(|&number| {
            dedup.find(hash(number)).is_some_and(|place| place.leaf() << 6 | place.bit() == number)
        });
        let (found, bytes) = (found.count(), dedup.meta_bytes());
        assert!(found > 7_000, "two fifths of the pages should be remembered, not {found}");
        assert!((2 * 20_000..=3 * 20_000).contains(&bytes), "{bytes} bytes for 20000 pages");
        dedup.clear();
        assert_eq!((dedup.find(hash(1)), dedup.meta_bytes()), (None, 0));
    }

    #[test]
    fn a_set_is_a_cache_line() {
        assert_eq!(size_of::<Set>(), 64);
    }
}
