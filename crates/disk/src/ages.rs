//! Ages: when each page was used last, and which pages are marked idle.
//!
//! A word a page: the time in 32nds of a second since the disk began, and zram's idle mark, which the next use takes
//! away. The words lie in a tree of three levels that grows where pages are used, so a large disk costs nothing where
//! it is empty, and a use costs three loads, a store, and the kernel's coarse clock, which is a load as well. The price
//! is four bytes for each page near one that was used; they are kept until the disk ends.
//!
//! Guarantee: a page that is used after a mark is not idle by that mark. Times are right for two years.

use ramfold_budget::time::coarse_ns;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Pages below one branch of the middle level, and branches there.
const FAN: u64 = 1024;
/// Branches at the top.
const TOP: usize = 4096;
/// Pages that there are ages for: 16 TiB.
pub(crate) const MAX_PAGES: u64 = TOP as u64 * FAN * FAN;

const IDLE: u32 = 1 << 31;
const TICKS_PER_SECOND: u64 = 32;

type Leaf = Box<[AtomicU32]>;
type Branch = Box<[OnceLock<Leaf>]>;

/// The ages of one disk.
#[derive(Debug)]
pub(crate) struct Ages {
    /// By [`coarse_ns`].
    began: u64,
    top: Box<[OnceLock<Branch>]>,
}

/// When a page was used last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// Since the disk began.
    pub used: Duration,
    /// It was marked idle, and not used since.
    pub is_idle: bool,
}

impl Ages {
    pub(crate) fn new() -> Self {
        Self { began: coarse_ns(), top: (0..TOP).map(|_| OnceLock::new()).collect() }
    }

    /// How long ago the disk began.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(coarse_ns().saturating_sub(self.began))
    }

    /// Notes a use of each page.
    pub(crate) fn touch(&self, pages: Range<u64>) {
        let now = self.ticks();
        for (top, middle, last) in pages.map(split) {
            let branch = self.top[top].get_or_init(|| (0..FAN).map(|_| OnceLock::new()).collect());
            let leaf = branch[middle].get_or_init(|| (0..FAN).map(|_| AtomicU32::new(0)).collect());
            leaf[last].store(now, Relaxed);
        }
    }

    /// Forgets the pages: nothing is kept of them.
    pub(crate) fn forget(&self, pages: &Range<u64>) {
        self.each(pages, |word| word.store(0, Relaxed));
    }

    /// Marks pages that were not used for so long, or all.
    pub(crate) fn mark_idle(&self, pages: &Range<u64>, unused: Duration) {
        let now = self.ticks();
        let least = u32::try_from(ticks(unused)).unwrap_or(u32::MAX);
        self.each(pages, |word| {
            let seen = word.load(Relaxed);
            if seen != 0 && now.saturating_sub(seen & !IDLE) >= least {
                // Lost to a use that comes first: then it is not idle.
                let _ = word.compare_exchange(seen, seen | IDLE, Relaxed, Relaxed);
            }
        });
    }

    /// When the page was used, if it was.
    pub(crate) fn of(&self, page: u64) -> Option<Age> {
        let (top, middle, last) = split(page);
        let word = self.top[top].get()?[middle].get()?[last].load(Relaxed);
        let used = Duration::from_secs_f64(f64::from(word & !IDLE) / TICKS_PER_SECOND as f64);
        (word != 0).then_some(Age { used, is_idle: word & IDLE != 0 })
    }

    /// All words of the range that there are.
    fn each(&self, pages: &Range<u64>, with: impl Fn(&AtomicU32)) {
        if pages.is_empty() {
            return;
        }
        let (first, last) = (split(pages.start), split(pages.end - 1));
        for top in first.0..=last.0 {
            let Some(branch) = self.top[top].get() else { continue };
            let from = if top == first.0 { first.1 } else { 0 };
            let to = if top == last.0 { last.1 } else { branch.len() - 1 };
            for middle in from..=to {
                let Some(leaf) = branch[middle].get() else { continue };
                let from = if (top, middle) == (first.0, first.1) { first.2 } else { 0 };
                let to = if (top, middle) == (last.0, last.1) { last.2 } else { leaf.len() - 1 };
                leaf[from..=to].iter().for_each(&with);
            }
        }
    }

    /// Never 0, which says that a page was not used.
    fn ticks(&self) -> u32 {
        u32::try_from(ticks(self.now())).map_or(IDLE - 1, |ticks| ticks.clamp(1, IDLE - 1))
    }
}

fn ticks(time: Duration) -> u64 {
    time.as_secs().saturating_mul(TICKS_PER_SECOND)
        + u64::from(time.subsec_millis()) * TICKS_PER_SECOND / 1000
}

/// Where the word of a page lies.
fn split(page: u64) -> (usize, usize, usize) {
    assert!(page < MAX_PAGES, "a page of the disk");
    let part = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    (part(page / FAN / FAN), part(page / FAN % FAN), part(page % FAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lasts_until_the_next_use() {
        let ages = Ages::new();
        let all = 0..MAX_PAGES;
        for page in [0, 1023, 1024, MAX_PAGES - 1] {
            assert_eq!(ages.of(page), None);
            ages.touch(page..page + 1);
            assert!(!ages.of(page).unwrap().is_idle);
        }
        ages.mark_idle(&all, Duration::from_secs(60));
        assert!(!ages.of(0).unwrap().is_idle, "used a moment ago");
        ages.mark_idle(&all, Duration::ZERO);
        assert!(ages.of(0).unwrap().is_idle && ages.of(MAX_PAGES - 1).unwrap().is_idle);
        assert_eq!(ages.of(1), None, "what was never used is not idle");
        ages.touch(1024..1025);
        assert!(!ages.of(1024).unwrap().is_idle && ages.of(1023).unwrap().is_idle);
        ages.forget(&(1023..MAX_PAGES));
        assert!(ages.of(1023).is_none() && ages.of(MAX_PAGES - 1).is_none() && ages.of(0).is_some());
    }
}
