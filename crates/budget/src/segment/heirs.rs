//! Heirs: what processes have in common since a fork counts once.
//!
//! A forked child has *inherited* all of its memory: the pages are its parent's, whose account has them. From then on
//! each page of which there come to be two, by whoever's write or discard, is taken off what one of those that have
//! it in common has inherited, and so counts. Which one that is does not matter: only the sum is kept to the limit.
//! When a process ends, its first heir takes its place: it counts what the dead one did, and the others inherit from
//! it.
//!
//! The price is that what is inherited only becomes less: an error counts too much, until the process ends.

use super::{Gauge, Segment, SlotId};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A process's part in it.
#[derive(Debug)]
pub(super) struct Heritage {
    /// Bytes of its anonymous memory that another account has.
    inherited: AtomicU64,
    /// The slot that it inherits from, plus one; 0 for none.
    heir_of: AtomicU32,
}

impl Heritage {
    /// For a new owner of the slot.
    pub(super) fn reset(&self) {
        self.heir_of.store(0, Ordering::Relaxed);
        self.inherited.store(0, Ordering::Relaxed);
    }

    /// Less by up to `bytes`; returns by how much.
    fn take(&self, bytes: u64) -> u64 {
        let less = |inherited: u64| Some(inherited.saturating_sub(bytes));
        let before = self.inherited.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.unwrap_or_else(|unchanged| unchanged).min(bytes)
    }

    /// At most `bytes`; returns by how much it is less now.
    fn limit(&self, bytes: u64) -> u64 {
        self.inherited.fetch_min(bytes, Ordering::Relaxed).saturating_sub(bytes)
    }
}

/// Slot numbers fit: there are [`super::MAX_PROCESSES`].
fn name(slot: SlotId) -> u32 {
    u32::try_from(slot.0 + 1).unwrap_or(0)
}

/// What is inherited.
impl Segment {
    fn heritage(&self, slot: SlotId) -> &Heritage {
        &self.slots()[slot.0].heritage
    }

    /// `child` inherits `bytes` from `parent`.
    pub(super) fn bequeath(&self, parent: SlotId, child: SlotId, bytes: u64) {
        self.heritage(child).inherited.store(bytes, Ordering::Relaxed);
        self.heritage(child).heir_of.store(name(parent), Ordering::Relaxed);
    }

    fn heirs(&self, slot: SlotId) -> impl Iterator<Item = SlotId> {
        let is_heir = move |heritage: &Heritage| heritage.heir_of.load(Ordering::Relaxed) == name(slot);
        let numbered = self.used_slots().iter().enumerate();
        numbered.filter(move |(_, other)| is_heir(&other.heritage)).map(|(index, _)| SlotId(index))
    }

    /// Bytes that the process has inherited and nobody has counted for it since.
    pub fn inherited(&self, slot: SlotId) -> u64 {
        self.heritage(slot).inherited.load(Ordering::Relaxed)
    }

    /// The process has inherited at most `bytes`. Returns by how much that is less than was thought.
    pub fn inherited_at_most(&self, slot: SlotId, bytes: u64) -> u64 {
        self.heritage(slot).limit(bytes)
    }

    /// Whom the process inherits from, and that one's number as it numbers itself.
    pub(crate) fn giver(&self, slot: SlotId) -> Option<(SlotId, u32)> {
        let index = self.heritage(slot).heir_of.load(Ordering::Relaxed).checked_sub(1)? as usize;
        let giver = self.used_slots().get(index)?;
        Some((SlotId(index), giver.pid.load(Ordering::Relaxed)))
    }

    /// Bytes of which there would come to be more if the process wrote to all that it has.
    pub fn in_common(&self, slot: SlotId) -> u64 {
        self.heirs(slot).map(|heir| self.inherited(heir)).fold(self.inherited(slot), u64::saturating_add)
    }

    /// So many bytes of what the process has in common with others are its own now, or the others' alone: they count
    /// once more. What this process has inherited becomes less, and its account has to be refreshed; or, if that is
    /// nothing, an heir's.
    pub fn divide(&self, slot: SlotId, bytes: u64) {
        let mut left = bytes - self.heritage(slot).take(bytes);
        for heir in self.heirs(slot) {
            if left == 0 {
                return;
            }
            let part = self.heritage(heir).take(left);
            self.charge(heir, Gauge::Resident, part);
            left -= part;
        }
    }

    /// The process has ended: its first heir counts what it did. Not one that is prepared only: the fork may have
    /// failed.
    pub(super) fn pass_on(&self, slot: SlotId) {
        let mut heirs = self.heirs(slot).filter(|heir| !self.slots()[heir.0].is_prepared());
        let Some(first) = heirs.next() else { return };
        heirs.for_each(|heir| self.heritage(heir).heir_of.store(name(first), Ordering::Relaxed));
        let of = self.heritage(slot).heir_of.load(Ordering::Relaxed);
        self.heritage(first).heir_of.store(of, Ordering::Relaxed);
        let more = self.heritage(first).limit(self.inherited(slot));
        self.charge(first, Gauge::Resident, more);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;

    /// A parent with `bytes` that it counts, and heirs that count nothing yet.
    fn family<const HEIRS: usize>(segment: &Segment, bytes: u64) -> (SlotId, [SlotId; HEIRS]) {
        let parent = segment.attach_another().unwrap();
        segment.charge(parent, Gauge::Resident, bytes);
        (parent, [(); HEIRS].map(|()| child(segment, parent, bytes)))
    }

    fn child(segment: &Segment, parent: SlotId, bytes: u64) -> SlotId {
        let child = segment.prepare_child(parent, bytes, &|_| ()).unwrap();
        segment.adopt(child);
        child
    }

    /// What its account would have after a refreshment.
    fn counted(segment: &Segment, slot: SlotId, has: u64) -> u64 {
        has - segment.inherited(slot).min(has)
    }

    #[test]
    fn a_page_that_becomes_two_counts_twice() {
        let (_fd, segment) = segment(0);
        let (parent, [child, other]) = family(&segment, 100);
        assert_eq!((segment.in_common(parent), segment.in_common(child)), (200, 100));
        segment.divide(child, 10);
        assert_eq!(counted(&segment, child, 100), 10, "a child's write is its own");
        segment.divide(parent, 30);
        let sum = counted(&segment, child, 100) + counted(&segment, other, 100);
        assert_eq!((sum, segment.in_use()), (40, 130), "the parent's counts for an heir, at once");
        segment.divide(parent, 1000);
        assert_eq!(segment.in_common(parent), 0, "never more than they have");
    }

    #[test]
    fn a_grandchild_inherits_from_its_parent() {
        let (_fd, segment) = segment(0);
        let (_, [child]) = family(&segment, 100);
        let grandchild = self::child(&segment, child, 150);
        segment.divide(child, 120);
        assert_eq!((segment.inherited(child), segment.inherited(grandchild)), (0, 130));
    }

    #[test]
    fn the_first_heir_takes_the_place_of_the_dead() {
        let (_fd, segment) = segment(0);
        let (parent, [first, second]) = family(&segment, 100);
        let grandchild = child(&segment, first, 100);
        segment.divide(first, 20);
        segment.release(parent, &|_| ());
        assert_eq!((segment.inherited(first), segment.inherited(second)), (0, 100));
        assert_eq!(segment.in_use(), 80, "what it has not counted yet");
        assert_eq!(segment.peak(), 100, "nothing counts twice meanwhile");
        segment.release(first, &|_| ());
        let rest = [second, grandchild].map(|slot| segment.inherited(slot));
        assert_eq!(rest.iter().sum::<u64>(), 100, "one of them counts all it has");
    }
}
