//! madvise.
//!
//! What it means for private anonymous memory is done here, with the pager's own state of each page. Foreign memory
//! is the kernel's, and so is the advice on it: it goes there as the program gave it.

use crate::face::MapError;
use crate::lock::lock_again;
use crate::pager::Pager;
use crate::pages::State;
use crate::space::{Area, Kind, Space};
use crate::sys::{self, PAGE};
use std::ops::Range;

/// Most that an announcement of use (WILLNEED) brings in.
const MAX_WILL_NEED: usize = 32 << 20;

/// What an advice asks of the pager.
enum Advice {
    /// Contents are no longer wanted; the next read gives zeros. Perhaps also of what is locked.
    Drop { locked: bool },
    /// Will be used soon.
    WillNeed,
    /// The same, and an error where the program has not this right.
    Populate(i32),
    /// May leave first.
    Cold,
    /// Tells what forked children get: one of four.
    OnFork,
    /// Whether it is in core dumps.
    InDumps(bool),
    /// Accepted, without effect.
    Nothing,
}

/// As the kernel takes it for private anonymous memory (so no MADV_REMOVE, which is for what has a file).
fn meaning(value: i32) -> Result<Advice, MapError> {
    Ok(match value {
        libc::MADV_DONTNEED | libc::MADV_FREE => Advice::Drop { locked: false },
        libc::MADV_DONTNEED_LOCKED => Advice::Drop { locked: true },
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_POPULATE_READ => Advice::Populate(libc::PROT_READ),
        libc::MADV_POPULATE_WRITE => Advice::Populate(libc::PROT_WRITE),
        libc::MADV_COLD | libc::MADV_PAGEOUT => Advice::Cold,
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            Advice::OnFork
        }
        libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL => Advice::Nothing,
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => {
            Advice::Nothing
        }
        libc::MADV_DONTDUMP | libc::MADV_DODUMP => Advice::InDumps(value == libc::MADV_DODUMP),
        _ => return Err(MapError::Invalid),
    })
}

/// Advice that may take long and changes no contents: the kernel gets it when nobody waits for us.
fn is_slow(value: i32) -> bool {
    matches!(
        value,
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE | libc::MADV_PAGEOUT
    )
}

impl Pager {
    /// madvise, with one of the kernel's values.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of the range is not mapped; what is mapped has been advised. Else as madvise.
    pub fn advise(&self, addr: usize, len: usize, value: i32) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let (mut wanted, mut later) = (Vec::new(), Vec::new());
        let complete = {
            let _inside = self.gate.enter();
            let mut space = self.space();
            for (part, area) in space.areas_in(&range) {
                match area.kind {
                    Kind::Anonymous => self.advise_own(&mut space, part, area, value, &mut wanted)?,
                    Kind::Foreign if is_slow(value) => later.push(part),
                    Kind::Foreign => {
                        sys::advise_foreign(part.start, part.len(), value)?;
                        let on_fork = area.on_fork.advised(value);
                        if on_fork != area.on_fork {
                            space.set(part, Area { on_fork, ..area });
                        }
                    }
                }
            }
            space.is_mapped(&range)
        };
        for run in wanted {
            // Only an announcement: what cannot be brought in now comes when it is touched.
            let _ = sys::populate_read(run.start, run.len());
        }
        for part in later {
            sys::advise_foreign(part.start, part.len(), value)?;
        }
        if complete { Ok(()) } else { Err(MapError::NoMemory) }
    }

    /// Whether all of the range is mapped. The kernel cannot tell: to it all that is reserved is.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if part of it is not.
    pub fn check_mapped(&self, addr: usize, len: usize) -> Result<(), MapError> {
        let range = self.checked(addr, len)?;
        let _inside = self.gate.enter();
        if self.space().is_mapped(&range) { Ok(()) } else { Err(MapError::NoMemory) }
    }

    /// `wanted` gets what is to be brought in once nothing is locked.
    fn advise_own(
        &self,
        space: &mut Space,
        part: Range<usize>,
        area: Area,
        value: i32,
        wanted: &mut Vec<Range<usize>>,
    ) -> Result<(), MapError> {
        let readable = area.prot.0 & libc::PROT_READ != 0;
        match meaning(value)? {
            Advice::Drop { locked: false } if area.locked => return Err(MapError::Invalid),
            Advice::Drop { .. } => self.drop_part(space, &part, area)?,
            Advice::Populate(right) if area.prot.0 & right == 0 => return Err(MapError::Invalid),
            Advice::WillNeed | Advice::Populate(_) if readable => wanted.extend(self.stored_runs(&part)),
            Advice::Cold => self.cool(&part),
            Advice::OnFork => space.set(part, Area { on_fork: area.on_fork.advised(value), ..area }),
            Advice::InDumps(in_dumps) => self.set_in_dumps(space, part, Area { in_dumps, ..area })?,
            Advice::WillNeed | Advice::Populate(_) | Advice::Nothing => {}
        }
        Ok(())
    }

    /// What is dropped is kept no longer. What is locked is unlocked for a moment, or it could not be dropped.
    fn drop_part(&self, space: &mut Space, part: &Range<usize>, area: Area) -> Result<(), MapError> {
        if area.stays() {
            sys::lock(part.start, part.len(), false)?;
            space.set(part.clone(), Area { kept: false, ..area });
        }
        let dropped = self.drop_pages(part, area.prot.0 != 0);
        if area.locked {
            lock_again(space, part);
        }
        dropped
    }

    /// Where memory is managed the range is left out as a whole ([`crate::dump`]).
    fn set_in_dumps(&self, space: &mut Space, part: Range<usize>, area: Area) -> Result<(), MapError> {
        match self.engine() {
            Some(_) => {}
            None if area.in_dumps => sys::include_in_dumps(part.start, part.len())?,
            None => sys::exclude_from_dumps(part.start, part.len())?,
        }
        space.set(part, area);
        Ok(())
    }

    /// The pages of the range that the store holds, as address ranges.
    fn stored_runs(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let Some(engine) = self.engine() else { return runs };
        let mut left = MAX_WILL_NEED.min(usize::try_from(self.limit() / 8).unwrap_or(usize::MAX));
        for part in engine.page_groups(range) {
            let group = engine.pages.lock(part.start);
            if group.is_empty(part.start) {
                continue;
            }
            for page in part.filter(|page| group.state(*page) == State::Stored) {
                if left < PAGE {
                    return runs;
                }
                left -= PAGE;
                let addr = engine.pages.addr(page);
                match runs.last_mut() {
                    Some(run) if run.end == addr => run.end += PAGE,
                    _ => runs.push(addr..addr + PAGE),
                }
            }
        }
        runs
    }

    /// Takes the heat from the pages of the range: they leave when their turn comes.
    fn cool(&self, range: &Range<usize>) {
        let Some(engine) = self.engine() else { return };
        for part in engine.page_groups(range) {
            let group = engine.pages.lock(part.start);
            if !group.is_empty(part.start) {
                part.for_each(|page| group.set_heat(page, 0));
            }
        }
    }
}
