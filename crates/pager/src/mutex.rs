//! A lock on a word, by futex, that can also be waited for a while only. Three states, after Drepper's "Futexes are
//! tricky": free, taken, taken with sleepers.

use crate::futex::{self, AtomicU32, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTENDED: u32 = 2;

/// The lock; protects what its owner says.
#[derive(Debug, Default)]
pub(crate) struct Mutex(AtomicU32);

/// The lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked<'a>(&'a Mutex);

impl Mutex {
    /// Waits until the lock is free, and takes it.
    pub(crate) fn lock(&self) -> Locked<'_> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
                futex::wait::<false>(&self.0, CONTENDED, None);
            }
        }
        Locked(self)
    }

    /// The same, but waits no longer than about `patience`.
    pub(crate) fn lock_within(&self, patience: Duration) -> Option<Locked<'_>> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Some(Locked(self));
        }
        if patience.is_zero() {
            return None;
        }
        if self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex::wait::<false>(&self.0, CONTENDED, Some(patience));
            if self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
                return None;
            }
        }
        Some(Locked(self))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake::<false>(&self.0.0, 1);
        }
    }
}
