//! Holds: from outside of a run a member is asked to keep all of its memory in place for a while, so that who cannot
//! wait for a page (a debugger) finds it.
//!
//! A hold lasts as long as its beat goes on, so that who asked and was killed leaves nothing behind. The member tells
//! the beat that it has heard: a hold that ends is not taken for one that has just been asked for. What the words say
//! comes from outside: nothing follows from them but that memory stays, or leaves.

use super::{Gauge, Segment, SlotId};
use ramfold::PAGE_SIZE;
use std::sync::atomic::{AtomicU32, Ordering};

/// The part of it in a slot.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Hold {
    /// Goes on while somebody wants the hold.
    beat: AtomicU32,
    /// The last beat that the member had heard when all was in place; 0: not all is.
    complete: AtomicU32,
}

impl Hold {
    /// For a new owner of the slot.
    pub(super) fn reset(&self) {
        self.beat.store(0, Ordering::Relaxed);
        self.complete.store(0, Ordering::Relaxed);
    }
}

/// Holds.
impl Segment {
    /// Bytes of the member's pages that are in its store: what a hold brings back.
    #[must_use]
    pub fn away(&self, slot: SlotId) -> u64 {
        self.gauge(slot, Gauge::StoredPages).saturating_mul(PAGE_SIZE as u64)
    }

    /// Asks for a hold, or asks that it goes on: to be called every second or so. Returns the number of the beat.
    pub fn beat_hold(&self, slot: SlotId) -> u32 {
        self.slots()[slot.0].hold.beat.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The last beat: a number that changes while somebody wants a hold.
    #[must_use]
    pub fn hold_beat(&self, slot: SlotId) -> u32 {
        self.slots()[slot.0].hold.beat.load(Ordering::Relaxed)
    }

    /// The member tells that all of its memory is in place since it heard this beat, or is not.
    pub fn set_held(&self, slot: SlotId, since: Option<u32>) {
        self.slots()[slot.0].hold.complete.store(since.unwrap_or(0), Ordering::Release);
    }

    /// Whether all of the member's memory is in place, and it has heard this beat.
    #[must_use]
    pub fn is_held(&self, slot: SlotId, beat: u32) -> bool {
        let heard = self.slots()[slot.0].hold.complete.load(Ordering::Acquire);
        heard != 0 && heard.wrapping_sub(beat) < u32::MAX / 2
    }
}
