//! What the program does to its address space: map, unmap, protect, move.
//!
//! Each function does what the system call of its name does, inside the managed range, which is never unmapped:
//! what the program gives back becomes inaccessible and free. Changes are made in an order that leaves no moment
//! in which a page could be lost: first the access is taken away, then the contents; the other way round on the
//! way in.

use crate::activate;
use crate::engine::Engine;
use crate::face::{MapError, Prot};
use crate::lock::lock_again;
use crate::pager::Pager;
use crate::pages::{Pages, State};
use crate::space::{Area, Kind, Opener, Space};
use crate::sys::{self, PAGE};
use crate::uffd::Change;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Page tables are moved by whole middle entries when both ends agree in these bits.
const HUGE: usize = 2 << 20;

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
    fn open(&self, space: &mut Space, range: Range<usize>, area: Area) -> Result<(), MapError> {
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

    /// mremap without copying. `fixed` is the address of MREMAP_FIXED (inside the range); `keep_old` is
    /// MREMAP_DONTUNMAP.
    ///
    /// # Errors
    /// As mremap: [`MapError::Kernel`] with EFAULT if the old range is not one mapping, [`MapError::NoMemory`] if it
    /// may not move and cannot grow.
    pub fn remap(
        &self,
        old: usize,
        old_len: usize,
        new_len: usize,
        may_move: bool,
        fixed: Option<usize>,
        keep_old: bool,
    ) -> Result<usize, MapError> {
        let from = self.checked(old, old_len)?;
        let new_len = page_aligned(new_len)?;
        if let Some(engine) = self.engine() {
            engine.settle_changes();
        }
        // Outlives the lock on the space: a fork must not copy it locked.
        let _closed = self.gate.close_scoped();
        let mut space = self.space();
        let kept = self.unkeep(&mut space, &from)?;
        let moved = self.remap_alone(&mut space, &from, new_len, may_move, fixed, keep_old);
        let place = moved.as_ref().map_or(from, |start| *start..start + new_len);
        self.keep_again(&mut space, &place, kept);
        moved
    }

    /// While the gate is closed, and nothing of the old range is kept.
    fn remap_alone(
        &self,
        space: &mut Space,
        from: &Range<usize>,
        new_len: usize,
        may_move: bool,
        fixed: Option<usize>,
        keep_old: bool,
    ) -> Result<usize, MapError> {
        let Some((_, area)) = space
            .area_at(from.start)
            .filter(|(whole, area)| whole.end >= from.end && area.kind == Kind::Anonymous)
        else {
            return Err(MapError::Kernel(libc::EFAULT));
        };
        if fixed.is_none() && !keep_old {
            if self.resize(space, area, from, new_len)? {
                return Ok(from.start);
            }
            if !may_move {
                return Err(MapError::NoMemory);
            }
        }
        let to = match fixed {
            Some(addr) => {
                let to = self.checked(addr, new_len)?;
                if to.start < from.end && from.start < to.end {
                    return Err(MapError::Invalid);
                }
                self.clear(space, &to)?;
                to
            }
            None => {
                let to = self.find_congruent(space, from.start, new_len)?;
                // Who touched what was just being unmapped there may have been given zeros.
                self.drop_pages(&to, false)?;
                to
            }
        };
        // What is moved to a locked place could not be put there.
        give_rights(&to, area)?;
        space.set(to.clone(), Area { locked: false, ..area });
        let part = from.start..from.start + from.len().min(new_len);
        if area.locked {
            sys::lock(from.start, from.len(), false)?;
            space.set(from.clone(), Area { locked: false, ..area });
        }
        let moved = self.move_pages(space, &part, to.start);
        if area.locked {
            let place = if moved.is_ok() { &to } else { from };
            lock_again(space, place);
            space.set(place.clone(), area);
        }
        moved?;
        // The contents have gone: if this is refused, what is left there is mapped, and empty.
        if !keep_old {
            let _ = self.clear(space, from);
        }
        self.look_at_size(space);
        Ok(to.start)
    }

    /// Makes a mapping shorter or longer where it is. False if it would have to move.
    fn resize(
        &self,
        space: &mut Space,
        area: Area,
        from: &Range<usize>,
        new_len: usize,
    ) -> Result<bool, MapError> {
        if new_len <= from.len() {
            self.clear(space, &(from.start + new_len..from.end))?;
            return Ok(true);
        }
        let growth = from.end..from.start + new_len;
        let is_free = growth.end <= self.range().end && space.is_free(&growth);
        if is_free {
            self.open(space, growth, area)?;
        }
        Ok(is_free)
    }

    /// A free range whose address agrees with `like` below the size of a huge page, so that page tables can be
    /// moved whole.
    fn find_congruent(&self, space: &Space, like: usize, len: usize) -> Result<Range<usize>, MapError> {
        let start = space.find(len + HUGE, HUGE).ok_or(MapError::NoMemory)?;
        let start = start + like % HUGE;
        Ok(start..start + len)
    }

    /// Moves pages, wherever they are, to addresses where nothing is. The gate is closed.
    ///
    /// The kernel takes the userfaultfd off a mapping that it moves, and off neighbours that it merges it with: a
    /// neighbour's evicted page, touched then, would read as zeros. No other mapping of the range is in core dumps,
    /// so while this one is, it merges with nothing.
    fn move_pages(&self, space: &Space, from: &Range<usize>, to: usize) -> Result<(), MapError> {
        if let Some(engine) = self.engine() {
            sys::include_in_dumps(from.start, from.len())?;
            // What lies there is empty, and its end is nothing to be told.
            engine.uffd.unregister(to, from.len())?;
        }
        let moved = move_tables(self.engine(), from.start, to, from.len());
        let Some(engine) = self.engine() else { return moved };
        if moved.is_ok() {
            activate::register(engine, space, to..to + from.len())?;
        }
        sys::exclude_from_dumps(to, from.len())?;
        sys::exclude_from_dumps(from.start, from.len())?;
        moved?;
        let (first, target) = (engine.pages.number(from.start), engine.pages.number(to));
        for part in Pages::by_group(first..first + from.len() / PAGE) {
            if engine.pages.lock(part.start).is_empty(part.start) {
                continue;
            }
            for page in part {
                let (state, heat) = {
                    let group = engine.pages.lock(page);
                    let before = (group.state(page), group.heat(page));
                    group.set(page, State::None);
                    before
                };
                if state != State::None {
                    let page = page - first + target;
                    let group = engine.pages.lock(page);
                    if state == State::Resident {
                        engine.set_resident(&group, page);
                    } else {
                        group.set(page, state);
                    }
                    group.set_heat(page, heat);
                }
            }
        }
        engine.store().rename_range(engine.pool, 0, first as u64, target as u64, (from.len() / PAGE) as u64);
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
fn give_rights(range: &Range<usize>, area: Area) -> Result<(), Errno> {
    if area.prot.0 == 0 && area.key == 0 {
        return Ok(());
    }
    sys::protect_as(range.start, range.len(), area.prot.0, 0, area.key)
}

/// mremap of a range that may consist of several mappings of the kernel's: halves until each part lies in one.
fn move_tables(engine: Option<&Engine>, from: usize, to: usize, len: usize) -> Result<(), MapError> {
    let told = engine.filter(|engine| engine.uffd.tells_changes());
    let change = Change::Moved { from, to, len };
    told.iter().for_each(|engine| engine.inbox.expect(change.clone()));
    let moved = sys::move_mapping(from, to, len);
    if moved.is_err() {
        told.iter().for_each(|engine| engine.inbox.expect_no_more(&change));
    }
    match moved {
        Err(Errno::FAULT | Errno::INVAL) if len > PAGE => {
            let half = (len / 2).next_multiple_of(PAGE);
            move_tables(engine, from, to, half)?;
            move_tables(engine, from + half, to + half, len - half)
        }
        other => Ok(other?),
    }
}

pub(crate) fn page_aligned(len: usize) -> Result<usize, MapError> {
    match len.checked_next_multiple_of(PAGE) {
        Some(0) | None => Err(MapError::Invalid),
        Some(len) => Ok(len),
    }
}
