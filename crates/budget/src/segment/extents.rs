//! Extents: how the processes of a run share one swap file.
//!
//! A process takes a whole extent and fills it alone. A fork makes parent and child holders of the same
//! extents; the file space is given back when the last holder lets go.

use super::{Segment, SlotId};
use std::sync::atomic::Ordering;

/// Bytes in an extent, the unit in which processes take space in the swap file.
pub const EXTENT_SIZE: u64 = 1 << 20;
/// Count of an extent whose file space is being given back.
const DISCARDING: u16 = u16::MAX;

pub(super) fn extent_number(index: usize) -> u32 {
    u32::try_from(index).expect("a swap file has fewer than 2^32 extents")
}

/// Extents of the swap file.
impl Segment {
    /// Takes an extent that nobody holds. `None` when the swap file is full.
    #[must_use]
    pub fn take_extent(&self, slot: SlotId) -> Option<u32> {
        let hint = usize::try_from(self.header().extent_hint.load(Ordering::Relaxed)).unwrap_or(0);
        let start = hint.min(self.extents);
        let free = |index: &usize| {
            self.refs()[*index].compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = (start..self.extents).chain(0..start).find(free)?;
        self.header().extent_hint.store(index as u64 + 1, Ordering::Relaxed);
        self.header().extents_used.fetch_add(1, Ordering::Relaxed);
        self.held(slot)[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        Some(extent_number(index))
    }

    /// Gives an extent back. When nobody else holds it (after a fork, another process may), `discard` gives back
    /// its file space, and only then can it be taken again.
    pub fn release_extent(&self, slot: SlotId, extent: u32, discard: &dyn Fn(u32)) {
        let (index, bit) = (extent as usize, 1 << (extent % 64));
        let had = self.held(slot)[index / 64].fetch_and(!bit, Ordering::AcqRel);
        if had & bit == 0 {
            return;
        }
        let less = |count: u16| Some(if count == 1 { DISCARDING } else { count.checked_sub(1)? });
        if self.refs()[index].fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) == Ok(1) {
            discard(extent);
            self.refs()[index].store(0, Ordering::Release);
            self.header().extents_used.fetch_sub(1, Ordering::Relaxed);
            self.header().extent_hint.fetch_min(index as u64, Ordering::Relaxed);
        }
    }

    /// The extents that a slot holds. Bits behind the last one are nonsense.
    pub(super) fn held_by(&self, slot: SlotId) -> impl Iterator<Item = usize> {
        let words = self.held(slot).iter().map(|word| word.load(Ordering::Relaxed)).enumerate();
        let held = words.flat_map(|(index, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| index * 64 + bit)
        });
        held.take_while(|index| *index < self.extents)
    }

    /// Whether another process holds the extent too: then it must not be overwritten.
    #[must_use]
    pub fn is_extent_shared(&self, extent: u32) -> bool {
        self.refs()[extent as usize].load(Ordering::Acquire) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use std::cell::RefCell;

    #[test]
    fn extents_are_given_once_until_they_are_back() {
        let (_fd, segment) = segment(130);
        let slot = segment.attach(&|_| ()).unwrap();
        let all: Vec<u32> = std::iter::from_fn(|| segment.take_extent(slot)).collect();
        assert_eq!(all, (0..130).collect::<Vec<_>>());
        assert_eq!(segment.swap_used(), segment.swap_limit());
        let full = |_| assert_eq!(segment.take_extent(slot), None, "taken while its space is given back");
        segment.release_extent(slot, 64, &full);
        assert_eq!(segment.take_extent(slot), Some(64));
        segment.release_extent(slot, 64, &|_| ());
        segment.release_extent(slot, 3, &|_| ());
        assert_eq!(segment.take_extent(slot), Some(3));
        assert_eq!(segment.take_extent(slot), Some(64));
        assert_eq!(segment.take_extent(slot), None);
    }

    #[test]
    fn a_forked_child_holds_what_its_parent_held() {
        let (_fd, segment) = segment(70);
        let parent = segment.attach(&|_| ()).unwrap();
        let taken: Vec<u32> = (0..70).filter_map(|_| segment.take_extent(parent)).collect();
        let child = segment.prepare_child(parent, 0, &|_| ()).unwrap();
        segment.adopt(child);
        let discarded = RefCell::new(vec![]);
        let discard = |extent| discarded.borrow_mut().push(extent);
        assert!(segment.is_extent_shared(69));
        segment.release_extent(parent, 69, &discard);
        assert!(!segment.is_extent_shared(69));
        segment.release(parent, &discard);
        assert_eq!((discarded.borrow().len(), segment.swap_used()), (0, 70 << 20));
        segment.release(child, &discard);
        assert_eq!((discarded.into_inner(), segment.swap_used()), (taken, 0));
    }
}
