//! Pages in common after a fork: which of a pool's pages are as they were, and how many are not any more.
//!
//! A forked child and its parent have the same pages until one of them writes to a page, or gives it back: from then on
//! there are two of it, or one has it alone. The kernel does not tell. A process that has to know what it takes beside
//! its relatives would have to walk its page tables; so the pools count. Each page has the number of the last fork
//! after which it was written or taken. A page whose number is older is in common, as far as this process knows.
//!
//! The price: two bytes for each page, and a look at them before each write, once there was a fork; before that, one
//! load. What two relatives both write to counts for both, though the last one has no copy made: it is counted too
//! much, never too little.
//!
//! A fork copies the whole process, so all pools of a process count together.

use super::arena::BLOCK_PAGES;
use super::reservation::Table;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed};

/// Forks so far, 0 for none.
static FORKS: AtomicU16 = AtomicU16::new(0);
static DIVIDED: AtomicUsize = AtomicUsize::new(0);

/// To be called before a fork by the parent, while nobody uses a pool: from here on all pages are in common.
pub fn note_fork() {
    let next = |forks: u16| Some(forks.wrapping_add(1).max(1));
    let _ = FORKS.fetch_update(Relaxed, Relaxed, next);
}

/// Pages that were in common and are not any more, by what this process did, since they were taken last.
#[must_use]
pub fn divided() -> usize {
    DIVIDED.load(Relaxed)
}

/// The same, and counts from zero.
#[must_use]
pub fn take_divided() -> usize {
    DIVIDED.swap(0, Relaxed)
}

/// Whether there was a fork.
pub(super) fn were_there() -> bool {
    FORKS.load(Relaxed) > 0
}

/// The pages of one arena.
#[derive(Debug)]
pub(super) struct Marks(Table<[AtomicU16; BLOCK_PAGES]>);

impl Marks {
    /// For an arena of at most so many blocks.
    pub(super) fn new(most_blocks: usize) -> Result<Self, Errno> {
        Table::new(most_blocks).map(Self)
    }

    /// Makes room for so many blocks.
    pub(super) fn grow_to(&self, blocks: usize) -> Result<(), Errno> {
        self.0.grow_to(blocks)
    }

    /// Bytes that the marks of so many blocks take.
    pub(super) fn bytes(blocks: usize) -> usize {
        if were_there() { blocks * size_of::<[AtomicU16; BLOCK_PAGES]>() } else { 0 }
    }

    /// The pages are new: nobody else has them.
    pub(super) fn taken(&self, block: u32, pages: Range<usize>) {
        let forks = FORKS.load(Relaxed);
        if forks > 0 {
            self.0[block][pages].iter().for_each(|mark| mark.store(forks, Relaxed));
        }
    }

    /// The pages are written to, or given back.
    pub(super) fn changed(&self, block: u32, pages: Range<usize>) {
        let forks = FORKS.load(Relaxed);
        if forks == 0 {
            return;
        }
        for mark in &self.0[block][pages] {
            if mark.load(Relaxed) != forks && mark.swap(forks, Relaxed) != forks {
                DIVIDED.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::{self, ArenaOptions};

    /// One test, as the counts are the process's. Other tests that write to pools can only add to them.
    #[test]
    fn a_page_is_divided_once_after_each_fork() {
        let marks = Marks::new(4).unwrap();
        marks.grow_to(4).unwrap();
        note_fork();
        let marked = |pages: Range<usize>| {
            let forks = FORKS.load(Relaxed);
            marks.0[1][pages].iter().filter(|mark| mark.load(Relaxed) == forks).count()
        };
        let _ = take_divided();
        marks.taken(1, 0..4);
        marks.changed(1, 2..6);
        assert_eq!(marked(0..BLOCK_PAGES), 6);
        assert!(divided() >= 2, "two of them were in common");
        note_fork();
        assert_eq!(marked(0..BLOCK_PAGES), 0, "all are in common again");
        for name in ["zsmalloc", "zbud", "xvmalloc"] {
            whatever_it_writes_is_seen(name);
        }
    }

    fn whatever_it_writes_is_seen(name: &str) {
        let pool = zpool::by_name(name, &ArenaOptions { bytes: 1 << 24, ..ArenaOptions::default() }).unwrap();
        let handles: Vec<_> = (0..64).map(|_| pool.malloc(1000).unwrap()).collect();
        note_fork();
        let _ = take_divided();
        handles.iter().for_each(|handle| pool.write(*handle, &[1; 1000]));
        let pages = 64 * 1000 / crate::PAGE_SIZE;
        assert!(divided() >= pages, "{name}: {} of {pages}", divided());
    }
}
