//! What first touches ([`crate::fresh`]) need: how densely the program uses what it is given, and zeros to give.

use crate::pages::BLOCK_PAGES;
use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most pages that are given together.
pub(crate) const MOST: usize = 4 * BLOCK_PAGES;
/// Fewest, while there is room at all: so many where memory is touched densely, down to so few where it is not.
pub(crate) const LEAST: RangeInclusive<usize> = BLOCK_PAGES / 4..=BLOCK_PAGES;
/// Times as many where they are touched in sequence.
pub(crate) const IN_SEQUENCE: usize = 4;

/// How densely the program uses what it is given. Of a sparse table, most of what is given with its pages leaves as
/// it came.
#[derive(Debug)]
pub(crate) struct Density {
    /// Fewest pages that are given together.
    pub(crate) least: AtomicUsize,
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
pub(crate) struct Zeros(pub(crate) usize);

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
