//! Leases: who holds one on a file of the source (F_SETLEASE, oplocks of a file server) is asked to give it up when the
//! file is opened, and may take his time (/proc/sys/fs/lease-break-time).
//!
//! Only some of the threads that answer requests wait so long. A file is tried without waiting first, for
//! [`TRIES`] times [`BETWEEN`]; whoever gives a lease up at once is not noticed. Then a place to wait is needed. Who
//! finds none is refused (EAGAIN): all others are answered, however many leases somebody keeps.

use super::Tree;
use crate::nodes::Node;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How often a file is tried.
const TRIES: u32 = 10;
/// Time from one try to the next.
const BETWEEN: Duration = Duration::from_millis(1);

/// Places to wait.
#[derive(Debug)]
pub(super) struct Waits(AtomicUsize);

impl Waits {
    /// So many.
    pub(super) fn new(places: usize) -> Self {
        Self(AtomicUsize::new(places))
    }

    /// Waits in one of them, if there is one.
    fn wait<R>(&self, wait: impl FnOnce() -> R) -> Option<R> {
        self.0.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1)).ok()?;
        let done = wait();
        self.0.fetch_add(1, Relaxed);
        Some(done)
    }
}

impl Tree {
    /// Opens a regular file, whose reads and writes take no notice of O_NONBLOCK.
    ///
    /// # Errors
    /// What the source answers. EAGAIN if somebody keeps a lease on it and the caller would not wait, or too many do.
    pub(super) fn open_file(&self, node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        let at_once = || Self::open_node(node, flags | OFlags::NONBLOCK);
        for _ in 1..TRIES {
            match at_once() {
                Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => std::thread::sleep(BETWEEN),
                opened => return opened,
            }
        }
        self.waits.wait(|| Self::open_node(node, flags)).unwrap_or_else(at_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_wait_than_there_are_places() {
        let waits = Waits::new(2);
        let inner = waits.wait(|| waits.wait(|| waits.wait(|| ())));
        assert_eq!(inner, Some(Some(None)));
        assert_eq!(waits.wait(|| 7), Some(7), "who is done gives his place back");
    }
}
