//! The guard: what processes have in common since a fork is copied where it is counted.
//!
//! After a fork, parent and child have their pages in common, and a write makes the kernel copy one: memory that
//! nobody was asked for, as quickly as the program writes. So once the run might come short, both have what is in
//! common write-protected. A write then is a fault that waits for room, is counted, and goes on. The price is a fault
//! of the pager's for each such page, in place of one of the kernel's; and it is not paid while there is plenty. What
//! is given up while it is in common frees nothing, and is counted for who keeps it: over the limit, pages that
//! nobody else has are evicted first. (Without that, children that wrote to all they had inherited took up to two
//! fifths more than the limit for a moment: each compressed its own copy of a page before the last gave it up.) What
//! the kernel copies beside managed memory (static data, the pager's pool and tables) is found by looking
//! ([`ramfold_budget::usage::Usage::look_for_own`]).

use crate::engine::Engine;
use crate::mask::Mask;
use crate::pages::{BLOCK_PAGES, Group, Pages, State};
use crate::space::Kind;
use crate::sys::{self, PAGE, PageEntry};
use ramfold::zpool::forks;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl Engine {
    /// Guards what this process has in common with others, if the run could come short should it be written to. The
    /// handler is running, or nobody needs it: a page of the caller's own stack may be among it. Called inside the
    /// gate, or while it is closed.
    pub(crate) fn guard_if_short(&self) {
        if !self.is_guarded() {
            self.guard_anew();
        }
    }

    /// The same before a fork: what came since the last one will be in common too.
    pub(crate) fn guard_anew(&self) {
        if self.member.usage.could_come_short() {
            self.guarded.store(true, Ordering::Relaxed);
            self.protect_all(true);
        }
    }

    /// Lifts the guard when nothing is in common any more. Called inside the gate.
    pub(crate) fn lift_guard_if_alone(&self) {
        if !self.member.usage.look_at_relatives() && self.is_guarded() {
            self.protect_all(false);
            self.guarded.store(false, Ordering::Relaxed);
        }
    }

    /// Whether a page that is there may be write-protected.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    /// Lets the program write to a page: there is room, and if it is copied, the copy counts from now on. So may the
    /// pages beside it be written to, if nobody else has them. The group is locked.
    pub(crate) fn unguard(&self, group: &Group<'_>, page: usize) {
        let addr = self.pages.addr(page);
        if self.is_guarded() {
            let first = page - page % BLOCK_PAGES;
            let common = self.in_common(self.pages.addr(first), BLOCK_PAGES);
            let resident = |page: &usize| group.state(*page) == State::Resident;
            let alone = |at: &usize| common >> (at - first) & 1 == 0;
            let free = (page + 1..first + BLOCK_PAGES).take_while(|at| resident(at) && alone(at)).count();
            if alone(&page) && self.uffd.write_protect(addr, (1 + free) * PAGE, false).is_ok() {
                return;
            }
            self.member.usage.divide(u32::from(!alone(&page)));
            self.refresh_usage();
        }
        // Unmapped meanwhile, or unprotected already: the program looks again.
        let _ = self.uffd.write_protect(addr, PAGE, false);
    }

    /// Makes a page that is in common this process's own; its group is locked, so no fault of it is resolved now.
    pub(crate) fn unshare(&self, _group: &Group<'_>, addr: usize) -> Result<(), Errno> {
        let common = self.in_common(addr, 1);
        if self.is_guarded() {
            self.uffd.write_protect(addr, PAGE, false)?;
        }
        sys::unshare(addr, PAGE)?;
        self.member.usage.divide(common.count_ones());
        Ok(())
    }

    /// Which of the pages from `addr` on, at most as many as a mask has bits, another process has as well.
    pub(crate) fn in_common(&self, addr: usize, count: usize) -> Mask {
        if !self.member.usage.is_related() {
            return 0;
        }
        // What cannot be told is found by looking at the whole.
        self.those(addr, count, PageEntry::is_shared).unwrap_or(0)
    }

    /// The pools tell from now on of pages that change: those in common are divided.
    pub(crate) fn listen_to_pools(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        forks::tell(Box::new(move |addr, count| {
            if let Some(engine) = engine.upgrade() {
                engine.member.usage.divide(engine.count_in_common(addr, count));
                // What a pool gives back counts for an heir already.
                engine.enter_usage();
            }
        }));
    }

    /// Whether most of what is there of a stretch of blocks is in common: its eviction would free little.
    pub(crate) fn is_in_common(&self, blocks: &Range<usize>) -> bool {
        let (addr, count) = (self.pages.addr(blocks.start * BLOCK_PAGES), blocks.len() * BLOCK_PAGES);
        let common = self.in_common(addr, count);
        let there = || self.those(addr, count, PageEntry::has_contents).unwrap_or(0);
        common != 0 && common.count_ones() > there().count_ones() / 2
    }

    /// As [`Engine::in_common`], of any number of pages: how many they are.
    pub(crate) fn count_in_common(&self, addr: usize, count: usize) -> u32 {
        const STEP: usize = Mask::BITS as usize;
        if !self.member.usage.is_related() {
            return 0;
        }
        let part = |at: usize| self.in_common(addr + at * PAGE, STEP.min(count - at)).count_ones();
        (0..count).step_by(STEP).map(part).sum()
    }

    /// The pages of a stretch of which the kernel says this.
    pub(crate) fn those(&self, addr: usize, count: usize, are: fn(PageEntry) -> bool) -> Result<Mask, Errno> {
        let mut entries = [0u8; Mask::BITS as usize * 8];
        let entries = sys::page_entries(self.pagemap.as_fd(), addr, &mut entries[..count * 8])?;
        Ok(entries.enumerate().fold(0, |mask, (bit, entry)| mask | Mask::from(are(entry)) << bit))
    }

    fn protect_all(&self, protect: bool) {
        let space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, area) in space.areas_in(&self.pages.range()) {
            // What stays may be the stack of who forks, while nobody resolves faults.
            if area.kind == Kind::Anonymous && !(protect && area.stays()) {
                let pages = self.pages.number(part.start)..self.pages.number(part.end - 1) + 1;
                for pages in Pages::by_group(pages) {
                    // Under the lock of the group: nobody takes the protection for granted that `unshare` has lifted.
                    let group = self.pages.lock(pages.start);
                    if !group.is_empty(pages.start) {
                        // Part of it may not be mapped any more, by a system call of the program's: then it is not
                        // guarded.
                        let _ = self.uffd.write_protect(
                            self.pages.addr(pages.start),
                            pages.len() * PAGE,
                            protect,
                        );
                    }
                }
            }
        }
    }
}
