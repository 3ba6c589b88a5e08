//! The store's counters, entered into the segment where `ramfold run` and others read them.
//!
//! Which counter of the store is which of the run is told in one place, field by field: a field that is added to
//! [`Stats`] and goes nowhere does not compile.

use crate::segment::{Counter, Gauge};
use crate::usage::Account;
use ramfold::Stats;

/// What was entered last: counters of the segment are sums over all processes, so only growth is added.
#[derive(Debug, Default)]
pub(crate) struct Books {
    entered: Stats,
}

impl Books {
    /// Enters gauges as they are, and counters by what they grew.
    pub(crate) fn publish(&mut self, account: &Account, stats: &Stats) {
        let (now, before) = (Entries::of(stats), Entries::of(&self.entered));
        for ((counter, value), (_, entered)) in now.counters.into_iter().zip(before.counters) {
            account.segment.add(counter, value.saturating_sub(entered));
        }
        for (gauge, value) in now.gauges {
            account.segment.publish(account.slot(), gauge, value);
        }
        self.entered = *stats;
    }

    /// In a forked child: what the parent did before the fork is entered already.
    pub(crate) fn skip(&mut self, stats: &Stats) {
        self.entered = *stats;
    }
}

/// The store's counters under their names in the segment.
struct Entries {
    counters: [(Counter, u64); 22],
    gauges: [(Gauge, u64); 9],
}

impl Entries {
    fn of(stats: &Stats) -> Self {
        let Stats {
            // In [`Entries::gauges`].
            stored_pages: _,
            tier_pages: _,
            orig_data_size: _,
            compr_data_size: _,
            meta_bytes: _,
            same_filled_pages: _,
            duplicate_pages: _,
            stored_incompressible_pages: _,
            fresh_pages: _,
            // The pool is charged as it changes ([`crate::usage`]), and its huge pages are told by the store alone.
            pool_total_size: _,
            huge_pages_since: _,
            loads,
            stores,
            invalidates,
            misses,
            written_back_pages,
            writeback_bytes,
            tier_loads,
            dense_loads,
            writeback_fail,
            dropped_pages,
            recompressed_pages,
            settled_pages,
            pages_compacted,
            pool_limit_hit,
            reject_reclaim_fail,
            reject_alloc_fail,
            reject_meta_fail,
            reject_compress_fail,
            reject_compress_poor,
            decompress_fail,
            checksum_fail,
            tier_fail,
        } = *stats;
        let counters = [
            (Counter::Loads, loads),
            (Counter::Stores, stores),
            (Counter::Invalidates, invalidates),
            (Counter::Misses, misses),
            (Counter::WrittenBackPages, written_back_pages),
            (Counter::WritebackBytes, writeback_bytes),
            (Counter::TierLoads, tier_loads),
            (Counter::DenseLoads, dense_loads),
            (Counter::WritebackFail, writeback_fail),
            (Counter::DroppedPages, dropped_pages),
            (Counter::RecompressedPages, recompressed_pages),
            (Counter::SettledPages, settled_pages),
            (Counter::PagesCompacted, pages_compacted),
            (Counter::PoolLimitHit, pool_limit_hit),
            (Counter::RejectReclaimFail, reject_reclaim_fail),
            (Counter::RejectAllocFail, reject_alloc_fail),
            (Counter::RejectMetaFail, reject_meta_fail),
            (Counter::RejectCompressFail, reject_compress_fail),
            (Counter::RejectCompressPoor, reject_compress_poor),
            (Counter::DecompressFail, decompress_fail),
            (Counter::ChecksumFail, checksum_fail),
            (Counter::TierFail, tier_fail),
        ];
        Self { counters, gauges: Self::gauges(stats) }
    }

    fn gauges(stats: &Stats) -> [(Gauge, u64); 9] {
        [
            (Gauge::StoredPages, stats.stored_pages),
            (Gauge::TierPages, stats.tier_pages),
            (Gauge::OrigDataSize, stats.orig_data_size),
            (Gauge::ComprDataSize, stats.compr_data_size),
            (Gauge::MetaBytes, stats.meta_bytes),
            (Gauge::SameFilledPages, stats.same_filled_pages),
            (Gauge::DuplicatePages, stats.duplicate_pages),
            (Gauge::StoredIncompressiblePages, stats.stored_incompressible_pages),
            (Gauge::FreshPages, stats.fresh_pages),
        ]
    }
}
