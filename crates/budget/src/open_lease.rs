//! A lease on a file (fcntl(2), F_SETLEASE): who opens the file waits in open(), until the lease is given up.
//!
//! The kernel gives it to who owns the file, or has CAP_LEASE, and only while nobody else has the file open. It takes
//! it away after /proc/sys/fs/lease-break-time. When somebody waits, the process that has the lease gets SIGIO, which
//! it must have blocked. Who opens with O_NONBLOCK does not wait, and gets EWOULDBLOCK.

use rustix::fd::AsRawFd;
use std::fs::File;
use std::io;

/// A file on which this process may have a lease.
#[derive(Debug)]
pub struct OpenLease(File);

impl OpenLease {
    /// Without a lease yet. The file is open for reading only.
    #[must_use]
    pub fn on(file: File) -> Self {
        Self(file)
    }

    /// Takes the lease; false if somebody else has the file open.
    ///
    /// # Errors
    /// What the system answers where it gives no lease at all.
    pub fn take(&self) -> io::Result<bool> {
        if self.fcntl(libc::F_SETLEASE, libc::F_WRLCK) == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        }
    }

    /// Whether somebody waits in open(), or the kernel has taken the lease away.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.fcntl(libc::F_GETLEASE, 0) != libc::F_WRLCK
    }

    /// Gives the lease up: who waits goes on.
    pub fn give_up(&self) {
        self.fcntl(libc::F_SETLEASE, libc::F_UNLCK);
    }

    fn fcntl(&self, command: i32, argument: i32) -> i32 {
        // SAFETY: the descriptor is open, and both commands take a number.
        unsafe { libc::fcntl(self.0.as_raw_fd(), command, argument) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::now_ns;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn who_opens_the_file_waits_until_the_lease_is_given_up() {
        // SIGIO would end the tests, and a thread of theirs would get it.
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let lease = OpenLease::on(File::open(&path).unwrap());
        assert!(lease.take().unwrap() && !lease.is_wanted());
        let (opened, given_up) = thread::scope(|scope| {
            let opener = scope.spawn(|| File::open(&path).map(|_| now_ns()).unwrap());
            while !lease.is_wanted() {
                thread::sleep(Duration::from_millis(1));
            }
            let given_up = now_ns();
            lease.give_up();
            (opener.join().unwrap(), given_up)
        });
        assert!(opened >= given_up);
        let reader = File::open(&path).unwrap();
        assert!(!lease.take().unwrap(), "somebody has it open");
        drop(reader);
        assert!(lease.take().unwrap());
    }
}
