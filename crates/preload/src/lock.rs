//! A futex lock that can be held across fork.
//!
//! std's mutex spins before it sleeps and cannot be left locked by one function and unlocked by another; both
//! matter here. Three states, after Drepper's "Futexes are tricky": free, taken, taken with sleepers.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::ending;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTENDED: u32 = 2;

/// Sleeps while `word` holds `value`; may wake early.
pub fn wait(word: &AtomicU32, value: u32) {
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// As many sleepers as there are: the kernel takes the count as an int.
pub const ALL: u32 = i32::MAX.cast_unsigned();

/// Wakes up to `count` sleepers of `word`. The kernel never refuses that, but a filter of system calls may: nobody
/// would be woken, and the program would stand still.
pub fn wake(word: &AtomicU32, count: u32) {
    if futex::wake(word, futex::Flags::PRIVATE, count).is_err() {
        ending::die(
            "the program's filter of system calls (seccomp) forbids futex, which ramfold needs",
            false,
        );
    }
}

/// A value behind a futex lock.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.take();
        Guard(self)
    }

    /// Takes the lock without a guard, for `fork`; `release` gives it back, in the parent and in the child.
    pub fn take(&self) {
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.state, CONTENDED);
        }
    }

    /// Gives the lock back. Only for the thread that holds it, or for its copy after fork.
    pub fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.state, 1);
        }
    }
}

pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
