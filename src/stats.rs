//! Counters, by the names that zswap, zram and zcache have given them.
//!
//! What is counted at every operation lies in the shards, under the lock that is held anyway; what is counted
//! seldom is atomic.

use crate::entry::{Entry, State};
use crate::page::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of one shard. The first six are gauges: sums over its entries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) entries: u64,
    pub(crate) in_tier: u64,
    pub(crate) same_filled: u64,
    pub(crate) huge: u64,
    pub(crate) fresh: u64,
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
                change(&mut self.huge, u64::from(entry.is_huge()));
                change(&mut self.fresh, u64::from(entry.is_fresh()));
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
        self.huge += other.huge;
        self.fresh += other.fresh;
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
        let gauges = |c: &Self| [c.entries, c.in_tier, c.same_filled, c.huge, c.fresh, c.bytes];
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
    pub(crate) settled_pages: Counter,
    pub(crate) pages_compacted: Counter,
    pub(crate) huge_pages_since: Counter,
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

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What a store holds and has done. All counts are pages, or operations on one page, unless they say bytes.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            /// All counters with their names.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

stats! {
    /// Held in memory now: in a zpool, alone or shared, or same-filled.
    stored_pages,
    /// Held in the tiers now.
    tier_pages,
    /// Bytes that the zpools hold now.
    pool_total_size,
    /// Bytes of `stored_pages` before compression.
    orig_data_size,
    /// Bytes of `stored_pages` after compression; what is shared counts once, same-filled pages nothing.
    compr_data_size,
    /// Bytes of the store's own tables, those of the zpools and the tiers included.
    meta_bytes,
    /// Same-filled pages held now.
    same_filled_pages,
    /// Pages held now that need no pool memory because another has the same contents.
    duplicate_pages,
    /// Pages held now in pool memory as they are, because they compress too poorly.
    stored_incompressible_pages,
    /// Pages held now in pool memory as they are, because they are to be compressed later.
    fresh_pages,
    /// Loads served.
    loads,
    /// Stores taken.
    stores,
    /// Entries invalidated.
    invalidates,
    /// Loads of keys that the store does not hold.
    misses,
    /// Pages written back to the tiers.
    written_back_pages,
    /// Bytes written back to the tiers.
    writeback_bytes,
    /// Loads served from a tier.
    tier_loads,
    /// Loads of pages that had been compressed anew.
    dense_loads,
    /// Batches that no tier took; their pages stayed in the pool.
    writeback_fail,
    /// Ephemeral pages dropped to make room.
    dropped_pages,
    /// Pages that stayed in the pool for long and were compressed anew.
    recompressed_pages,
    /// Pages that were stored as they are first and compressed later.
    settled_pages,
    /// Pages that compaction gave back to the system.
    pages_compacted,
    /// Pages stored as they are so far, because they compress too poorly: zram's name.
    huge_pages_since,
    /// Stores that found the pool at its limit, or above the accept threshold after it was full.
    pool_limit_hit,
    /// Stores refused: the pool is full and nothing could be taken out.
    reject_reclaim_fail,
    /// Stores refused: the system gave the zpool no memory.
    reject_alloc_fail,
    /// Stores refused: no memory for the entry.
    reject_meta_fail,
    /// Stores refused: the codec failed.
    reject_compress_fail,
    /// Stores refused: the page compresses too poorly.
    reject_compress_poor,
    /// Loads that failed: the stored bytes did not decompress.
    decompress_fail,
    /// Loads that failed: the stored bytes are not what was stored.
    checksum_fail,
    /// Loads that failed: a tier gave an error.
    tier_fail,
}

impl Stats {
    /// Takes over the counters of the shards and of the store.
    pub(crate) fn count(&mut self, counts: &Counts, counters: &Counters) {
        self.stored_pages = counts.entries - counts.in_tier;
        self.tier_pages = counts.in_tier;
        self.compr_data_size = counts.bytes;
        self.same_filled_pages = counts.same_filled;
        self.stored_incompressible_pages = counts.huge;
        self.fresh_pages = counts.fresh;
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
        self.settled_pages = counters.settled_pages.get();
        self.pages_compacted = counters.pages_compacted.get();
        self.huge_pages_since = counters.huge_pages_since.get();
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
    pub(crate) fn count_shared(&mut self, shared: &crate::objects::Gauges) {
        self.stored_pages = self.stored_pages.saturating_sub(shared.tier_sharers);
        self.tier_pages += shared.tier_sharers;
        self.compr_data_size += shared.bytes;
        self.duplicate_pages = shared.duplicates;
        self.stored_incompressible_pages += shared.raw;
        self.orig_data_size = self.stored_pages * PAGE_SIZE as u64;
    }
}
