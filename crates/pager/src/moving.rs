//! mremap: pages, wherever they are, get other addresses.
//!
//! The kernel moves the page tables of one mapping at a time, and of several it may refuse some: a process may have no
//! more than so many mappings (vm.max_map_count). Guarantee: all is moved or nothing. What was moved goes back; if
//! that is refused too the program ends.

use crate::activate;
use crate::engine::Engine;
use crate::face::{MapError, Prot};
use crate::lock::lock_again;
use crate::mapping::{give_rights, page_aligned};
use crate::pager::Pager;
use crate::pages::{Pages, State};
use crate::space::{Area, Kind, Space};
use crate::sys::{self, PAGE};
use crate::uffd::Change;
use rustix::io::Errno;
use std::ops::Range;

/// Page tables are moved by whole middle entries when both ends agree in these bits.
const HUGE: usize = 2 << 20;

/// Page tables that were moved.
#[derive(Debug, Clone, Copy)]
struct Part {
    from: usize,
    to: usize,
    len: usize,
}

impl Pager {
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
        space.set(to.clone(), Area { locked: false, ..area });
        let part = from.start..from.start + from.len().min(new_len);
        let moved = give_rights(&to, area).map_err(MapError::from);
        if let Err(error) = moved.and_then(|()| self.move_unlocked(space, (from, &part), &to, area)) {
            // What the caller has named stays mapped: it is the caller's to unmap.
            if self.clear(space, &to).is_ok() && fixed.is_some() {
                space.set(to, Area::new(Prot(0)));
            }
            return Err(error);
        }
        // The contents have gone: if this is refused, what is left there is mapped, and empty.
        if !keep_old {
            let _ = self.clear(space, from);
        }
        self.look_at_size(space);
        Ok(to.start)
    }

    /// Moves a part of an area to where there is room for all of it. What is moved to a locked place could not be put
    /// there: it is locked when it is there.
    fn move_unlocked(
        &self,
        space: &mut Space,
        (from, part): (&Range<usize>, &Range<usize>),
        to: &Range<usize>,
        area: Area,
    ) -> Result<(), MapError> {
        if !area.locked {
            return self.move_pages(space, part, to.start);
        }
        sys::lock(from.start, from.len(), false)?;
        space.set(from.clone(), Area { locked: false, ..area });
        let moved = self.move_pages(space, part, to.start);
        let place = if moved.is_ok() { to } else { from };
        lock_again(space, place);
        space.set(place.clone(), area);
        moved
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

    /// Moves pages to addresses where nothing is. The gate is closed.
    ///
    /// The kernel takes the userfaultfd off a mapping that it moves, and off neighbours that it merges it with: a
    /// neighbour's evicted page, touched then, would read as zeros. No other mapping of the range is in core dumps,
    /// so while this one is, it merges with nothing.
    fn move_pages(&self, space: &Space, from: &Range<usize>, to: usize) -> Result<(), MapError> {
        let Some(engine) = self.engine() else { return Ok(self.move_tables(space, from, to)?) };
        let moved = sys::include_in_dumps(from.start, from.len())
            // What lies there is empty, and its end is nothing to be told.
            .and_then(|()| engine.uffd.unregister(to, from.len()))
            .and_then(|()| self.move_tables(space, from, to));
        if let Err(errno) = activate::register(engine, space, to..to + from.len())
            && moved.is_ok()
        {
            engine.lose("what was moved cannot be watched", errno);
        }
        // What stays in dumps is unlike its neighbours, no more.
        let _ = sys::exclude_from_dumps(to, from.len());
        let _ = sys::exclude_from_dumps(from.start, from.len());
        moved?;
        rename(engine, from, to);
        Ok(())
    }

    /// mremap of a range that may consist of several mappings of the kernel's: of all of it, or nothing.
    fn move_tables(&self, space: &Space, from: &Range<usize>, to: usize) -> Result<(), Errno> {
        let all = Part { from: from.start, to, len: from.len() };
        let (mut parts, mut moved) = (Vec::new(), move_part(self.engine(), all));
        if is_of_several(moved) {
            let _spare = Spare::new()?;
            moved = move_parts(self.engine(), all, &mut parts);
        }
        if moved.is_err()
            && let Err(errno) = self.move_back(space, all, &parts)
        {
            let message = format!("memory was lost: what was moved cannot be moved back ({errno})");
            let reported = self.segment.report_death(&message);
            self.host.die(&message, reported);
        }
        moved
    }

    /// Undoes what was done of a move.
    ///
    /// Since 6.17 the kernel moves by itself what lies in several mappings, if nobody watches them, and does not tell
    /// how far it came. So without an engine it is looked whether all is back.
    fn move_back(&self, space: &Space, all: Part, parts: &[Part]) -> Result<(), Errno> {
        let Some(engine) = self.engine() else {
            parts.iter().try_for_each(|part| move_part(None, part.back()))?;
            let is_there = |addr| sys::is_present(addr).unwrap_or(true);
            let lost = (all.to..all.to + all.len).step_by(PAGE).any(is_there);
            return if lost { Err(Errno::NOMEM) } else { Ok(()) };
        };
        if parts.is_empty() {
            return Ok(());
        }
        for part in parts {
            engine.uffd.unregister(part.from, part.len)?;
            move_part(Some(engine), part.back())?;
        }
        activate::register(engine, space, all.from..all.from + all.len)
    }
}

/// Mappings of no use. When they are given up the process may have as many others: so there is room to undo a move that
/// was refused for want of it.
struct Spare(usize);

impl Spare {
    const BYTES: usize = 64 * PAGE;

    fn new() -> Result<Self, Errno> {
        let spare = Self(sys::map_own(Self::BYTES)?.addr().get());
        // No two neighbours are alike.
        (spare.0..spare.0 + Self::BYTES)
            .step_by(2 * PAGE)
            .try_for_each(|addr| sys::protect(addr, PAGE, 0))?;
        Ok(spare)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        sys::unmap_own(self.0, Self::BYTES);
    }
}

impl Part {
    fn back(self) -> Self {
        Self { from: self.to, to: self.from, len: self.len }
    }
}

/// The books of what was moved.
fn rename(engine: &Engine, from: &Range<usize>, to: usize) {
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
}

/// What the kernel says of a range of several mappings.
fn is_of_several(moved: Result<(), Errno>) -> bool {
    matches!(moved, Err(Errno::FAULT | Errno::INVAL))
}

/// Halves until each part lies in one mapping. `parts` gets what was moved, from the first on.
fn move_parts(engine: Option<&Engine>, all: Part, parts: &mut Vec<Part>) -> Result<(), Errno> {
    let moved = move_part(engine, all);
    if !is_of_several(moved) || all.len == PAGE {
        return moved.map(|()| parts.push(all));
    }
    let half = (all.len / 2).next_multiple_of(PAGE);
    move_parts(engine, Part { len: half, ..all }, parts)?;
    move_parts(engine, Part { from: all.from + half, to: all.to + half, len: all.len - half }, parts)
}

fn move_part(engine: Option<&Engine>, Part { from, to, len }: Part) -> Result<(), Errno> {
    let told = engine.filter(|engine| engine.uffd.tells_changes());
    let change = Change::Moved { from, to, len };
    told.iter().for_each(|engine| engine.inbox.expect(change.clone()));
    let moved = sys::move_mapping(from, to, len);
    if moved.is_err() {
        told.iter().for_each(|engine| engine.inbox.expect_no_more(&change));
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::{Config, Mode};
    use crate::region::Threads;
    use ramfold_budget::segment::Segment;
    use std::sync::Arc;

    const MIB: usize = 1 << 20;
    const LIMIT: u64 = 8 << 20;
    const PARTS: usize = 8;
    const PART: usize = 4 * PAGE;

    fn pager(threshold: usize) -> Pager {
        let (_, segment) = Segment::create(LIMIT, 0).unwrap();
        let store = ramfold::Config { max_pool_bytes: LIMIT / 2, ..ramfold::Config::default() };
        let config = Config {
            segment: Arc::new(segment),
            store,
            swap: None,
            mode: Mode::Auto,
            threshold,
            range: 256 * MIB,
            trace: None,
            device: None,
            whole_process: false,
        };
        Pager::new(config, &Threads).unwrap()
    }

    fn words(addr: usize, len: usize) -> &'static mut [u64] {
        // SAFETY: the caller has mapped it, and has no other reference to it at a time.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(addr), len / 8) }
    }

    fn fill(addr: usize, len: usize, number: u64) {
        (number..).zip(words(addr, len).chunks_mut(PAGE / 8)).for_each(|(number, page)| page.fill(number));
    }

    fn holds(addr: usize, len: usize, number: u64) -> bool {
        let mut pages = (number..).zip(words(addr, len).chunks(PAGE / 8));
        pages.all(|(number, page)| page.iter().all(|word| *word == number))
    }

    /// What is older leaves.
    fn press(pager: &Pager) {
        let addr = pager.map(4 * MIB * 4, Prot::READ_WRITE, PAGE).unwrap();
        fill(addr, 4 * MIB * 4, 1 << 32);
        assert!(holds(addr, 4 * MIB * 4, 1 << 32));
        pager.unmap(addr, 4 * MIB * 4).unwrap();
    }

    /// One area in the books, of several mappings of the kernel's.
    fn of_parts(pager: &Pager) -> usize {
        let block = pager.map(PARTS * PART, Prot::READ_WRITE, PAGE).unwrap();
        for part in (0..PARTS).rev() {
            let from = pager.map(PART, Prot::READ_WRITE, PAGE).unwrap();
            fill(from, PART, (part * PART / PAGE) as u64 + 1);
            pager.remap(from, PART, PART, true, Some(block + part * PART), false).unwrap();
        }
        assert!(holds(block, PARTS * PART, 1));
        block
    }

    fn moves_all_or_nothing(pager: &Pager, managed: bool) {
        for (part, fixed) in [(1, false), (PARTS - 1, true), (PARTS / 2, false)] {
            let block = of_parts(pager);
            let all = PARTS * PART;
            // It has no room to grow where it is.
            pager.map_fixed(block + all, PAGE, Prot::READ_WRITE).unwrap();
            if managed {
                press(pager);
                fill(block, PART / 2, 1);
            }
            let place = fixed.then(|| pager.map(4 * all, Prot(0), PAGE).unwrap());
            sys::REFUSED.set(Some(block + part * PART));
            let moved = pager.remap(block, all, 2 * all, true, place, false);
            sys::REFUSED.set(None);
            assert_eq!(moved, Err(MapError::Kernel(libc::ENOMEM)));
            assert!(holds(block, all, 1), "part {part}");
            place.into_iter().for_each(|place| assert!(pager.check_mapped(place, 4 * all).is_ok()));
            if managed {
                press(pager);
                assert!(holds(block, all, 1), "part {part}, when it has been away");
            }
            let place = pager.remap(block, all, 2 * all, true, place, false).unwrap();
            assert!(holds(place, all, 1) && words(place + all, all).iter().all(|word| *word == 0));
            if managed {
                press(pager);
                assert!(holds(place, all, 1), "part {part}, where it has moved");
            }
            pager.unmap(place, 2 * all).unwrap();
            pager.unmap(block + all, PAGE).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_moved_as_a_whole_is_not_moved() {
        moves_all_or_nothing(&pager(usize::MAX), false);
        let managed = pager(0);
        managed.map(PAGE, Prot::READ_WRITE, PAGE).unwrap();
        match managed.begin() {
            Ok(()) => moves_all_or_nothing(&managed, true),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
