//! What the program puts into the managed range that is not the pager's: files, shared memory, devices.
//!
//! The kernel checks a call before it gives up what was there, and nobody else knows all that it checks. So the
//! program's own call is made over managed memory as it is, and the pager forgets the old contents once it has
//! succeeded. Meanwhile the gate is closed: nobody may take a page of what is being replaced for one of the old.
//!
//! Some calls leave a hole in the range (mremap away, shmdt). It is reserved again at once; if the kernel has put
//! something there in between, a thread's stack or a library, that is foreign memory from then on, and never touched.
//!
//! Price: all of the pager stands still for one system call. Guarantee: a call that fails leaves what was there, as
//! far as the kernel does; no page of foreign memory is ever taken for the pager's.

use crate::face::MapError;
use crate::mapping::page_aligned;
use crate::pager::Pager;
use crate::pages::State;
use crate::space::{Area, Kind, Space};
use crate::sys;
use crate::uffd::Change;
use std::ops::Range;

/// The program's own system call: an address, or errno.
pub type Call<'a> = &'a mut dyn FnMut() -> Result<usize, i32>;

/// What the program asks of mremap, beside the old range.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// Bytes that it is to have.
    pub len: usize,
    /// MREMAP_MAYMOVE.
    pub may_move: bool,
    /// MREMAP_FIXED: the address, which may lie outside of the range.
    pub fixed: Option<usize>,
    /// MREMAP_DONTUNMAP.
    pub keep_old: bool,
}

impl Pager {
    /// Puts something foreign into the range, over whatever is there if `replace`, else only where nothing is. `call`
    /// maps it at `addr`, as MAP_FIXED does.
    ///
    /// # Errors
    /// What `call` answers; EEXIST where nothing may be replaced and something is mapped.
    pub fn map_foreign(
        &self,
        addr: usize,
        len: usize,
        replace: bool,
        call: Call<'_>,
    ) -> Result<usize, MapError> {
        let range = self.checked(addr, len)?;
        let mapped = {
            let _closed = self.gate.close_scoped();
            let mut space = self.space();
            if !replace && !space.is_free(&range) {
                return Err(MapError::Kernel(libc::EEXIST));
            }
            self.replace(&mut space, &range, Area::foreign(), call)
        };
        self.expect_no_more(range);
        mapped
    }

    /// What the kernel had to tell of the unmapping of this range it has told: some calls tell nothing. The gate is
    /// open.
    fn expect_no_more(&self, range: Range<usize>) {
        if let Some(engine) = self.engine() {
            engine.settle_changes();
            let _inside = self.gate.enter();
            engine.inbox.expect_no_more(&Change::Unmapped(range));
        }
    }

    /// The caller is about to unmap this range, and sees to its pages.
    fn expect_unmapped(&self, range: &Range<usize>) {
        if let Some(engine) = self.engine().filter(|engine| engine.uffd.tells_changes()) {
            engine.inbox.expect(Change::Unmapped(range.clone()));
        }
    }

    /// The gate is closed.
    fn replace(
        &self,
        space: &mut Space,
        range: &Range<usize>,
        area: Area,
        call: Call<'_>,
    ) -> Result<usize, MapError> {
        let own: Vec<_> =
            space.areas_in(range).into_iter().filter(|(_, area)| area.kind == Kind::Anonymous).collect();
        let common = own.iter().map(|(part, _)| self.resident_in_common(part)).sum();
        self.expect_unmapped(range);
        let done = call().map_err(MapError::Kernel);
        if done.is_err() && !self.close_hole_if_any(space, range)? {
            return done;
        }
        for (part, _) in &own {
            self.forget_pages(part);
        }
        if let Some(engine) = self.engine() {
            engine.member.usage.divide(common);
        }
        if done.is_ok() {
            space.set(range.clone(), area);
        }
        done
    }

    /// mremap of foreign memory; `call` makes it, as the program did.
    ///
    /// # Errors
    /// As mremap.
    pub fn remap_foreign(
        &self,
        old: usize,
        old_len: usize,
        to: Move,
        call: Call<'_>,
    ) -> Result<usize, MapError> {
        let from = self.checked(old, old_len)?;
        let len = page_aligned(to.len)?;
        let moved = self.remap_foreign_alone(&from, len, to, call);
        self.expect_no_more(match to.fixed {
            Some(start) => start..start.saturating_add(len),
            None => from.end..from.start.saturating_add(len).max(from.end),
        });
        moved
    }

    /// While the gate is closed.
    fn remap_foreign_alone(
        &self,
        from: &Range<usize>,
        len: usize,
        to: Move,
        call: Call<'_>,
    ) -> Result<usize, MapError> {
        let _closed = self.gate.close_scoped();
        let mut space = self.space();
        if to.fixed.is_none() && !to.keep_old {
            if len <= from.len() {
                self.clear(&mut space, &(from.start + len..from.end))?;
                return Ok(from.start);
            }
            if let Some(grown) = self.grow_foreign(&mut space, from, len, call)? {
                return Ok(grown);
            }
            if !to.may_move {
                return Err(MapError::NoMemory);
            }
        }
        let managed = self.range();
        let moved = match to.fixed {
            Some(addr) if addr < managed.end && addr.saturating_add(len) > managed.start => {
                let target = self.checked(addr, len)?;
                let area = space.area_at(from.start).map_or(Area::foreign(), |(_, area)| area);
                self.replace(&mut space, &target, area, call)?
            }
            _ => call().map_err(MapError::Kernel)?,
        };
        if !to.keep_old {
            self.close_hole(&mut space, from)?;
        }
        Ok(moved)
    }

    /// Grows a mapping in its place, if there is room: in a hole that is made behind it.
    fn grow_foreign(
        &self,
        space: &mut Space,
        from: &Range<usize>,
        len: usize,
        call: Call<'_>,
    ) -> Result<Option<usize>, MapError> {
        let growth = from.end..from.start + len;
        if growth.end > self.range().end || !space.is_free(&growth) {
            return Ok(None);
        }
        self.expect_unmapped(&growth);
        sys::open_hole(growth.start, growth.len())?;
        let done = call();
        match done {
            Ok(addr) if addr == from.start => {
                let area = space.area_at(from.start).map_or(Area::foreign(), |(_, area)| area);
                space.set(growth, area);
            }
            Ok(_) => {
                self.close_hole(space, &growth)?;
                self.close_hole(space, from)?;
            }
            Err(_) => self.close_hole(space, &growth)?,
        }
        done.map(Some).map_err(MapError::Kernel)
    }

    /// mremap with an old length of 0: shared memory is mapped a second time. `call` makes it, as the program did.
    ///
    /// # Errors
    /// As mremap.
    pub fn duplicate_foreign(&self, to: Move, call: Call<'_>) -> Result<usize, MapError> {
        match to.fixed {
            Some(addr) if self.range().contains(&addr) => self.map_foreign(addr, to.len, true, call),
            _ => call().map_err(MapError::Kernel),
        }
    }

    /// Whether what is at this address is not the pager's.
    #[must_use]
    pub fn is_foreign(&self, addr: usize) -> bool {
        let _inside = self.gate.enter();
        self.space().area_at(addr).is_some_and(|(_, area)| area.kind == Kind::Foreign)
    }

    /// shmat at an address inside the range, as [`Pager::map_foreign`]; notes how much [`Pager::detach`] is to give
    /// back.
    ///
    /// # Errors
    /// As `map_foreign`.
    pub fn attach(&self, addr: usize, len: usize, replace: bool, call: Call<'_>) -> Result<usize, MapError> {
        let attached = self.map_foreign(addr, len, replace, call)?;
        let _inside = self.gate.enter();
        self.space().attached.insert(attached, page_aligned(len)?);
        Ok(attached)
    }

    /// shmdt: `call` makes it, as the program did.
    ///
    /// # Errors
    /// What `call` answers.
    pub fn detach(&self, addr: usize, call: Call<'_>) -> Result<usize, MapError> {
        let _closed = self.gate.close_scoped();
        let mut space = self.space();
        let done = call().map_err(MapError::Kernel)?;
        if let Some(len) = space.attached.remove(&addr) {
            // The program may have put something else over parts of it.
            for (part, area) in space.areas_in(&(addr..addr + len)) {
                if area.kind == Kind::Foreign {
                    self.close_hole(&mut space, &part)?;
                }
            }
        }
        Ok(done)
    }

    /// Reserves again what the kernel has taken out of the range. If anything is there by now, all of it is foreign.
    pub(crate) fn close_hole(&self, space: &mut Space, hole: &Range<usize>) -> Result<(), MapError> {
        if !self.close_hole_if_any(space, hole)? {
            space.set(hole.clone(), Area::foreign());
        }
        Ok(())
    }

    /// False if anything is mapped there, and nothing was changed.
    fn close_hole_if_any(&self, space: &mut Space, hole: &Range<usize>) -> Result<bool, MapError> {
        if sys::reserve_free(hole.start, hole.len()).is_err() {
            return Ok(false);
        }
        space.clear(hole);
        self.take_reserved(hole)?;
        Ok(true)
    }

    /// Makes a part that was just reserved like the rest of the range.
    pub(crate) fn take_reserved(&self, range: &Range<usize>) -> Result<(), MapError> {
        if let Some(engine) = self.engine() {
            sys::exclude_from_dumps(range.start, range.len())?;
            engine.uffd.register(range.start, range.len())?;
        }
        Ok(())
    }

    /// Pages of an anonymous range that are here, and another process's as well since a fork.
    fn resident_in_common(&self, range: &Range<usize>) -> u32 {
        let Some(engine) = self.engine().filter(|engine| engine.member.usage.is_related()) else { return 0 };
        let mut common = 0;
        for part in engine.page_groups(range) {
            let group = engine.pages.lock(part.start);
            if !group.is_empty(part.start) {
                let resident = part.filter(|page| group.state(*page) == State::Resident);
                common +=
                    resident.map(|page| engine.count_in_common(engine.pages.addr(page), 1)).sum::<u32>();
            }
        }
        common
    }

    /// Forgets the pages of an anonymous range that the kernel has unmapped.
    fn forget_pages(&self, range: &Range<usize>) {
        let Some(engine) = self.engine() else { return };
        for part in engine.page_groups(range) {
            let group = engine.pages.lock(part.start);
            if !group.is_empty(part.start) {
                engine.trace.iter().for_each(|trace| trace.given_up(&part));
                part.for_each(|page| engine.forget(&group, page));
            }
        }
    }
}
