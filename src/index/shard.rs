//! A shard of the index.
//!
//! It is a hash table of leaf numbers (open addressing, at most half full), a slab of leaves, the LRU queue over them
//! and the counters of its entries. A leaf's head, links and table slot come to about 1.5 bytes a page if the leaf is
//! full.
//!
//! Invariants: every leaf that is not free holds at least one entry (except between `reserve` and `put`) and
//! is found in the table; `counts` is the sum over the entries.

use super::leaf::{Leaf, NONE};
use super::lru::Lru;
use super::spot::{Place, Spot, hash};
use crate::bits::{low_size, low32};
use crate::entry::Entry;
use crate::pools::Key;
use crate::stats::Counts;
use std::collections::TryReserveError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A leaf is recent while no more than so many have gone to the tail after it.
const RECENT_LEAVES: u32 = 16;

/// What all shards have in common.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// The stamp for the next leaf that goes to a tail.
    pub(super) tick: AtomicU32,
    /// Leaves in use.
    pub(super) leaves: AtomicUsize,
    /// Fresh pages.
    pub(super) fresh: AtomicU64,
}

/// One shard.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Leaf numbers; the length is a power of two, or 0.
    table: Vec<u32>,
    leaves: Vec<Leaf>,
    /// Head of the list of free leaves, linked by `chunk`.
    free: u32,
    used: usize,
    /// Sum of the room of all leaves.
    room: usize,
    totals: Arc<Totals>,
    /// Loads were noted in leaves since a sweep over fresh pages began here.
    was_loaded: bool,
    pub(crate) lru: Lru,
    pub(crate) counts: Counts,
}

impl Shard {
    pub(super) fn new(totals: Arc<Totals>) -> Self {
        let (table, leaves, lru, counts) = (Vec::new(), Vec::new(), Lru::new(), Counts::default());
        Self { table, leaves, free: NONE, used: 0, room: 0, totals, was_loaded: false, lru, counts }
    }

    /// The number of the leaf that holds the spot, if there is one.
    pub(crate) fn find(&self, spot: &Spot) -> Option<u32> {
        let mask = self.table.len().checked_sub(1)?;
        let mut at = low_size(spot.hash) & mask;
        loop {
            match self.table[at] {
                NONE => return None,
                id if spot.names(&self.leaves[id as usize]) => return Some(id),
                _ => at = (at + 1) & mask,
            }
        }
    }

    pub(crate) fn get(&self, spot: &Spot) -> Option<(u32, Entry)> {
        let id = self.find(spot)?;
        self.leaf(id).get(spot.bit).map(|entry| (id, entry))
    }

    pub(crate) fn leaf(&self, id: u32) -> &Leaf {
        &self.leaves[id as usize]
    }

    /// Key and entry at a place that may be out of date.
    pub(crate) fn at(&self, place: Place) -> Option<(Key, Entry)> {
        let leaf = self.leaves.get(place.leaf() as usize)?;
        leaf.get(place.bit()).map(|entry| (leaf.key(place.bit()), entry))
    }

    pub(crate) fn touch(&mut self, id: u32, bit: u32) {
        self.leaves[id as usize].touch(bit);
    }

    /// The leaf for the spot, with room for its entry. After this `put` cannot fail; it must follow under the
    /// same lock.
    pub(crate) fn reserve(&mut self, spot: &Spot) -> Result<u32, TryReserveError> {
        let id = match self.find(spot) {
            Some(id) => id,
            None => self.new_leaf(spot)?,
        };
        let leaf = &mut self.leaves[id as usize];
        let before = leaf.room();
        let reserved = leaf.reserve(spot.bit);
        self.room += leaf.room() - before;
        if reserved.is_err() && leaf.occupied() == 0 {
            self.drop_leaf(id);
        }
        reserved.map(|()| id)
    }

    /// Sets the entry, in the room that `reserve` made or in the place of another. Gives back the old one.
    pub(crate) fn put(&mut self, id: u32, bit: u32, entry: Entry) -> Option<Entry> {
        let leaf = &mut self.leaves[id as usize];
        let was_linked = leaf.has_evictable();
        let old = leaf.put(bit, entry);
        if let Some(old) = old {
            self.counts.remove(old);
        }
        self.counts.add(entry);
        self.count_fresh(Some(entry), old);
        self.relink(id, was_linked);
        old
    }

    /// As [`Shard::put`], for a page that is stored now. In a leaf that has long been in the queue it gets its
    /// referenced bit, so as not to be taken for as old as its neighbours.
    pub(crate) fn publish(&mut self, id: u32, bit: u32, entry: Entry) -> Option<Entry> {
        let old = self.put(id, bit, entry);
        let leaf = &mut self.leaves[id as usize];
        if self.totals.tick.load(Relaxed).wrapping_sub(leaf.links.stamp()) > RECENT_LEAVES {
            leaf.touch(bit);
        }
        old
    }

    /// Takes the entry out; the leaf goes with its last entry.
    pub(crate) fn take(&mut self, id: u32, bit: u32) -> Option<Entry> {
        let leaf = &mut self.leaves[id as usize];
        let (was_linked, before) = (leaf.has_evictable(), leaf.room());
        let entry = leaf.take(bit)?;
        self.room -= before - leaf.room();
        let empty = leaf.occupied() == 0;
        self.counts.remove(entry);
        self.count_fresh(None, Some(entry));
        self.relink(id, was_linked);
        if empty {
            self.drop_leaf(id);
        }
        Some(entry)
    }

    /// The LRU need not look at this entry any more.
    pub(crate) fn leave_lru(&mut self, id: u32, bit: u32) {
        let leaf = &mut self.leaves[id as usize];
        let was_linked = leaf.has_evictable();
        leaf.set_evictable(bit, false);
        self.relink(id, was_linked);
    }

    /// The stamp of the oldest leaf.
    pub(crate) fn oldest_stamp(&self) -> Option<u32> {
        self.lru.oldest_stamp(&self.leaves)
    }

    /// The next victim in the oldest leaf: its leaf and bit. None when the hand has crossed the leaf.
    pub(crate) fn next_victim(&mut self) -> Option<(u32, u32)> {
        let id = self.lru.oldest()?;
        self.lru.next_victim(&mut self.leaves).map(|bit| (id, bit))
    }

    /// Whether the oldest leaf has an entry that was not used since the hand was there. If not, the leaf goes to the
    /// tail.
    pub(crate) fn oldest_is_cold(&mut self) -> bool {
        let Some(id) = self.lru.oldest() else { return true };
        let is_cold = self.lru.has_victim(&mut self.leaves);
        if !is_cold {
            self.rotate(id);
        }
        is_cold
    }

    /// As [`Shard::next_victim`], in any leaf, from bit `hand` on, which moves along.
    pub(crate) fn next_victim_in(&mut self, id: u32, hand: &mut u32) -> Option<u32> {
        let bit;
        (bit, *hand) = self.leaves[id as usize].second_chance(*hand);
        bit
    }

    /// The next entry of a leaf, from bit `hand` on, which moves along, that is idle and not known to be dense; those
    /// before it are idle from now on.
    pub(crate) fn next_idle_in(&mut self, id: u32, hand: &mut u32) -> Option<u32> {
        let bit;
        (bit, *hand) = self.leaves[id as usize].next_idle(*hand);
        bit
    }

    /// Recompression can do nothing more for this entry.
    pub(crate) fn set_dense(&mut self, id: u32, bit: u32) {
        self.leaves[id as usize].set_dense(bit);
    }

    /// As [`Leaf::next_fresh`], in any leaf, from bit `hand` on, which moves along.
    pub(crate) fn next_fresh_in(&mut self, id: u32, hand: &mut u32, any: bool) -> Option<u32> {
        let (found, next) = self.leaves[id as usize].next_fresh(*hand, any);
        *hand = next;
        found
    }

    /// See [`Leaf::note_load`].
    pub(crate) fn note_load(&mut self, id: u32, bit: u32) -> bool {
        self.was_loaded = true;
        self.leaves[id as usize].note_load(bit)
    }

    /// Whether a sweep over fresh pages has something to do here. Takes the note of loads away.
    pub(crate) fn begin_sweep(&mut self) -> bool {
        std::mem::take(&mut self.was_loaded) || self.counts.fresh > 0
    }

    fn count_fresh(&self, new: Option<Entry>, old: Option<Entry>) {
        let is_fresh = |entry: Option<Entry>| entry.is_some_and(Entry::is_fresh);
        match (is_fresh(new), is_fresh(old)) {
            (true, false) => self.totals.fresh.fetch_add(1, Relaxed),
            (false, true) => self.totals.fresh.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    /// It may do more for all from now on.
    pub(crate) fn forget_dense(&mut self) {
        self.leaves.iter_mut().for_each(Leaf::forget_dense);
    }

    /// Moves a leaf to the tail, if it is in the queue.
    pub(crate) fn rotate(&mut self, id: u32) {
        if self.leaves[id as usize].has_evictable() {
            self.lru.unlink(&mut self.leaves, id);
            self.lru.push(&mut self.leaves, id, self.totals.tick.fetch_add(1, Relaxed));
        }
    }

    /// The first leaf with a number of at least `from` that `wanted` accepts.
    pub(crate) fn next_leaf(&self, from: u32, wanted: impl Fn(&Leaf) -> bool) -> Option<u32> {
        let rest = self.leaves.get(from as usize..)?;
        let offset = rest.iter().position(|leaf| leaf.occupied() != 0 && wanted(leaf))?;
        Some(from + u32::try_from(offset).expect("leaf numbers have 32 bits"))
    }

    /// The number of entries in all shards, if the leaves of the others are as full as the leaves here.
    pub(crate) fn estimate(&self) -> usize {
        let entries = usize::try_from(self.counts.entries).unwrap_or(usize::MAX);
        entries.saturating_mul(self.totals.leaves.load(Relaxed)) / self.used.max(1)
    }

    /// Bytes of memory, all included.
    pub(crate) fn meta_bytes(&self) -> usize {
        self.table.capacity() * size_of::<u32>()
            + self.leaves.capacity() * size_of::<Leaf>()
            + self.room * size_of::<Entry>()
    }

    /// Panics if an invariant does not hold.
    pub(crate) fn check(&self) {
        let mut counts = Counts::default();
        let (mut used, mut room, mut linked) = (0, 0, 0);
        for (id, leaf) in self.leaves.iter().enumerate().filter(|(_, leaf)| leaf.occupied() != 0) {
            leaf.check();
            assert_eq!(self.find(&Spot::new(leaf.key(0))), u32::try_from(id).ok());
            leaf.iter().for_each(|(_, entry)| counts.add(entry));
            (used, room) = (used + 1, room + leaf.room());
            linked += usize::from(leaf.has_evictable());
        }
        assert_eq!((self.used, self.room), (used, room));
        assert_eq!(self.lru.iter(&self.leaves).filter(|&id| self.leaf(id).has_evictable()).count(), linked);
        assert_eq!(self.lru.iter(&self.leaves).count(), linked);
        self.counts.check_gauges(&counts);
    }

    fn relink(&mut self, id: u32, was_linked: bool) {
        match (was_linked, self.leaves[id as usize].has_evictable()) {
            (false, true) => self.lru.push(&mut self.leaves, id, self.totals.tick.fetch_add(1, Relaxed)),
            (true, false) => self.lru.unlink(&mut self.leaves, id),
            _ => {}
        }
    }

    fn new_leaf(&mut self, spot: &Spot) -> Result<u32, TryReserveError> {
        self.grow_table()?;
        let leaf = Leaf::new(spot.key.pool, spot.key.object, spot.chunk);
        let id = match self.free {
            NONE => {
                if self.leaves.len() == self.leaves.capacity() {
                    self.leaves.try_reserve_exact(2 + self.leaves.len() / 8)?;
                }
                self.leaves.push(leaf);
                u32::try_from(self.leaves.len() - 1).expect("leaf numbers have 32 bits")
            }
            id => {
                self.free = low32(self.leaves[id as usize].chunk);
                self.leaves[id as usize] = leaf;
                id
            }
        };
        self.used += 1;
        self.totals.leaves.fetch_add(1, Relaxed);
        self.enter(id);
        Ok(id)
    }

    /// Frees an empty leaf, which is out of the queue.
    fn drop_leaf(&mut self, id: u32) {
        self.leave_table(id);
        let leaf = &mut self.leaves[id as usize];
        self.room -= leaf.room();
        *leaf = Leaf::new(leaf.pool, 0, u64::from(self.free));
        self.free = id;
        self.used -= 1;
        self.totals.leaves.fetch_sub(1, Relaxed);
    }

    fn grow_table(&mut self) -> Result<(), TryReserveError> {
        if (self.used + 1) * 2 <= self.table.len() {
            return Ok(());
        }
        let len = (self.table.len() * 2).max(4);
        let mut table = Vec::new();
        table.try_reserve_exact(len)?;
        table.resize(len, NONE);
        let old = std::mem::replace(&mut self.table, table);
        old.into_iter().filter(|&id| id != NONE).for_each(|id| self.enter(id));
        Ok(())
    }

    fn enter(&mut self, id: u32) {
        let mask = self.table.len() - 1;
        let mut at = self.home(id) & mask;
        while self.table[at] != NONE {
            at = (at + 1) & mask;
        }
        self.table[at] = id;
    }

    /// Takes a number out of the table and closes the gap: what was pushed past it by linear probing moves
    /// back (Knuth, TAOCP 6.4, algorithm R).
    fn leave_table(&mut self, id: u32) {
        let mask = self.table.len() - 1;
        let mut gap = self.home(id) & mask;
        while self.table[gap] != id {
            gap = (gap + 1) & mask;
        }
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let moving = self.table[at];
            if moving == NONE {
                break;
            }
            let home = self.home(moving) & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = moving;
                gap = at;
            }
        }
        self.table[gap] = NONE;
    }

    fn home(&self, id: u32) -> usize {
        let leaf = &self.leaves[id as usize];
        low_size(hash(leaf.pool, leaf.object, leaf.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::Handle;

    #[test]
    fn the_index_agrees_with_a_map() {
        let pool = crate::pools::Pools::new().create(crate::PoolKind::Persistent, None);
        let mut shard = Shard::new(Arc::default());
        let mut model = std::collections::HashMap::new();
        let mut seed = 0x1234_5678_u64;
        for step in 0..20_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = Key { pool, object: seed >> 60, index: (seed >> 33) % 2000 };
            let spot = Spot::new(key);
            if seed >> 20 & 3 == 0 {
                let taken = shard.find(&spot).and_then(|id| shard.take(id, spot.bit));
                assert_eq!(taken, model.remove(&key));
            } else {
                let entry = Entry::pool(Handle::from_bits(step), 9, 0, 0, 0);
                let id = shard.reserve(&spot).unwrap();
                assert_eq!(shard.put(id, spot.bit, entry), model.insert(key, entry));
            }
            if step % 100 == 0 {
                shard.check();
            }
        }
        for (key, entry) in &model {
            assert_eq!(shard.get(&Spot::new(*key)).map(|(_, entry)| entry), Some(*entry));
        }
        for key in model.into_keys() {
            let id = shard.find(&Spot::new(key)).unwrap();
            assert!(shard.take(id, Spot::new(key).bit).is_some());
        }
        shard.check();
        assert_eq!((shard.used, shard.lru.oldest()), (0, None));
    }
}
