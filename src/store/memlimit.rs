//! A pool's own limit: its least recently used pages make room for its new ones.
//!
//! It is writeback over the leaves of one pool, oldest first. An ephemeral pool drops its pages in the thread that
//! stores, which waits for nobody. A persistent one is written back there only if the owner of the store wants
//! that; else it refuses the page, and the next [`Store::shrink`] makes room. The price: the leaves have to be looked
//! for among all, so a pool that lives at its limit should have an accept threshold under it. Pages of such a pool are
//! shared with no other page: what a pool takes is then known, whoever else has the same bytes.

use super::turns::Turn;
use super::writeback::Run;
use super::{Store, StoreError};
use crate::entry::MAX_BATCHES;
use crate::index::SHARDS;
use crate::page::PAGE_SIZE;
use crate::pools::{PoolId, PoolKind};

impl Store {
    /// Bytes that the pages of a pool take in the zpools, if it was created with a memlimit; 0 of others.
    #[must_use]
    pub fn bytes_of_pool(&self, pool: PoolId) -> u64 {
        self.pools.usage(pool).0
    }

    /// Sets the memlimit of a pool. What is over it goes by the LRU: ephemeral pages at once, persistent ones with the
    /// next [`Store::shrink`].
    ///
    /// # Panics
    /// If the pool was created without a memlimit.
    pub fn set_memlimit(&self, pool: PoolId, bytes: u64) {
        assert!(pool.is_limited(), "the pool was created without a memlimit");
        self.pools.set_memlimit(pool, bytes);
        if self.pools.usage(pool).0 <= bytes {
            return;
        }
        match pool.kind() {
            PoolKind::Ephemeral => self.shrink_pool(pool, 0, &mut Run::new(self)),
            PoolKind::Persistent => self.pools.set_crowded(pool),
        }
    }

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
        let can_fit = size <= self.pools.usage(pool).1;
        if can_fit && (pool.kind() == PoolKind::Ephemeral || self.knobs.shrink_inline) {
            self.shrink_pool(pool, size, &mut Run::new(self));
        } else if can_fit {
            self.pools.set_crowded(pool);
        }
        if fits() { Ok(()) } else { Err(StoreError::Full) }
    }

    /// Brings the pools under their limits that have refused pages for want of a thread to write back.
    pub(super) fn shrink_crowded(&self, run: &mut Run) {
        for pool in self.pools.take_crowded() {
            self.shrink_pool(pool, PAGE_SIZE as u64, run);
        }
    }

    /// Makes room for `size` bytes in the pool, and as much more as the accept threshold says.
    fn shrink_pool(&self, pool: PoolId, size: u64, run: &mut Run) {
        let excess = || {
            let (used, limit) = self.pools.usage(pool);
            used.saturating_sub(self.knobs.accept_bytes(limit).min(limit.saturating_sub(size)))
        };
        // Some may be on their way out in other threads: what those have under way is waited for, and no more.
        for _ in 0..=MAX_BATCHES {
            let (others, own) = (self.turns.ended(), run.batches);
            self.cross_pool(pool, &excess, run);
            let is_done = pool.kind() == PoolKind::Ephemeral || excess() == 0;
            if is_done || !self.turns.wait_past(others + run.batches - own) {
                return;
            }
        }
    }

    /// Takes pages out of the pool, oldest first, until there is no excess.
    fn cross_pool(&self, pool: PoolId, excess: &impl Fn() -> u64, run: &mut Run) {
        let begin = |run: &Run| match pool.kind() {
            PoolKind::Ephemeral => self.turns.begin(0),
            PoolKind::Persistent => self.turns.begin(run.wanted(self)),
        };
        let leaves = self.leaves_of(pool);
        let mut turn = begin(run);
        // Twice: the first time round takes referenced bits away.
        for &(_, number, leaf) in leaves.iter().chain(&leaves) {
            let mut hand = 0;
            while turn.takes(pool.kind()) {
                self.cross_leaf_of(pool, (number, leaf), &mut hand, run, &mut turn, excess());
                if !turn.batch.is_full(excess()) {
                    break;
                }
                self.write_back(run, turn);
                if excess() == 0 {
                    return;
                }
                turn = begin(run);
            }
        }
        self.write_back(run, turn);
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
        (number, leaf): (usize, u32),
        hand: &mut u32,
        run: &mut Run,
        turn: &mut Turn,
        excess: u64,
    ) {
        let mut shard = self.index.lock(number);
        while !turn.batch.is_full(excess) && shard.leaf(leaf).pool == pool && shard.leaf(leaf).has_evictable()
        {
            match shard.next_victim_in(leaf, hand) {
                Some(bit) => self.evict(&mut shard, leaf, bit, run, turn),
                None => break,
            }
        }
    }
}
