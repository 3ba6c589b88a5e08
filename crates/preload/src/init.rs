//! The first intercepted call makes the pager, once.
//!
//! That call is usually a malloc of the dynamic linker, before any constructor has run and before libc knows the
//! environment. There is one thread then, so no `Once` is needed: the state is a word, and while it says STARTING
//! the starting thread is internal and never asks. Without settings, or when the pager cannot be made, the library
//! is inert: mappings go to the kernel, malloc is mimalloc over plain memory.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ramfold_pager::Pager;

use crate::tls::{Internal, Masked};
use crate::{environ, exec, fork, heap, host, lock, threads};

const UNSET: u32 = 0;
const STARTING: u32 = 1;
const INERT: u32 = 2;
const ACTIVE: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(UNSET);
static PAGER: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

struct Slot(UnsafeCell<MaybeUninit<Pager>>);

// SAFETY: written once by the starting thread before STATE says ACTIVE, and only read afterwards.
unsafe impl Sync for Slot {}

/// The pager; while it is held, this thread is internal, so that whatever the pager calls allocates outside the
/// managed range, and takes no signals.
pub struct Access(&'static Pager, #[allow(dead_code)] Internal, #[allow(dead_code)] Masked);

impl Deref for Access {
    type Target = Pager;
    fn deref(&self) -> &Pager {
        self.0
    }
}

/// The pager, made at the first call; `None` when the library is inert.
#[inline]
pub fn pager() -> Option<Access> {
    is_active().then(|| {
        // SAFETY: ACTIVE follows the write.
        Access(unsafe { (*PAGER.0.get()).assume_init_ref() }, Internal::enter(), Masked::enter())
    })
}

/// True when memory is managed.
#[inline]
pub fn is_active() -> bool {
    match STATE.load(Ordering::Acquire) {
        ACTIVE => true,
        INERT => false,
        _ => start(),
    }
}

/// True when nothing more can be held.
#[inline]
pub fn exhausted() -> bool {
    // SAFETY: ACTIVE follows the write.
    STATE.load(Ordering::Acquire) == ACTIVE && unsafe { (*PAGER.0.get()).assume_init_ref() }.exhausted()
}

/// The managed addresses; empty while there is no pager.
#[inline]
pub fn range() -> Range<usize> {
    START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)
}

#[cold]
fn start() -> bool {
    if STATE.compare_exchange(UNSET, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while STATE.load(Ordering::Acquire) == STARTING {
            lock::wait(&STATE, STARTING);
        }
        return STATE.load(Ordering::Acquire) == ACTIVE;
    }
    let internal = Internal::enter();
    heap::configure();
    let active = make_pager();
    drop(internal);
    STATE.store(if active { ACTIVE } else { INERT }, Ordering::Release);
    lock::wake(&STATE, lock::ALL);
    active
}

fn make_pager() -> bool {
    let made = match environ::config() {
        None => return false,
        Some(Ok(config)) => Pager::new(config, &host::Program).map_err(|error| error.to_string()),
        Some(Err(error)) => Err(error.to_string()),
    };
    let pager = match made {
        Ok(pager) => pager,
        Err(why) => {
            host::complain(&format!("memory is not held under the limit: {why}"));
            return false;
        }
    };
    START.store(pager.range().start, Ordering::Relaxed);
    END.store(pager.range().end, Ordering::Relaxed);
    // SAFETY: this thread alone is starting, and nobody reads before ACTIVE.
    unsafe { (*PAGER.0.get()).write(pager) };
    fork::register();
    true
}

/// Runs before the program's own constructors, with one thread.
extern "C" fn constructor() {
    if is_active() {
        exec::keep_environment();
        threads::register_main();
    }
}

/// Runs after the program's own destructors.
extern "C" fn destructor() {
    if let Some(pager) = pager() {
        pager.publish();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;
