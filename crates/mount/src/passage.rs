//! Passage: files that are not to be kept are read and written by the kernel itself (FUSE passthrough, Linux 6.9).
//!
//! Their pages are the source's own, in the source's page cache, and the server is asked for names and attributes only.
//! The kernel refuses (EIO) to have an inode open both ways at once. So who has a file open decides for who opens it
//! next; and a file that was passed once stays so for as long as the kernel knows it. A mapping keeps it known, and is
//! of the source's pages even when the descriptor is closed: nobody reads other pages of that file meanwhile.
//!
//! What is written so passes the server by, like a change behind the mount. Nothing is kept of the file while it is
//! passed; pages that were kept before, by a name that is not excluded, go by their version, as with any such change.
//!
//! Price: a number in the kernel for a file that is open. Where the kernel, or the right to it (CAP_SYS_ADMIN), is
//! wanting, the file is read through the server.

use fuser::BackingId;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the kernel calls a file that it reads itself.
pub type Backing = Arc<BackingId>;

#[derive(Debug)]
struct Ways<B> {
    opens: u64,
    /// It was passed, and the kernel knows it still.
    is_passed: bool,
    /// While it is open and passed.
    backing: Option<B>,
}

/// How a file is open.
#[derive(Debug)]
pub(crate) struct Passage<B = Backing>(Mutex<Ways<B>>);

impl<B> Default for Passage<B> {
    fn default() -> Self {
        Self(Mutex::new(Ways { opens: 0, is_passed: false, backing: None }))
    }
}

impl<B: Clone> Passage<B> {
    fn ways(&self) -> MutexGuard<'_, Ways<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file is opened once more; `begin` has the kernel know it, if it may be passed. None if it is not passed.
    ///
    /// # Errors
    /// The kernel does not know a file any more that was passed, and has to be.
    pub(crate) fn open(&self, may: bool, begin: impl FnOnce() -> io::Result<B>) -> io::Result<Option<B>> {
        let mut ways = self.ways();
        if ways.backing.is_none() && (ways.is_passed || may && ways.opens == 0) {
            match begin() {
                Ok(backing) => (ways.backing, ways.is_passed) = (Some(backing), true),
                Err(error) if ways.is_passed => return Err(error),
                Err(_) => {}
            }
        }
        ways.opens += 1;
        Ok(ways.backing.clone())
    }

    /// It is closed once.
    pub(crate) fn close(&self) {
        let mut ways = self.ways();
        ways.opens = ways.opens.saturating_sub(1);
        if ways.opens == 0 {
            ways.backing = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> io::Result<u32> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    #[test]
    fn all_opens_of_a_file_at_once_are_alike() {
        let passage = Passage::default();
        assert_eq!(passage.open(false, || Ok(1)).unwrap(), None);
        assert_eq!(passage.open(true, || Ok(2)).unwrap(), None, "it is open the other way");
        passage.close();
        assert_eq!(passage.open(true, || Ok(3)).unwrap(), None, "still");
        passage.close();
        passage.close();
        assert_eq!(passage.open(true, || Ok(4)).unwrap(), Some(4));
        assert_eq!(passage.open(false, fails).unwrap(), Some(4), "by a name that is not excluded");
        passage.close();
        passage.close();
        assert!(passage.open(false, fails).is_err(), "there may be mappings");
        assert_eq!(passage.open(false, || Ok(5)).unwrap(), Some(5), "for as long as it is known");
    }

    #[test]
    fn where_the_kernel_refuses_the_server_reads() {
        let passage = Passage::default();
        assert_eq!(passage.open(true, fails).unwrap(), None);
        assert_eq!(passage.open(true, || Ok(1)).unwrap(), None);
        passage.close();
        passage.close();
        assert_eq!(passage.open(true, || Ok(2)).unwrap(), Some(2));
    }
}
