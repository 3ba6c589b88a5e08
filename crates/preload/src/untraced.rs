//! Threads of ramfold's that a tracer does not hold.
//!
//! `strace -f` stops each thread at its system calls, and reads the program's memory meanwhile. A page of that which
//! is away comes by a thread of ramfold's, and where strace held that stopped as well, each would wait for the other.
//! proot stops them too, and a page then takes ten times as long. So where one of them watches, threads are started by
//! one that a tracer is kept from (CLONE_UNTRACED), and what such a thread starts is not traced either. It has the
//! thread-local storage of who makes it, who waits.
//!
//! Not where a debugger is the tracer: its breakpoints would kill a thread that it does not know of. Nor where the
//! tracer has a filter that sends it the system calls: they fail in who has none. With one, strace would wait for ever
//! in its first read of a page that is away, so the program ends with a line; proot stops only what names files.
//!
//! Price: a file of /proc for each process that begins to be managed, or is forked from one that is, and one or two of
//! its tracer's where it has one. What its first thread of ramfold's finds holds for the others, which start with it.

use std::ffi::c_void;
use std::fs;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::ending;
use crate::stack::{self, Call, Entry};
use ramfold_budget::fds::own_path;

/// Bytes of the stack of the thread in between.
const STACK: usize = 128 << 10;

unsafe extern "C" {
    /// In clone.c: makes the call in a thread that is not traced, and returns when that has ended; -1 if there can be
    /// none, and no call was made.
    fn ramfold_call_untraced(entry: Entry, data: *mut c_void, stack: *mut c_void) -> libc::c_int;
}

/// Makes a call that starts a thread, which is not traced if that is to be. The caller blocks all signals, and its
/// stack is never away.
pub fn start<R>(call: impl FnOnce() -> R) -> R {
    if !is_watched() {
        return call();
    }
    let stack = stack::new(STACK);
    let mut call = Call::new(call);
    let (entry, data) = call.parts();
    // SAFETY: the stack is for this thread alone, and the call outlives it.
    if stack.is_null() || unsafe { ramfold_call_untraced(entry, data, stack.wrapping_byte_add(STACK)) } != 0 {
        // SAFETY: the call was not made.
        unsafe { entry(data) };
    }
    if !stack.is_null() {
        stack::delete(stack, STACK);
    }
    call.result()
}

/// Whether the process is watched.
fn is_watched() -> bool {
    /// Of whom it was found, by its number: negative if it is watched. A forked child has its parent's.
    static FOUND: AtomicI32 = AtomicI32::new(0);
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let found = FOUND.load(Ordering::Relaxed);
    if found.abs() == pid {
        return found < 0;
    }
    let watched = is_stopped_at_calls();
    FOUND.store(if watched { -pid } else { pid }, Ordering::Relaxed);
    watched
}

/// Whether strace or proot stops this thread at each system call. Ends the program where strace has a filter for that.
fn is_stopped_at_calls() -> bool {
    let status = own_path("status").ok().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let Some(tracer) = field(&status, "TracerPid:").filter(|tracer| *tracer != "0") else { return false };
    let of_tracer = |file| fs::read_to_string(format!("/proc/{tracer}/{file}")).unwrap_or_default();
    match of_tracer("comm").trim() {
        "strace" if of_tracer("cmdline").split('\0').any(is_for_a_filter) => ending::refuse(
            "strace --seccomp-bpf would wait for threads that it holds; leave out --seccomp-bpf",
        ),
        "strace" => true,
        // What it has itself is not its own: a container's.
        "proot" => {
            let filters = |status: &str| field(status, "Seccomp_filters:")?.parse::<u32>().ok();
            filters(&status).is_some_and(|own| Some(own) == filters(&of_tracer("status")))
        }
        _ => false,
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether an argument of strace's is `--seccomp-bpf`, which may be shortened.
fn is_for_a_filter(argument: &str) -> bool {
    argument.len() > "--se".len() && "--seccomp-bpf".starts_with(argument)
}
