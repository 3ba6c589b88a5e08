//! Extents: how the processes of a run share one swap file.
//!
//! A process takes a whole extent and fills it alone. A fork makes parent and child holders of the same
//! extents; the file space is given back when the last holder lets go.
//!
//! A process may be killed at any instruction, and to give space back takes the kernel its time. So an extent names the
//! process that has it in hand, and who reaps the dead finishes what they had begun. What remains is the instant
//! between two words: an extent that several hold may stay counted, and an extent be counted as used that is not.

use super::{Segment, SlotId};
use std::sync::atomic::Ordering;

/// Bytes in an extent, the unit in which processes take space in the swap file.
pub const EXTENT_SIZE: u64 = 1 << 20;
/// With the number of a slot in the bits below: the process there is taking the extent, or giving its space back.
const IN_HAND: u16 = 1 << 15;
const _: () = assert!(super::MAX_PROCESSES < IN_HAND as usize);

/// The count of an extent that this slot has in hand.
fn in_hand(slot: SlotId) -> u16 {
    // Slots are below MAX_PROCESSES.
    IN_HAND | u16::try_from(slot.0).unwrap_or(IN_HAND - 1)
}

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
            let ours =
                self.refs()[*index].compare_exchange(0, in_hand(slot), Ordering::Acquire, Ordering::Relaxed);
            ours.is_ok()
        };
        self.header().extents_used.fetch_add(1, Ordering::Relaxed);
        let Some(index) = (start..self.extents).chain(0..start).find(free) else {
            self.header().extents_used.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        self.header().extent_hint.store(index as u64 + 1, Ordering::Relaxed);
        self.held(slot)[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        self.refs()[index].store(1, Ordering::Release);
        Some(extent_number(index))
    }

    /// Gives an extent back. When nobody else holds it (after a fork, another process may), `discard` gives back
    /// its file space, and only then can it be taken again.
    pub fn release_extent(&self, slot: SlotId, extent: u32, discard: &dyn Fn(u32)) {
        let (index, bit) = (extent as usize, 1 << (extent % 64));
        let (held, count) = (&self.held(slot)[index / 64], &self.refs()[index]);
        if held.load(Ordering::Acquire) & bit == 0 {
            return;
        }
        let alone = count.compare_exchange(1, in_hand(slot), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let had = held.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        let less = |count: u16| match count {
            1 => Some(in_hand(slot)),
            2..IN_HAND => Some(count - 1),
            _ => None,
        };
        let is_last = || had && count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) == Ok(1);
        if alone || is_last() {
            self.give_back(index, discard);
        }
    }

    /// The space of an extent that is in hand.
    fn give_back(&self, index: usize, discard: &dyn Fn(u32)) {
        discard(extent_number(index));
        self.refs()[index].store(0, Ordering::Release);
        self.header().extents_used.fetch_sub(1, Ordering::Relaxed);
        self.header().extent_hint.fetch_min(index as u64, Ordering::Relaxed);
    }

    /// Gives back what a dead process had in hand. Who calls it holds the slot's lease.
    pub(super) fn finish_for(&self, slot: SlotId, discard: &dyn Fn(u32)) {
        for (index, count) in self.refs().iter().enumerate() {
            if count.load(Ordering::Acquire) == in_hand(slot) {
                self.held(slot)[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
                self.give_back(index, discard);
            }
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
    use super::{EXTENT_SIZE, in_hand};
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

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

    /// What a process that is killed at each step of taking and of giving back leaves.
    #[test]
    fn what_the_dead_had_in_hand_is_given_back() {
        let (_fd, segment) = segment(8);
        for is_marked in [false, true] {
            let slot = segment.attach_another().unwrap();
            let extent = segment.take_extent(slot).unwrap() as usize;
            segment.refs()[extent].store(in_hand(slot), Ordering::Relaxed);
            if !is_marked {
                segment.held(slot)[0].store(0, Ordering::Relaxed);
            }
            let other = segment.take_extent(slot).unwrap() as usize;
            segment.finish_for(slot, &|_| ());
            assert_eq!(segment.refs()[extent].load(Ordering::Relaxed), 0);
            assert_eq!(segment.refs()[other].load(Ordering::Relaxed), 1, "not in hand");
            assert_eq!(segment.held_by(slot).collect::<Vec<_>>(), [other]);
            assert_eq!(segment.swap_used(), EXTENT_SIZE);
            segment.release_extent(slot, u32::try_from(other).unwrap(), &|_| ());
            assert_eq!(segment.swap_used(), 0);
        }
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
