//! Core dumps: signals that would leave one.
//!
//! The pager must see to what is away before the kernel dumps the process (ramfold-pager, dump.rs). So once memory is
//! managed, where the system would write a core, the signals that end a process with one have a handler of ramfold's
//! in the place of the default. It sends the signal once more, as it came, with the default in force: the core shows
//! the thread where it was. The program finds the default wherever it asks for a disposition, and what it sets itself
//! is kept.
//!
//! Price: where cores are written, some system calls when management begins and whenever a disposition of these
//! signals is asked for or changed. Where none are, nothing. A program that asks the kernel by an instruction of its
//! own sees the handler.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{sigaction as Action, siginfo_t};
use rustix::process::{Resource, getrlimit};

use crate::{pager, real, sys};

type Handler = *mut c_void;

real::function!(fn sigaction(c_int, *const Action, *mut Action) -> c_int);
real::function!(fn signal(c_int, Handler) -> Handler);
real::function!(fn __sysv_signal(c_int, Handler) -> Handler);
real::function!(fn sigset(c_int, Handler) -> Handler);

/// Those that leave a core (signal(7)).
const SIGNALS: [c_int; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// The handlers are in their places.
static COVERED: AtomicBool = AtomicBool::new(false);

/// Finds libc's functions; there is one thread.
pub fn find() {
    sigaction::get();
    signal::get();
    __sysv_signal::get();
    sigset::get();
}

/// When management has begun.
pub fn begin() {
    if leaves_core() {
        COVERED.store(true, Ordering::Relaxed);
        SIGNALS.into_iter().for_each(cover);
    }
}

/// Whether the system would write a core.
fn leaves_core() -> bool {
    let to_file = getrlimit(Resource::Core).current != Some(0);
    to_file || std::fs::read("/proc/sys/kernel/core_pattern").is_ok_and(|pattern| pattern.starts_with(b"|"))
}

/// The action of a signal, which becomes `new` if that is there.
fn exchange(number: c_int, new: Option<&Action>) -> Option<Action> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: libc's function reads one action and writes the other.
    let done = unsafe { sigaction::get()?(number, new.map_or(ptr::null(), ptr::from_ref), old.as_mut_ptr()) };
    // SAFETY: it succeeded, and has written it.
    (done == 0).then(|| unsafe { old.assume_init() })
}

fn ours() -> Action {
    // SAFETY: an action without anything.
    let mut action: Action = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = entry();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: fills a set.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    action
}

/// The address of the handler.
fn entry() -> usize {
    handler as *const () as usize
}

/// Puts the handler in the place of the default.
fn cover(number: c_int) {
    let is_default = |action: &Action| action.sa_sigaction == libc::SIG_DFL;
    if exchange(number, None).as_ref().is_some_and(is_default)
        && let Some(before) = exchange(number, Some(&ours()))
        && !is_default(&before)
    {
        // Another thread's, that came in between.
        exchange(number, Some(&before));
    }
}

/// Puts the default in the place of the handler.
fn uncover(number: c_int) {
    // SAFETY: an action without anything is the default.
    let default: Action = unsafe { MaybeUninit::zeroed().assume_init() };
    if exchange(number, None).is_some_and(|action| action.sa_sigaction == entry()) {
        exchange(number, Some(&default));
    }
}

/// Makes the program's own call, which sees the default.
fn uncovered<R>(number: c_int, call: impl FnOnce() -> R) -> R {
    if !COVERED.load(Ordering::Relaxed) || !SIGNALS.contains(&number) {
        return call();
    }
    uncover(number);
    let result = call();
    let errno = sys::errno();
    cover(number);
    sys::set_errno(errno);
    result
}

/// Runs where the signal came, with all others blocked.
extern "C" fn handler(number: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let errno = sys::errno();
    if !pager::is_guest() && leaves_core() {
        pager::internally(|| pager::pager().prepare_dump());
    }
    uncover(number);
    // It is blocked until this handler returns.
    let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let [process, thread] = [process, thread].map(|id| id.as_raw_nonzero().get().unsigned_abs() as usize);
    let number = number.unsigned_abs() as usize;
    // SAFETY: sends what the kernel has handed over.
    unsafe { sys::call(libc::SYS_rt_tgsigqueueinfo, [process, thread, number, info.expose_provenance(), 0]) };
    sys::set_errno(errno);
}

/// # Safety
/// As in C.
#[unsafe(export_name = "sigaction")]
unsafe extern "C" fn change(number: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(real) = sigaction::get() else { return sys::fail(libc::ENOSYS) };
    // SAFETY: the program's.
    uncovered(number, || unsafe { real(number, new, old) })
}

/// Exports a function that sets a handler and returns the one before.
macro_rules! setter {
    ($name:ident, $($function:ident = $exported:literal),*) => {
        $(
            /// # Safety
            /// As in C.
            #[unsafe(export_name = $exported)]
            unsafe extern "C" fn $function(number: c_int, new: Handler) -> Handler {
                let Some(real) = $name::get() else {
                    sys::fail(libc::ENOSYS);
                    return ptr::without_provenance_mut(libc::SIG_ERR);
                };
                // SAFETY: the program's.
                uncovered(number, || unsafe { real(number, new) })
            }
        )*
    };
}

setter!(signal, set = "signal", set_bsd = "bsd_signal", set_own = "ssignal");
setter!(__sysv_signal, set_once = "__sysv_signal", set_sysv = "sysv_signal");
setter!(sigset, set_or_hold = "sigset");
