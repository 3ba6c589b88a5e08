//! Callers: what is made through the mount belongs to who makes it.
//!
//! The kernel has checked by then that the caller may do so (`default_permissions`). A server that is root takes on the
//! caller's user and group for the one system call that makes something, in this thread alone, so that the source's
//! own rules (groups of directories, default ACLs, quotas) see the right one. It keeps the right to pass by
//! permissions: what groups the caller is in besides, only the kernel of the mount knows. A server that is not root
//! acts as itself.

use crate::sys;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{geteuid, umask};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::cell::Cell;

/// Who asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread; 0 if it cannot be seen from here.
    pub thread: u32,
}

thread_local! {
    /// Whether this thread has a file mode creation mask of its own.
    static HAS_OWN_MASK: Cell<bool> = const { Cell::new(false) };
}

/// Has this thread, and those that it begins, obey quotas: what is written through the mount counts as its users'.
///
/// # Errors
/// What the system answers.
pub(crate) fn obey_quotas() -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    sets.effective -= CapabilitySet::SYS_RESOURCE;
    set_capabilities(None, sets)
}

impl Caller {
    /// Runs `make` with this file mode creation mask, as this caller if the process is root.
    pub(crate) fn make<R>(self, mask: u32, make: impl FnOnce() -> R) -> R {
        if !HAS_OWN_MASK.replace(true) {
            sys::unshare_mask().expect("a thread can have a mask of its own");
        }
        umask(Mode::from_raw_mode(mask));
        if geteuid().is_root() && (self.uid, self.gid) != (0, 0) { self.as_self(make) } else { make() }
    }

    fn as_self<R>(self, make: impl FnOnce() -> R) -> R {
        sys::be_to_file_systems(self.uid, self.gid);
        if let Ok(mut sets) = capabilities(None) {
            sets.effective |= CapabilitySet::DAC_OVERRIDE & sets.permitted;
            // Without it the source judges for itself.
            let _ = set_capabilities(None, sets);
        }
        let made = make();
        sys::be_to_file_systems(0, 0);
        made
    }
}
