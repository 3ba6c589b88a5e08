//! What a forked child gets of memory: MADV_DONTFORK and MADV_WIPEONFORK.
//!
//! The kernel is not told of this advice on managed memory: it would leave a hole in the child's reserved range, and
//! knows only of pages that are there. It is noted with each area. The child gets a copy of everything, as of other
//! memory, and gives up what it is not to have as the first thing of its own, pages and their copies in the store
//! alike, before anything of the program runs in it. Price: nothing where there is no such advice but a look at the
//! areas.

use crate::face::MapError;
use crate::pager::Pager;
use crate::space::{Area, Kind, OnFork};

impl OnFork {
    /// After madvise with one of the four values.
    pub(crate) fn advised(self, value: i32) -> Self {
        match value {
            libc::MADV_DONTFORK => Self { omit: true, ..self },
            libc::MADV_DOFORK => Self { omit: false, ..self },
            libc::MADV_WIPEONFORK => Self { wipe: true, ..self },
            libc::MADV_KEEPONFORK => Self { wipe: false, ..self },
            _ => self,
        }
    }
}

impl Pager {
    /// In a forked child, inside the gate, where accounts and userfaultfd are its own already, and before the range is
    /// registered: gives up what it is not to have.
    pub(crate) fn give_up_in_child(&self) -> Result<(), MapError> {
        let mut space = self.space();
        for (part, area) in space.areas_in(&self.range()) {
            match area {
                // Here the kernel was told, and has left a hole.
                Area { kind: Kind::Foreign, on_fork: OnFork { omit: true, .. }, .. } => {
                    self.close_hole(&mut space, &part)?;
                }
                Area { kind: Kind::Anonymous, on_fork: OnFork { omit: true, .. }, .. } => {
                    self.clear(&mut space, &part)?;
                }
                Area { kind: Kind::Anonymous, on_fork: OnFork { wipe: true, .. }, .. } => {
                    self.drop_pages(&part, false)?;
                    space.set(part, Area { kept: false, ..area });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
