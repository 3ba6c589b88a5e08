//! Leaves: the entries of 64 neighbouring pages.
//!
//! A leaf holds only the entries that exist, packed in the order of their index; a bitmap tells which, and the
//! position of an entry is the number of bits below its own. So a dense leaf costs 12 bytes a page and its
//! head, and a sparse one hardly more; the price is that an entry put in the middle moves those behind it (at
//! most 756 bytes, 20 ns).
//!
//! Invariants: `entries.len()` is the number of bits in `occupied`; `evictable` is within `occupied`, and has
//! exactly the bits of the entries that the LRU has to look at; `warm` has those of all fresh entries.

use crate::bits::ones;
use crate::entry::Entry;
use crate::pools::{Key, PoolId};
use std::collections::TryReserveError;

/// No leaf.
pub(crate) const NONE: u32 = u32::MAX;

/// A leaf's place in the queue of its shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) stamp: u32,
}

impl Links {
    pub(crate) const OUT: Self = Self { prev: NONE, next: NONE, stamp: 0 };

    pub(crate) fn stamp(&self) -> u32 {
        self.stamp
    }
}

/// Pages of a leaf.
pub(crate) const LEAF_PAGES: u64 = 64;

/// Entries that a full leaf has.
pub(crate) const MAX_ROOM: usize = 64;
/// Fewest entries that a leaf has room for.
const MIN_ROOM: usize = 4;

/// The entries of the pages `chunk * 64 ..` of one object.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) object: u64,
    pub(crate) chunk: u64,
    pub(crate) pool: PoolId,
    pub(crate) links: Links,
    occupied: u64,
    evictable: u64,
    referenced: u64,
    /// Neither loaded nor stored since recompression came by.
    idle: u64,
    /// Recompression can do nothing more for these.
    dense: u64,
    /// Fresh, or loaded since the sweep over fresh pages came by.
    warm: u64,
    entries: Vec<Entry>,
}

impl Leaf {
    pub(crate) fn new(pool: PoolId, object: u64, chunk: u64) -> Self {
        Self {
            object,
            chunk,
            pool,
            links: Links::OUT,
            occupied: 0,
            evictable: 0,
            referenced: 0,
            idle: 0,
            dense: 0,
            warm: 0,
            entries: Vec::new(),
        }
    }

    /// The key of an entry.
    pub(crate) fn key(&self, bit: u32) -> Key {
        Key { pool: self.pool, object: self.object, index: self.chunk * LEAF_PAGES + u64::from(bit) }
    }

    pub(crate) fn occupied(&self) -> u64 {
        self.occupied
    }

    pub(crate) fn has_evictable(&self) -> bool {
        self.evictable != 0
    }

    /// Entries that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.entries.capacity()
    }

    pub(crate) fn get(&self, bit: u32) -> Option<Entry> {
        (bit < 64 && self.occupied >> bit & 1 != 0).then(|| self.entries[self.position(bit)])
    }

    /// Sets the referenced bit.
    pub(crate) fn touch(&mut self, bit: u32) {
        self.referenced |= 1 << bit;
        self.idle &= !(1 << bit);
    }

    /// The first evictable entry from bit `hand` on that was idle already and is not dense, and the new place of the
    /// hand. Those before it become idle.
    pub(crate) fn next_idle(&mut self, hand: u32) -> (Option<u32>, u32) {
        let ahead = u64::MAX.checked_shl(hand).unwrap_or(0);
        let end = (self.evictable & self.idle & !self.dense & ahead).trailing_zeros();
        self.idle |= self.evictable & ahead & !u64::MAX.checked_shl(end).unwrap_or(0);
        if end == 64 { (None, 64) } else { (Some(end), end + 1) }
    }

    /// As [`Leaf::next_idle`] for fresh entries; if `any`, the first that there is. What was only loaded is not warm
    /// any more.
    pub(crate) fn next_fresh(&mut self, hand: u32, any: bool) -> (Option<u32>, u32) {
        for bit in ones(self.warm & u64::MAX.checked_shl(hand).unwrap_or(0)) {
            if !self.get(bit).is_some_and(Entry::is_fresh) {
                self.warm &= !(1 << bit);
                continue;
            }
            let was_idle = self.idle >> bit & 1 != 0;
            self.idle |= 1 << bit;
            if any || was_idle {
                return (Some(bit), bit + 1);
            }
        }
        (None, 64)
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.warm != 0
    }

    /// Notes that an entry which is not fresh is loaded. Whether that was noted already.
    pub(crate) fn note_load(&mut self, bit: u32) -> bool {
        let again = self.warm >> bit & 1 != 0;
        self.warm |= 1 << bit;
        again
    }

    pub(crate) fn set_dense(&mut self, bit: u32) {
        self.dense |= 1 << bit;
    }

    pub(crate) fn forget_dense(&mut self) {
        self.dense = 0;
    }

    /// Recompression can do nothing more for this entry.
    pub(crate) fn is_dense(&self, bit: u32) -> bool {
        self.dense >> bit & 1 != 0
    }

    /// Makes sure that the next [`Leaf::put`] needs no memory.
    pub(crate) fn reserve(&mut self, bit: u32) -> Result<(), TryReserveError> {
        let len = self.entries.len();
        if self.occupied >> bit & 1 != 0 || len < self.entries.capacity() {
            return Ok(());
        }
        let room = (len + (len / 2).max(8)).clamp(MIN_ROOM, MAX_ROOM);
        self.entries.try_reserve_exact(room - len)
    }

    /// Sets an entry and gives back the one that it replaces. The referenced bit stays as it is.
    pub(crate) fn put(&mut self, bit: u32, entry: Entry) -> Option<Entry> {
        self.set_evictable(bit, entry.evictable());
        self.warm = self.warm & !(1 << bit) | u64::from(entry.is_fresh()) << bit;
        self.forget_age(bit);
        let position = self.position(bit);
        if self.occupied >> bit & 1 != 0 {
            return Some(std::mem::replace(&mut self.entries[position], entry));
        }
        self.occupied |= 1 << bit;
        self.entries.insert(position, entry);
        None
    }

    /// Takes an entry out.
    pub(crate) fn take(&mut self, bit: u32) -> Option<Entry> {
        if self.occupied >> bit & 1 == 0 {
            return None;
        }
        let entry = self.entries.remove(self.position(bit));
        self.occupied &= !(1 << bit);
        self.referenced &= !(1 << bit);
        self.warm &= !(1 << bit);
        self.forget_age(bit);
        self.set_evictable(bit, false);
        if self.entries.len() * 4 <= self.entries.capacity() && self.entries.capacity() > MIN_ROOM {
            self.entries.shrink_to((self.entries.len() * 2).max(MIN_ROOM));
        }
        Some(entry)
    }

    fn forget_age(&mut self, bit: u32) {
        self.idle &= !(1 << bit);
        self.dense &= !(1 << bit);
    }

    /// Has the LRU look at the entry, or not.
    pub(crate) fn set_evictable(&mut self, bit: u32, evictable: bool) {
        self.evictable = self.evictable & !(1 << bit) | u64::from(evictable) << bit;
    }

    /// Moves the hand from bit `hand` to the first evictable entry that was not referenced, and takes away the
    /// referenced bits that it passes. Gives that entry's bit, if there is one, and the new place of the hand.
    pub(crate) fn second_chance(&mut self, hand: u32) -> (Option<u32>, u32) {
        let ahead = u64::MAX.checked_shl(hand).unwrap_or(0);
        let victims = self.evictable & !self.referenced & ahead;
        let end = victims.trailing_zeros();
        let passed = ahead & !u64::MAX.checked_shl(end).unwrap_or(0);
        self.referenced &= !(self.evictable & passed);
        if end == 64 { (None, 64) } else { (Some(end), end + 1) }
    }

    /// The entries with their bits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Entry)> {
        ones(self.occupied).zip(self.entries.iter().copied())
    }

    /// Panics if an invariant does not hold.
    pub(crate) fn check(&self) {
        assert_eq!(self.entries.len(), self.occupied.count_ones() as usize);
        assert_eq!((self.evictable | self.warm) & !self.occupied, 0);
        for (bit, entry) in self.iter() {
            assert!(self.warm >> bit & 1 != 0 || !entry.is_fresh());
            let listed = self.evictable >> bit & 1 != 0;
            let shared = entry.state() == crate::entry::State::Shared;
            assert!(listed == entry.evictable() || shared && !listed, "{entry:?}, in the LRU: {listed}");
        }
    }

    fn position(&self, bit: u32) -> usize {
        (self.occupied & ((1 << bit) - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::Handle;

    fn entry(number: u64) -> Entry {
        Entry::pool(Handle::from_bits(number), 100, 0, 0, 0)
    }

    fn pool() -> PoolId {
        crate::pools::Pools::new().create(crate::PoolKind::Persistent, None)
    }

    #[test]
    fn entries_are_found_in_whatever_order_they_come_and_go() {
        let mut leaf = Leaf::new(pool(), 1, 2);
        let order: Vec<u32> = (0..64).map(|i| i * 37 % 64).collect();
        for &bit in &order {
            leaf.reserve(bit).unwrap();
            assert_eq!(leaf.put(bit, entry(u64::from(bit))), None);
            leaf.check();
        }
        assert_eq!(leaf.room(), 64, "a full leaf wastes nothing");
        for &bit in &order {
            assert_eq!(leaf.get(bit), Some(entry(u64::from(bit))));
            assert_eq!(leaf.take(bit), Some(entry(u64::from(bit))));
            assert_eq!(leaf.take(bit), None);
            leaf.check();
        }
        assert!(leaf.room() <= MIN_ROOM);
    }

    #[test]
    fn a_referenced_entry_gets_its_second_chance() {
        let mut leaf = Leaf::new(pool(), 1, 2);
        for bit in [3, 10, 63] {
            leaf.reserve(bit).unwrap();
            leaf.put(bit, entry(1));
        }
        leaf.touch(3);
        leaf.touch(63);
        assert_eq!(leaf.second_chance(0), (Some(10), 11), "3 was referenced");
        assert_eq!(leaf.second_chance(11), (None, 64), "63 was referenced");
        assert_eq!(leaf.second_chance(0), (Some(3), 4), "the bit is used up");
        assert_eq!(leaf.second_chance(11), (Some(63), 64));
        assert_eq!(leaf.second_chance(64), (None, 64));
    }
}
