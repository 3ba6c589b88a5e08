//! Handles: what stays the same while an object moves.
//!
//! A handle is an index into one table of 32-bit words. The word of a handle in use is the place of its
//! object; that of a free one links to the next free handle. The table grows in place and never shrinks, so
//! looking a handle up takes no lock. Free handles are kept in a short chain with each size class, under the
//! lock that the class holds anyway, and go from class to class in batches through one shared chain.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::zpool::reservation::Table;
use crate::zpool::{MallocError, lock};

/// The end of a chain. No handle has this index: they have 31 bits.
const END: u32 = u32::MAX;
/// Handles that go between a class and the shared chain at once; a class keeps up to twice as many.
const BATCH: u32 = 16;

/// The table of handles. Lock order: `shared` is a leaf, taken under the lock of a class.
#[derive(Debug)]
pub(super) struct Handles {
    words: Table<AtomicU32>,
    most: u32,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    head: u32,
    /// The first handle that was never used.
    fresh: u32,
}

/// A chain of free handles that one class keeps. `len` = its length.
#[derive(Debug)]
pub(super) struct Chain {
    head: u32,
    len: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { head: END, len: 0 }
    }
}

impl Handles {
    /// A table for up to `most` handles.
    pub(super) fn new(most: usize) -> Result<Self, Errno> {
        let most = u32::try_from(most).map_or(1 << 31, |most| most.min(1 << 31));
        let shared = Mutex::new(Shared { head: END, fresh: 0 });
        Ok(Self { words: Table::new(most as usize)?, most, shared })
    }

    /// A free handle.
    pub(super) fn take(&self, chain: &mut Chain) -> Result<u32, MallocError> {
        if chain.head == END {
            self.refill(chain)?;
        }
        let handle = chain.head;
        chain.head = self.link(handle);
        chain.len -= 1;
        Ok(handle)
    }

    /// Gives a handle back.
    pub(super) fn give(&self, chain: &mut Chain, handle: u32) {
        self.set(handle, chain.head);
        chain.head = handle;
        chain.len += 1;
        if chain.len > 2 * BATCH {
            self.spill(chain);
        }
    }

    /// The place of a handle in use.
    pub(super) fn get(&self, handle: u32) -> u32 {
        self.words[handle].load(Ordering::Acquire)
    }

    /// Publishes the place of a handle: what was written there before is seen by whoever gets the place.
    pub(super) fn set(&self, handle: u32, place: u32) {
        self.words[handle].store(place, Ordering::Release);
    }

    /// Bytes of the table that have been used.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.shared).fresh as usize * size_of::<u32>()
    }

    /// Checks that `used` handles in use and the free ones of `chains` and of the shared chain are all.
    pub(super) fn check<'a>(&self, used: usize, chains: impl Iterator<Item = &'a Chain>) {
        let shared = lock(&self.shared);
        let mut free = self.length(shared.head);
        for chain in chains {
            assert_eq!(self.length(chain.head), chain.len as usize);
            free += chain.len as usize;
        }
        assert_eq!(used + free, shared.fresh as usize, "handles");
    }

    fn link(&self, handle: u32) -> u32 {
        self.words[handle].load(Ordering::Relaxed)
    }

    fn length(&self, head: u32) -> usize {
        let some = |handle: u32| Some(handle).filter(|handle| *handle != END);
        std::iter::successors(some(head), |handle| some(self.link(*handle))).count()
    }

    /// Fills an empty chain: from the shared chain, or with handles never used.
    fn refill(&self, chain: &mut Chain) -> Result<(), MallocError> {
        let mut shared = lock(&self.shared);
        while chain.len < BATCH && shared.head != END {
            let handle = shared.head;
            shared.head = self.link(handle);
            self.give(chain, handle);
        }
        if chain.len == 0 {
            let end = (shared.fresh + BATCH).min(self.most);
            self.words.grow_to(end as usize).map_err(|_| MallocError::NoMemory)?;
            (shared.fresh..end).rev().for_each(|handle| self.give(chain, handle));
            shared.fresh = end;
        }
        if chain.len == 0 { Err(MallocError::NoMemory) } else { Ok(()) }
    }

    /// Moves a batch to the shared chain.
    fn spill(&self, chain: &mut Chain) {
        let mut shared = lock(&self.shared);
        for _ in 0..BATCH {
            let handle = chain.head;
            chain.head = self.link(handle);
            self.set(handle, shared.head);
            shared.head = handle;
        }
        chain.len -= BATCH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_is_given_to_one_at_a_time() {
        let handles = Handles::new(1000).unwrap();
        let mut chains = [Chain::default(), Chain::default()];
        let mut taken = Vec::new();
        while let Ok(handle) = handles.take(&mut chains[taken.len() % 2]) {
            taken.push(handle);
        }
        taken.sort_unstable();
        taken.dedup();
        assert!(taken.len() > 1000 - 2 * BATCH as usize && taken.len() <= 1000, "{}", taken.len());
        handles.check(taken.len(), chains.iter());
        let count = taken.len();
        taken.into_iter().for_each(|handle| handles.give(&mut chains[0], handle));
        handles.check(0, chains.iter());
        for _ in 0..count - 2 * BATCH as usize {
            handles.take(&mut chains[1]).unwrap();
        }
        assert_eq!(handles.bytes(), 4000, "handles are used again");
    }
}
