//! Holds: from outside of a run a member is asked to keep all of its memory in place for a while, so that who cannot
//! wait for a page (a debugger) finds it.
//!
//! A hold lasts as long as its beat goes on, so that who asked and was killed leaves nothing behind. What the words say
//! comes from outside: nothing follows from them but that memory stays, or leaves.

use super::{Segment, SlotId};
use std::sync::atomic::{AtomicU32, Ordering};

/// The part of it in a slot.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Hold {
    /// Goes on while somebody wants the hold.
    beat: AtomicU32,
    /// 1: all is in place.
    complete: AtomicU32,
}

impl Hold {
    pub(super) fn reset(&self) {
        self.complete.store(0, Ordering::Relaxed);
    }
}

/// Holds.
impl Segment {
    /// Asks for a hold, or asks that it goes on: to be called every second or so.
    pub fn beat_hold(&self, slot: SlotId) {
        self.slots()[slot.0].hold.beat.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes while somebody wants a hold.
    #[must_use]
    pub fn hold_beat(&self, slot: SlotId) -> u32 {
        self.slots()[slot.0].hold.beat.load(Ordering::Relaxed)
    }

    /// The member tells whether all of its memory is in place.
    pub fn set_held(&self, slot: SlotId, complete: bool) {
        self.slots()[slot.0].hold.complete.store(complete.into(), Ordering::Release);
    }

    /// Whether it is.
    #[must_use]
    pub fn is_held(&self, slot: SlotId) -> bool {
        self.slots()[slot.0].hold.complete.load(Ordering::Acquire) == 1
    }
}
