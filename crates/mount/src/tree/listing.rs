//! Directories as a whole: opening them, and what the kernel keeps of them.
//!
//! Of a directory whose names are told, and whose version has settled, the kernel may keep what it is given. Whoever
//! opens it next learns whether it is of that version still.
//!
//! A kernel that opens directories without asking keeps everything that it is given, and compares times of
//! modification. They may be the same after a change, or set back. So it is told to drop what it has with each change
//! that is told, and some time after it was given what is of a directory that nobody tells of ([`crate::later`]).

use super::{Tree, Which};
use crate::entries::{Listed, Listing};
use crate::stamp::Stamp;
use rustix::fs::{OFlags, fsync};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An open directory, as the kernel is told of it.
#[derive(Debug, Clone, Copy)]
pub struct OpenedDirectory {
    /// What the kernel calls it.
    pub handle: u64,
    /// The kernel may keep what it is given.
    pub may_keep: bool,
    /// What the kernel has kept is of the version that the directory has now.
    pub is_held: bool,
}

impl Tree {
    /// Opens a directory.
    ///
    /// # Errors
    /// What the source answers.
    pub fn open_directory(&self, number: u64) -> Result<OpenedDirectory, Errno> {
        let node = self.node(number)?;
        let is_told = self.tells_names(number);
        let directory = Self::open_node(&node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let now = Stamp::now(&directory)?;
        let may_keep = is_told && self.cache.is_settled(&now);
        let is_held = is_told && self.is_held(&node, now);
        let handle = self.listings.add(Listing::new(directory));
        Ok(OpenedDirectory { handle, may_keep, is_held })
    }

    /// The kernel opens directories without asking, if names are told. Told before any is opened.
    pub fn let_list_alone(&self) {
        self.lists_alone.store(true, Relaxed);
    }

    /// Whether it does.
    #[must_use]
    pub fn lists_alone(&self) -> bool {
        self.lists_alone.load(Relaxed) && self.names_watch().is_some()
    }

    /// An open directory, for one request.
    fn listing(&self, which: Which) -> Result<Arc<Listing>, Errno> {
        match which {
            Which::Handle(handle) => self.listings.get(handle).ok_or(Errno::BADF),
            Which::Node(number) => {
                let node = self.node(number)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let open = || Self::open_node(&node, flags).map(Listing::new);
                self.kept.get(node.kept(), |sources| &mut sources.listing, open)
            }
        }
    }

    /// Gives entries to `each` from a position on, until it takes no more or there are none.
    ///
    /// # Errors
    /// What the source answers.
    pub fn list(&self, which: Which, from: u64, each: impl FnMut(&Listed) -> bool) -> Result<(), Errno> {
        // Before the directory is read.
        let untold = match which {
            Which::Node(number) if !self.tells_names(number) => Some(number),
            _ => None,
        };
        self.listing(which)?.read(from, each)?;
        self.old_listings.add(untold);
        Ok(())
    }

    /// The directory is closed.
    pub fn close_directory(&self, handle: u64) {
        self.listings.remove(handle);
    }

    /// Returns when the directory's entries are on the source's storage.
    ///
    /// # Errors
    /// What the source answers.
    pub fn sync_directory(&self, which: Which) -> Result<(), Errno> {
        fsync(&self.listing(which)?.directory)
    }
}
