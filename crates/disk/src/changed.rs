//! Which pages have changed: a bit a page.
//!
//! The bits lie in leaves that are made where pages change, and a list has the leaves that may have some set, so that
//! who takes them looks at no others. Price: 16 bytes for 128 MiB of the disk, and 4 KiB for each such part that was
//! ever changed.
//!
//! Guarantee: a page that is marked is given by the next [`Changed::take`] that begins, unless it was cleared since.
//! Who clears a page's bit and then reads the page has to keep others from changing it meanwhile, or from marking it
//! before they have changed it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const WORD: u64 = 64;
const WORDS: usize = 512;
/// Pages of a leaf.
const LEAF: u64 = WORDS as u64 * WORD;

#[derive(Debug)]
struct Leaf {
    /// Set under the lock of the list, with the leaf put on it: so who sees it set, and has the lock after that, finds
    /// the leaf there. Unset by who has taken the leaf off, before they look at its words.
    is_listed: AtomicBool,
    words: [AtomicU64; WORDS],
}

/// The pages of a disk that have changed.
#[derive(Debug)]
pub(crate) struct Changed {
    leaves: Box<[OnceLock<Box<Leaf>>]>,
    listed: Mutex<Vec<usize>>,
}

impl Changed {
    /// None of so many pages.
    pub(crate) fn new(pages: u64) -> Self {
        let leaves = (0..pages.div_ceil(LEAF)).map(|_| OnceLock::new()).collect();
        Self { leaves, listed: Mutex::default() }
    }

    /// Marks a page.
    pub(crate) fn mark(&self, page: u64) {
        let (leaf, word, bit) = split(page);
        let make = || {
            let words = [const { AtomicU64::new(0) }; WORDS];
            Box::new(Leaf { is_listed: AtomicBool::new(false), words })
        };
        self.leaves[leaf].get_or_init(make).words[word].fetch_or(bit, SeqCst);
        self.list(leaf);
    }

    /// Takes the mark away. Whether there was one.
    pub(crate) fn clear(&self, page: u64) -> bool {
        let (leaf, word, bit) = split(page);
        self.leaves[leaf].get().is_some_and(|leaf| leaf.words[word].fetch_and(!bit, SeqCst) & bit != 0)
    }

    /// Gives the pages that are marked, each leaf's in order, until `each` fails. It is for `each` to clear them; what
    /// it does not is given again.
    pub(crate) fn take<E>(&self, mut each: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let mut leaves = std::mem::take(&mut *self.listed());
        leaves.sort_unstable();
        let mut taken = Ok(());
        for number in leaves {
            let Some(leaf) = self.leaves[number].get() else { continue };
            leaf.is_listed.store(false, SeqCst);
            for (at, word) in (0_u64..).zip(&leaf.words) {
                let mut left = if taken.is_ok() { word.load(SeqCst) } else { 0 };
                while left != 0 && taken.is_ok() {
                    taken = each(number as u64 * LEAF + at * WORD + u64::from(left.trailing_zeros()));
                    left &= left - 1;
                }
            }
            if leaf.words.iter().any(|word| word.load(SeqCst) != 0) {
                self.list(number);
            }
        }
        taken
    }

    /// How many are marked.
    pub(crate) fn count(&self) -> u64 {
        let listed = self.listed();
        let leaves = listed.iter().filter_map(|number| self.leaves[*number].get());
        leaves.flat_map(|leaf| &leaf.words).map(|word| u64::from(word.load(SeqCst).count_ones())).sum()
    }

    fn list(&self, number: usize) {
        let Some(leaf) = self.leaves[number].get() else { return };
        if leaf.is_listed.load(SeqCst) {
            return;
        }
        let mut listed = self.listed();
        if !leaf.is_listed.swap(true, SeqCst) {
            listed.push(number);
        }
    }

    /// A panic under the lock leaves a list.
    fn listed(&self) -> MutexGuard<'_, Vec<usize>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a page's bit is: leaf, word, bit.
fn split(page: u64) -> (usize, usize, u64) {
    // A disk has at most 2^32 pages.
    #[allow(clippy::cast_possible_truncation)]
    ((page / LEAF) as usize, (page % LEAF / WORD) as usize, 1 << (page % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(changed: &Changed) -> Vec<u64> {
        let mut found = vec![];
        let take = changed.take(|page| {
            assert!(changed.clear(page));
            found.push(page);
            Ok::<(), ()>(())
        });
        assert_eq!(take, Ok(()));
        found
    }

    #[test]
    fn what_is_marked_is_given_once() {
        let changed = Changed::new(10 * LEAF);
        let pages = [3 * LEAF - 1, 0, 63, 64, 9 * LEAF, 3 * LEAF];
        pages.iter().chain(&pages).for_each(|page| changed.mark(*page));
        assert_eq!(changed.count(), 6);
        assert_eq!(all(&changed), [0, 63, 64, 3 * LEAF - 1, 3 * LEAF, 9 * LEAF]);
        assert_eq!((all(&changed), changed.count()), (vec![], 0));
        changed.mark(7);
        assert_eq!(all(&changed), [7]);
    }

    #[test]
    fn a_leaf_is_on_the_list_before_anybody_takes_it_for_listed() {
        let changed = Changed::new(LEAF);
        let (listed, mut is_early) = (changed.listed(), false);
        std::thread::scope(|scope| {
            scope.spawn(|| changed.mark(1));
            let marked = || changed.leaves[0].get().filter(|leaf| leaf.words[0].load(SeqCst) != 0);
            while marked().is_none() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_early = marked().is_some_and(|leaf| leaf.is_listed.load(SeqCst)) && listed.is_empty();
            drop(listed);
        });
        assert!(!is_early, "who marks another page there leaves it to a list without it");
        assert_eq!(all(&changed), [1]);
    }

    #[test]
    fn what_was_not_cleared_is_given_again() {
        let changed = Changed::new(4 * LEAF);
        (0..4).for_each(|leaf| changed.mark(leaf * LEAF + 5));
        let taken = changed.take(|page| {
            let is_first = page < 2 * LEAF;
            assert!(!is_first || changed.clear(page));
            if is_first { Ok(()) } else { Err(page) }
        });
        assert_eq!(taken, Err(2 * LEAF + 5));
        assert_eq!(all(&changed), [2 * LEAF + 5, 3 * LEAF + 5]);
    }
}
