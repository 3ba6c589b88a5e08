//! Single pages out of an arena's blocks, for the zpools that divide a page and do not move objects.
//!
//! Pages come from the system sixteen at a time. Free pages stay committed up to a share of what is held; the
//! rest goes back to the system in runs as long as there are. The price: 4 bytes for each free page.

use super::MallocError;
use super::arena::{Arena, BLOCK_PAGES};
use crate::page::PAGE_SIZE;

/// [`BLOCK_PAGES`], in the type of page numbers.
const PAGES: u32 = 16;
const _: () = assert!(PAGES as usize == BLOCK_PAGES);

/// The free pages of an arena whose only user this is; the pool keeps it under its lock.
///
/// Equation: each page of the arena's taken blocks is taken, in `ready` (committed) or in `holes` (not
/// committed), exactly one of them; taken pages are committed.
#[derive(Debug, Default)]
pub(super) struct FreePages {
    ready: Vec<u32>,
    /// Kept so that the last run can be popped in ascending order.
    holes: Vec<u32>,
}

/// The address of `len` bytes at byte `at` of a page of the arena.
pub(super) fn page_ptr(arena: &Arena, page: u32, at: usize, len: usize) -> *mut u8 {
    debug_assert!(at + len <= PAGE_SIZE);
    let (block, within) = split(page);
    arena.ptr(block, within * PAGE_SIZE + at, len)
}

/// The most pages that an arena can have.
pub(super) fn max_pages(arena: &Arena) -> usize {
    arena.max_blocks() * BLOCK_PAGES
}

impl FreePages {
    /// A page of undefined contents.
    pub(super) fn take(&mut self, arena: &Arena) -> Result<u32, MallocError> {
        if let Some(page) = self.ready.pop() {
            return Ok(page);
        }
        let Some((first, count)) = self.pop_run() else {
            return self.take_block(arena);
        };
        let (block, within) = split(first);
        let granted = arena.commit(block, within, count);
        let committed = *granted.as_ref().unwrap_or(&0);
        self.file(first, committed, count);
        granted?;
        Ok(self.ready.pop().expect("at least one page was granted"))
    }

    /// Gives a page back.
    pub(super) fn give(&mut self, arena: &Arena, page: u32, limit: usize) {
        self.ready.push(page);
        let held = arena.held();
        if self.ready.len() > (held / 128).clamp(BLOCK_PAGES, 1024) || held > limit {
            self.trim(arena);
        }
    }

    /// Gives the memory of all free pages back to the system. Returns how many.
    pub(super) fn trim(&mut self, arena: &Arena) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable_by(|a, b| b.cmp(a));
        let mut freed = 0;
        for run in ready.chunk_by(|high, low| low + 1 == *high && split(*low).0 == split(*high).0) {
            let (block, within) = split(run[run.len() - 1]);
            let pages = arena.decommit(block, within, within + run.len());
            freed += pages;
            if pages > 0 { &mut self.holes } else { &mut self.ready }.extend(run);
        }
        freed
    }

    /// Bytes of the lists.
    pub(super) fn meta_bytes(&self) -> usize {
        (self.ready.capacity() + self.holes.capacity()) * size_of::<u32>()
    }

    /// Checks the equation and the arena. Returns the pages that are taken.
    pub(super) fn check(&self, arena: &Arena) -> Vec<u32> {
        let mut free: Vec<u32> = self.ready.iter().chain(&self.holes).copied().collect();
        free.sort_unstable();
        assert!(free.windows(2).all(|pair| pair[0] < pair[1]), "a page is free twice");
        let pages = arena.used_blocks() as usize * BLOCK_PAGES;
        assert!(free.last().is_none_or(|last| (*last as usize) < pages));
        arena.check(pages - self.holes.len(), arena.used_blocks() as usize);
        let is_taken = |page: &u32| free.binary_search(page).is_err();
        (0..u32::try_from(pages).expect("24 bits")).filter(is_taken).collect()
    }

    fn take_block(&mut self, arena: &Arena) -> Result<u32, MallocError> {
        let (block, committed) = arena.take(BLOCK_PAGES, BLOCK_PAGES)?;
        self.file(first_page(block), committed, BLOCK_PAGES);
        Ok(self.ready.pop().expect("at least one page was granted"))
    }

    /// Files `count` free pages from `first` on, of which the first `committed` are committed.
    fn file(&mut self, first: u32, committed: usize, count: usize) {
        let page = |at: usize| first + u32::try_from(at).expect("within a block");
        self.ready.extend((0..committed).rev().map(page));
        self.holes.extend((committed..count).rev().map(page));
    }

    /// Takes a run of neighbours within a block from the end of `holes`: its first page and how many.
    fn pop_run(&mut self) -> Option<(u32, usize)> {
        let first = self.holes.pop()?;
        let mut end = first + 1;
        while split(end).1 != 0 && self.holes.last() == Some(&end) {
            self.holes.pop();
            end += 1;
        }
        Some((first, (end - first) as usize))
    }
}

/// The block of a page, and which page of the block it is.
fn split(page: u32) -> (u32, usize) {
    (page / PAGES, (page % PAGES) as usize)
}

fn first_page(block: u32) -> u32 {
    block * PAGES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::ArenaOptions;

    #[test]
    fn free_pages_go_back_in_runs_and_are_used_again() {
        let arena = Arena::new(&ArenaOptions { bytes: 4 << 20, ..ArenaOptions::default() }).unwrap();
        let mut free = FreePages::default();
        let taken: Vec<u32> = (0..40).map(|_| free.take(&arena).unwrap()).collect();
        assert_eq!(free.check(&arena), taken, "in order");
        for page in taken.iter().filter(|page| **page % 3 == 0) {
            free.give(&arena, *page, usize::MAX);
        }
        free.trim(&arena);
        assert_eq!(arena.held(), 26);
        free.check(&arena);
        let again: Vec<u32> = (0..22).map(|_| free.take(&arena).unwrap()).collect();
        assert!(
            again.iter().all(|page| page % 3 == 0 || *page >= 40),
            "no new block before the old is used up"
        );
        assert_eq!(free.check(&arena).len(), 48);
    }

    #[test]
    fn a_refused_page_leaves_the_lists_whole() {
        let options = ArenaOptions { bytes: 4 << 20, ..ArenaOptions::default() };
        let arena = Arena::new(&options).unwrap();
        let mut free = FreePages::default();
        options.limit.set(3);
        for _ in 0..3 {
            free.take(&arena).unwrap();
        }
        assert_eq!(free.take(&arena), Err(MallocError::NoMemory));
        assert_eq!(free.check(&arena), [0, 1, 2]);
        options.limit.set(1);
        free.give(&arena, 1, options.limit.get());
        assert_eq!(arena.held(), 2, "over the limit nothing is kept");
        free.check(&arena);
    }
}
