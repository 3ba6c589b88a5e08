//! What the program does to managed memory past the pager: by syscall(), or by an instruction of its own, as the Go
//! runtime, JITs and sanitizers do. The kernel tells it (UFFD_FEATURE_EVENT_REMOVE, UNMAP, REMAP), and the thread
//! that does it waits until the message has been read.
//!
//! What was dropped has no contents any more, what was unmapped is the program's own affair from then on
//! ([`Kind::Foreign`]), what was moved away takes its contents along and is not managed at its new place.
//!
//! Order: a change is taken up before any fault is served that was read with it or after it. So a thread that has
//! dropped a page finds zeros when it touches it. Between the reading and the kernel's own work on the page tables
//! pages that are None may still be there: from the first such change on, evictors do not go over pages that are
//! None.
//!
//! The reader of messages waits for nobody without reading on: a thread in such a call may hold what it waits for.
//! Hence [`Engine::enter`], [`Engine::lock_group`] and [`Engine::lock_space`], for all that the reader may come to.
//!
//! Price: a raw call waits for the reader. The pager's own calls are made in a way that is not told, or are expected
//! ([`crate::inbox`]).

use crate::detach::present;
use crate::engine::Engine;
use crate::face::Prot;
use crate::gate::Inside;
use crate::inbox::faults;
use crate::mask::{Mask, STRETCH_PAGES};
use crate::pages::{Group, Pages, State};
use crate::space::{Area, Kind, Space};
use crate::staging::Bell;
use crate::sys::{self, PAGE};
use crate::uffd::{Change, Message, Progress};
use ramfold::PAGE_SIZE;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How long the reader waits for something before it reads on.
const PATIENCE: Duration = Duration::from_micros(100);
/// Between two looks for whether somebody else has done with the bell.
const PAUSE: Duration = Duration::from_micros(20);

impl Engine {
    /// Enters the gate.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.wait_for(|patience| self.gate.enter_within(patience), || self.gate.enter())
    }

    /// Locks the group that holds a page.
    pub(crate) fn lock_group(&self, page: usize) -> Group<'_> {
        self.wait_for(|patience| self.pages.lock_within(page, patience), || self.pages.lock(page))
    }

    /// Locks what is known of the address space.
    pub(crate) fn lock_space(&self) -> MutexGuard<'_, Space> {
        let try_lock = |patience| match self.space.try_lock() {
            Ok(space) => Some(space),
            Err(TryLockError::Poisoned(space)) => Some(space.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(patience);
                None
            }
        };
        self.wait_for(try_lock, || self.space.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wait_for<T>(&self, attempt: impl Fn(Duration) -> Option<T>, wait: impl FnOnce() -> T) -> T {
        if let Some(got) = attempt(Duration::ZERO) {
            return got;
        }
        if !self.uffd.is_reader() {
            return wait();
        }
        loop {
            if let Some(got) = attempt(PATIENCE) {
                return got;
            }
            self.read_on();
        }
    }

    /// Puts pages into a range, by `put`, over changes of other ranges: the kernel refuses (EAGAIN) while any change
    /// has not been read. Only the reader is told of that (uffd.rs); EAGAIN is left where a change concerns the
    /// range.
    pub(crate) fn put(&self, range: &Range<usize>, put: impl Fn() -> Progress) -> Progress {
        loop {
            let progress = put();
            if progress.bytes > 0 || progress.stopped != Some(Errno::AGAIN) {
                return progress;
            }
            self.read_on();
            if self.inbox.concerns(range) {
                return progress;
            }
        }
    }

    /// Reads what there is, for later, and does what an evictor waits for. For the reader.
    pub(crate) fn read_on(&self) {
        self.inbox.read_on(|| {
            let mut messages = [Message::default(); 16];
            while let Ok(count @ 1..) = self.uffd.try_read(&mut messages) {
                self.inbox.keep(&messages[..count]);
                faults(&messages[..count]).for_each(|fault| self.help_evictor(fault));
            }
            self.answer_evictor();
        });
    }

    /// Takes up the changes that were read early. For the reader, inside the gate, with no lock held.
    pub(crate) fn take_up_changes(&self) {
        while let Some(change) = self.inbox.take_change() {
            self.take_up(&change);
        }
    }

    /// Takes up a change. For the reader, inside the gate, with no lock held.
    pub(crate) fn take_up(&self, change: &Change) {
        if !self.inbox.was_expected(change) {
            self.changed.store(true, Ordering::Relaxed);
            match change.clone() {
                Change::Removed(range) => self.forget_range(&self.managed_part(range)),
                Change::Unmapped(range) => self.give_up(self.managed_part(range)),
                Change::Moved { from, to, len } => self.follow_move(from, to, len),
            }
        }
        self.inbox.end(change);
    }

    fn managed_part(&self, range: Range<usize>) -> Range<usize> {
        let all = self.pages.range();
        let start = range.start.clamp(all.start, all.end);
        start..range.end.clamp(start, all.end)
    }

    fn forget_range(&self, range: &Range<usize>) {
        for part in self.page_groups(range) {
            let group = self.lock_group(part.start);
            if !group.is_empty(part.start) {
                part.for_each(|page| self.forget(&group, page));
            }
        }
    }

    /// The pages of a range, cut at the borders of groups.
    pub(crate) fn page_groups(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let first = self.pages.number(range.start);
        Pages::by_group(first..first + range.len() / PAGE)
    }

    /// Nobody may put anything there but the program.
    fn give_up(&self, range: Range<usize>) {
        if !range.is_empty() {
            self.forget_range(&range);
            let foreign = Area { kind: Kind::Foreign, untouched: false, ..Area::new(Prot(0)) };
            self.lock_space().set(range, foreign);
        }
    }

    /// Puts what was away to its new place; from then on the kernel alone has it. Where the old mapping stays
    /// (MREMAP_DONTUNMAP) it is empty, and managed as before.
    fn follow_move(&self, from: usize, to: usize, len: usize) {
        let old = self.managed_part(from..from + len);
        let mut scratch = self.scratch();
        let mut buffer = [0; PAGE_SIZE];
        for part in self.page_groups(&old) {
            let group = self.lock_group(part.start);
            for page in part {
                let content = match group.state(page) {
                    State::Stored => match self.store().load(self.key(page), &mut buffer, &mut scratch) {
                        Ok(()) => Some(buffer.as_ptr().addr()),
                        Err(error) => self.die(&format!("a page was lost: {error}")),
                    },
                    State::Evicting => self.staging.find(page),
                    State::None | State::Resident => None,
                };
                if let Some(content) = content {
                    self.put_where_moved(to + (self.pages.addr(page) - from), content);
                }
                self.forget(&group, page);
            }
        }
        // Unmapped since: there is nothing to unregister.
        let _ = self.uffd.unregister(to, len);
        self.give_up(self.managed_part(to..to + len));
        if !old.is_empty() && sys::is_present(old.start).is_err() {
            self.give_up(old);
        }
    }

    /// Leaves a place outside of the managed range to the kernel: something was moved there, and has grown as it was.
    /// What follows goes with it, as far as nothing else lies between, up to the managed range and the pager's own
    /// memory.
    pub(crate) fn let_go(&self, place: usize) {
        const MOST: usize = 1 << 30;
        let ours = [self.pages.range().start, self.staging.addr(0)];
        let next = ours.into_iter().filter(|start| place < *start).min();
        let mut len = next.map_or(MOST, |next| MOST.min(next - place));
        while len >= PAGE && self.uffd.unregister(place, len).is_err() {
            len = len / 2 / PAGE * PAGE;
        }
        self.uffd.wake(place, PAGE);
    }

    /// The least range with all pages of this one that the kernel has. What the program has only freed past the pager
    /// (MADV_FREE is told as MADV_DONTNEED is) stays, though it is None, until the kernel wants it back.
    pub(crate) fn still_there(&self, pages: &Range<usize>) -> Range<usize> {
        let mut all = pages.end..pages.start;
        for start in pages.clone().step_by(STRETCH_PAGES) {
            let count = STRETCH_PAGES.min(pages.end - start);
            let there = present(self, self.pages.addr(start), count);
            if there != 0 {
                let last = start + (Mask::BITS - there.leading_zeros()) as usize;
                all = all.start.min(start + there.trailing_zeros() as usize)..last;
            }
        }
        all
    }

    /// Drops the contents of pages that the program may be using; their group and the space are locked, and they are
    /// None.
    pub(crate) fn discard_in_use(&self, addr: usize, len: usize) -> Result<(), Errno> {
        if !self.uffd.tells_changes() {
            return sys::discard(addr, len);
        }
        let done = self.discard_by_move(addr, len).bytes;
        if done == len {
            return Ok(());
        }
        let rest = addr + done..addr + len;
        self.inbox.removing(rest.clone(), || sys::discard(rest.start, rest.len()))
    }

    /// The same by moving them out of the program's sight first: nobody is told. ENOSYS where nothing can be moved.
    fn discard_by_move(&self, addr: usize, len: usize) -> Progress {
        let (trash, mut done) = (self.staging.trash(), Progress { bytes: 0, stopped: None });
        if !self.uffd.can_move() {
            done.stopped = Some(Errno::NOSYS);
        }
        while done.bytes < len && done.stopped.is_none() {
            let piece = (len - done.bytes).min(trash.len());
            let moved = self.uffd.move_pages(trash.start, addr + done.bytes, piece);
            if moved.bytes > 0 {
                let _ = sys::discard_unseen(trash.start, moved.bytes);
            }
            done = Progress { bytes: done.bytes + moved.bytes, ..moved };
        }
        done
    }

    /// Returns when all changes are taken up that had been made before: they were read, or they would not have been
    /// made. Called outside the gate, with no lock held, not by the reader.
    pub(crate) fn settle_changes(&self) {
        if !self.uffd.tells_changes() {
            return;
        }
        while self.ringing.swap(true, Ordering::Acquire) {
            std::thread::sleep(PAUSE);
        }
        self.staging.ring(Bell::Changes);
        self.staging.silence(Bell::Changes);
        self.ringing.store(false, Ordering::Release);
    }
}
