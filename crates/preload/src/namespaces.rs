//! unshare and setns: what the kernel refuses a program for the pager's threads is tried again without them.
//!
//! A program with one thread may enter a user namespace. With the pager's it has four. So where the kernel has
//! refused such a call, and the program's own thread is the only one of it, the pager's end meanwhile. What would
//! keep them from being started again, a PID or time namespace for children, is entered afterwards.

use std::ffi::{c_char, c_int, c_long, c_ulong};
use std::time::Duration;

use ramfold_budget::time::sleep;

use crate::tls::Internal;
use crate::{ending, pager, real, stack, sys, threads};

/// Namespaces of this process's children only, in which no thread can be started.
const OF_CHILDREN: c_int = libc::CLONE_NEWPID | CLONE_NEWTIME;
const CLONE_NEWTIME: c_int = 0x80;

unsafe extern "C" {
    /// The first library's (start/carry.c): before a namespace is entered with these flags of clone.
    fn ramfold_carry(flags: c_ulong);
}

#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    enter(libc::SYS_unshare, [0, flags], 1, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn setns(fd: c_int, kinds: c_int) -> c_int {
    enter(libc::SYS_setns, [fd, kinds], 0, kinds & !OF_CHILDREN != 0)
}

real::function!(fn chroot(*const c_char) -> c_int);

/// Finds libc's function; there is one thread.
pub fn find() {
    chroot::get();
}

/// Before the root changes, /proc is kept. Not by a child that only shares the memory: descriptors are its own.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    if !pager::is_guest() {
        pager::internally(|| pager::pager().keep_proc());
    }
    let Some(real) = chroot::get() else { return sys::fail(libc::ENOSYS) };
    // SAFETY: the program's own call.
    unsafe { real(path) }
}

/// Makes the call; its arguments are those from `first` on, the flags the last. `parted`: it can be made flag by flag.
fn enter(number: c_long, arguments: [c_int; 2], first: usize, parted: bool) -> c_int {
    let call = move |flags: c_int| {
        let mut given = [0; 5];
        for (to, value) in given.iter_mut().zip(&[arguments[0], flags][first..]) {
            *to = value.cast_unsigned() as usize;
        }
        // SAFETY: arguments by value, the program's.
        unsafe { sys::call_int(number, given) }
    };
    let flags = arguments[1];
    // setns without kinds: whatever the descriptor is of.
    let entered = if flags == 0 { libc::CLONE_NEWUSER } else { flags };
    // SAFETY: opens files.
    unsafe { ramfold_carry(c_ulong::from(entered.cast_unsigned())) };
    let result = call(flags);
    if result == 0 || !is_refusal(sys::errno()) || !threads::is_only_one() {
        return result;
    }
    let errno = sys::errno();
    let later = if parted { flags & OF_CHILDREN } else { 0 };
    let alone = {
        let _internal = Internal::enter();
        stack::run(move || match pager::pager().without_threads(|| patiently(|| call(flags & !later))) {
            Ok(result) => result,
            Err(error) => ending::refuse(&error.to_string()),
        })
    };
    match alone {
        Some((0, _)) if later != 0 => call(later),
        Some((0, _)) => 0,
        Some((_, errno)) => sys::fail(errno),
        None => sys::fail(errno),
    }
}

/// What the call returns, and errno. The kernel finds no thread by its id any more some instructions before it has
/// forgotten it.
fn patiently(call: impl Fn() -> c_int) -> (c_int, c_int) {
    let mut tries = 20;
    loop {
        let result = (call(), sys::errno());
        tries -= 1;
        if tries == 0 || result.0 == 0 || !is_refusal(result.1) {
            return result;
        }
        sleep(Duration::from_micros(200));
    }
}

fn is_refusal(errno: c_int) -> bool {
    matches!(errno, libc::EINVAL | libc::EUSERS)
}
