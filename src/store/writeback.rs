//! Writeback: taking the least recently used pages out of a pool that is full.
//!
//! Seed of the rule: a pool that lets one page go for each new one, or refuses new pages while it holds old
//! cold ones, is an LRU upside down. So [`Store::shrink`] goes on, in batches, until the pool is under the
//! accept threshold.
//!
//! A batch is collected under the shards' locks, one after the other: the stored bytes are copied and the entry
//! is marked with the batch's number, and goes on serving loads. It is written to a tier with no lock held. Then, entry
//! by entry, the slot takes the place of the object if the entry still is the marked one; if the page was
//! stored anew, invalidated, renamed or shared meanwhile, the slot is discarded. A batch that a tier does not take is
//! offered to the next; one that none takes changes nothing. Ephemeral pages are not written: they are dropped.
//!
//! Threads may write back side by side, each with a turn of its own ([`super::turns`]).

mod chosen;

use super::Store;
use super::batch::{Batch, Item, Owner};
use super::turns::{TierSet, Turn};
use crate::entry::{Entry, State};
use crate::index::{SHARDS, Shard};
use crate::objects::Visit;
use crate::page::PAGE_SIZE;
use crate::pools::PoolKind;
use crate::tier::{Slot, WriteError};
use std::sync::atomic::Ordering::Relaxed;

/// What shrinking leaves free in any case: the largest unit in which a zpool grows.
pub(super) const ROOM: u64 = 16 * PAGE_SIZE as u64;
/// Freed bytes that the zpools may keep in holes before they are asked to compact.
const HOLES: u64 = 64 << 10;

/// What [`Store::shrink`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrunk {
    /// Pages written back to the tiers.
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
    /// No tier takes more; the last one is full.
    TierFull,
    /// No tier takes more; the last one could not be written.
    TierError,
    /// Nothing is left that could leave the pool.
    NothingToEvict,
}

/// One call of shrink.
#[derive(Debug)]
pub(super) struct Run {
    written_back: u64,
    dropped: u64,
    /// Batches with something for a tier.
    pub(super) batches: u64,
    /// Tiers that have refused a batch, and why the last one did.
    refused: TierSet,
    refusal: Stop,
    /// A leaf with this stamp or a later one has been looked at in this round.
    round_end: u32,
    /// `written_back + dropped`, and what was collected, at the start of the round.
    found: u64,
    found_at_start: u64,
    idle_rounds: u32,
    /// Bytes freed, and how many end the run.
    freed: u64,
    most: u64,
    /// Those of them that the pool has not become smaller by.
    holes: u64,
}

impl Run {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            written_back: 0,
            dropped: 0,
            batches: 0,
            refused: 0,
            refusal: Stop::NothingToEvict,
            round_end: store.index.now(),
            found: 0,
            found_at_start: 0,
            idle_rounds: 0,
            freed: 0,
            most: u64::MAX,
            holes: 0,
        }
    }

    /// Notes that a tier takes nothing more.
    fn refuse(&mut self, tier: usize, why: &WriteError) {
        self.refused |= 1 << tier;
        self.refusal = if matches!(why, WriteError::Full) { Stop::TierFull } else { Stop::TierError };
    }

    /// The tiers that may take something.
    pub(super) fn wanted(&self, store: &Store) -> TierSet {
        ((1 << store.objects.tiers.iter().count()) - 1) & !self.refused
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
    /// Whether the pool is over its limit, or was and is not yet under the accept threshold, or a pool has refused a
    /// store at its memlimit. Cheap.
    #[must_use]
    pub fn needs_shrink(&self) -> bool {
        let held = self.pool_bytes();
        held > self.knobs.max_pool_bytes.load(Relaxed)
            || self.was_full.load(Relaxed) && held > self.shrink_target()
            || self.pools.any_crowded()
    }

    /// Writes back (persistent) or drops (ephemeral) least recently used pages, in batches, until the pool is
    /// under the accept threshold; and those of pools that have refused a store at their memlimit.
    pub fn shrink(&self) -> Shrunk {
        self.shrink_by(u64::MAX)
    }

    /// The same, but objects of so many bytes leave at most, or one batch more: for a thread that is waited for. They
    /// leave room for others of their sizes, also where the pool is not smaller yet.
    pub fn shrink_by(&self, bytes: u64) -> Shrunk {
        let before = self.pool_bytes();
        let mut run = Run { most: bytes, ..Run::new(self) };
        self.shrink_crowded(&mut run);
        let stop = self.evict_while(&mut run, || self.excess());
        if stop == Stop::Done && self.excess() == 0 {
            self.was_full.store(false, Relaxed);
        }
        self.shrunk(&run, before, stop)
    }

    /// Writes back or drops least recently used pages until the pool is smaller by so many bytes, whatever it may have.
    pub fn reclaim(&self, bytes: u64) -> Shrunk {
        let before = self.pool_bytes();
        let mut run = Run::new(self);
        let target = before.saturating_sub(bytes);
        let stop = self.evict_while(&mut run, || self.pool_bytes().saturating_sub(target));
        self.shrunk(&run, before, stop)
    }

    /// Evicts, in batches, as long as there are bytes in `excess`.
    fn evict_while(&self, run: &mut Run, excess: impl Fn() -> u64) -> Stop {
        while excess() > 0 && self.settle_for_room() {}
        loop {
            if excess() == 0 || run.freed >= run.most {
                return Stop::Done;
            }
            let mut turn = self.turns.begin(run.wanted(self));
            let (others, held) = (self.turns.ended(), self.pool_bytes());
            let (own, more) = (run.batches, self.collect(run, &mut turn, excess()));
            let freed = self.write_back(run, turn);
            run.freed += freed;
            self.close_holes(run, freed, held, more);
            // What is left may be on its way out in other threads.
            if !more && excess() > 0 && !self.turns.wait_past(others + run.batches - own) {
                return if run.wanted(self) == 0 { run.refusal } else { Stop::NothingToEvict };
            }
        }
    }

    fn shrunk(&self, run: &Run, before: u64, stop: Stop) -> Shrunk {
        let freed_bytes = before.saturating_sub(self.pool_bytes());
        Shrunk { written_back: run.written_back, dropped: run.dropped, freed_bytes, stop }
    }

    /// Bytes by which the pool is larger than what a full pool is brought down to.
    fn excess(&self) -> u64 {
        self.pool_bytes().saturating_sub(self.shrink_target())
    }

    /// Bytes to which a full pool is brought down.
    pub(super) fn shrink_target(&self) -> u64 {
        let limit = self.knobs.max_pool_bytes.load(Relaxed);
        self.knobs.accept_bytes(limit).min(limit.saturating_sub(ROOM))
    }

    /// Fills the batch with the least recently used pages of all shards. False if it found no more.
    fn collect(&self, run: &mut Run, turn: &mut Turn, excess: u64) -> bool {
        if !turn.takes(PoolKind::Persistent) && !self.pools.any_ephemeral() {
            return false;
        }
        run.idle_rounds = 0;
        let mut heads: [Option<u32>; SHARDS] =
            std::array::from_fn(|number| self.index.lock(number).oldest_stamp());
        while !turn.batch.is_full(excess) {
            let now = self.index.now();
            let Some((number, stamp)) = oldest(&heads, now) else { return false };
            if !run.goes_on(stamp, now) {
                return false;
            }
            let mut shard = self.index.lock(number);
            if shard.oldest_stamp() == Some(stamp) {
                self.cross_oldest_leaf(&mut shard, run, turn, excess);
            }
            heads[number] = shard.oldest_stamp();
        }
        true
    }

    /// Moves the hand through the oldest leaf of a shard, until the batch is full.
    fn cross_oldest_leaf(&self, shard: &mut Shard, run: &mut Run, turn: &mut Turn, excess: u64) {
        let Some(leaf) = shard.lru.oldest() else { return };
        if !turn.takes(shard.leaf(leaf).pool.kind()) {
            return shard.rotate(leaf);
        }
        while shard.lru.oldest() == Some(leaf) {
            if turn.batch.is_full(excess) {
                return;
            }
            match shard.next_victim() {
                Some((_, bit)) => self.evict(shard, leaf, bit, run, turn),
                None => return shard.rotate(leaf),
            }
        }
    }

    /// Takes one victim: drops it, or copies it to the batch.
    pub(super) fn evict(&self, shard: &mut Shard, leaf: u32, bit: u32, run: &mut Run, turn: &mut Turn) {
        let Turn { batch, number, .. } = turn;
        let key = shard.leaf(leaf).key(bit);
        let Some(entry) = shard.leaf(leaf).get(bit) else { return };
        if key.pool.kind() == PoolKind::Ephemeral {
            shard.take(leaf, bit);
            self.charge(key.pool, Entry::same(0), Some(entry));
            batch.drop_entry(entry);
            self.counters.dropped_pages.add(1);
            run.dropped += 1;
            run.found += 1;
            return;
        }
        let (owner, marked) = match entry.state() {
            State::Pool => {
                self.copy(entry, batch);
                shard.put(leaf, bit, entry.writing(*number));
                (Owner::Entry(key), entry.writing(*number))
            }
            State::Shared => {
                let id = entry.shared_id();
                match self.objects.shared.visit(id, *number, |object| self.copy(object, batch)) {
                    Visit::Taken(object) => (Owner::Shared(id), object),
                    Visit::Gone => return shard.leave_lru(leaf, bit),
                    Visit::Pass => return,
                }
            }
            State::Writing | State::Tier | State::Same => return,
        };
        batch.items.push(Item { owner, entry: marked });
        run.found += 1;
    }

    fn copy(&self, object: Entry, batch: &mut Batch) {
        self.objects.read(object, &mut |bytes| batch.bytes.extend_from_slice(bytes));
    }

    /// Writes the batch to its tier, or to another one that takes it. Returns the bytes that it and the dropped pages
    /// have freed. No lock is held.
    pub(super) fn write_back(&self, run: &mut Run, mut turn: Turn) -> u64 {
        turn.batch.dropped.iter().for_each(|entry| self.objects.release(*entry));
        let dropped = turn.batch.dropped_bytes();
        if turn.batch.items.is_empty() {
            return dropped;
        }
        run.batches += 1;
        while let Some(tier) = turn.tier() {
            match self.objects.tiers.get(tier).write(&turn.batch.records()) {
                Ok(slots) => return dropped + self.commit_all(run, &turn.batch.items, tier, &slots),
                Err(error) => {
                    run.refuse(tier, &error);
                    turn.pass_on(run.wanted(self));
                }
            }
        }
        self.counters.writeback_fail.add(1);
        turn.batch.items.iter().for_each(|item| {
            self.replace(item, item.entry.settled());
        });
        dropped
    }

    /// Puts the slots in the places of the objects. Returns the bytes freed.
    fn commit_all(&self, run: &mut Run, items: &[Item], tier: usize, slots: &[Slot]) -> u64 {
        assert_eq!(slots.len(), items.len(), "a tier gives a slot for each record");
        let mut freed = 0;
        for (item, slot) in items.iter().zip(slots) {
            let there = item.entry.in_tier(tier, *slot);
            // Commit point: from here on the page is in the tier.
            let committed = self.replace(item, there);
            self.objects.release(if committed { item.entry } else { there });
            if committed {
                freed += item.entry.len() as u64;
                run.written_back += 1;
                self.counters.written_back_pages.add(1);
            }
        }
        self.counters.writeback_bytes.add(freed);
        freed
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
        let now = self.pool_bytes();
        run.holes += freed.saturating_sub(held.saturating_sub(now));
        if run.holes > HOLES.max(held / 32) || !more && now > self.object_bytes() / 8 * 9 {
            self.compact();
            run.holes = 0;
        }
    }
}

/// The shard whose head is the oldest, with its stamp.
pub(super) fn oldest(heads: &[Option<u32>; SHARDS], now: u32) -> Option<(usize, u32)> {
    let stamped = heads.iter().enumerate().filter_map(|(number, head)| head.map(|stamp| (number, stamp)));
    stamped.max_by_key(|&(_, stamp)| now.wrapping_sub(stamp))
}
