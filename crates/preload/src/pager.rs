//! The pager of this process: made once, and reached from everywhere.
//!
//! The constructor makes it while there is one thread (init.rs), so no `Once` is needed: whoever comes here later finds
//! it. Who works on it is internal meanwhile, and on a stack of ramfold's own.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ramfold_pager::Pager;

use crate::stack;
use crate::tls::Internal;

static PAGER: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// There is a pager.
static MADE: AtomicBool = AtomicBool::new(false);

struct Slot(UnsafeCell<MaybeUninit<Pager>>);

// SAFETY: written once while there is one thread, and only read afterwards.
unsafe impl Sync for Slot {}

/// Puts the pager into its place. There is one thread, and this is the first call.
pub fn set(pager: Pager) {
    START.store(pager.range().start, Ordering::Relaxed);
    END.store(pager.range().end, Ordering::Relaxed);
    // SAFETY: there is one thread, and nobody reads before.
    unsafe { (*PAGER.0.get()).write(pager) };
    MADE.store(true, Ordering::Release);
}

/// The pager.
#[inline]
pub fn pager() -> &'static Pager {
    debug_assert!(MADE.load(Ordering::Relaxed), "the pager is used before it is made");
    // SAFETY: the constructor has made it: nobody comes here before.
    unsafe { (*PAGER.0.get()).assume_init_ref() }
}

/// The managed addresses; empty while there is no pager.
#[inline]
pub fn range() -> Range<usize> {
    START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)
}

/// True when nothing more can be held.
#[inline]
pub fn exhausted() -> bool {
    pager().exhausted()
}

/// Runs `f` internally, on a stack of ramfold's own. The mark comes after the signals are blocked, and goes before:
/// no handler that jumps leaves it behind.
pub fn internally<R>(f: impl FnOnce() -> R + 'static) -> R {
    stack::run(move || {
        let _internal = Internal::enter();
        f()
    })
}

unsafe extern "C" {
    /// The first library's (start/owner.c).
    fn ramfold_is_guest() -> c_int;
}

/// Whether this process shares the memory of another, which is to begin management.
pub fn is_guest() -> bool {
    // SAFETY: asks who owns the memory.
    unsafe { ramfold_is_guest() != 0 }
}
