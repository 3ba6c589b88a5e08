//! Writeback: taking the least recently used pages out of a pool that is full.
//!
//! Seed of the rule: a pool that lets one page go for each new one, or refuses new pages while it holds old
//! cold ones, is an LRU upside down. So [`Store::shrink`] goes on, in batches, until the pool is under the
//! accept threshold.
//!
//! A batch is collected under the shards' locks, one after the other: the stored bytes are copied and the entry
//! is marked `Writing`, and goes on serving loads. It is written to the tier with no shard locked. Then, entry
//! by entry, the slot takes the place of the object if the entry still is the marked one; if the page was
//! stored anew, invalidated, renamed or shared meanwhile, the slot is discarded. A batch that the tier does not
//! take changes nothing. Ephemeral pages are not written: they are dropped.

use super::Store;
use super::batch::{Batch, Item, Owner};
use crate::entry::{Entry, State};
use crate::index::{SHARDS, Shard};
use crate::objects::Visit;
use crate::page::PAGE_SIZE;
use crate::pools::PoolKind;
use crate::tier::WriteError;
use std::sync::atomic::Ordering::Relaxed;

/// What shrinking leaves free in any case: the largest unit in which a zpool grows.
const ROOM: u64 = 16 * PAGE_SIZE as u64;
/// Freed bytes that the zpools may keep in holes before they are asked to compact.
const HOLES: u64 = 64 << 10;

/// What [`Store::shrink`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrunk {
    /// Pages written back to the tier.
    pub written_back: u64,
    /// Ephemeral pages dropped.
    pub dropped: u64,
    /// Bytes by which the pool is smaller than before; 0 if other threads have filled it again.
    pub freed_bytes: u64,
    /// Why it stopped.
    pub stop: Stop,
}

/// Why shrinking stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The pool is under the accept threshold.
    Done,
    /// The tier is full.
    TierFull,
    /// The tier could not be written.
    TierError,
    /// Nothing is left that could leave the pool.
    NothingToEvict,
}

/// One call of shrink.
#[derive(Debug)]
pub(super) struct Run {
    written_back: u64,
    dropped: u64,
    /// Why persistent pages are not written (any more).
    not_writing: Option<Stop>,
    /// A leaf with this stamp or a later one has been looked at in this round.
    round_end: u32,
    /// `written_back + dropped`, and what was collected, at the start of the round.
    found: u64,
    found_at_start: u64,
    idle_rounds: u32,
    /// Bytes freed that the pool has not become smaller by.
    holes: u64,
}

impl Run {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            written_back: 0,
            dropped: 0,
            not_writing: store.objects.tier.is_none().then_some(Stop::NothingToEvict),
            round_end: store.index.now(),
            found: 0,
            found_at_start: 0,
            idle_rounds: 0,
            holes: 0,
        }
    }

    pub(super) fn takes(&self, kind: PoolKind) -> bool {
        kind == PoolKind::Ephemeral || self.not_writing.is_none()
    }

    /// To be told the oldest stamp of all. False when three rounds have found nothing: one took the referenced bits
    /// of the entries away, one those of the shared objects, and one has seen that this did not help.
    fn goes_on(&mut self, oldest: u32, now: u32) -> bool {
        if oldest.wrapping_sub(self.round_end) > now.wrapping_sub(self.round_end) {
            return true;
        }
        self.idle_rounds = if self.found > self.found_at_start { 0 } else { self.idle_rounds + 1 };
        self.found_at_start = self.found;
        self.round_end = now;
        self.idle_rounds < 3
    }
}

impl Store {
    /// Whether the pool is over its limit, or was and is not yet under the accept threshold. Cheap.
    #[must_use]
    pub fn needs_shrink(&self) -> bool {
        let held = self.objects.pool_bytes();
        held > self.knobs.max_pool_bytes.load(Relaxed)
            || self.was_full.load(Relaxed) && held > self.shrink_target()
    }

    /// Writes back (persistent) or drops (ephemeral) least recently used pages, in batches, until the pool is
    /// under the accept threshold.
    pub fn shrink(&self) -> Shrunk {
        let batch = &mut *crate::lock(&self.shrinking);
        let before = self.objects.pool_bytes();
        let mut run = Run::new(self);
        let stop = loop {
            let held = self.objects.pool_bytes();
            let excess = held.saturating_sub(self.shrink_target());
            if excess == 0 {
                self.was_full.store(false, Relaxed);
                break Stop::Done;
            }
            let more = self.collect(&mut run, batch, excess);
            let freed = self.write_back(&mut run, batch);
            self.close_holes(&mut run, freed, held, more);
            if !more && self.objects.pool_bytes() > self.shrink_target() {
                break run.not_writing.unwrap_or(Stop::NothingToEvict);
            }
        };
        let freed_bytes = before.saturating_sub(self.objects.pool_bytes());
        Shrunk { written_back: run.written_back, dropped: run.dropped, freed_bytes, stop }
    }

    /// Bytes to which a full pool is brought down.
    pub(super) fn shrink_target(&self) -> u64 {
        let limit = self.knobs.max_pool_bytes.load(Relaxed);
        self.knobs.accept_bytes(limit).min(limit.saturating_sub(ROOM))
    }

    /// Fills the batch with the least recently used pages of all shards. False if it found no more.
    fn collect(&self, run: &mut Run, batch: &mut Batch, excess: u64) -> bool {
        batch.clear();
        if run.not_writing.is_some() && !self.pools.any_ephemeral() {
            return false;
        }
        let mut heads: [Option<u32>; SHARDS] =
            std::array::from_fn(|number| self.index.lock(number).oldest_stamp());
        while !batch.is_full(excess) {
            let now = self.index.now();
            let Some((number, stamp)) = oldest(&heads, now) else { return false };
            if !run.goes_on(stamp, now) {
                return false;
            }
            let mut shard = self.index.lock(number);
            if shard.oldest_stamp() == Some(stamp) {
                self.cross_oldest_leaf(&mut shard, run, batch, excess);
            }
            heads[number] = shard.oldest_stamp();
        }
        true
    }

    /// Moves the hand through the oldest leaf of a shard, until the batch is full.
    fn cross_oldest_leaf(&self, shard: &mut Shard, run: &mut Run, batch: &mut Batch, excess: u64) {
        let Some(leaf) = shard.lru.oldest() else { return };
        if !run.takes(shard.leaf(leaf).pool.kind()) {
            return shard.rotate(leaf);
        }
        while shard.lru.oldest() == Some(leaf) {
            if batch.is_full(excess) {
                return;
            }
            match shard.next_victim() {
                Some((_, bit)) => self.evict(shard, leaf, bit, run, batch),
                None => return shard.rotate(leaf),
            }
        }
    }

    /// Takes one victim: drops it, or copies it to the batch.
    pub(super) fn evict(&self, shard: &mut Shard, leaf: u32, bit: u32, run: &mut Run, batch: &mut Batch) {
        let key = shard.leaf(leaf).key(bit);
        let Some(entry) = shard.leaf(leaf).get(bit) else { return };
        if key.pool.kind() == PoolKind::Ephemeral {
            shard.take(leaf, bit);
            self.charge(key.pool, Entry::same(0), Some(entry));
            batch.dropped_bytes += if entry.in_pool() { entry.len() as u64 } else { 0 };
            self.objects.release(entry);
            self.counters.dropped_pages.add(1);
            run.dropped += 1;
            run.found += 1;
            return;
        }
        match entry.state() {
            State::Pool => {
                self.copy(entry, batch);
                batch.items.push(Item { owner: Owner::Entry(key), entry: entry.writing() });
                shard.put(leaf, bit, entry.writing());
                run.found += 1;
            }
            State::Shared => {
                match self.objects.shared.visit(entry.shared_id(), |object| self.copy(object, batch)) {
                    Visit::Taken(object) => {
                        batch.items.push(Item { owner: Owner::Shared(entry.shared_id()), entry: object });
                        run.found += 1;
                    }
                    Visit::Gone => shard.leave_lru(leaf, bit),
                    Visit::Pass => {}
                }
            }
            State::Writing | State::Tier | State::Same => {}
        }
    }

    fn copy(&self, object: Entry, batch: &mut Batch) {
        self.objects.read(object, &mut |bytes| batch.bytes.extend_from_slice(bytes));
    }

    /// Writes the batch to the tier. Returns the bytes that it and the dropped pages have freed.
    pub(super) fn write_back(&self, run: &mut Run, batch: &mut Batch) -> u64 {
        let mut freed = batch.dropped_bytes;
        let (false, Some(tier)) = (batch.items.is_empty(), &self.objects.tier) else { return freed };
        match tier.write(&batch.records()) {
            Ok(slots) => {
                assert_eq!(slots.len(), batch.items.len(), "a tier gives a slot for each record");
                for (item, slot) in batch.items.iter().zip(slots) {
                    if self.commit(item, item.entry.in_tier(slot)) {
                        freed += item.entry.len() as u64;
                        run.written_back += 1;
                        self.counters.written_back_pages.add(1);
                        self.counters.writeback_bytes.add(item.entry.len() as u64);
                    } else {
                        tier.discard(slot);
                    }
                }
            }
            Err(error) => {
                self.counters.writeback_fail.add(1);
                let full = matches!(error, WriteError::Full);
                run.not_writing = Some(if full { Stop::TierFull } else { Stop::TierError });
                batch.items.iter().for_each(|item| {
                    self.replace(item, item.entry.settled());
                });
            }
        }
        freed
    }

    /// Commit point of writeback: from here on the page is in the tier.
    fn commit(&self, item: &Item, new: Entry) -> bool {
        let committed = self.replace(item, new);
        if committed {
            self.objects.release(item.entry);
        }
        committed
    }

    /// Puts `new` in the place of the marked entry, if that is still there.
    fn replace(&self, item: &Item, new: Entry) -> bool {
        match item.owner {
            Owner::Shared(id) => self.objects.shared.replace(id, item.entry, new),
            Owner::Entry(key) => self.exchange(key, item.entry, new, |_, _, _| ()),
        }
    }

    /// Compacts when much of what was freed is still held as holes, or, when nothing else is left to do, if an
    /// eighth of what is held is not needed for what is stored.
    fn close_holes(&self, run: &mut Run, freed: u64, held: u64, more: bool) {
        let now = self.objects.pool_bytes();
        run.holes += freed.saturating_sub(held.saturating_sub(now));
        if run.holes > HOLES.max(held / 32) || !more && now > self.object_bytes() / 8 * 9 {
            self.compact();
            run.holes = 0;
        }
    }
}

/// The shard whose head is the oldest, with its stamp.
fn oldest(heads: &[Option<u32>; SHARDS], now: u32) -> Option<(usize, u32)> {
    let stamped = heads.iter().enumerate().filter_map(|(number, head)| head.map(|stamp| (number, stamp)));
    stamped.max_by_key(|&(_, stamp)| now.wrapping_sub(stamp))
}
