//! First touches: a page without contents is given as zeros, and its neighbours with it.
//!
//! A first touch costs the kernel half a microsecond and the pager fifteen; and the program may go on, when it is woken, on
//! another core, away from its caches. Programs that grow touch their memory densely, upwards or downwards, so the
//! untouched pages around the page are wanted soon. How many come along depends on what is left of the limit: frames that
//! nobody comes to use are not missed while there is plenty. Where there is not, it depends on how many such frames there
//! were: they leave as zeros ([`Density`]).
//!
//! Guarantee: what is given is counted, and pages that have contents are left as they are.

use crate::engine::Engine;
use crate::fault::Changing;
use crate::pages::{BLOCK_PAGES, GROUP_PAGES, Group, State};
use crate::streams::Streams;
use crate::sys::{self, PAGE};
use crate::uffd::{Fault, Progress};
use rustix::io::Errno;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most pages that are given together.
const MOST: usize = 4 * BLOCK_PAGES;
/// Fewest, while there is room at all: so many where memory is touched densely, down to so few where it is not.
const LEAST: RangeInclusive<usize> = BLOCK_PAGES / 4..=BLOCK_PAGES;
/// Together they are at most this part of what is left of the limit; other processes may give at the same time.
const PART: usize = 256;
/// Times as many where they are touched in sequence.
const IN_SEQUENCE: usize = 4;

/// How densely the program uses what it is given. Of a sparse table, most of what is given with its pages leaves as it came.
#[derive(Debug)]
pub(crate) struct Density {
    /// Fewest pages that are given together.
    least: AtomicUsize,
    /// Pages that left since `least` was looked at, and those of them that were zeros.
    left: AtomicUsize,
    zeros: AtomicUsize,
}

impl Default for Density {
    fn default() -> Self {
        Self { least: AtomicUsize::new(*LEAST.end()), left: AtomicUsize::new(0), zeros: AtomicUsize::new(0) }
    }
}

impl Density {
    /// Pages after which to look.
    const LONG: usize = 512;

    /// So many pages leave, of which so many are zeros.
    pub(crate) fn left(&self, pages: usize, zeros: usize) {
        let zeros = self.zeros.fetch_add(zeros, Relaxed) + zeros;
        if self.left.fetch_add(pages, Relaxed) + pages < Self::LONG {
            return;
        }
        let (left, least) = (self.left.swap(0, Relaxed), self.least.load(Relaxed));
        self.zeros.store(0, Relaxed);
        let least = match zeros {
            _ if zeros > left / 4 => least / 2,
            _ if zeros < left / 16 => least * 2,
            _ => least,
        };
        self.least.store(least.clamp(*LEAST.start(), *LEAST.end()), Relaxed);
    }
}

/// The address of zeros to be copied: memory that is only read costs no frames.
#[derive(Debug)]
pub(crate) struct Zeros(usize);

impl Zeros {
    /// As much as is given together at most.
    const LEN: usize = (IN_SEQUENCE + 1) * MOST * PAGE;

    pub(crate) fn new() -> Result<Self, Errno> {
        let zeros = Self(sys::map_own(Self::LEN)?.addr().get());
        sys::protect(zeros.0, Self::LEN, libc::PROT_READ)?;
        Ok(zeros)
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        sys::unmap_own(self.0, Self::LEN);
    }
}

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

/// Gives all of the pages, if they lie in one mapping: what is beside it is not the program's, or wants to be treated in
/// another way. The kernel looks.
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

/// How many pages are given together, a power of two and no fewer than `least`, where so many bytes are left of the limit.
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
    fn less_is_given_while_much_leaves_as_zeros() {
        let density = Density::default();
        let least_after = |pages, zeros| {
            density.left(pages, zeros);
            density.least.load(Relaxed)
        };
        assert_eq!(least_after(511, 400), 16, "too few to tell");
        assert_eq!(least_after(1, 0), 8);
        assert_eq!([least_after(600, 500), least_after(600, 500)], [4, 4]);
        assert_eq!(least_after(600, 100), 4, "neither much nor little");
        assert_eq!([0; 3].map(|zeros| least_after(600, zeros)), [8, 16, 16]);
    }

    #[test]
    fn what_lies_in_several_mappings_is_tried_in_parts() {
        let tries: Vec<_> = std::iter::successors(Some(5..70), |wanted| less(wanted, 18)).collect();
        assert_eq!(tries, [5..70, 16..32, 18..32, 18..25, 18..21, 18..19]);
    }
}
