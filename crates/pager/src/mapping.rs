//! What the program does to its address space: map, unmap, protect.
//!
//! Each function does what the system call of its name does, inside the managed range, which is never unmapped:
//! what the program gives back becomes inaccessible and free. Changes are made in an order that leaves no moment
//! in which a page could be lost: first the access is taken away, then the contents; the other way round on the
//! way in.

use crate::face::{MapError, Prot};
use crate::pager::Pager;
use crate::pages::State;
use crate::space::{Area, Kind, Opener, Space};
use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

impl Pager {
    /// Private anonymous memory, zeroed, aligned to `align` (a power of two >= 4096), anywhere in the range.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if the range, the kernel or the limit has no more.
    pub fn map(&self, len: usize, prot: Prot, align: usize) -> Result<usize, MapError> {
        let len = page_aligned(len)?;
        if self.exhausted() && prot.writable() {
            return Err(MapError::NoMemory);
        }
        let _inside = self.gate.enter();
        let mut space = self.space();
        let addr = space.find(len, align.max(PAGE)).ok_or(MapError::NoMemory)?;
        self.open(&mut space, addr..addr + len, Area::new(prot))?;
        Ok(addr)
    }

    /// MAP_FIXED: fresh zeroed private memory at `addr` (inside the range), replacing what was there.
    ///
    /// # Errors
    /// [`MapError::Invalid`] for a range that is not inside the managed one, or what the kernel answers.
    pub fn map_fixed(&self, addr: usize, len: usize, prot: Prot) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        let mut space = self.space();
        self.clear(&mut space, &range)?;
        self.open(&mut space, range, Area::new(prot))
    }

    /// As [`Pager::map_fixed`], but fails with EEXIST if anything is mapped there (MAP_FIXED_NOREPLACE).
    ///
    /// # Errors
    /// As `map_fixed`.
    pub fn map_fixed_noreplace(&self, addr: usize, len: usize, prot: Prot) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        let mut space = self.space();
        if !space.is_free(&range) {
            return Err(MapError::Kernel(libc::EEXIST));
        }
        self.open(&mut space, range, Area::new(prot))
    }

    /// munmap of any part of the range. Unmapping what is not mapped is no error.
    ///
    /// # Errors
    /// [`MapError::Invalid`] for a range that is not inside the managed one.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        self.clear(&mut self.space(), &range)
    }

    /// mprotect.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of the range is not mapped, or what the kernel answers.
    pub fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), MapError> {
        self.protect_mapped(addr, len, prot, None)
    }

    /// pkey_mprotect with a key of the program's own, or 0.
    ///
    /// # Errors
    /// As [`Pager::protect`].
    pub fn protect_with_key(&self, addr: usize, len: usize, prot: Prot, key: u8) -> Result<(), MapError> {
        self.protect_mapped(addr, len, prot, Some(key))
    }

    fn protect_mapped(&self, addr: usize, len: usize, prot: Prot, key: Option<u8>) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        let mut space = self.space();
        if !space.is_mapped(&range) {
            return Err(MapError::NoMemory);
        }
        self.set_prot(&mut space, range, prot, key, Opener::Program)
    }

    /// Without a key, each page keeps the one that it has. A key is always told to the kernel: what foreign memory has
    /// is not known here.
    fn set_prot(
        &self,
        space: &mut Space,
        range: Range<usize>,
        prot: Prot,
        key: Option<u8>,
        opened_by: Opener,
    ) -> Result<(), MapError> {
        for (part, area) in space.areas_in(&range) {
            match key {
                Some(key) => sys::protect_with_key(part.start, part.len(), prot.0, key)?,
                None => sys::protect(part.start, part.len(), prot.0)?,
            }
            let key = key.unwrap_or(area.key);
            if area.kind == Kind::Anonymous {
                self.enter(space, part, Area { prot, key, untouched: false, opened_by, ..area })?;
            }
        }
        Ok(())
    }

    /// mprotect that makes memory readable and writable, of an allocator that opens piece by piece what it has
    /// reserved. Where memory is managed it gets what follows as well, as far as `reserved`, if that is untouched:
    /// the next pieces then cost nothing, and a first touch can be given more than a piece at once
    /// ([`crate::fresh`]).
    ///
    /// # Errors
    /// As [`Pager::protect`].
    pub fn commit(&self, addr: usize, len: usize, reserved: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        let mut space = self.space();
        if !space.is_mapped(&range) {
            return Err(MapError::NoMemory);
        }
        let open = Area { opened_by: Opener::Malloc, ..Area::new(Prot::READ_WRITE) };
        let is_open = |(_, area): &(_, Area)| *area == Area { locked: area.locked, kept: area.kept, ..open };
        if space.areas_in(&range).iter().all(is_open) {
            return Ok(());
        }
        if self.engine().is_some()
            && !space.locks_new
            && let Some((next, area)) = space.area_at(range.end)
            && area.untouched
        {
            let more = range.start..next.end.min(reserved);
            if more.end > range.end
                && self.set_prot(&mut space, more, open.prot, None, Opener::Malloc).is_ok()
            {
                return Ok(());
            }
        }
        self.set_prot(&mut space, range, open.prot, None, Opener::Malloc)
    }

    /// Lets the program use anonymous memory that was inaccessible.
    pub(crate) fn open(&self, space: &mut Space, range: Range<usize>, area: Area) -> Result<(), MapError> {
        give_rights(&range, area)?;
        self.enter(space, range.clone(), area).inspect_err(|_| {
            // It is free: nobody is to use it.
            let _ = sys::protect_as(range.start, range.len(), 0, area.key, 0);
        })
    }

    /// Enters what the program may do with anonymous memory, and locks it if it has to be. Nothing is refused to what
    /// stays already, though it could not be locked anew.
    fn enter(&self, space: &mut Space, range: Range<usize>, mut area: Area) -> Result<(), MapError> {
        area.locked |= space.locks_new && area.prot.0 != 0;
        let stayed = space.area_at(range.start).is_some_and(|(_, before)| before.stays());
        if area.stays()
            && let Err(errno) = sys::lock_on_fault(range.start, range.len())
            && !stayed
        {
            return Err(errno.into());
        }
        space.set(range, area);
        self.look_at_size(space);
        Ok(())
    }

    /// Unmaps what is mapped in the range.
    pub(crate) fn clear(&self, space: &mut Space, range: &Range<usize>) -> Result<(), MapError> {
        if range.is_empty() {
            return Ok(());
        }
        for (part, area) in space.areas_in(range) {
            if area.kind == Kind::Foreign {
                sys::reserve_over(part.start, part.len())?;
                self.take_reserved(&part)?;
                continue;
            }
            if area.stays() {
                sys::lock(part.start, part.len(), false)?;
            }
            if area.prot.0 != 0 || area.key != 0 {
                sys::protect_as(part.start, part.len(), 0, area.key, 0)?;
            }
            self.drop_pages(&part, false)?;
            if !area.in_dumps && self.engine().is_none() {
                sys::include_in_dumps(part.start, part.len())?;
            }
        }
        space.clear(range);
        Ok(())
    }

    /// Makes the pages of an anonymous range zeros again; the program may use them meanwhile if they are
    /// `accessible`. The space is locked.
    pub(crate) fn drop_pages(&self, range: &Range<usize>, accessible: bool) -> Result<(), MapError> {
        let Some(engine) = self.engine() else { return Ok(sys::discard(range.start, range.len())?) };
        for part in engine.page_groups(range) {
            let group = engine.pages.lock(part.start);
            let changed = engine.changed.load(Ordering::Relaxed);
            if group.is_empty(part.start) && !changed {
                continue;
            }
            engine.trace.iter().for_each(|trace| trace.given_up(&part));
            let mut there = part.end..part.start;
            for page in part.clone() {
                if group.state(page) == State::Resident {
                    there = there.start.min(page)..page + 1;
                }
                engine.forget(&group, page);
            }
            if changed {
                there = engine.still_there(&part);
            }
            if !there.is_empty() {
                let addr = engine.pages.addr(there.start);
                let common = engine.count_in_common(addr, there.len());
                let len = there.len() * PAGE;
                if accessible {
                    engine.discard_in_use(addr, len)?;
                } else {
                    sys::discard_unseen(addr, len)?;
                }
                engine.member.usage.divide(common);
            }
        }
        Ok(())
    }

    /// True when nothing more can be held: new allocations must fail with ENOMEM.
    #[must_use]
    pub fn exhausted(&self) -> bool {
        self.engine().is_some_and(|engine| {
            let seen = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
            engine.member.is_exhausted() || (seen(&engine.nearly_full) && engine.member.is_nearly_full())
        })
    }

    pub(crate) fn checked(&self, addr: usize, len: usize) -> Result<Range<usize>, MapError> {
        let len = page_aligned(len)?;
        let end = addr.checked_add(len).ok_or(MapError::Invalid)?;
        let inside = self.range().start <= addr && end <= self.range().end;
        if inside && addr.is_multiple_of(PAGE) { Ok(addr..end) } else { Err(MapError::Invalid) }
    }
}

/// Gives memory that was free the rights of an area.
pub(crate) fn give_rights(range: &Range<usize>, area: Area) -> Result<(), Errno> {
    if area.prot.0 == 0 && area.key == 0 {
        return Ok(());
    }
    sys::protect_as(range.start, range.len(), area.prot.0, 0, area.key)
}

pub(crate) fn page_aligned(len: usize) -> Result<usize, MapError> {
    match len.checked_next_multiple_of(PAGE) {
        Some(0) | None => Err(MapError::Invalid),
        Some(len) => Ok(len),
    }
}
