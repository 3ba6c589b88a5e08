//! Compaction: keeping the zpools dense.
//!
//! Freed slots wait for objects of their size, so a zpool that is in use becomes sparse. The store looks now and then
//! when it publishes a page, and has objects moved together if more than a 32nd is lost. It does so in small bites, and
//! only in threads that store: a load waits for memory, a store makes room. The price is a copy of what is moved, some
//! percent of the time of a store while pages come and go at random; and a store that is only ever invalidated stays
//! sparse until something is stored.

use super::Store;
use crate::index::{SHARDS, Shard};
use crate::page::PAGE_SIZE;

/// Stores in one shard from one look to the next.
const LOOK_EVERY: u64 = 256;
/// Most pages given back at a time.
const BITE: usize = 64;
/// The share of the objects' bytes that may be lost, and bytes that may be in any case: half a page a size class.
const LOST_SHARE: u64 = 32;
const LOST_BYTES: u64 = 64 * PAGE_SIZE as u64;

impl Store {
    /// Whether it is time to look, after a store in this shard.
    pub(super) fn should_look(shard: &Shard) -> bool {
        shard.counts.stores.is_multiple_of(LOOK_EVERY)
    }

    /// Moves some objects together if the zpools are sparse. No lock is held.
    pub(super) fn keep_dense(&self) {
        let objects = self.object_bytes();
        let lost = self.pool_bytes().saturating_sub(objects);
        if lost > objects / LOST_SHARE + LOST_BYTES {
            self.count_compacted(self.objects.compact(BITE));
        }
    }

    /// Has the zpools move objects together. Returns the pages given back to the system.
    pub fn compact(&self) -> usize {
        self.count_compacted(self.objects.compact(usize::MAX))
    }

    /// Bytes of all objects in the zpools.
    pub(super) fn object_bytes(&self) -> u64 {
        let alone: u64 = (0..SHARDS).map(|number| self.index.lock(number).counts.bytes).sum();
        alone + self.objects.shared.gauges().bytes
    }

    fn count_compacted(&self, pages: usize) -> usize {
        self.counters.pages_compacted.add(pages as u64);
        pages
    }
}
