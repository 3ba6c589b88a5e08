//! Entries of a directory that is open, in the order and with the positions of the source.
//!
//! The kernel asks for entries from a position on, a few at a time. What was read of the source and did not fit into an
//! answer waits for the next question, if that goes on where the last one ended and the directory is as it was.

use crate::stamp::Stamp;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, StatxFlags, seek, statx};
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
pub(crate) struct Listing {
    pub(crate) directory: OwnedFd,
    waiting: Mutex<Waiting>,
}

impl Listing {
    /// Of a directory that was opened to be read.
    pub(crate) fn new(directory: OwnedFd) -> Self {
        Self { directory, waiting: Mutex::default() }
    }

    /// Gives entries to `each` from a position on, until it takes no more or there are none.
    ///
    /// # Errors
    /// What the source answers.
    pub(crate) fn read(&self, from: u64, mut each: impl FnMut(&Listed) -> bool) -> Result<(), Errno> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Stamp::now(&self.directory).ok();
        // From the start the directory is read as it is now.
        if from == 0 || waiting.at != from || waiting.of != now {
            // ext4 would find nothing from the start on, if the end were the first that is read.
            if from != 0 && waiting.of.is_none() {
                self.batch()?;
            }
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

impl Listed {
    /// Whether it is the directory itself or the one above.
    #[must_use]
    pub fn is_dot(&self) -> bool {
        let name: &OsStr = &self.name;
        matches!(name.as_bytes(), b"." | b"..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn who_begins_at_the_end_leaves_the_rest_for_others() {
        let directory = tempfile::tempdir().unwrap();
        File::create(directory.path().join("file")).unwrap();
        let open = || Listing::new(File::open(directory.path()).unwrap().into());
        let read = |listing: &Listing, from| {
            let (mut names, mut end) = (vec![], from);
            listing
                .read(from, |listed| {
                    names.push(listed.name.clone());
                    end = listed.next;
                    true
                })
                .unwrap();
            names.sort();
            (names, end)
        };
        let (all, end) = read(&open(), 0);
        assert_eq!(all, [".", "..", "file"]);
        let listing = open();
        assert_eq!(read(&listing, end).0, [""; 0]);
        assert_eq!(read(&listing, 0).0, all);
    }
}
