//! Invalidating and renaming: entries that go, or go on under another key.
//!
//! Whatever an entry holds is given back after the shard's lock is let go, so that a tier's clean-up never
//! makes a load wait.

use super::Store;
use crate::entry::Entry;
use crate::index::{LEAF_PAGES, Leaf, MAX_ROOM, SHARDS, Shard, Spot};
use crate::pools::{Key, PoolId};
use std::ops::Range;

/// From so many leaves on, a range asks how many leaves there are at all.
const LONG_RANGE: u64 = 1024;

/// Up to a leaf of entries on their way out, with their bits.
struct Taken {
    entries: [(u32, Entry); MAX_ROOM],
    len: usize,
}

impl Taken {
    /// Takes the entries of `mask` out of the leaf, highest first, which moves no others.
    fn from(shard: &mut Shard, leaf: u32, mask: u64) -> Self {
        let mut taken = Self { entries: [(0, Entry::same(0)); MAX_ROOM], len: 0 };
        let mut rest = mask & shard.leaf(leaf).occupied();
        while rest != 0 {
            let bit = rest.ilog2();
            rest ^= 1 << bit;
            if let Some(entry) = shard.take(leaf, bit) {
                taken.entries[taken.len] = (bit, entry);
                taken.len += 1;
            }
        }
        taken
    }

    fn iter(&self) -> impl Iterator<Item = (u32, Entry)> {
        self.entries[..self.len].iter().copied()
    }
}

impl Store {
    /// Forgets the page stored under `key`. False if there was none.
    pub fn invalidate(&self, key: Key) -> bool {
        self.remove(&Spot::new(key), true)
    }

    pub(super) fn remove(&self, spot: &Spot, count: bool) -> bool {
        let mut shard = self.index.lock(spot.shard());
        let Some(entry) = shard.find(spot).and_then(|leaf| shard.take(leaf, spot.bit)) else { return false };
        self.charge(spot.key.pool, Entry::same(0), Some(entry));
        shard.counts.invalidates += u64::from(count);
        drop(shard);
        self.objects.release(entry);
        true
    }

    /// Forgets the pages `range` of an object. Returns how many there were.
    pub fn invalidate_range(&self, pool: PoolId, object: u64, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let chunks = range.start / LEAF_PAGES..(range.end - 1) / LEAF_PAGES + 1;
        if chunks.end - chunks.start > LONG_RANGE && chunks.end - chunks.start > self.index.leaves() as u64 {
            let hit =
                |leaf: &Leaf| leaf.pool == pool && leaf.object == object && chunks.contains(&leaf.chunk);
            return self.invalidate_leaves(hit, |chunk| mask(chunk, &range));
        }
        let mut count = 0;
        for chunk in chunks {
            let spot = Spot::new(Key { pool, object, index: chunk * LEAF_PAGES });
            let mut shard = self.index.lock(spot.shard());
            let Some(leaf) = shard.find(&spot) else { continue };
            let taken = self.take(&mut shard, leaf, mask(chunk, &range));
            drop(shard);
            count += self.release_all(&taken);
        }
        count
    }

    /// Forgets all pages of an object. Returns how many there were. Looks at the head of every leaf.
    pub fn invalidate_object(&self, pool: PoolId, object: u64) -> u64 {
        self.invalidate_leaves(|leaf| leaf.pool == pool && leaf.object == object, |_| u64::MAX)
    }

    /// Forgets the entries that `mask` gives for the chunk, in all leaves that `hit` accepts.
    pub(super) fn invalidate_leaves(&self, hit: impl Fn(&Leaf) -> bool, mask: impl Fn(u64) -> u64) -> u64 {
        let mut count = 0;
        for number in 0..SHARDS {
            let mut from = 0;
            loop {
                let mut shard = self.index.lock(number);
                let Some(leaf) = shard.next_leaf(from, &hit) else { break };
                let mask = mask(shard.leaf(leaf).chunk);
                let taken = self.take(&mut shard, leaf, mask);
                drop(shard);
                count += self.release_all(&taken);
                from = leaf + 1;
            }
        }
        count
    }

    /// The pages `from .. from + count` of an object go on as `to .. to + count` (`mremap`). No page may be
    /// stored in the target; the two ranges do not overlap; the caller keeps other threads out of both.
    ///
    /// # Panics
    /// If there is no memory for the entries.
    pub fn rename_range(&self, pool: PoolId, object: u64, from: u64, to: u64, count: u64) {
        if count == 0 {
            return;
        }
        let range = from..from + count;
        for chunk in from / LEAF_PAGES..(range.end - 1) / LEAF_PAGES + 1 {
            let spot = Spot::new(Key { pool, object, index: chunk * LEAF_PAGES });
            let mut shard = self.index.lock(spot.shard());
            let Some(leaf) = shard.find(&spot) else { continue };
            let taken = Taken::from(&mut shard, leaf, mask(chunk, &range));
            drop(shard);
            for (bit, entry) in taken.iter() {
                let index = chunk * LEAF_PAGES + u64::from(bit) - from + to;
                self.put_renamed(&Spot::new(Key { pool, object, index }), entry);
            }
        }
    }

    fn put_renamed(&self, spot: &Spot, entry: Entry) {
        let mut shard = self.index.lock(spot.shard());
        let leaf = shard.reserve(spot).expect("no memory for the entries that rename_range moves");
        // Writeback may have marked the entry under its old key; it must not find it here.
        let old = shard.publish(leaf, spot.bit, entry.settled());
        debug_assert!(old.is_none(), "the target of rename_range is empty");
        drop(shard);
        if let Some(old) = old {
            self.charge(spot.key.pool, Entry::same(0), Some(old));
            self.objects.release(old);
        }
    }

    fn take(&self, shard: &mut Shard, leaf: u32, mask: u64) -> Taken {
        let pool = shard.leaf(leaf).pool;
        let taken = Taken::from(shard, leaf, mask);
        taken.iter().for_each(|(_, entry)| self.charge(pool, Entry::same(0), Some(entry)));
        shard.counts.invalidates += taken.len as u64;
        taken
    }

    fn release_all(&self, taken: &Taken) -> u64 {
        taken.iter().for_each(|(_, entry)| self.objects.release(entry));
        taken.len as u64
    }
}

/// The bits of the pages of `range` that lie in the chunk.
fn mask(chunk: u64, range: &Range<u64>) -> u64 {
    let first = chunk * LEAF_PAGES;
    let from = range.start.saturating_sub(first).min(LEAF_PAGES);
    let to = range.end.saturating_sub(first).min(LEAF_PAGES);
    let below = |bit: u64| if bit == LEAF_PAGES { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::ones;

    #[test]
    fn a_mask_has_the_bits_of_the_range() {
        for (range, chunk) in [(0..64, 0), (1..2, 0), (60..70, 0), (60..70, 1), (0..256, 2), (64..64, 1)] {
            let expected: Vec<u64> = (chunk * 64..chunk * 64 + 64).filter(|i| range.contains(i)).collect();
            let found: Vec<u64> = ones(mask(chunk, &range)).map(|bit| chunk * 64 + u64::from(bit)).collect();
            assert_eq!(found, expected);
        }
    }
}
