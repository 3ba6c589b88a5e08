//! What can be asked of a store: how much it holds, and whether it is whole. Nothing here changes it.

use super::Store;
use crate::entry::State;
use crate::index::{SHARDS, Spot};
use crate::pools::Key;
use crate::stats::{Counts, Stats};

impl Store {
    /// Whether the store holds a page under `key`, in memory or in the tier.
    #[must_use]
    pub fn contains(&self, key: Key) -> bool {
        let spot = Spot::new(key);
        self.index.lock(spot.shard()).get(&spot).is_some()
    }

    /// Which of the 64 pages from `index / 64 * 64` on the store holds, in memory or in the tier: the lowest bit tells
    /// of the first.
    #[must_use]
    pub fn stored_near(&self, key: Key) -> u64 {
        let spot = Spot::new(Key { index: key.index & !63, ..key });
        let shard = self.index.lock(spot.shard());
        shard.find(&spot).map_or(0, |leaf| shard.leaf(leaf).occupied())
    }

    /// Bytes that the page under `key` takes in the zpool or the tier, with all that it may share: 0 if it is kept as
    /// one word, or not at all.
    #[must_use]
    pub fn stored_len(&self, key: Key) -> usize {
        let spot = Spot::new(key);
        let shard = self.index.lock(spot.shard());
        match shard.get(&spot) {
            Some((_, entry)) if entry.state() == State::Shared => {
                self.objects.shared.read(entry.shared_id(), |object| object.len())
            }
            Some((_, entry)) if entry.state() != State::Same => entry.len(),
            _ => 0,
        }
    }

    /// Bytes that the zpools hold now: what `max_pool_bytes` limits. A few loads from memory.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.objects.pool_bytes()
    }

    /// Bytes of the tables of the store, its zpools and its tier.
    #[must_use]
    pub fn meta_bytes(&self) -> u64 {
        let index: usize = (0..SHARDS).map(|number| self.index.lock(number).meta_bytes()).sum();
        (index + self.dedup.meta_bytes() + self.objects.meta_bytes()) as u64
    }

    /// All counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut counts = Counts::default();
        (0..SHARDS).for_each(|number| counts.sum(&self.index.lock(number).counts));
        let mut stats =
            Stats { pool_total_size: self.pool_bytes(), meta_bytes: self.meta_bytes(), ..Stats::default() };
        stats.count(&counts, &self.counters);
        stats.count_shared(&self.objects.shared.gauges());
        stats
    }

    /// Whether nothing is on its way to a tier. To be asked by who forks, when no other thread uses the store: then the
    /// child finds no batch half way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.turns.is_quiet()
    }

    /// Checks every invariant that can be checked, at the price of a look at every entry. No other thread may
    /// use the store meanwhile.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let mut sharers = 0;
        for number in 0..SHARDS {
            let shard = self.index.lock(number);
            shard.check();
            let mut from = 0;
            while let Some(id) = shard.next_leaf(from, |_| true) {
                sharers += shard.leaf(id).iter().filter(|(_, entry)| entry.state() == State::Shared).count();
                from = id + 1;
            }
        }
        assert_eq!(self.objects.shared.sharers(), sharers as u64, "every sharer is an entry");
    }
}
