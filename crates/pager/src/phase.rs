//! Whether memory is managed yet. The change from plain to managed, and a fork, exclude each other: a child never finds
//! it half done, with the thread that was at it left behind in the parent.

use crate::futex::{self, AtomicU32, Ordering};

/// Nothing is managed, and need not be.
const PLAIN: u32 = 0;
/// Management should begin at the next opportunity.
const DUE: u32 = 1;
/// Management begins, or a fork keeps it from doing so.
const CHANGING: u32 = 2;
/// For good.
const MANAGED: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Phase(AtomicU32);

impl Phase {
    /// The program has much memory.
    pub(crate) fn set_due(&self) {
        if self.0.load(Ordering::Relaxed) == PLAIN {
            self.swap(PLAIN, DUE);
        }
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DUE
    }

    /// True for the one caller that is to begin management, and then calls `finish`.
    pub(crate) fn begin(&self) -> bool {
        self.swap(DUE, CHANGING)
    }

    /// Management has begun.
    pub(crate) fn finish(&self) {
        self.0.store(MANAGED, Ordering::Release);
        futex::wake::<false>(&self.0, futex::ALL);
    }

    /// Waits for a change that is under way, and keeps another from beginning until `release`.
    pub(crate) fn hold(&self) {
        loop {
            match self.0.load(Ordering::Acquire) {
                MANAGED => return,
                CHANGING => futex::wait::<false>(&self.0, CHANGING, None),
                seen if self.swap(seen, CHANGING) => return,
                _ => {}
            }
        }
    }

    /// Ends `hold`. Whether management is due has to be found out anew.
    pub(crate) fn release(&self) {
        if self.swap(CHANGING, PLAIN) {
            futex::wake::<false>(&self.0, futex::ALL);
        }
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
