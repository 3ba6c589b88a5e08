//! Whether this user may use userfaultfd, without which no page can be brought back.

use crate::failure::Failure;
use rustix::fs::{Access, AtFlags, CWD};

/// Checks in the order in which the preload library tries.
pub fn check() -> Result<(), Failure> {
    let Err(errno) = system_call() else { return Ok(()) };
    let device = c"/dev/userfaultfd";
    let allowed = Access::READ_OK | Access::WRITE_OK;
    if rustix::fs::accessat(CWD, device, allowed, AtFlags::EACCESS).is_ok() {
        return Ok(());
    }
    let why = match errno.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no userfaultfd (it needs Linux 5.7 or later, built with it)",
        _ => {
            "this user may not use it (run as root or with CAP_SYS_PTRACE, or have the administrator set \
             sysctl vm.unprivileged_userfaultfd=1, or make /dev/userfaultfd accessible)"
        }
    };
    Err(Failure::failed(format!("userfaultfd: {why}")))
}

/// Tries the system call; it needs CAP_SYS_PTRACE or the sysctl.
fn system_call() -> std::io::Result<()> {
    // SAFETY: the call takes flags only and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is known nowhere else.
    unsafe { libc::close(i32::try_from(fd).unwrap_or(-1)) };
    Ok(())
}
