//! Directories as a whole: their entries, in the order and with the positions of the source.
//!
//! The kernel asks for entries from a position on, a few at a time. What was read of the source and did not fit into an
//! answer waits for the next question, if that goes on where the last one ended and the directory is as it was.
//!
//! Of a directory whose names are told, and whose version has settled, the kernel may keep what it is given. Whoever
//! opens it next learns whether it is of that version still.

use super::Tree;
use crate::stamp::Stamp;
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, StatxFlags, fsync, seek, statx};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Mutex, PoisonError};

/// Bytes of entries that are read at a time.
const BATCH: usize = 32 << 10;

/// An entry.
#[derive(Debug)]
pub struct Listed {
    /// Its inode number in the source.
    pub number: u64,
    /// The position behind it.
    pub next: u64,
    /// What it is.
    pub kind: FileType,
    /// Its name.
    pub name: OsString,
}

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

#[derive(Debug, Default)]
struct Waiting {
    /// The position of the first of them.
    at: u64,
    /// The directory's version before they were read.
    of: Option<Stamp>,
    entries: VecDeque<Listed>,
}

/// A directory that is being read.
#[derive(Debug)]
pub(super) struct Listing {
    directory: OwnedFd,
    waiting: Mutex<Waiting>,
}

impl Listing {
    /// Gives entries to `each` from a position on, until it takes no more or there are none.
    fn read(&self, from: u64, mut each: impl FnMut(&Listed) -> bool) -> Result<(), Errno> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Stamp::now(&self.directory).ok();
        // From the start the directory is read as it is now.
        if from == 0 || waiting.at != from || waiting.of != now {
            seek(&self.directory, SeekFrom::Start(from))?;
            *waiting = Waiting { at: from, of: now, entries: VecDeque::new() };
        }
        loop {
            while let Some(entry) = waiting.entries.front() {
                if !each(entry) {
                    return Ok(());
                }
                waiting.at = entry.next;
                waiting.entries.pop_front();
            }
            waiting.entries = self.batch()?;
            if waiting.entries.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next entries; none at the end.
    fn batch(&self) -> Result<VecDeque<Listed>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); BATCH];
        let mut entries = VecDeque::new();
        let mut directory = RawDir::new(&self.directory, &mut buffer);
        while let Some(entry) = directory.next() {
            let entry = entry?;
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind(entry.file_name()),
                kind => kind,
            };
            entries.push_back(Listed {
                number: entry.ino(),
                next: entry.next_entry_cookie(),
                kind,
                name: OsString::from_vec(entry.file_name().to_bytes().to_vec()),
            });
            if directory.is_buffer_empty() {
                break;
            }
        }
        Ok(entries)
    }

    /// What an entry is, where the source does not list it. One that has gone is as good as a file.
    fn kind(&self, name: &CStr) -> FileType {
        let told = statx(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        told.map_or(FileType::RegularFile, |told| FileType::from_raw_mode(told.stx_mode.into()))
    }
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
        let handle = self.listings.add(Listing { directory, waiting: Mutex::default() });
        Ok(OpenedDirectory { handle, may_keep, is_held })
    }

    /// Gives entries to `each` from a position on, until it takes no more or there are none.
    ///
    /// # Errors
    /// What the source answers.
    pub fn list(&self, handle: u64, from: u64, each: impl FnMut(&Listed) -> bool) -> Result<(), Errno> {
        self.listings.get(handle).ok_or(Errno::BADF)?.read(from, each)
    }

    /// The directory is closed.
    pub fn close_directory(&self, handle: u64) {
        self.listings.remove(handle);
    }

    /// Returns when the directory's entries are on the source's storage.
    ///
    /// # Errors
    /// What the source answers.
    pub fn sync_directory(&self, handle: u64) -> Result<(), Errno> {
        fsync(&self.listings.get(handle).ok_or(Errno::BADF)?.directory)
    }
}

impl Listed {
    /// Whether it is the directory itself or the one above.
    #[must_use]
    pub fn is_dot(&self) -> bool {
        let name: &OsStr = &self.name;
        matches!(name.as_bytes(), b"." | b"..")
    }
}
