//! Memory that stays: what the program locks, and what is kept for it.
//!
//! The kernel writes to some memory without waiting for a page (a thread's control block when that ends, futexes with
//! an owner), and the pager's threads read some in which they must not fault. Such memory is *kept*. It is locked in
//! the kernel as what the program locks is, so that no way out takes it; but the program has not locked it, and is not
//! to see it: it may drop it, unlock it, move it, all at once or in part, as any other memory. Dropped or unmapped it
//! is kept no longer.
//!
//! The kernel may refuse to lock what is kept (RLIMIT_MEMLOCK), and what was locked before: after a fork, a move or
//! munlockall, where the process has given up CAP_IPC_LOCK since. Such memory stays by the books
//! ([`Space::unlocked`]): evictors look there before they take a page.
//!
//! Price: the pages. Guarantee: what stays is never evicted, nor made to wait for the pager in any other way.

use crate::engine::Engine;
use crate::face::MapError;
use crate::foreign::Call;
use crate::mask::{Mask, ones};
use crate::pager::Pager;
use crate::space::{Area, Kind, Space};
use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Pager {
    /// mlock: brings the pages back and never evicts them until [`Pager::unlock`].
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of the range is not mapped or the process would have more than half the limit
    /// locked; else what the kernel answers.
    pub fn lock(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        if self.locked_with(&range) > self.limit() / 2 {
            return Err(MapError::NoMemory);
        }
        self.change(&range, |area| Area { locked: true, ..area })?;
        sys::lock(range.start, range.len(), true).map_err(|errno| {
            let _ = self.change(&range, |area| Area { locked: false, ..area });
            errno.into()
        })
    }

    /// Bytes that will be locked if the range is.
    fn locked_with(&self, range: &Range<usize>) -> u64 {
        let _inside = self.gate.enter();
        let areas = self.space().areas_in(&self.range());
        let locked = areas.iter().filter(|(_, area)| area.locked).map(|(part, _)| {
            let both = part.start.max(range.start)..part.end.min(range.end);
            part.len() - both.len()
        });
        (locked.sum::<usize>() + range.len()) as u64
    }

    /// munlock.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of the range is not mapped.
    pub fn unlock(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        for (part, area) in self.change(&range, |area| Area { locked: false, ..area })? {
            if !area.kept {
                sys::lock(part.start, part.len(), false)?;
            }
        }
        Ok(())
    }

    /// mlockall: of memory that is there, and of what will be. Locked memory is brought in and never evicted; if that
    /// is more than the limit, the program ends.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn lock_all(&self, present: bool, future: bool) -> Result<(), MapError> {
        let areas = {
            let _inside = self.gate.enter();
            let mut space = self.space();
            space.locks_new = future;
            space.areas_in(&self.range())
        };
        for (part, area) in areas {
            if present && area.kind == Kind::Anonymous && area.prot.0 != 0 {
                self.change(&part, |area| Area { locked: true, ..area })?;
                sys::lock(part.start, part.len(), true)?;
            }
        }
        Ok(())
    }

    /// munlockall: `call` makes it, as the program did. Nothing is evicted before what is kept is locked again.
    ///
    /// # Errors
    /// What `call` answers.
    pub fn unlock_all(&self, call: Call<'_>) -> Result<(), MapError> {
        let _closed = self.gate.close_scoped();
        let mut space = self.space();
        call().map_err(MapError::Kernel)?;
        space.unlock_all();
        self.lock_kept(&space);
        Ok(())
    }

    /// Keeps a range, as far as it is managed and anonymous.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of the range is not mapped; else what the kernel answers.
    pub fn keep(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let mut done = Ok(());
        let kept = |area: Area| Area { kept: area.kind == Kind::Anonymous, ..area };
        for (part, before) in self.change(&range, kept)? {
            if before.kind == Kind::Anonymous
                && let Err(errno) = sys::lock(part.start, part.len(), true)
                && !self.keep_by_the_books(&part, errno)
            {
                // Unmapped meanwhile: it is kept no longer.
                let _ = self.change(&part, |area| Area { kept: before.kept && area.kept, ..area });
                done = Err(errno.into());
            }
        }
        done
    }

    /// Keeps what the kernel does not lock, if that is why. Who has taken a page of it before is through with that once
    /// the gate was closed; what is away then comes back, and stays.
    fn keep_by_the_books(&self, part: &Range<usize>, why: Errno) -> bool {
        let areas = {
            let _inside = self.gate.enter();
            let space = self.space();
            if ![Errno::AGAIN, Errno::NOMEM, Errno::PERM].contains(&why) || !space.is_mapped(part) {
                return false;
            }
            space.unlocked.store(true, Ordering::Relaxed);
            space.areas_in(part)
        };
        drop(self.gate.close_scoped());
        let usable = areas.into_iter().filter(|(_, area)| area.prot.writable());
        usable.flat_map(|(part, _)| part.step_by(PAGE)).for_each(sys::touch);
        true
    }

    /// Locks in the kernel what is kept: in a forked child, which inherits no locks, for one. It is all there, and
    /// nobody evicts.
    pub(crate) fn lock_kept(&self, space: &Space) {
        for (part, _) in space.areas_in(&self.range()).iter().filter(|(_, area)| area.kept) {
            lock_again(space, part);
        }
    }

    /// What of a range is kept is so no longer; returns it, as offsets, for [`Pager::keep_again`]. Where the program
    /// has it locked it stays locked. The gate is closed.
    pub(crate) fn unkeep(
        &self,
        space: &mut Space,
        range: &Range<usize>,
    ) -> Result<Vec<Range<usize>>, MapError> {
        let mut kept = Vec::new();
        for (part, area) in space.areas_in(range).into_iter().filter(|(_, area)| area.kept) {
            if !area.locked
                && let Err(errno) = sys::lock(part.start, part.len(), false)
            {
                self.keep_again(space, range, kept);
                return Err(errno.into());
            }
            kept.push(part.start - range.start..part.end - range.start);
            space.set(part, Area { kept: false, ..area });
        }
        Ok(kept)
    }

    /// Keeps it at a new place, as far as that goes. Nothing has been evicted meanwhile: the gate is closed.
    pub(crate) fn keep_again(&self, space: &mut Space, place: &Range<usize>, kept: Vec<Range<usize>>) {
        for part in kept {
            let part = place.start + part.start..(place.start + part.end).min(place.end);
            for (part, area) in space.areas_in(&(part.start..part.end.max(part.start))) {
                lock_again(space, &part);
                space.set(part, Area { kept: true, ..area });
            }
        }
    }

    /// Gives the areas of a range other attributes; those that they had.
    fn change(
        &self,
        range: &Range<usize>,
        to: impl Fn(Area) -> Area,
    ) -> Result<Vec<(Range<usize>, Area)>, MapError> {
        let _inside = self.gate.enter();
        let mut space = self.space();
        if !space.is_mapped(range) {
            return Err(MapError::NoMemory);
        }
        let before = space.areas_in(range);
        for (part, area) in &before {
            space.set(part.clone(), to(*area));
        }
        Ok(before)
    }
}

/// Locks in the kernel what was locked already. Where that is refused it stays by the books. Of what is kept: the gate
/// is closed, or nobody evicts yet.
pub(crate) fn lock_again(space: &Space, part: &Range<usize>) {
    if sys::lock_on_fault(part.start, part.len()).is_err() {
        space.unlocked.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// What of a stretch stays. Whoever would copy a page protects it first, and only then finds that it does not go:
    /// what stays is not even protected. Called with no group locked.
    pub(crate) fn staying(&self, first: usize, count: usize) -> Mask {
        let start = self.pages.addr(first);
        let areas = self.lock_space().areas_in(&(start..start + count * PAGE));
        let staying = areas.iter().filter(|(_, area)| area.stays());
        staying.fold(0, |mask, (part, _)| mask | ones((part.start - start) / PAGE..(part.end - start) / PAGE))
    }
}
