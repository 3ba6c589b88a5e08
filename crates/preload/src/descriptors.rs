//! File descriptors of the pager survive programs that close everything.
//!
//! Daemons, shells and language runtimes close all descriptors they do not know. The pager's (userfaultfd, swap file,
//! shared segment) are registered here, and look closed to the program: close answers EBADF, close_range goes around
//! them, dup2 onto them fails; so also by libc's `syscall` (clone.c), and what the first library carries into other
//! namespaces (start/carry.c). The pager's threads have a table of their own,
//! where the program's own system calls close nothing.

use std::ffi::{c_int, c_uint};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use ramfold_budget::fds::own_path;

use crate::{real, sys, tls};

/// The pager's own, and four for each child that has this table too.
const MOST: usize = 48;
/// As start.h has it.
const CARRIED: usize = 6;

unsafe extern "C" {
    /// The first library's (start/carry.c): -1 where there is none.
    static ramfold_carried: [AtomicI32; CARRIED];
}

/// Numbers of the pager's that the program is not to close.
static PROTECTED: [AtomicI32; MOST] = [const { AtomicI32::new(-1) }; MOST];
/// The pager's threads are being started in the child of a fork.
static IS_NEW: AtomicBool = AtomicBool::new(false);

/// Keeps the program from closing `fd`; false when there is no room to remember it.
pub fn protect(fd: RawFd) -> bool {
    PROTECTED.iter().any(|slot| slot.compare_exchange(-1, fd, Ordering::Release, Ordering::Relaxed).is_ok())
}

/// The pager itself closes it.
pub fn unprotect(fd: RawFd) {
    for slot in &PROTECTED {
        let _ = slot.compare_exchange(fd, -1, Ordering::Release, Ordering::Relaxed);
    }
}

fn ours() -> impl Iterator<Item = RawFd> {
    // SAFETY: numbers that are read and written whole.
    let carried = unsafe { &ramfold_carried };
    PROTECTED.iter().chain(carried).map(|slot| slot.load(Ordering::Acquire))
}

fn is_protected(fd: RawFd) -> bool {
    fd >= 0 && !tls::is_internal() && ours().any(|number| number == fd)
}

fn uint(value: c_int) -> usize {
    // The kernel takes an int: the upper half does not matter.
    value.cast_unsigned() as usize
}

real::function!(fn dup2(c_int, c_int) -> c_int);
real::function!(fn dup3(c_int, c_int, c_int) -> c_int);

unsafe extern "C" {
    fn ramfold_find_close();
}

/// Finds libc's functions; there is one thread.
pub fn find() {
    dup2::get();
    dup3::get();
    // SAFETY: looks for a name only.
    unsafe { ramfold_find_close() };
}

/// Whether one of these looks closed to the program; errno says so then.
fn look_closed(one: c_int, other: c_int) -> bool {
    let closed = is_protected(one) || is_protected(other);
    if closed {
        sys::set_errno(libc::EBADF);
    }
    closed
}

/// For clone.c and descriptors.c.
#[unsafe(no_mangle)]
extern "C" fn ramfold_looks_closed(one: c_int, other: c_int) -> c_int {
    look_closed(one, other).into()
}

/// For descriptors.c: closes a descriptor of ramfold's own, if this thread works for ramfold; else false.
#[unsafe(no_mangle)]
extern "C" fn ramfold_closes_own(fd: c_int, result: &mut c_int) -> c_int {
    let internal = tls::is_internal();
    if internal {
        unprotect(fd);
        // SAFETY: a descriptor of ramfold's own.
        *result = unsafe { sys::call_int(libc::SYS_close, [uint(fd), 0, 0, 0, 0]) };
    }
    internal.into()
}

real::jump! {
    close => ramfold_close,
}

#[unsafe(no_mangle)]
pub extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    match dup2::get() {
        _ if look_closed(old, new) => -1,
        // SAFETY: the program's own descriptors.
        Some(real) => unsafe { real(old, new) },
        None => sys::fail(libc::ENOSYS),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    match dup3::get() {
        _ if look_closed(old, new) => -1,
        // SAFETY: the program's own descriptors.
        Some(real) => unsafe { real(old, new, flags) },
        None => sys::fail(libc::ENOSYS),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut sorted = [-1; MOST + CARRIED];
    sorted.iter_mut().zip(ours()).for_each(|(place, fd)| *place = fd);
    sorted.sort_unstable();
    let mut from = first;
    for fd in sorted.into_iter().filter_map(|fd| c_uint::try_from(fd).ok()) {
        if fd < from || fd > last {
            continue;
        }
        if fd > from && raw_close_range(from, fd - 1, flags) != 0 {
            return -1;
        }
        from = fd + 1;
    }
    if first <= last && from > last { 0 } else { raw_close_range(from, last, flags) }
}

fn raw_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own descriptors.
    unsafe { sys::call_int(libc::SYS_close_range, [first as usize, last as usize, uint(flags), 0, 0]) }
}

/// Gives this thread, and those that it starts, a table of descriptors of its own, with these of the program's in it
/// and no others: what the program closes by system calls of its own stays open here, and what it closes is not held
/// open here. But for message queues: to close one here would take away what the program has asked to be told of it.
pub fn take_own_table(kept: &[RawFd]) {
    let asked = if IS_NEW.load(Ordering::Relaxed) { Vec::new() } else { message_queues() };
    let kept = kept.iter().copied().chain(asked);
    let mut kept: Vec<c_uint> = kept.filter_map(|fd| c_uint::try_from(fd).ok()).collect();
    kept.sort_unstable();
    let Some(last) = kept.last() else { return };
    if raw_close_range(last + 1, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE.cast_signed()) != 0 {
        // Before 5.9, or not permitted: then the table is the program's.
        return;
    }
    let mut from = 0;
    for fd in kept {
        if fd > from {
            raw_close_range(from, fd - 1, 0);
        }
        from = fd + 1;
    }
}

/// Calls `start` in a process that was just forked, and so has asked no queue to be told of anything.
pub fn in_new_process<R>(start: impl FnOnce() -> R) -> R {
    IS_NEW.store(true, Ordering::Relaxed);
    let started = start();
    IS_NEW.store(false, Ordering::Relaxed);
    started
}

/// The program's descriptors of POSIX message queues: the kernel forgets a notification when its process closes any.
fn message_queues() -> Vec<RawFd> {
    /// `include/uapi/linux/magic.h` has none for this file system; `ipc/mqueue.c` does.
    const MQUEUE_MAGIC: u64 = 0x1980_0202;
    let open = own_path("fd").ok().and_then(|path| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    numbers.filter(|fd| is_on(*fd, MQUEUE_MAGIC)).collect()
}

fn is_on(fd: RawFd, file_system: u64) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the number is only asked for; what is written is read where that has been done.
    unsafe {
        libc::fstatfs(fd, found.as_mut_ptr()) == 0
            && found.assume_init().f_type.cast_unsigned() == file_system
    }
}

/// Gives this thread, and those that it starts, a root and a working directory of its own: a program that is the only
/// one to have its own may enter another mount namespace.
pub fn take_own_directory() {
    // SAFETY: nothing of the program is touched; the path ends with a zero byte.
    unsafe {
        if sys::call(libc::SYS_unshare, [uint(libc::CLONE_FS), 0, 0, 0, 0]) == 0 {
            // Where the program was is not kept from being unmounted.
            sys::call(libc::SYS_chdir, [c"/".as_ptr().addr(), 0, 0, 0, 0]);
        }
    }
}

/// From `first` on, as glibc's.
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0);
}
