//! First touches: a page without contents is given as zeros, and its neighbours with it.
//!
//! A first touch costs the kernel half a microsecond and the pager fifteen; and the program may go on, when it is woken, on
//! another core, away from its caches. Programs that grow touch their memory densely, upwards or downwards, so the
//! untouched pages around the page are wanted soon. How many come along depends on what is left of the limit: frames that
//! nobody comes to use are not missed while there is plenty, and must be evicted where there is not.
//!
//! Guarantee: what is given is counted, and pages that have contents are left as they are.

use crate::engine::Engine;
use crate::fault::place;
use crate::pages::{BLOCK_PAGES, GROUP_PAGES, Group, Pages, State};
use crate::streams::Streams;
use crate::sys::PAGE;
use crate::uffd::{Fault, Progress};
use ramfold::{PAGE_SIZE, Page};
use rustix::io::Errno;
use std::ops::{Range, RangeInclusive};

/// Fewest pages that are given together while there is room at all, and most. More would do no harm to a compiler whose
/// memory is short, but to a sparse table.
const PAGES: RangeInclusive<usize> = BLOCK_PAGES / 4..=4 * BLOCK_PAGES;
/// Together they are at most this part of what is left of the limit; other processes may give at the same time.
const PART: usize = 256;
/// Times as many where they are touched in sequence.
const IN_SEQUENCE: usize = 4;

/// Resolves first touches.
pub(crate) struct Fresh {
    zeros: Box<[Page; BLOCK_PAGES]>,
}

impl Default for Fresh {
    fn default() -> Self {
        Self { zeros: Box::new([[0; PAGE_SIZE]; BLOCK_PAGES]) }
    }
}

impl Fresh {
    /// Gives a page that is None, and what is to come with it; its group is locked.
    pub(crate) fn fill(&self, engine: &Engine, group: &Group<'_>, fault: Fault, streams: &mut Streams) {
        let page = engine.pages.number(fault.addr);
        let around = around(engine, group, page, streams);
        for part in Pages::by_block(around.clone()).filter(|part| !part.contains(&page)) {
            take(engine, group, part.start, self.give(engine, &part, fault.write));
        }
        // Last, for this wakes the program.
        let block = page / BLOCK_PAGES * BLOCK_PAGES;
        let own = around.start.max(block)..around.end.min(block + BLOCK_PAGES);
        let given = take(engine, group, own.start, self.give(engine, &own, fault.write));
        if !given.contains(&page) {
            self.give_least(engine, group, page..own.end, fault.write);
        }
    }

    /// Gives pages of one block: none, where they do not lie in one mapping.
    fn give(&self, engine: &Engine, pages: &Range<usize>, write: bool) -> Progress {
        let (addr, bytes) = (engine.pages.addr(pages.start), pages.len() * PAGE);
        if write {
            engine.uffd.copy(addr, self.zeros.as_ptr().addr(), bytes)
        } else {
            engine.uffd.zeropage(addr, bytes)
        }
    }

    /// Gives the first of the pages, and those that lie in one mapping with it.
    fn give_least(&self, engine: &Engine, group: &Group<'_>, pages: Range<usize>, write: bool) {
        let addr = engine.pages.addr(pages.start);
        let progress = if write {
            place(engine, addr, &self.zeros[..pages.len()])
        } else {
            engine.uffd.zeropage(addr, PAGE)
        };
        if take(engine, group, pages.start, progress).is_empty() {
            match progress.stopped {
                // There is a page that the pager did not put there: nothing of ours can be lost.
                Some(Errno::EXIST) => engine.set_resident(group, pages.start),
                // The program unmapped it meanwhile.
                Some(Errno::NOENT | Errno::SRCH) | None => {}
                Some(errno) => engine.die(&format!("memory cannot be given to the program ({errno})")),
            }
            engine.uffd.wake(addr, PAGE);
        }
    }
}

/// Takes what was given, from page `first` on, as resident.
fn take(engine: &Engine, group: &Group<'_>, first: usize, progress: Progress) -> Range<usize> {
    let given = first..first + progress.bytes / PAGE;
    given.clone().for_each(|page| engine.set_resident(group, page));
    given
}

/// What to give for a touch of `page`: the pages about it, all in its group, that have no contents.
fn around(engine: &Engine, group: &Group<'_>, page: usize, streams: &mut Streams) -> Range<usize> {
    let left = engine.left();
    let unit = unit(left);
    let most = (IN_SEQUENCE * unit).min(GROUP_PAGES - page % GROUP_PAGES);
    let window = streams.ahead(page, most, |page| engine.pages.seems_framed(page)).pages;
    let start = page / unit * unit;
    let wanted = if left < PAGE as u64 { page..page + 1 } else { start..(start + unit).max(page + window) };
    let none = |page: &usize| group.state(*page) == State::None;
    let before = (wanted.start..page).rev().take_while(none).count();
    let after = (page + 1..wanted.end).take_while(none).count();
    streams.brought(page, window, after + 1);
    page - before..page + 1 + after
}

/// How many pages are given together, a power of two, where so many bytes are left of the limit.
fn unit(left: u64) -> usize {
    let pages = usize::try_from(left).unwrap_or(usize::MAX) / PAGE / PART;
    1 << pages.clamp(*PAGES.start(), *PAGES.end()).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_given_when_less_is_left() {
        let units = [0, 4, 10, 16, 60, 64, 10_000].map(|mib| unit(mib << 20));
        assert_eq!(units, [4, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn ranges_are_cut_at_blocks() {
        let parts = |pages| Pages::by_block(pages).map(|part| (part.start, part.end)).collect::<Vec<_>>();
        assert_eq!(parts(5..6), [(5, 6)]);
        assert_eq!(parts(10..40), [(10, 16), (16, 32), (32, 40)]);
        assert_eq!(parts(16..32), [(16, 32)]);
    }
}
