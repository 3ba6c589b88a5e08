//! Who kills the keeper (guests.rs) kills the process that made it: nobody would bring its pages.
//!
//! A pipe whose reading end signals its owner, by SIGKILL, when the last writing end is closed (F_SETSIG, fcntl(2)).
//! The keeper alone has a writing end. The reading end is the process's, and goes at its exec: what runs then has
//! memory of its own. A keeper that ends in order takes the owner away before.
//!
//! Price: a descriptor. Where the program closes it by its own instructions, it is not bound any more.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::descriptors;
use crate::users::own_pid;
use ramfold_budget::fds::raise;

/// As in linux/fcntl.h.
const F_SETSIG: c_int = 10;

static READING: AtomicI32 = AtomicI32::new(-1);
static WRITING: AtomicI32 = AtomicI32::new(-1);

/// Ties this process to who will have the writing end alone; false if the system refuses it.
pub fn tie() -> bool {
    let mut ends = [-1; 2];
    // SAFETY: two new descriptors are written.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return false;
    }
    // SAFETY: new, and nobody else's.
    let [reading, writing] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (Ok(reading), Ok(writing)) = (raise(reading), raise(writing)) else { return false };
    let own = reading.as_raw_fd();
    let steps = [(libc::F_SETOWN, own_pid()), (F_SETSIG, libc::SIGKILL), (libc::F_SETFL, libc::O_ASYNC)];
    if !steps.iter().all(|(what, value)| set(own, *what, *value)) {
        return false;
    }
    keep(&READING, reading) && keep(&WRITING, writing)
}

fn set(fd: RawFd, what: c_int, value: c_int) -> bool {
    // SAFETY: sets what belongs to this descriptor.
    unsafe { libc::fcntl(fd, what, value) == 0 }
}

fn keep(place: &AtomicI32, fd: OwnedFd) -> bool {
    place.store(fd.as_raw_fd(), Ordering::Relaxed);
    descriptors::protect(fd.into_raw_fd())
}

fn close(fd: RawFd) {
    // SAFETY: closes this process's own copy.
    unsafe { crate::sys::call_int(libc::SYS_close, [fd.unsigned_abs() as usize, 0, 0, 0, 0]) };
}

/// In the process, as soon as the keeper was made: that has its own.
pub fn leave_to_keeper() {
    close(WRITING.load(Ordering::Relaxed));
}

/// In the process, when the keeper has closed what it does not need: the number is free.
pub fn is_left() {
    descriptors::unprotect(WRITING.swap(-1, Ordering::Relaxed));
}

/// In the keeper, before it ends in order.
pub fn untie() {
    set(READING.load(Ordering::Relaxed), libc::F_SETOWN, 0);
}

/// In the child of a fork: its parent's is not its own. And where there came to be no keeper.
pub fn forget() {
    for fd in [&READING, &WRITING].map(|place| place.swap(-1, Ordering::Relaxed)) {
        if fd >= 0 {
            descriptors::unprotect(fd);
            close(fd);
        }
    }
}
