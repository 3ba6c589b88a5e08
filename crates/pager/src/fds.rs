//! Descriptors that the pager keeps open inside a program that does not know of them.

use rustix::io::Errno;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Lowest number that the pager's descriptors get: programs count on getting 3 for their first.
const LOWEST: RawFd = 900;

/// Moves a descriptor out of the range that programs use, where the limit on open files allows.
pub(crate) fn raise(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    match rustix::io::fcntl_dupfd_cloexec(&fd, LOWEST) {
        Ok(raised) => Ok(raised),
        Err(Errno::INVAL | Errno::MFILE) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Lets `number`, which is open, mean what `fd` means.
pub(crate) fn replace(number: RawFd, fd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the number is that of a descriptor that the pager owns and goes on owning; it is not closed here.
    let mut target = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup3(fd, &mut target, rustix::io::DupFlags::CLOEXEC)
}
