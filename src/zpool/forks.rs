//! Pages in common after a fork: which of a pool's pages are about to be so no more.
//!
//! A forked child and its parent have the same pages until one of them writes to a page, or gives it back: from then on
//! there are two of it, or one has it alone. The kernel does not tell. A process that has to know what it takes beside
//! its relatives would have to walk its page tables; so the pools tell. Each page has the number of the last fork
//! after which it was written or taken. A page whose number is older may be in common. Before it changes, whoever keeps
//! the books is told ([`tell`]). Told later, or asked later, nobody could say who has had the page.
//!
//! The price: two bytes for each page, and a look at them before each write, once there was a fork; before that, one
//! load. One call for each page, or run of them, that changes for the first time after a fork. What two relatives, or
//! two threads, change in the same moment looks to both as if it were in common: it counts too much, never too little.
//!
//! A fork copies the whole process, so all pools of a process tell the same one.

use super::arena::BLOCK_PAGES;
use super::reservation::Table;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Forks so far, 0 for none.
static FORKS: AtomicU16 = AtomicU16::new(0);
static TOLD: OnceLock<Box<Told>> = OnceLock::new();

/// Hears of pages, from an address on and how many, that are about to change, and of which one or more may be in common
/// until then.
pub type Told = dyn Fn(usize, usize) + Send + Sync;

/// From now on this one is told. It is called with locks of a pool held, and may ask a pool for its size only. A
/// process has one: a second is not told.
pub fn tell(told: Box<Told>) {
    let _ = TOLD.set(told);
}

/// To be called before a fork by the parent, while nobody uses a pool: from here on all pages are in common.
pub fn note_fork() {
    let next = |forks: u16| Some(forks.wrapping_add(1).max(1));
    let _ = FORKS.fetch_update(Relaxed, Relaxed, next);
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

    /// To be called before pages are written to, or given back; the first of them is at `addr`.
    pub(super) fn change(&self, block: u32, pages: Range<usize>, addr: usize) {
        let forks = FORKS.load(Relaxed);
        if forks == 0 {
            return;
        }
        let marks = &self.0[block][pages];
        if marks.iter().all(|mark| mark.load(Relaxed) == forks) {
            return;
        }
        TOLD.get().inspect(|told| told(addr, marks.len()));
        // Last: who finds the mark writes, and then the page is in common no more.
        marks.iter().for_each(|mark| mark.store(forks, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::{self, ArenaOptions};
    use std::sync::atomic::AtomicUsize;

    /// An address that stands for pages of which none is in common.
    const WITHOUT_OLD: usize = 0;

    /// Pages that were told of. Other tests that write to pools can only add to them.
    static TOLD_OF: AtomicUsize = AtomicUsize::new(0);

    /// One test, as the count of forks is the process's.
    #[test]
    fn a_page_is_divided_once_after_each_fork() {
        let marks = Marks::new(4).unwrap();
        marks.grow_to(4).unwrap();
        note_fork();
        let marked = |pages: Range<usize>| {
            let forks = FORKS.load(Relaxed);
            marks.0[1][pages].iter().filter(|mark| mark.load(Relaxed) == forks).count()
        };
        tell(Box::new(|addr, pages| {
            assert_ne!(addr, WITHOUT_OLD, "nothing of it is in common");
            TOLD_OF.fetch_add(pages, Relaxed);
        }));
        marks.taken(1, 0..4);
        marks.change(1, 0..4, WITHOUT_OLD);
        marks.change(1, 2..6, 1);
        assert!(TOLD_OF.load(Relaxed) >= 4, "two of them were in common");
        marks.change(1, 2..6, WITHOUT_OLD);
        assert_eq!(marked(0..BLOCK_PAGES), 6);
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
        let before = TOLD_OF.load(Relaxed);
        handles.iter().for_each(|handle| pool.write(*handle, &[1; 1000]));
        let pages = 64 * 1000 / crate::PAGE_SIZE;
        let told_of = TOLD_OF.load(Relaxed) - before;
        assert!(told_of >= pages, "{name}: {told_of} of {pages}");
    }
}
