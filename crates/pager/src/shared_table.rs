//! Children that have their parent's table of descriptors: by clone with CLONE_FILES and without CLONE_VM.
//!
//! What either of them opens or closes, the other sees. So such a child closes nothing of its parent's, and puts its
//! own descriptors under numbers that its parent has taken for it: the parent's program closes those as little as the
//! parent's own, and the parent gives them back once the child has ended, or has a table of its own by exec.
//!
//! Price: four numbers for each such child that lives, and for those that have ended until the next one is made.

use crate::face::Host;
use ramfold_budget::fds::{Room, raise};
use ramfold_budget::segment::SlotId;
use ramfold_budget::usage::Usage;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Descriptors that a process has for itself alone.
pub(crate) const OWN_DESCRIPTORS: usize = 4;

pub(crate) type Numbers = [RawFd; OWN_DESCRIPTORS];

/// The children of a process that have its table.
#[derive(Debug, Default)]
pub(crate) struct SharedTable(Mutex<Vec<Taken>>);

/// What lies under the numbers is the child's; before, something that means nothing.
#[derive(Debug)]
struct Taken {
    child: SlotId,
    _places: [OwnedFd; OWN_DESCRIPTORS],
}

impl SharedTable {
    /// In the parent: numbers for the child that will have this slot.
    ///
    /// # Errors
    /// What the system answers: there is no number left.
    pub(crate) fn take_for(&self, child: SlotId, usage: &Usage, host: &dyn Host) -> io::Result<Numbers> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who had the same slot has ended.
        all.retain(|taken| taken.child != child && usage.segment().lives(taken.child));
        let _room = Room::make_if_full();
        let mut places = Vec::with_capacity(OWN_DESCRIPTORS);
        for _ in 0..OWN_DESCRIPTORS {
            let place = raise(rustix::io::fcntl_dupfd_cloexec(&usage.proc.0, 0)?)?;
            host.protect_fd(place.as_raw_fd());
            places.push(place);
        }
        let places = <[OwnedFd; OWN_DESCRIPTORS]>::try_from(places).map_err(|_| io::ErrorKind::Other)?;
        let numbers = places.each_ref().map(AsRawFd::as_raw_fd);
        all.push(Taken { child, _places: places });
        Ok(numbers)
    }

    /// In a child, which has none of its own yet. In a table that is its parent's too, nothing is closed.
    pub(crate) fn in_child(&self, has_parents_table: bool) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if has_parents_table {
            std::mem::forget(all);
        }
    }
}
