//! Turns: who writes to which tier.
//!
//! A thread that writes back takes a tier and a batch of which nobody else has the number, and gives them back when the
//! batch has come to its end. Who has what is noted under a lock that is held for a look only: no lock is held over a
//! tier's I/O, and each tier may have a batch under way. Who finds the first tier taken goes to the next, so a slow one
//! keeps nobody from another; who finds all taken waits until one is free.
//!
//! The price: a batch beside others takes its pages without knowing what those will free, so together they may write
//! more than was wanted, by a batch each. The guarantee: two batches under way never have the same number.

use super::batch::Batch;
use crate::entry::MAX_BATCHES;
use crate::pools::PoolKind;
use std::sync::{Condvar, Mutex};

/// Tiers, a bit each by their numbers.
pub(super) type TierSet = u32;

/// The tiers and batches of a store.
#[derive(Debug, Default)]
pub(super) struct Turns {
    desk: Mutex<Desk>,
    /// A turn has ended, or a tier is free.
    changed: Condvar,
}

#[derive(Debug)]
struct Desk {
    /// By their numbers; None: under way.
    batches: [Option<Batch>; MAX_BATCHES],
    /// Tiers that a batch is collected for or written to.
    busy: TierSet,
    /// Batches that have ended and had something for a tier.
    ended: u64,
}

impl Default for Desk {
    fn default() -> Self {
        Self { batches: std::array::from_fn(|_| Some(Batch::default())), busy: 0, ended: 0 }
    }
}

impl Desk {
    /// Takes the first of the wanted tiers that is free.
    fn take_tier(&mut self, wanted: TierSet) -> Option<usize> {
        let free = wanted & !self.busy;
        // The lowest bit that is set, or none.
        self.busy |= free & free.wrapping_neg();
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    fn is_quiet(&self) -> bool {
        self.batches.iter().all(Option::is_some)
    }
}

/// A batch, and the tier that it goes to.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) batch: Batch,
    /// What the entries of the batch are marked with.
    pub(super) number: usize,
    tier: Option<usize>,
    turns: Option<&'a Turns>,
}

impl Turns {
    /// Waits until one of the wanted tiers is free, and takes it. If none is wanted, pages can only be dropped.
    pub(super) fn begin(&self, wanted: TierSet) -> Turn<'_> {
        if wanted == 0 {
            return Turn { batch: Batch::default(), number: 0, tier: None, turns: None };
        }
        let (number, batch, tier) = self.wait_for(|desk| {
            let number = desk.batches.iter().position(Option::is_some)?;
            let tier = desk.take_tier(wanted)?;
            Some((number, desk.batches[number].take()?, tier))
        });
        Turn { batch, number, tier: Some(tier), turns: Some(self) }
    }

    /// Waits until `take` gives something.
    fn wait_for<T>(&self, mut take: impl FnMut(&mut Desk) -> Option<T>) -> T {
        let mut desk = crate::lock(&self.desk);
        loop {
            if let Some(taken) = take(&mut desk) {
                return taken;
            }
            desk = crate::wait(&self.changed, desk);
        }
    }

    /// Batches with something for a tier that have ended so far.
    pub(super) fn ended(&self) -> u64 {
        crate::lock(&self.desk).ended
    }

    /// Waits until more than `seen` batches have ended. False if there are no more under way. For who has no turn.
    pub(super) fn wait_past(&self, seen: u64) -> bool {
        self.wait_for(|desk| match desk.ended > seen {
            false if !desk.is_quiet() => None,
            more => Some(more),
        })
    }

    /// Whether nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        crate::lock(&self.desk).is_quiet()
    }
}

impl Turn<'_> {
    /// The tier that the batch goes to.
    pub(super) fn tier(&self) -> Option<usize> {
        self.tier
    }

    /// Whether pages of this kind can be taken out.
    pub(super) fn takes(&self, kind: PoolKind) -> bool {
        kind == PoolKind::Ephemeral || self.tier.is_some()
    }

    /// Leaves the tier for another of the wanted ones, once that is free. If none is wanted there is none.
    pub(super) fn pass_on(&mut self, wanted: TierSet) {
        let (Some(turns), Some(left)) = (self.turns, self.tier) else { return };
        crate::lock(&turns.desk).busy &= !(1 << left);
        turns.changed.notify_all();
        self.tier = (wanted != 0).then(|| turns.wait_for(|desk| desk.take_tier(wanted)));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(turns) = self.turns else { return };
        let mut batch = std::mem::take(&mut self.batch);
        let mut desk = crate::lock(&turns.desk);
        desk.ended += u64::from(!batch.items.is_empty());
        batch.clear();
        desk.batches[self.number] = Some(batch);
        desk.busy &= !self.tier.map_or(0, |tier| 1 << tier);
        turns.changed.notify_all();
    }
}
