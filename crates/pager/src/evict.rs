//! Eviction: cold blocks leave the program and go into the store.
//!
//! Blocks wait in a queue in the order in which they got their first page. The evictor takes the oldest and
//! *detaches* its cold pages: one UFFDIO_MOVE for each run of them puts the frames into a staging window, which
//! is atomic for the program. The pages are then Evicting: compressed from the window without any lock, and a
//! touch meanwhile takes them back by a copy. The commit, under the group lock again, makes them Stored; what was
//! taken back is invalidated in the store. One MADV_DONTNEED empties the window for the whole batch.
//!
//! Second chance: a page that came back soon after an eviction has heat; each time the evictor passes it costs
//! one. There are no referenced bits in user space, so coming back is the only sign of use there is; the price is
//! that even a hot page leaves once before its heat is known.
//!
//! Where UFFDIO_MOVE is missing, or refuses because the program may not write the page, detaching is: write-protect,
//! copy, MADV_DONTNEED, all under the group lock; the rest is the same. Pages that are shared since a fork are first
//! made the process's own. Pinned pages (MOVE answers EBUSY) stay.

use crate::engine::Engine;
use crate::pages::{BLOCK_BYTES, BLOCK_PAGES, Group, State};
use crate::segment::Counter;
use crate::space::Kind;
use crate::sys::{self, PAGE};
use ramfold::{Page, Scratch};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Pages of no more heat leave.
const COLD: u16 = 4;
/// Those of no more heat leave with a cold neighbour: what leaves side by side costs one TLB shootdown together, and
/// that costs more than bringing one of them back.
const LUKEWARM: u16 = 8;
/// Heat given to a page that could not be evicted, so that it is not tried again at once.
const STUCK: u16 = 12;

/// One worker with its part of the staging window. Not shared between threads.
pub(crate) struct Evictor {
    places: Range<usize>,
    /// Nobody resolves this thread's faults: it is the one who does.
    alone: bool,
    scratch: Scratch,
    batch: Vec<Detached>,
}

/// A block's pages in the staging window.
struct Detached {
    block: usize,
    place: usize,
    /// Bit n: page n of the block lies in the window.
    pages: u16,
    /// Bit n: the store has it.
    stored: u16,
}

/// What a batch came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evicted {
    /// Pages that are Stored now.
    pub(crate) pages: usize,
    /// Pages that the store refused.
    pub(crate) refused: usize,
    /// Blocks looked at.
    pub(crate) looked_at: usize,
}

impl Evictor {
    pub(crate) fn new(engine: &Engine, places: Range<usize>) -> Self {
        Self {
            scratch: engine.store.scratch(),
            batch: Vec::with_capacity(places.len()),
            places,
            alone: false,
        }
    }

    /// One for the thread that resolves faults.
    pub(crate) fn of_handler(engine: &Engine, places: Range<usize>) -> Self {
        Self { alone: true, ..Self::new(engine, places) }
    }

    pub(crate) fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    /// Evicts the cold pages of the next blocks, as many blocks as the window has places and `blocks` allows.
    /// Called inside the gate.
    pub(crate) fn evict(&mut self, engine: &Engine, blocks: usize) -> Evicted {
        let mut evicted = Evicted::default();
        let most = blocks.min(self.places.len());
        // A pass over mostly hot blocks ends too.
        let patience = engine.queued().min(most * 64);
        while self.batch.len() < most && evicted.looked_at < patience {
            let Some(block) = engine.dequeue() else { break };
            evicted.looked_at += 1;
            self.detach_block(engine, block);
        }
        for index in 0..self.batch.len() {
            self.store(engine, index);
        }
        for detached in &self.batch {
            commit(engine, detached, &mut evicted);
        }
        if !self.batch.is_empty() {
            engine.staging.discard(self.places.start..self.places.start + self.batch.len());
        }
        self.batch.clear();
        engine.count(Counter::EvictedPages, evicted.pages as u64);
        evicted
    }

    fn detach_block(&mut self, engine: &Engine, block: usize) {
        if !engine.pages.block(block).try_begin_eviction() {
            engine.enqueue(block);
            return;
        }
        let place = self.places.start + self.batch.len();
        let first = block * BLOCK_PAGES;
        let group = engine.pages.lock(first);
        let (cold, absent) = choose(&group, first);
        let mut pages = 0;
        let mut refused = Refused::default();
        // A move goes over pages that are not there; a copy would bring them in.
        let staging = engine.staging.addr(place);
        if engine.moves {
            for run in spans(cold, absent) {
                pages |= detach(engine, &group, (first, cold), run, staging, &mut refused);
            }
        } else {
            for run in runs(cold & really_there(engine, &group, first)) {
                pages |= detach_by_copy(engine, &group, first, run, staging);
            }
        }
        if pages != 0 {
            if self.alone {
                fill_holes(engine, place, pages);
            }
            engine.staging.hold(place, Some(block));
            self.batch.push(Detached { block, place, pages, stored: 0 });
        } else if refused.readonly {
            drop(group);
            self.detach_readonly(engine, block, place);
        } else {
            give_up(engine, &group, block);
        }
    }

    /// The block, or part of it, is memory that the program may not write now: nobody changes it while the space is
    /// locked, so a copy and a discard are as good as a move. The block's eviction has begun.
    fn detach_readonly(&mut self, engine: &Engine, block: usize, place: usize) {
        let first = block * BLOCK_PAGES;
        let space = engine.space.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let group = engine.pages.lock(first);
        let mut pages = 0;
        for bit in bits(really_there(engine, &group, first)) {
            let page = first + bit;
            let readonly = space.area_at(engine.pages.addr(page)).is_some_and(|(_, area)| {
                area.kind == Kind::Anonymous && !area.prot.writable() && !area.locked
            });
            let at = engine.staging.addr(place) + bit * PAGE;
            if readonly && copy_out(engine, page, 1, at) == Ok(1) {
                group.set(page, State::Evicting);
                pages |= 1 << bit;
            }
        }
        if pages == 0 {
            give_up(engine, &group, block);
            return;
        }
        engine.staging.hold(place, Some(block));
        self.batch.push(Detached { block, place, pages, stored: 0 });
    }

    fn store(&mut self, engine: &Engine, index: usize) {
        let detached = &mut self.batch[index];
        for bit in bits(detached.pages) {
            let page = staged_page(engine.staging.addr(detached.place) + bit * PAGE);
            let key = engine.key(detached.block * BLOCK_PAGES + bit);
            if engine.store.store(key, page, &mut self.scratch).is_ok() {
                detached.stored |= 1 << bit;
            }
        }
    }
}

/// The commit point of an eviction.
fn commit(engine: &Engine, detached: &Detached, evicted: &mut Evicted) {
    let first = detached.block * BLOCK_PAGES;
    let group = engine.pages.lock(first);
    for bit in bits(detached.pages) {
        let page = first + bit;
        let stored = detached.stored >> bit & 1 != 0;
        match (group.state(page) == State::Evicting, stored) {
            (true, true) => {
                group.set(page, State::Stored);
                group.set_left(page, engine.clock());
                evicted.pages += 1;
            }
            (true, false) => {
                take_back(engine, &group, page, engine.staging.addr(detached.place) + bit * PAGE);
                evicted.refused += 1;
            }
            // Taken back or discarded meanwhile: what the store has is old.
            (false, true) => {
                engine.store.invalidate(engine.key(page));
            }
            (false, false) => {}
        }
    }
    engine.staging.hold(detached.place, None);
    engine.evictions.fetch_add(detached.pages.count_ones().into(), Ordering::Relaxed);
    engine.pages.block(detached.block).end_eviction();
    requeue_if_resident(engine, &group, detached.block);
}

/// Gives a page that is being evicted back to the program; its group is locked.
pub(crate) fn take_back(engine: &Engine, group: &Group<'_>, page: usize, staged: usize) {
    let addr = engine.pages.addr(page);
    match engine.uffd.copy(addr, staged, PAGE).stopped {
        None => group.set(page, State::Resident),
        // Unmapped by a raw system call of the program: there is nowhere to put it.
        Some(Errno::NOENT) => group.set(page, State::None),
        Some(Errno::SRCH) => {}
        Some(errno) => engine.die(&format!("a page was lost: it cannot be put back ({errno})")),
    }
}

/// The pages that shall leave (resident and cold, or lukewarm beside those; the others pay for being spared), and
/// those that are not there.
fn choose(group: &Group<'_>, first: usize) -> (u16, u16) {
    let (mut cold, mut lukewarm, mut absent) = (0, 0, 0);
    for bit in 0..BLOCK_PAGES {
        let page = first + bit;
        if group.state(page) != State::Resident {
            absent |= 1 << bit;
        } else if group.heat(page) <= COLD {
            cold |= 1 << bit;
        } else if group.heat(page) <= LUKEWARM {
            lukewarm |= 1 << bit;
        }
    }
    let leaving = with_neighbours(cold, lukewarm);
    for bit in bits(!leaving & !absent) {
        let page = first + bit;
        group.set_heat(page, group.heat(page) - 1);
    }
    (leaving, absent)
}

/// `cold`, and what of `lukewarm` lies in one run with it.
fn with_neighbours(cold: u16, lukewarm: u16) -> u16 {
    let together = |run: &Range<usize>| run.clone().fold(0, |mask, bit| mask | 1 << bit);
    runs(cold | lukewarm)
        .map(|run| together(&run))
        .filter(|mask| mask & cold != 0)
        .fold(0, |all, mask| all | mask)
}

/// What kept pages from being moved.
#[derive(Debug, Default)]
struct Refused {
    readonly: bool,
}

/// Takes the cold pages of a run out of the program, into the window at `staging`; the others of the run are not
/// there. Returns the pages (bits) that lie in the window now; they are Evicting.
fn detach(
    engine: &Engine,
    group: &Group<'_>,
    (first, cold): (usize, u16),
    run: Range<usize>,
    staging: usize,
    refused: &mut Refused,
) -> u16 {
    let mut detached = 0;
    let mut at = run.start;
    let mut unshared = false;
    while at < run.end {
        let page = first + at;
        let (from, to) = (engine.pages.addr(page), staging + at * PAGE);
        let progress = engine.uffd.move_pages(to, from, (run.end - at) * PAGE);
        let (done, stopped) = (progress.bytes / PAGE, progress.stopped);
        for bit in (at..at + done).filter(|bit| cold >> bit & 1 != 0) {
            group.set(first + bit, State::Evicting);
            detached |= 1 << bit;
        }
        at += done;
        match stopped {
            None => {}
            Some(Errno::BUSY) if !unshared && present(engine, from, 1) != 0 => {
                unshared = sys::unshare(from, PAGE).is_ok();
                if !unshared {
                    group.set_heat(page, STUCK);
                    at += 1;
                }
            }
            Some(errno) => {
                refused.readonly |= errno == Errno::INVAL;
                group.set_heat(page, STUCK);
                at += 1;
                unshared = false;
            }
        }
        if done > 0 {
            unshared = false;
        }
    }
    detached
}

/// Puts zeros where a page was taken for resident that the program had discarded by a system call of its own. To read
/// such a page of the window would cause a fault.
fn fill_holes(engine: &Engine, place: usize, pages: u16) {
    let staging = engine.staging.addr(place);
    for bit in bits(pages & !present(engine, staging, BLOCK_PAGES)) {
        engine.uffd.zeropage(staging + bit * PAGE, PAGE);
    }
}

/// The resident pages of a block. Those that the program has discarded by a system call of its own are noticed: they are
/// None. To read one for a copy would wait for a fault that the group's lock keeps from being resolved.
fn really_there(engine: &Engine, group: &Group<'_>, first: usize) -> u16 {
    let resident = |bit: &usize| group.state(first + bit) == State::Resident;
    let taken = (0..BLOCK_PAGES).filter(resident).fold(0, |mask, bit| mask | 1 << bit);
    let there = present(engine, engine.pages.addr(first), BLOCK_PAGES);
    for bit in bits(taken & !there) {
        group.set(first + bit, State::None);
    }
    taken & there
}

/// Without UFFDIO_MOVE: writes to the run wait while it is copied, and find the pages gone. Returns the pages (bits)
/// that lie in the window now.
fn detach_by_copy(
    engine: &Engine,
    group: &Group<'_>,
    first: usize,
    run: Range<usize>,
    staging: usize,
) -> u16 {
    let (page, count) = (first + run.start, run.len());
    let addr = engine.pages.addr(page);
    let protected = engine.uffd.write_protect(addr, count * PAGE, true);
    let copied = protected.and_then(|()| copy_out(engine, page, count, staging + run.start * PAGE));
    let detached = copied.unwrap_or(0) << run.start;
    for bit in run {
        if detached >> bit & 1 != 0 {
            group.set(first + bit, State::Evicting);
        } else {
            group.set_heat(first + bit, STUCK);
            // Not protected in the first place, or unmapped: nobody waits.
            let _ = engine.uffd.write_protect(engine.pages.addr(first + bit), PAGE, false);
        }
    }
    detached
}

/// Copies pages that cannot change now into the window, and drops them. The group is locked. Returns the pages
/// (bits, from `page` on) that were dropped: where one cannot be (it is locked), those before it may be gone already.
fn copy_out(engine: &Engine, page: usize, count: usize, to: usize) -> Result<u16, Errno> {
    let addr = engine.pages.addr(page);
    // Not straight into the window: its pages are missing, and only the handler could bring them.
    let mut copy = [0u8; BLOCK_BYTES];
    let copy = &mut copy[..count * PAGE];
    sys::read_at(engine.memory.as_fd(), addr, copy)?;
    if let Some(errno) = engine.uffd.copy(to, copy.as_ptr().addr(), copy.len()).stopped {
        // The window's own memory: it cannot fail.
        let _ = sys::discard(to, count * PAGE);
        return Err(errno);
    }
    if sys::discard(addr, count * PAGE).is_ok() {
        return Ok(u16::MAX >> (BLOCK_PAGES - count));
    }
    let kept = present(engine, addr, count);
    for bit in bits(kept) {
        let _ = sys::discard(to + bit * PAGE, PAGE);
    }
    Ok(!kept & (u16::MAX >> (BLOCK_PAGES - count)))
}

/// Which of up to 16 pages have contents.
fn present(engine: &Engine, addr: usize, count: usize) -> u16 {
    let mut entries = [0u8; BLOCK_PAGES * 8];
    match sys::have_contents(engine.pagemap.as_fd(), addr, &mut entries[..count * 8]) {
        Ok(there) => there.enumerate().fold(0, |mask, (bit, there)| mask | u16::from(there) << bit),
        Err(_) => engine.die("a page was lost: /proc/self/pagemap cannot be read"),
    }
}

/// Ends the eviction of a block that gave nothing; its group is locked.
fn give_up(engine: &Engine, group: &Group<'_>, block: usize) {
    engine.pages.block(block).end_eviction();
    requeue_if_resident(engine, group, block);
}

/// A block with resident pages is in the queue, one without is not; its group is locked.
fn requeue_if_resident(engine: &Engine, group: &Group<'_>, block: usize) {
    let first = block * BLOCK_PAGES;
    if (first..first + BLOCK_PAGES).any(|page| group.state(page) == State::Resident) {
        engine.enqueue(block);
    } else {
        engine.pages.block(block).clear_queued();
    }
}

/// The ranges of set bits.
fn runs(mask: u16) -> impl Iterator<Item = Range<usize>> {
    let mut rest = u32::from(mask);
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let start = rest.trailing_zeros();
            let end = start + (rest >> start).trailing_ones();
            rest &= u32::MAX.checked_shl(end).unwrap_or(0);
            start as usize..end as usize
        })
    })
}

/// The ranges that begin and end with a page of `cold` and hold no page that is in neither mask.
fn spans(cold: u16, absent: u16) -> impl Iterator<Item = Range<usize>> {
    runs(cold | absent).filter_map(move |run| {
        let mut inside = run.filter(|bit| cold >> bit & 1 != 0);
        let start = inside.next()?;
        Some(start..inside.next_back().unwrap_or(start) + 1)
    })
}

fn bits(mask: u16) -> impl Iterator<Item = usize> {
    (0..BLOCK_PAGES).filter(move |bit| mask >> bit & 1 != 0)
}

fn staged_page(addr: usize) -> &'static Page {
    // SAFETY: the address is a page in the staging window, which only the evictor that owns the place writes, and
    // not while it holds pages; the frames stay until the same evictor discards them.
    unsafe { &*std::ptr::with_exposed_provenance::<Page>(addr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_set_bits() {
        for mask in [0u16, 1, 0x8000, 0xffff, 0b0110_1110_0000_0001] {
            let mut again = 0u16;
            for run in runs(mask) {
                assert!(!run.is_empty());
                for bit in run {
                    again |= 1 << bit;
                }
            }
            assert_eq!(again, mask);
        }
        assert_eq!(runs(0b1110_0110).count(), 2);
    }

    #[test]
    fn lukewarm_pages_leave_beside_cold_ones() {
        assert_eq!(with_neighbours(0b0000_0100, 0b1001_1010), 0b0001_1110);
        assert_eq!(with_neighbours(0, 0xffff), 0);
        assert_eq!(with_neighbours(0x8001, 0), 0x8001);
    }

    #[test]
    fn spans_reach_over_what_is_absent_and_stop_at_what_is_hot() {
        let found = |cold, absent| spans(cold, absent).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(found(0b0010_1001, 0b1101_0110), [(0, 6)]);
        assert_eq!(found(0b0010_1001, 0), [(0, 1), (3, 4), (5, 6)]);
        assert_eq!(found(0b0010_1001, 0b1101_0010), [(0, 1), (3, 6)]);
        assert_eq!(found(0, 0xffff), []);
    }
}
