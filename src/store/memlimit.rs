//! A pool's own limit: its least recently used pages make room for its new ones.
//!
//! It is writeback over the leaves of one pool, oldest first. The price: they have to be looked for among all leaves, so
//! a pool that lives at its limit should have an accept threshold under it.

use super::batch::Batch;
use super::writeback::Run;
use super::{Store, StoreError};
use crate::index::SHARDS;
use crate::pools::PoolId;

impl Store {
    /// Makes room for `size` bytes under the limit of the pool, by its own least recently used pages.
    pub(super) fn keep_memlimit(&self, pool: PoolId, size: u64) -> Result<(), StoreError> {
        let fits = || {
            let (used, limit) = self.pools.usage(pool);
            used.saturating_add(size) <= limit
        };
        if fits() {
            return Ok(());
        }
        self.counters.pool_limit_hit.add(1);
        if size <= self.pools.usage(pool).1 {
            self.shrink_pool(pool, size);
        }
        if fits() { Ok(()) } else { Err(StoreError::Full) }
    }

    fn shrink_pool(&self, pool: PoolId, size: u64) {
        let batch = &mut *crate::lock(&self.shrinking);
        let mut run = Run::new(self);
        if !run.takes(pool.kind()) {
            return;
        }
        let excess = || {
            let (used, limit) = self.pools.usage(pool);
            used.saturating_sub(self.knobs.accept_bytes(limit).min(limit - size))
        };
        let leaves = self.leaves_of(pool);
        batch.clear();
        // Twice: the first time round takes referenced bits away.
        for &(_, number, leaf) in leaves.iter().chain(&leaves) {
            self.cross_leaf_of(pool, number, leaf, &mut run, batch, excess());
            if batch.is_full(excess()) {
                self.write_back(&mut run, batch);
                batch.clear();
            }
            if excess() == 0 || !run.takes(pool.kind()) {
                return;
            }
        }
        self.write_back(&mut run, batch);
    }

    /// The leaves of a pool that are in the LRU, oldest first: age, shard and number.
    fn leaves_of(&self, pool: PoolId) -> Vec<(u32, usize, u32)> {
        let (mut leaves, now) = (Vec::new(), self.index.now());
        for number in 0..SHARDS {
            let shard = self.index.lock(number);
            let mut from = 0;
            while let Some(id) = shard.next_leaf(from, |leaf| leaf.pool == pool && leaf.has_evictable()) {
                leaves.push((now.wrapping_sub(shard.leaf(id).links.stamp()), number, id));
                from = id + 1;
            }
        }
        leaves.sort_unstable_by_key(|&(age, ..)| std::cmp::Reverse(age));
        leaves
    }

    fn cross_leaf_of(
        &self,
        pool: PoolId,
        number: usize,
        leaf: u32,
        run: &mut Run,
        batch: &mut Batch,
        excess: u64,
    ) {
        let mut shard = self.index.lock(number);
        let mut hand = 0;
        while !batch.is_full(excess) && shard.leaf(leaf).pool == pool && shard.leaf(leaf).has_evictable() {
            match shard.next_victim_in(leaf, &mut hand) {
                Some(bit) => self.evict(&mut shard, leaf, bit, run, batch),
                None => break,
            }
        }
    }
}
