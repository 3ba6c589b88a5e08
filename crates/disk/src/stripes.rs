//! Who changes a page is alone with it.
//!
//! A write of a part of a page reads the page, changes it and stores it: two such writes of one page must take turns,
//! and so must a write and a discard. Readers need no turn: a load gives the page before a store or after it.
//!
//! Price: a lock of its own for no page, so two pages in 256 wait for each other without need. Order: several at once
//! are taken from the lowest on.

use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 256;

/// The locks of a disk's pages.
#[derive(Debug)]
pub struct Stripes([Mutex<()>; STRIPES]);

impl Default for Stripes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Stripes {
    /// The right to change a page.
    pub fn of(&self, page: u64) -> MutexGuard<'_, ()> {
        // The remainder is below the number of stripes.
        #[allow(clippy::cast_possible_truncation)]
        lock(&self.0[(page % STRIPES as u64) as usize])
    }

    /// The right to change all.
    pub fn all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.0.iter().map(lock).collect()
    }
}

/// What a panic under the lock leaves is a page as it was, or as it should be.
fn lock(stripe: &Mutex<()>) -> MutexGuard<'_, ()> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}
