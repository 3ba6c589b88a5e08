//! How a program ends that ramfold cannot go on with, and what its user is told.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{environ, sys, users};

/// Ends the process at once. `ramfold run` prints what is reported; when it has ended, this process does.
pub fn die(message: &str, reported: bool) -> ! {
    if !(reported && environ::run_lives()) {
        complain(message);
    }
    users::kill_others();
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The first process of a PID namespace cannot kill itself: then the status that a shell gives to who was killed.
    exit(128 + libc::SIGKILL.unsigned_abs() as usize)
}

/// Ends a program whose memory cannot be held under the limit, before it can pass it: status 125.
pub fn refuse(why: &str) -> ! {
    complain(&format!("memory cannot be held under the limit: {why}"));
    exit(125)
}

fn exit(status: usize) -> ! {
    loop {
        // SAFETY: ends the process, without the program's own handlers.
        unsafe { sys::call(libc::SYS_exit_group, [status, 0, 0, 0, 0]) };
    }
}

/// Tells the user something that does not end the program, the first time.
pub fn tell_once(what: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        complain(what);
    }
}

/// One line on the program's stderr.
fn complain(message: &str) {
    let line = format!("ramfold: {message}\n");
    // SAFETY: descriptor 2 is only written to; if the program closed it, the write fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    if rustix::io::write(stderr, line.as_bytes()).is_err() {
        // A thread of the pager's has none.
        if let Ok(stderr) = programs_stderr() {
            let _ = rustix::io::write(stderr, line.as_bytes());
        }
    }
}

/// The program's stderr, opened anew.
fn programs_stderr() -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/fd/2", flags, Mode::empty())
}

/// When an allocation of ramfold's fails: the message of who cannot do without it goes to descriptor 2, which a
/// thread of the pager's does not have.
#[cold]
pub fn have_stderr() {
    // SAFETY: asks whether the number is open.
    if unsafe { libc::fcntl(2, libc::F_GETFD) } == -1
        && let Ok(stderr) = programs_stderr()
    {
        // SAFETY: the number is free.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&stderr), 2) };
    }
}
