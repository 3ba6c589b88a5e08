//! Who uses this process's memory: the process itself, and its guests (guests.rs).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use rustix::process::{Pid, Signal};

/// Users of the memory that there can be.
const MOST: usize = 64;
/// `pid` of a place that is free, and of one whose guest is about to be made.
pub const FREE: i32 = 0;
pub const EXPECTED: i32 = -1;

/// A user of the memory; the layout is that of clone.c.
#[repr(C)]
pub struct User {
    pub pid: AtomicI32,
    pub function: AtomicPtr<c_void>,
    pub argument: AtomicPtr<c_void>,
}

pub static USERS: [User; MOST] = [const {
    User {
        pid: AtomicI32::new(FREE),
        function: AtomicPtr::new(ptr::null_mut()),
        argument: AtomicPtr::new(ptr::null_mut()),
    }
}; MOST];

/// A place of its own for this user, if there is one.
pub fn claim(pid: i32) -> Option<&'static User> {
    let claimed =
        |user: &&User| user.pid.compare_exchange(FREE, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    USERS.iter().find(claimed)
}

/// In a process whose memory is its own.
pub fn forget() {
    USERS.iter().for_each(|user| user.pid.store(FREE, Ordering::Relaxed));
}

/// Kills the other users of the memory: it cannot be trusted or held any more.
pub fn kill_others() {
    for pid in
        USERS.iter().map(|user| user.pid.load(Ordering::Relaxed)).filter(|pid| *pid > 0 && *pid != own_pid())
    {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

pub fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
