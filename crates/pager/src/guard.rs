//! The guard: what a forked child inherits is copied where it is counted.
//!
//! After a fork, parent and child have their pages in common, and a write makes the kernel copy one: memory that
//! nobody was asked for, as quickly as the program writes. So once the run might come short, a child has the
//! pages that it inherited write-protected. A write then is a fault that waits for room, is counted, and goes on. The
//! price is a fault of the pager's for each such page, in place of one of the kernel's; and it is not paid while there is
//! plenty. The parent's own writes are not guarded: what they leave to the child alone is found by looking
//! ([`crate::usage::Usage::disinherit`]).

use crate::engine::Engine;
use crate::pages::{Group, Pages};
use crate::space::Kind;
use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Engine {
    /// Guards what this process has inherited, if the run could come short should it write to all of it. The handler
    /// is running, for a page of the caller's own stack may be among it. Called inside the gate.
    pub(crate) fn guard_if_short(&self) {
        if self.is_guarded() || !self.usage.could_come_short() {
            return;
        }
        self.guarded.store(true, Ordering::Relaxed);
        let space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, area) in space.areas_in(&self.pages.range()) {
            if area.kind == Kind::Anonymous {
                let pages = self.pages.number(part.start)..self.pages.number(part.end - 1) + 1;
                for pages in Pages::by_group(pages) {
                    let group = self.pages.lock(pages.start);
                    self.protect(&group, pages.start, pages.len());
                }
            }
        }
    }

    /// Whether a page that is there may be write-protected.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    /// Lets the program write to a page that it inherited: there is room, and the page counts from now on.
    pub(crate) fn unguard(&self, addr: usize) {
        // Unmapped meanwhile, or unprotected already: the program looks again.
        let _ = self.uffd.write_protect(addr, PAGE, false);
        if self.is_guarded() {
            self.usage.no_more_shared(1);
            self.refresh_usage();
        }
    }

    /// Makes a page that is shared since a fork this process's own; its group is locked, so no fault of it is resolved now.
    pub(crate) fn unshare(&self, _group: &Group<'_>, addr: usize) -> Result<(), Errno> {
        if self.is_guarded() {
            self.uffd.write_protect(addr, PAGE, false)?;
        }
        sys::unshare(addr, PAGE)?;
        self.usage.no_more_shared(1);
        Ok(())
    }

    /// Under the lock of the group: nobody takes the protection for granted that [`Engine::unshare`] has lifted.
    fn protect(&self, group: &Group<'_>, first: usize, count: usize) {
        if !group.is_empty(first) {
            // Part of it may not be mapped any more, by a system call of the program's: then it is not guarded.
            let _ = self.uffd.write_protect(self.pages.addr(first), count * PAGE, true);
        }
    }
}
