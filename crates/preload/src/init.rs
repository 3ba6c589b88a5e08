//! The first call makes the pager, once.
//!
//! That call is this library's own constructor, while the first library loads it: there is one thread then, signals are
//! blocked, and the program's calls do not come here yet. So no `Once` is needed: the state is a word, and while it says
//! STARTING the starting thread is internal and never asks. With settings and no pager the program ends: it would pass its
//! limit. Without settings, which the first library does not let come about, the library is inert.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use ramfold_pager::Pager;

use crate::tls::{self, Internal};
use crate::{environ, fork, gate, heap, host, libc_data, loader, lock, stack, threads};

const UNSET: u32 = 0;
const STARTING: u32 = 1;
const INERT: u32 = 2;
const ACTIVE: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(UNSET);
static PAGER: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The constructor has run.
static READY: AtomicBool = AtomicBool::new(false);
/// Malloc has nothing to see to: memory is managed or need not be yet. False as long as it is not certain.
static CALM: AtomicBool = AtomicBool::new(false);

struct Slot(UnsafeCell<MaybeUninit<Pager>>);

// SAFETY: written once by the starting thread before STATE says ACTIVE, and only read afterwards.
unsafe impl Sync for Slot {}

/// Works on the pager, made at the first call; `None` when the library is inert. Meanwhile this thread is internal, so
/// that whatever the pager calls allocates outside the managed range, and on a stack of ramfold's own.
pub fn with_pager<R>(f: impl FnOnce(&'static Pager) -> R + 'static) -> Option<R> {
    if !is_active() {
        return None;
    }
    let result = {
        let _internal = Internal::enter();
        stack::run(move || f(get()))
    };
    settle();
    Some(result)
}

/// The pager, for fork; `None` when the library is inert.
pub fn pager() -> Option<&'static Pager> {
    is_active().then(get)
}

/// The pager; the library is active.
fn get() -> &'static Pager {
    // SAFETY: ACTIVE follows the write.
    unsafe { (*PAGER.0.get()).assume_init_ref() }
}

/// Begins management when it is due; not inside the heap, whose locks the threads that are started may wait for, and not
/// before [`loader::redirect`].
pub fn settle() {
    if !get().is_due() {
        if !is_calm() {
            CALM.store(true, Ordering::Relaxed);
            // Who makes management due meanwhile finds it so before it says that there is no calm.
            fence(Ordering::SeqCst);
            CALM.store(!get().is_due(), Ordering::Relaxed);
        }
        return;
    }
    CALM.store(false, Ordering::Relaxed);
    if READY.load(Ordering::Relaxed) && !stack::is_own() && !gate::is_inside(tls::thread()) {
        get().await_turn();
        begin();
    }
}

/// True when [`settle`] would find nothing to do, and the library is active.
#[inline]
pub fn is_calm() -> bool {
    CALM.load(Ordering::Relaxed)
}

#[cold]
fn begin() {
    let _internal = Internal::enter();
    stack::run(|| {
        if let Err(error) = get().begin() {
            host::refuse(&error.to_string());
        }
    });
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

/// True when nothing more can be held; the library is active.
#[inline]
pub fn exhausted() -> bool {
    get().exhausted()
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
    // On one stack with signals blocked once: what is called here would change to it and back a dozen times.
    let active = stack::run(|| {
        heap::configure();
        loader::find();
        make_pager()
    });
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
        Err(why) => host::refuse(&why),
    };
    START.store(pager.range().start, Ordering::Relaxed);
    END.store(pager.range().end, Ordering::Relaxed);
    // SAFETY: this thread alone is starting, and nobody reads before ACTIVE.
    unsafe { (*PAGER.0.get()).write(pager) };
    true
}

/// Runs while the library is loaded, with one thread.
extern "C" fn constructor() {
    if is_active() {
        if loader::redirect().is_err() {
            host::refuse("the program has a malloc of its own, and this dynamic linker cannot do without it");
        }
        fork::find();
        libc_data::find();
        threads::register_main();
        READY.store(true, Ordering::Relaxed);
        settle();
    }
}

/// The first library calls it after the program's own destructors.
#[unsafe(export_name = "ramfold_publish")]
extern "C" fn publish() {
    with_pager(Pager::publish);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
