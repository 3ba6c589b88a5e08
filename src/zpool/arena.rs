//! The arena: where every zpool has its pages from.
//!
//! One reserved range of addresses is divided into blocks of [`BLOCK_PAGES`] pages. A pool takes a block, and
//! commits its pages from the front, only as many as it needs; a block that is partly used therefore costs
//! addresses but no memory. Pages of a block follow each other in memory, so nothing that lies inside a block
//! is ever in two pieces.
//!
//! The price: the range (64 GiB by default) is used up by blocks, not by pages. Fresh pages are dear in a
//! virtual machine, so they are asked for in one call a batch (`MADV_POPULATE_WRITE`), and blocks given back
//! with their pages still committed are kept in a bounded reserve and given out first. What such a block has beyond the
//! pages asked for stays in the reserve as its tail, until the block grows. The guarantee: `held` counts every page
//! that the system has given and not got back, and never passes the limit.
//!
//! After a fork the child has a copy of its own, as of all private memory; [`super::forks`] counts how much of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::forks::{self, Marks};
use super::reservation::Reservation;
use super::{MallocError, lock};
use crate::page::PAGE_SIZE;

/// Pages in a block.
pub(super) const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub(super) const BLOCK_SIZE: usize = BLOCK_PAGES * PAGE_SIZE;
/// Bytes of the range that are made accessible at a time: no memory yet, one system call.
const OPEN_STEP: usize = 4 << 20;
/// Most bytes in a range: block numbers have 20 bits in the handles' table of zsmalloc.
const MAX_BYTES: usize = 64 << 30;

/// How large a zpool's arena may become.
#[derive(Debug, Clone)]
pub struct ArenaOptions {
    /// Bytes of address space, at most 64 GiB (more is cut to that).
    pub bytes: usize,
    /// The limit on pages of memory; the caller keeps a clone to change it later.
    pub limit: Arc<PageLimit>,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self { bytes: MAX_BYTES, limit: Arc::default() }
    }
}

/// The most pages that an arena may hold, changeable at any time; and a way to make it refuse, for tests.
///
/// Lowering the limit takes nothing away: pages go back as objects are freed and the pool is compacted.
#[derive(Debug)]
pub struct PageLimit {
    pages: AtomicUsize,
    /// Requests until the one that is refused; 0: none is.
    refuse_in: AtomicUsize,
}

impl Default for PageLimit {
    fn default() -> Self {
        Self { pages: AtomicUsize::new(usize::MAX), refuse_in: AtomicUsize::new(0) }
    }
}

impl PageLimit {
    /// Sets the most pages that may be held.
    pub fn set(&self, pages: usize) {
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// The most pages that may be held.
    #[must_use]
    pub fn get(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Makes the `n`-th request for pages from now fail, once, as if the system had no memory. 0 takes the
    /// order back. A request that the reserve can serve counts too.
    pub fn refuse_nth(&self, n: usize) {
        self.refuse_in.store(n, Ordering::Relaxed);
    }

    /// Counts one request; whether it is the one to be refused.
    fn refuses(&self) -> bool {
        if self.refuse_in.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let before =
            self.refuse_in.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        before == Ok(1)
    }
}

/// The blocks, and who may have them.
///
/// Equations, when no other thread is inside:
/// `held` = pages committed in blocks that are taken + `reserve_pages`;
/// `reserve_pages` = sum of the page counts in `reserve` and of the lengths in `tails`;
/// a tail begins behind the pages that the block's owner has asked for;
/// each block below `fresh` is taken, in `reserve` or in `empty`, exactly one of them.
///
/// Lock order: `blocks` is a leaf, taken under any lock of a pool. The only system calls
/// under it are those of `drop_reserve`.
#[derive(Debug)]
pub(super) struct Arena {
    memory: Reservation,
    marks: Marks,
    limit: Arc<PageLimit>,
    held: AtomicUsize,
    /// Cleared on a kernel (before 5.14) that cannot populate: pages then come one fault at a time.
    populates: AtomicBool,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    /// The first block that was never used.
    fresh: u32,
    /// Blocks without memory.
    empty: Vec<u32>,
    /// Blocks with their first pages still committed, and how many.
    reserve: Vec<(u32, usize)>,
    reserve_pages: usize,
    /// Of blocks that are taken: the pages that are committed and not yet asked for.
    tails: BTreeMap<u32, Range<usize>>,
}

impl Arena {
    /// Reserves the range.
    pub(super) fn new(options: &ArenaOptions) -> Result<Self, Errno> {
        let bytes = options.bytes.clamp(BLOCK_SIZE, MAX_BYTES);
        let memory = Reservation::new(bytes, OPEN_STEP)?;
        Ok(Self {
            marks: Marks::new(memory.len() / BLOCK_SIZE)?,
            memory,
            limit: Arc::clone(&options.limit),
            held: AtomicUsize::new(0),
            populates: AtomicBool::new(true),
            blocks: Mutex::default(),
        })
    }

    /// The most blocks that there can be.
    pub(super) fn max_blocks(&self) -> usize {
        self.memory.len() / BLOCK_SIZE
    }

    /// Blocks that have been used up to now: all block numbers are below.
    pub(super) fn used_blocks(&self) -> u32 {
        lock(&self.blocks).fresh
    }

    /// Pages of memory held: committed in taken blocks, and in the reserve.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes of the arena's own lists.
    pub(super) fn meta_bytes(&self) -> usize {
        let blocks = lock(&self.blocks);
        size_of::<Self>()
            + Marks::bytes(blocks.fresh as usize)
            + blocks.empty.capacity() * size_of::<u32>()
            + blocks.reserve.capacity() * size_of::<(u32, usize)>()
            + blocks.tails.len() * size_of::<(u32, Range<usize>)>()
    }

    /// Takes a block, with its first pages committed: at least one and at most `want` (1..=[`BLOCK_PAGES`]). It may
    /// grow to `most`. Returns its number and how many.
    pub(super) fn take(&self, want: usize, most: usize) -> Result<(u32, usize), MallocError> {
        debug_assert!((1..=BLOCK_PAGES).contains(&want));
        if self.limit.refuses() {
            return Err(MallocError::NoMemory);
        }
        let block = {
            let mut blocks = lock(&self.blocks);
            if let Some((block, committed)) = blocks.take_reserved(most) {
                blocks.tails.insert(block, 0..committed);
                return Ok((block, blocks.advance(block, want)));
            }
            match blocks.empty.pop() {
                Some(block) => block,
                None => self.fresh_block(&mut blocks)?,
            }
        };
        match self.grow(block, 0, want) {
            Ok(committed) => Ok((block, committed)),
            Err(error) => {
                lock(&self.blocks).empty.push(block);
                Err(error)
            }
        }
    }

    /// Commits pages of a taken block from page `from` on: at least one and at most `want`. Returns how many.
    pub(super) fn commit(&self, block: u32, from: usize, want: usize) -> Result<usize, MallocError> {
        debug_assert!(want >= 1 && from + want <= BLOCK_PAGES);
        if self.limit.refuses() {
            return Err(MallocError::NoMemory);
        }
        let at_hand = lock(&self.blocks).advance(block, want);
        match at_hand {
            0 => self.grow(block, from, want),
            pages => Ok(pages),
        }
    }

    /// Gives the memory of the pages `from..to` of a block without a tail back to the system. Returns how many pages
    /// that were: all, or none where the system refuses (locked memory), and then they are still committed.
    pub(super) fn decommit(&self, block: u32, from: usize, to: usize) -> usize {
        if from >= to {
            return 0;
        }
        let pages = to - from;
        let start = self.ptr(block, from * PAGE_SIZE, pages * PAGE_SIZE);
        self.marks.change(block, from..to, start.addr());
        // SAFETY: the pages lie in our mapping, and the caller, who has taken the block, holds no object there.
        let drop = |advice| unsafe { madvise(start.cast(), pages * PAGE_SIZE, advice) };
        // The second is for locked memory (Linux 5.18).
        if drop(Advice::LinuxDontNeed).or_else(|_| drop(Advice::LinuxDontneedLocked)).is_err() {
            return 0;
        }
        self.held.fetch_sub(pages, Ordering::Relaxed);
        pages
    }

    /// Gives a block back whose first `committed` pages are committed. They may stay in the reserve.
    pub(super) fn give(&self, block: u32, committed: usize) {
        let held = self.held();
        let most = (held / 64).clamp(BLOCK_PAGES, 1024);
        let mut blocks = lock(&self.blocks);
        let committed = committed + blocks.take_tail(block);
        if held > self.limit.get() {
            drop(blocks);
            self.release(block, committed);
            self.drop_reserve();
        } else if blocks.reserve_pages + committed > most {
            drop(blocks);
            self.release(block, committed);
        } else {
            blocks.put(block, committed);
        }
    }

    /// Gives a block and its memory back at once. Returns the pages given back.
    pub(super) fn release(&self, block: u32, committed: usize) -> usize {
        let committed = committed + lock(&self.blocks).take_tail(block);
        let freed = self.decommit(block, 0, committed);
        lock(&self.blocks).put(block, committed - freed);
        freed
    }

    /// Gives the tail of a taken block back to the system, if it has one. Returns the pages given back.
    pub(super) fn drop_tail(&self, block: u32) -> usize {
        let mut blocks = lock(&self.blocks);
        let Some(tail) = blocks.tails.get(&block).cloned() else { return 0 };
        let freed = self.decommit(block, tail.start, tail.end);
        if freed > 0 {
            blocks.take_tail(block);
        }
        freed
    }

    /// Gives the reserve back to the system. Returns the pages given back.
    pub(super) fn drop_reserve(&self) -> usize {
        let tails: Vec<u32> = lock(&self.blocks).tails.keys().copied().collect();
        let mut freed = tails.into_iter().map(|block| self.drop_tail(block)).sum();
        let mut blocks = lock(&self.blocks);
        blocks.reserve_pages -= blocks.reserve.iter().map(|(_, pages)| pages).sum::<usize>();
        for (block, committed) in std::mem::take(&mut blocks.reserve) {
            let pages = self.decommit(block, 0, committed);
            blocks.put(block, committed - pages);
            freed += pages;
        }
        freed
    }

    /// The address of `len` bytes at byte `at` of a block. They may be touched if their pages are committed.
    pub(super) fn ptr(&self, block: u32, at: usize, len: usize) -> *mut u8 {
        debug_assert!(at + len <= BLOCK_SIZE);
        self.memory.ptr(block as usize * BLOCK_SIZE + at, len)
    }

    /// To be called before bytes at an address of [`Arena::ptr`] are written.
    pub(super) fn note_write(&self, at: *const u8, len: usize) {
        if !forks::were_there() {
            return;
        }
        let offset = self.memory.offset(at);
        let (block, within) = (offset / BLOCK_SIZE, offset % BLOCK_SIZE);
        let block = u32::try_from(block).expect("20 bits");
        let pages = within / PAGE_SIZE..(within + len).div_ceil(PAGE_SIZE);
        self.marks.change(block, pages, at.addr() - within % PAGE_SIZE);
    }

    /// Checks the equations on [`Arena`], given the pages committed in taken blocks and the number of those.
    pub(super) fn check(&self, taken_pages: usize, taken_blocks: usize) {
        let blocks = lock(&self.blocks);
        let tails: usize = blocks.tails.values().map(ExactSizeIterator::len).sum();
        let whole: usize = blocks.reserve.iter().map(|(_, pages)| pages).sum();
        assert_eq!(whole + tails, blocks.reserve_pages);
        assert_eq!(self.held(), taken_pages + blocks.reserve_pages, "pages held");
        let mut free: Vec<u32> = blocks.reserve.iter().map(|(block, _)| *block).collect();
        free.extend(&blocks.empty);
        assert_eq!(free.len() + taken_blocks, blocks.fresh as usize, "blocks");
        free.sort_unstable();
        assert!(free.windows(2).all(|pair| pair[0] < pair[1]), "a block is free twice");
        assert!(free.last().is_none_or(|last| *last < blocks.fresh));
    }

    fn fresh_block(&self, blocks: &mut Blocks) -> Result<u32, MallocError> {
        let end = (blocks.fresh as usize + 1) * BLOCK_SIZE;
        let opened = self.memory.open_to(end).and_then(|()| self.marks.grow_to(blocks.fresh as usize + 1));
        opened.map_err(|_| MallocError::NoMemory)?;
        blocks.fresh += 1;
        Ok(blocks.fresh - 1)
    }

    fn grow(&self, block: u32, from: usize, want: usize) -> Result<usize, MallocError> {
        let mut pages = self.charge(want);
        if pages == 0 && self.drop_reserve() > 0 {
            pages = self.charge(want);
        }
        if pages == 0 {
            return Err(MallocError::NoMemory);
        }
        if self.populate(block, from, pages).is_err() {
            // What was populated before the failure goes back too; this also takes the charge back.
            if self.decommit(block, from, from + pages) == 0 {
                self.held.fetch_sub(pages, Ordering::Relaxed);
            }
            return Err(MallocError::NoMemory);
        }
        self.marks.taken(block, from..from + pages);
        Ok(pages)
    }

    /// Counts up to `want` pages as held, as many as the limit leaves. Returns how many.
    fn charge(&self, want: usize) -> usize {
        let limit = self.limit.get();
        let more = |held: usize| want.min(limit.saturating_sub(held));
        let before = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            (more(held) > 0).then(|| held + more(held))
        });
        before.map_or(0, more)
    }

    fn populate(&self, block: u32, from: usize, pages: usize) -> Result<(), Errno> {
        if !self.populates.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = self.ptr(block, from * PAGE_SIZE, pages * PAGE_SIZE);
        loop {
            // SAFETY: the pages lie in our mapping, are accessible, and keep their contents.
            match unsafe { madvise(start.cast(), pages * PAGE_SIZE, Advice::LinuxPopulateWrite) } {
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => {
                    self.populates.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                other => return other,
            }
        }
    }
}

impl Blocks {
    /// Files a block that nobody has, with its first `committed` pages committed.
    fn put(&mut self, block: u32, committed: usize) {
        if committed == 0 {
            self.empty.push(block);
        } else {
            self.reserve.push((block, committed));
            self.reserve_pages += committed;
        }
    }

    /// The block of the reserve that fits best: the one with the fewest pages that are enough, or else with the most.
    fn take_reserved(&mut self, enough: usize) -> Option<(u32, usize)> {
        let unfit = |pages: usize| pages.checked_sub(enough).unwrap_or(BLOCK_PAGES + enough - pages);
        let best = (0..self.reserve.len()).min_by_key(|at| unfit(self.reserve[*at].1))?;
        Some(self.reserve.swap_remove(best))
    }

    /// Hands out up to `want` pages of a block's tail. Returns how many.
    fn advance(&mut self, block: u32, want: usize) -> usize {
        let Some(tail) = self.tails.get_mut(&block) else { return 0 };
        let pages = want.min(tail.len());
        tail.start += pages;
        self.reserve_pages -= pages;
        if tail.start == tail.end {
            self.tails.remove(&block);
        }
        pages
    }

    /// Takes a block's whole tail out of the reserve. Returns its pages, which are still committed.
    fn take_tail(&mut self, block: u32) -> usize {
        self.advance(block, BLOCK_PAGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(limit: usize) -> Arena {
        let options = ArenaOptions { bytes: 16 << 20, ..ArenaOptions::default() };
        options.limit.set(limit);
        Arena::new(&options).unwrap()
    }

    #[test]
    fn pages_are_counted_until_they_go_back() {
        let arena = arena(usize::MAX);
        let (block, committed) = arena.take(3, 16).unwrap();
        assert_eq!((committed, arena.held()), (3, 3));
        assert_eq!(arena.commit(block, 3, 13), Ok(13));
        arena.check(16, 1);
        assert_eq!(arena.decommit(block, 10, 16), 6);
        arena.check(10, 1);
        arena.give(block, 10);
        assert_eq!(arena.held(), 10, "kept in reserve");
        let (again, committed) = arena.take(4, 16).unwrap();
        assert_eq!((again, committed, arena.held()), (block, 4, 10), "the reserve is used first");
        arena.check(4, 1);
        assert_eq!((arena.commit(again, 4, 2), arena.held()), (Ok(2), 10), "and so is its tail");
        arena.check(6, 1);
        assert_eq!((arena.drop_tail(again), arena.drop_tail(again)), (4, 0));
        assert_eq!((arena.commit(again, 6, 1), arena.held()), (Ok(1), 7));
        assert_eq!(arena.release(again, 7), 7);
        arena.check(0, 0);
    }

    #[test]
    fn a_tail_goes_with_its_block_and_with_the_reserve() {
        let arena = arena(usize::MAX);
        let (block, _) = arena.take(16, 16).unwrap();
        arena.give(block, 16);
        assert_eq!(arena.take(5, 16), Ok((block, 5)));
        arena.give(block, 5);
        assert_eq!(arena.take(16, 16), Ok((block, 16)), "whole again");
        arena.give(block, 16);
        assert_eq!(arena.take(1, 16), Ok((block, 1)));
        assert_eq!((arena.drop_reserve(), arena.held()), (15, 1));
        arena.check(1, 1);
        assert_eq!(arena.release(block, 1), 1);
        arena.check(0, 0);
    }

    #[test]
    fn memory_given_back_reads_as_zeros() {
        let arena = arena(usize::MAX);
        let (block, _) = arena.take(2, 16).unwrap();
        let byte = arena.ptr(block, PAGE_SIZE, 1);
        // SAFETY: the page is committed and the block is this test's.
        unsafe { *byte = 9 };
        arena.decommit(block, 1, 2);
        arena.commit(block, 1, 1).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { *byte }, 0);
    }

    #[test]
    fn under_the_limit_a_batch_is_cut_and_the_reserve_is_spent() {
        let arena = arena(20);
        let (first, _) = arena.take(16, 16).unwrap();
        let (second, committed) = arena.take(16, 16).unwrap();
        assert_eq!(committed, 4, "what the limit leaves");
        assert_eq!(arena.take(1, 16), Err(MallocError::NoMemory));
        assert_eq!(arena.commit(second, 4, 1), Err(MallocError::NoMemory));
        arena.give(first, 16);
        assert_eq!(arena.held(), 20);
        assert_eq!(arena.commit(second, 4, 12), Ok(12), "the reserve made room");
        arena.check(16, 1);
    }

    #[test]
    fn the_nth_request_is_refused_once() {
        let arena = arena(usize::MAX);
        arena.limit.refuse_nth(2);
        let (block, _) = arena.take(1, 16).unwrap();
        assert_eq!(arena.commit(block, 1, 1), Err(MallocError::NoMemory));
        assert_eq!(arena.commit(block, 1, 1), Ok(1));
    }

    #[test]
    fn the_range_ends() {
        let arena = arena(usize::MAX);
        for _ in 0..arena.max_blocks() {
            arena.take(1, 16).unwrap();
        }
        assert_eq!(arena.take(1, 16), Err(MallocError::NoMemory));
        arena.check(arena.max_blocks(), arena.max_blocks());
    }
}
