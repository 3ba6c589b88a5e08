//! The index: from a key to its entry, and from a page's contents to where such a page may be.
//!
//! 64 shards, chosen by a hash of pool, object and index / 64, so that neighbours share a shard ([`shard`]) and a leaf
//! ([`leaf`]). One mutex protects all of a shard: its entries, their LRU ([`lru`]) and its counters. Beside them lies a
//! table of hints for duplicates ([`dedup`]), with locks of its own.

mod dedup;
mod leaf;
mod lru;
mod shard;
mod spot;

pub(crate) use dedup::Dedup;
pub(crate) use leaf::{LEAF_PAGES, Leaf, MAX_ROOM};
pub(crate) use shard::Shard;
pub(crate) use spot::{Place, Spot};

use crate::prefetch::prefetch_bytes;
use shard::Totals;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// Shards of an index.
pub(crate) const SHARDS: usize = 1 << spot::SHARD_BITS;

/// All shards.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[Aligned]>,
    totals: Arc<Totals>,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Aligned(Mutex<Shard>);

impl Index {
    pub(crate) fn new() -> Self {
        let totals = Arc::<Totals>::default();
        let shards = (0..SHARDS).map(|_| Aligned(Mutex::new(Shard::new(totals.clone())))).collect();
        Self { shards, totals }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        crate::lock(&self.shards[shard].0)
    }

    /// Tells that the shard will be locked soon.
    pub(crate) fn prefetch(&self, shard: usize) {
        let shard = &self.shards[shard];
        prefetch_bytes(std::ptr::from_ref(shard).cast(), size_of_val(shard));
    }

    /// The stamp that the next leaf at a tail will have.
    pub(crate) fn now(&self) -> u32 {
        self.totals.tick.load(Relaxed)
    }

    /// Fresh pages.
    pub(crate) fn fresh(&self) -> u64 {
        self.totals.fresh.load(Relaxed)
    }

    /// Leaves in use.
    pub(crate) fn leaves(&self) -> usize {
        self.totals.leaves.load(Relaxed)
    }
}
