//! A gate that all work on the pager's state passes, so that it can be stopped as a whole.
//!
//! fork() copies the memory of all threads but only the calling one goes on in the child: a lock held by
//! another thread at that moment would stay locked for ever. So everyone who takes a lock of the pager or the
//! store does it between `enter` and `leave`, and fork closes the gate first: when `close` returns, nobody is
//! inside and no lock is held. The price is two uncontended atomic operations a piece of work.
//!
//! A thread must not enter twice, and must not touch managed memory while inside (it would wait for a fault
//! handler that cannot enter).

use crate::futex::{self, AtomicU32, Ordering};
use std::time::Duration;

const CLOSED: u32 = 1 << 31;

/// The number of threads inside, and whether the gate is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU32);

/// The right to be inside; leaves when dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// The gate is closed; opens when dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    /// [`Gate::close`] for a scope.
    pub(crate) fn close_scoped(&self) -> Closed<'_> {
        self.close();
        Closed(self)
    }

    /// Waits while the gate is closed.
    pub(crate) fn enter(&self) -> Inside<'_> {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.wait(|now| now & CLOSED != 0);
        }
    }

    /// As [`Gate::enter`], but waits no longer than about `patience`.
    pub(crate) fn enter_within(&self, patience: Duration) -> Option<Inside<'_>> {
        self.try_enter().or_else(|| {
            let now = self.0.load(Ordering::Acquire);
            if now & CLOSED != 0 && !patience.is_zero() {
                futex::wait::<false>(&self.0, now, Some(patience));
            }
            None
        })
    }

    /// As [`Gate::enter`], but waits for nobody: None while the gate is closed.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        let seen = self.0.fetch_add(1, Ordering::Acquire);
        if seen & CLOSED == 0 {
            return Some(Inside(self));
        }
        self.leave();
        None
    }

    /// Waits until nobody is inside, and lets nobody in until `open`. One closer at a time: a second one waits.
    pub(crate) fn close(&self) {
        while self.0.fetch_or(CLOSED, Ordering::Acquire) & CLOSED != 0 {
            self.wait(|now| now & CLOSED != 0);
        }
        self.wait(|now| now & !CLOSED != 0);
    }

    /// Ends `close`.
    pub(crate) fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::Release);
        futex::wake::<false>(&self.0, futex::ALL);
    }

    /// Lets a closer have its turn, if there is one: out, and in again by `enter`. For who is inside, waits there for
    /// what others can do only inside, and has nothing locked. Whether there was one.
    pub(crate) fn step_aside<'a>(&'a self, enter: impl FnOnce() -> Inside<'a>) -> bool {
        let closing = self.0.load(Ordering::Relaxed) & CLOSED != 0;
        if closing {
            self.leave();
            // The caller's own goes on to mean this.
            std::mem::forget(enter());
        }
        closing
    }

    /// Whether anybody is inside, or the gate is closed. If not, whoever asks takes locks that a fork would leave
    /// locked.
    pub(crate) fn is_in_use(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends `close` in a forked child, where those who waited no longer exist.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn leave(&self) {
        let seen = self.0.fetch_sub(1, Ordering::Release);
        if seen == (CLOSED | 1) {
            futex::wake::<false>(&self.0, futex::ALL);
        }
    }

    fn wait(&self, blocked: impl Fn(u32) -> bool) {
        loop {
            let now = self.0.load(Ordering::Acquire);
            if !blocked(now) {
                return;
            }
            futex::wait::<false>(&self.0, now, None);
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
