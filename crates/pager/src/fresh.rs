//! First touches: a page without contents is given as zeros, and its neighbours with it.
//!
//! A first touch costs the kernel half a microsecond and the pager fifteen; and the program may go on, when it is
//! woken, on another core, away from its caches. Programs that grow touch their memory densely, upwards or downwards,
//! so the untouched pages around the page are wanted soon. How many come along depends on what is left of the limit:
//! frames that nobody comes to use are not missed while there is plenty. Where there is not, it depends on how many
//! such frames there were: they leave as zeros ([`crate::density`]).
//!
//! Guarantee: what is given is counted, and pages that have contents are left as they are.

use crate::density::{IN_SEQUENCE, MOST};
use crate::engine::Engine;
use crate::inbox::Changing;
use crate::pages::{BLOCK_PAGES, GROUP_PAGES, Group, State};
use crate::streams::Streams;
use crate::sys::PAGE;
use crate::uffd::{Fault, Progress};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Together they are at most this part of what is left of the limit; other processes may give at the same time.
const PART: usize = 256;

/// Gives a page that is None, and what is to come with it; its group is locked.
pub(crate) fn fill(
    engine: &Engine,
    group: &Group<'_>,
    fault: Fault,
    streams: &mut Streams,
) -> Result<(), Changing> {
    let page = engine.pages.number(fault.addr);
    let mut wanted = around(engine, group, page, streams);
    loop {
        let progress = give(engine, &wanted, fault.write);
        let given = wanted.start..wanted.start + progress.bytes / PAGE;
        given.clone().for_each(|page| engine.set_resident(group, page));
        if given.contains(&page) {
            return Ok(());
        }
        if progress.stopped == Some(Errno::AGAIN) {
            return Err(Changing);
        }
        match less(&wanted, page) {
            Some(less) => wanted = less,
            None => {
                not_given(engine, group, page, progress.stopped);
                return Ok(());
            }
        }
    }
}

/// Gives all of the pages, if they lie in one mapping: what is beside it is not the program's, or wants to be treated
/// in another way. The kernel looks.
fn give(engine: &Engine, pages: &Range<usize>, write: bool) -> Progress {
    let (addr, bytes) = (engine.pages.addr(pages.start), pages.len() * PAGE);
    let uffd = &engine.uffd;
    let give = || if write { uffd.copy(addr, engine.zeros.0, bytes) } else { uffd.zeropage(addr, bytes) };
    engine.put(&(addr..addr + bytes), give)
}

/// What to try when `wanted` was not given up to `page`: its own block, then what follows in it, less and less.
fn less(wanted: &Range<usize>, page: usize) -> Option<Range<usize>> {
    let block = page / BLOCK_PAGES * BLOCK_PAGES;
    let own = wanted.start.max(block)..wanted.end.min(block + BLOCK_PAGES);
    match wanted.end - page {
        _ if own != *wanted => Some(own),
        1 if wanted.start == page => None,
        _ if wanted.start < page => Some(page..wanted.end),
        many => Some(page..page + many / 2),
    }
}

/// Not even the page alone could be given.
fn not_given(engine: &Engine, group: &Group<'_>, page: usize, why: Option<Errno>) {
    match why {
        // There is a page that the pager did not put there: nothing of ours can be lost.
        Some(Errno::EXIST) => engine.set_resident(group, page),
        // The program unmapped it meanwhile.
        Some(Errno::NOENT | Errno::SRCH) | None => {}
        Some(errno) => engine.die(&format!("memory cannot be given to the program ({errno})")),
    }
    engine.uffd.wake(engine.pages.addr(page), PAGE);
}

/// What to give for a touch of `page`: the pages about it, all in its group, that have no contents.
fn around(engine: &Engine, group: &Group<'_>, page: usize, streams: &mut Streams) -> Range<usize> {
    let left = engine.left();
    let unit = unit(left, engine.density.least.load(Relaxed));
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

/// How many pages are given together, a power of two and no fewer than `least`, where so many bytes are left of the
/// limit.
fn unit(left: u64, least: usize) -> usize {
    let pages = usize::try_from(left).unwrap_or(usize::MAX) / PAGE / PART;
    1 << pages.clamp(least, MOST).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_given_when_less_is_left() {
        let units = [0, 4, 10, 16, 60, 64, 10_000].map(|mib| unit(mib << 20, 4));
        assert_eq!(units, [4, 4, 8, 16, 32, 64, 64]);
        assert_eq!([0, 10, 60].map(|mib| unit(mib << 20, 16)), [16, 16, 32]);
    }

    #[test]
    fn what_lies_in_several_mappings_is_tried_in_parts() {
        let tries: Vec<_> = std::iter::successors(Some(5..70), |wanted| less(wanted, 18)).collect();
        assert_eq!(tries, [5..70, 16..32, 18..32, 18..25, 18..21, 18..19]);
    }
}
