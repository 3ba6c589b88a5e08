//! System calls that the library for the others does not have as safe functions.
//!
//! This is the crate's one file with unsafe code.

use rustix::io::Errno;
use std::os::fd::{IntoRawFd, OwnedFd};

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Gives this thread a file mode creation mask and a working directory of its own.
///
/// # Errors
/// What the system answers.
pub(crate) fn unshare_mask() -> Result<(), Errno> {
    // SAFETY: it takes nothing from other threads, and this one's memory stays as it is.
    match unsafe { libc::unshare(libc::CLONE_FS) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Sets who this thread is to file systems.
pub(crate) fn be_to_file_systems(user: u32, group: u32) {
    // SAFETY: both set numbers of this thread, and nothing else.
    unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
    }
}

/// Closes a descriptor, and tells what the file system says to that.
///
/// # Errors
/// What the system answers; the descriptor is closed all the same.
pub(crate) fn close(descriptor: OwnedFd) -> Result<(), Errno> {
    // SAFETY: it is this function's own, and nothing uses it from here on.
    match unsafe { libc::close(descriptor.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}
