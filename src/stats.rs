//! Counters, by the names that zswap, zram and zcache have given them.
//!
//! What is counted at every operation lies in the shards, under the lock that is held anyway; what is counted
//! seldom is atomic.

use crate::entry::{Entry, State};
use crate::page::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of one shard. The first five are gauges: sums over its entries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) entries: u64,
    pub(crate) in_tier: u64,
    pub(crate) same_filled: u64,
    pub(crate) raw: u64,
    pub(crate) bytes: u64,
    pub(crate) stores: u64,
    pub(crate) loads: u64,
    pub(crate) misses: u64,
    pub(crate) invalidates: u64,
    pub(crate) tier_loads: u64,
    pub(crate) dense_loads: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, entry: Entry) {
        self.count(entry, |gauge, amount| *gauge += amount);
    }

    pub(crate) fn remove(&mut self, entry: Entry) {
        self.count(entry, |gauge, amount| *gauge -= amount);
    }

    fn count(&mut self, entry: Entry, change: impl Fn(&mut u64, u64)) {
        change(&mut self.entries, 1);
        match entry.state() {
            State::Pool | State::Writing => {
                change(&mut self.bytes, entry.len() as u64);
                change(&mut self.raw, u64::from(entry.is_raw()));
            }
            State::Tier => change(&mut self.in_tier, 1),
            State::Same => change(&mut self.same_filled, 1),
            State::Shared => {}
        }
    }

    pub(crate) fn sum(&mut self, other: &Self) {
        self.entries += other.entries;
        self.in_tier += other.in_tier;
        self.same_filled += other.same_filled;
        self.raw += other.raw;
        self.bytes += other.bytes;
        self.stores += other.stores;
        self.loads += other.loads;
        self.misses += other.misses;
        self.invalidates += other.invalidates;
        self.tier_loads += other.tier_loads;
        self.dense_loads += other.dense_loads;
    }

    /// Panics if a gauge differs.
    pub(crate) fn check_gauges(&self, other: &Self) {
        let gauges = |c: &Self| [c.entries, c.in_tier, c.same_filled, c.raw, c.bytes];
        assert_eq!(gauges(self), gauges(other));
    }
}

/// A counter of something rare.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of the whole store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) written_back_pages: Counter,
    pub(crate) writeback_bytes: Counter,
    pub(crate) writeback_fail: Counter,
    pub(crate) dropped_pages: Counter,
    pub(crate) recompressed_pages: Counter,
    pub(crate) pages_compacted: Counter,
    pub(crate) pool_limit_hit: Counter,
    pub(crate) reject_reclaim_fail: Counter,
    pub(crate) reject_alloc_fail: Counter,
    pub(crate) reject_meta_fail: Counter,
    pub(crate) reject_compress_fail: Counter,
    pub(crate) reject_compress_poor: Counter,
    pub(crate) decompress_fail: Counter,
    pub(crate) checksum_fail: Counter,
    pub(crate) tier_fail: Counter,
}

/// What a store holds and has done. All counts are pages, or operations on one page, unless they say bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Held in memory now: in a zpool, alone or shared, or same-filled.
    pub stored_pages: u64,
    /// Held in the tier now.
    pub tier_pages: u64,
    /// Bytes that the zpools hold now.
    pub pool_total_size: u64,
    /// Bytes of `stored_pages` before compression.
    pub orig_data_size: u64,
    /// Bytes of `stored_pages` after compression; what is shared counts once, same-filled pages nothing.
    pub compr_data_size: u64,
    /// Bytes of the store's own tables, those of the zpools and the tier included.
    pub meta_bytes: u64,
    /// Same-filled pages held now.
    pub same_filled_pages: u64,
    /// Pages held now that need no pool memory because another has the same contents.
    pub duplicate_pages: u64,
    /// Pages held now in pool memory as they are, because they compress too poorly.
    pub stored_incompressible_pages: u64,
    /// Loads served.
    pub loads: u64,
    /// Stores taken.
    pub stores: u64,
    /// Entries invalidated.
    pub invalidates: u64,
    /// Loads of keys that the store does not hold.
    pub misses: u64,
    /// Pages written back to the tier.
    pub written_back_pages: u64,
    /// Bytes written back to the tier.
    pub writeback_bytes: u64,
    /// Loads served from the tier.
    pub tier_loads: u64,
    /// Loads of pages that had been compressed anew.
    pub dense_loads: u64,
    /// Batches that the tier did not take; their pages stayed in the pool.
    pub writeback_fail: u64,
    /// Ephemeral pages dropped to make room.
    pub dropped_pages: u64,
    /// Pages that stayed in the pool for long and were compressed anew.
    pub recompressed_pages: u64,
    /// Pages that compaction gave back to the system.
    pub pages_compacted: u64,
    /// Stores that found the pool at its limit, or above the accept threshold after it was full.
    pub pool_limit_hit: u64,
    /// Stores refused: the pool is full and nothing could be taken out.
    pub reject_reclaim_fail: u64,
    /// Stores refused: the system gave the zpool no memory.
    pub reject_alloc_fail: u64,
    /// Stores refused: no memory for the entry.
    pub reject_meta_fail: u64,
    /// Stores refused: the codec failed.
    pub reject_compress_fail: u64,
    /// Stores refused: the page compresses too poorly.
    pub reject_compress_poor: u64,
    /// Loads that failed: the stored bytes did not decompress.
    pub decompress_fail: u64,
    /// Loads that failed: the stored bytes are not what was stored.
    pub checksum_fail: u64,
    /// Loads that failed: the tier gave an error.
    pub tier_fail: u64,
}

impl Stats {
    /// Takes over the counters of the shards and of the store.
    pub(crate) fn count(&mut self, counts: &Counts, counters: &Counters) {
        self.stored_pages = counts.entries - counts.in_tier;
        self.tier_pages = counts.in_tier;
        self.compr_data_size = counts.bytes;
        self.same_filled_pages = counts.same_filled;
        self.stored_incompressible_pages = counts.raw;
        self.loads = counts.loads;
        self.stores = counts.stores;
        self.invalidates = counts.invalidates;
        self.misses = counts.misses;
        self.tier_loads = counts.tier_loads;
        self.dense_loads = counts.dense_loads;
        self.written_back_pages = counters.written_back_pages.get();
        self.writeback_bytes = counters.writeback_bytes.get();
        self.writeback_fail = counters.writeback_fail.get();
        self.dropped_pages = counters.dropped_pages.get();
        self.recompressed_pages = counters.recompressed_pages.get();
        self.pages_compacted = counters.pages_compacted.get();
        self.pool_limit_hit = counters.pool_limit_hit.get();
        self.reject_reclaim_fail = counters.reject_reclaim_fail.get();
        self.reject_alloc_fail = counters.reject_alloc_fail.get();
        self.reject_meta_fail = counters.reject_meta_fail.get();
        self.reject_compress_fail = counters.reject_compress_fail.get();
        self.reject_compress_poor = counters.reject_compress_poor.get();
        self.decompress_fail = counters.decompress_fail.get();
        self.checksum_fail = counters.checksum_fail.get();
        self.tier_fail = counters.tier_fail.get();
    }

    /// Adds what the shared objects hold: `sharers` entries on `objects`, of which `tier_sharers` lie in the tier.
    pub(crate) fn count_shared(&mut self, shared: &crate::shared::Gauges) {
        self.stored_pages = self.stored_pages.saturating_sub(shared.tier_sharers);
        self.tier_pages += shared.tier_sharers;
        self.compr_data_size += shared.bytes;
        self.duplicate_pages = shared.duplicates;
        self.stored_incompressible_pages += shared.raw;
        self.orig_data_size = self.stored_pages * PAGE_SIZE as u64;
    }
}
