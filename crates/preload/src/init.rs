//! The constructor of this library makes the pager.
//!
//! It runs while the first library loads this one: there is one thread then, signals are blocked, and the program's
//! calls do not come here yet; what is called meanwhile is internal and asks for no pager. So no `Once` is needed. If
//! there can be no pager the program ends: it would pass its limit.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use ramfold_pager::Pager;

use crate::tls::{self, Internal};
use crate::{cores, environ, fork, gate, heap, host, libc_data, loader, stack, streams, threads};

static PAGER: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// There is a pager.
static MADE: AtomicBool = AtomicBool::new(false);
/// The constructor has run.
static READY: AtomicBool = AtomicBool::new(false);
/// Malloc has nothing to see to: memory is managed or need not be yet. False as long as it is not certain.
static CALM: AtomicBool = AtomicBool::new(false);

struct Slot(UnsafeCell<MaybeUninit<Pager>>);

// SAFETY: written once while there is one thread, and only read afterwards.
unsafe impl Sync for Slot {}

/// Works on the pager. Meanwhile this thread is internal, so that whatever the pager calls allocates outside the
/// managed range, and on a stack of ramfold's own.
pub fn with_pager<R>(f: impl FnOnce(&'static Pager) -> R + 'static) -> R {
    let result = internally(move || f(pager()));
    settle();
    result
}

/// Runs `f` internally, on a stack of ramfold's own. The mark comes after the signals are blocked, and goes before:
/// no handler that jumps leaves it behind.
pub fn internally<R>(f: impl FnOnce() -> R + 'static) -> R {
    stack::run(move || {
        let _internal = Internal::enter();
        f()
    })
}

/// The pager.
#[inline]
pub fn pager() -> &'static Pager {
    debug_assert!(MADE.load(Ordering::Relaxed), "the pager is used before it is made");
    // SAFETY: the constructor has made it: nobody comes here before.
    unsafe { (*PAGER.0.get()).assume_init_ref() }
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

/// Begins management when it is due; not inside the heap, whose locks the threads that are started may wait for, and
/// not before [`loader::redirect`].
pub fn settle() {
    if !pager().is_due() {
        if !is_calm() {
            CALM.store(true, Ordering::Relaxed);
            // Who makes management due meanwhile finds it so before it says that there is no calm.
            fence(Ordering::SeqCst);
            CALM.store(!pager().is_due(), Ordering::Relaxed);
        }
        return;
    }
    CALM.store(false, Ordering::Relaxed);
    if READY.load(Ordering::Relaxed) && !stack::is_own() && !gate::is_inside(tls::thread()) && !is_guest() {
        pager().await_turn();
        begin();
    }
}

/// True when [`settle`] would find nothing to do.
#[inline]
pub fn is_calm() -> bool {
    CALM.load(Ordering::Relaxed)
}

#[cold]
fn begin() {
    internally(|| {
        if let Err(error) = pager().begin() {
            host::refuse(&error.to_string());
        }
        cores::begin();
    });
}

/// True when nothing more can be held.
#[inline]
pub fn exhausted() -> bool {
    pager().exhausted()
}

/// The managed addresses; empty while there is no pager.
#[inline]
pub fn range() -> Range<usize> {
    START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)
}

fn make_pager() {
    let made = environ::config()
        .map_err(|error| error.to_string())
        .and_then(|config| Pager::new(config, &host::Program).map_err(|error| error.to_string()));
    let pager = made.unwrap_or_else(|why| host::refuse(&why));
    START.store(pager.range().start, Ordering::Relaxed);
    END.store(pager.range().end, Ordering::Relaxed);
    // SAFETY: there is one thread, and nobody reads before.
    unsafe { (*PAGER.0.get()).write(pager) };
    MADE.store(true, Ordering::Release);
}

/// Finds the functions of libc that are needed later: to look for them then would be to wait for the dynamic linker,
/// which a signal handler may jump out of, or which waits for a page.
fn find_all() {
    let _internal = Internal::enter();
    cores::find();
    fork::find();
    heap::find();
    libc_data::find();
    streams::find();
    threads::find();
}

/// Runs while the library is loaded, with one thread and signals blocked.
extern "C" fn constructor() {
    // At once: what is called here would change to another stack and back a dozen times.
    internally(|| {
        heap::configure();
        loader::find();
        make_pager();
    });
    if loader::redirect().is_err() {
        host::refuse("the program has a malloc of its own, and this dynamic linker cannot do without it");
    }
    find_all();
    threads::register_main();
    READY.store(true, Ordering::Relaxed);
    settle();
}

/// The first library calls it after the program's own destructors.
#[unsafe(export_name = "ramfold_publish")]
extern "C" fn publish() {
    with_pager(Pager::publish);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
