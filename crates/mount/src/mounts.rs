//! Mounts: what is mounted somewhere in the source, or taken away there, changes where a name leads, and no directory
//! tells of that. The kernel tells of its table of mounts.
//!
//! Price: a thread that sleeps; the table is read when anything is mounted in this namespace. Guarantee: places in the
//! source whose mounts have changed are given as soon as that was told. Nothing is told of a source that the mount lies
//! over: what is mounted there is mounted on the mount.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::write;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// The fields of a line of the table: the mount's number, and where it is.
const NUMBER: usize = 0;
const PLACE: usize = 4;

/// A mount's number and where it is.
type Mounted = (Vec<u8>, PathBuf);

/// The mounts in a directory.
#[derive(Debug)]
pub(crate) struct Mounts {
    table: File,
    source: PathBuf,
    known: Mutex<HashSet<Mounted>>,
    /// Rung at the end.
    bell: OwnedFd,
    ended: AtomicBool,
}

impl Mounts {
    /// Those in this directory, whose path is the kernel's own.
    ///
    /// # Errors
    /// What the system answers.
    pub(crate) fn new(source: &Path) -> io::Result<Self> {
        let table = File::open("/proc/self/mountinfo")?;
        let known = Mutex::new(within(&read(&table)?, source));
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { table, source: source.to_owned(), known, bell, ended: AtomicBool::new(false) })
    }

    /// Waits until some have come or gone, and gives their places. None at the end.
    pub(crate) fn wait(&self) -> Option<HashSet<PathBuf>> {
        loop {
            let mut sources =
                [PollFd::new(&self.table, PollFlags::PRI), PollFd::new(&self.bell, PollFlags::IN)];
            // What interrupts it is seen by the next look.
            let _ = poll(&mut sources, None);
            if self.ended.load(SeqCst) {
                return None;
            }
            // A table that cannot be read now is read when it is told of again.
            let Ok(table) = read(&self.table) else { continue };
            let now = within(&table, &self.source);
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let changed: HashSet<_> =
                known.symmetric_difference(&now).map(|(_, place)| place.clone()).collect();
            *known = now;
            if !changed.is_empty() {
                return Some(changed);
            }
        }
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        // A bell that cannot be rung any louder has been rung.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// The whole table, from its start.
fn read(table: &File) -> io::Result<Vec<u8>> {
    let mut all = vec![0; 16 << 10];
    let mut filled = 0;
    loop {
        match table.read_at(&mut all[filled..], filled as u64)? {
            0 => break,
            len => filled += len,
        }
        if filled == all.len() {
            all.resize(2 * filled, 0);
        }
    }
    all.truncate(filled);
    Ok(all)
}

/// The mounts below a directory.
fn within(table: &[u8], source: &Path) -> HashSet<Mounted> {
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let place = PathBuf::from(OsString::from_vec(plain(fields.get(PLACE)?)));
        (place != source && place.starts_with(source)).then(|| (fields[NUMBER].to_vec(), place))
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// A path as it is: the table has blanks and backslashes in octal.
fn plain(mut told: &[u8]) -> Vec<u8> {
    let mut path = vec![];
    while let Some((first, rest)) = told.split_first() {
        let octal = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                told = &rest[3..];
            }
            None => {
                path.push(*first);
                told = rest;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_below_a_directory_are_found() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n23 22 0:5 / /a\\040b rw - tmpfs t rw\n\
            24 23 0:6 / /a\\040b/c\\134d rw shared:1 - tmpfs t rw\n25 22 0:7 / /a\\040bc rw - tmpfs t rw\n";
        let found = within(table, Path::new("/a b"));
        assert_eq!(found, [(b"24".to_vec(), PathBuf::from("/a b/c\\d"))].into());
        assert_eq!(within(table, Path::new("/")).len(), 3);
    }

    #[test]
    fn the_whole_table_is_read() {
        let table = File::open("/proc/self/mountinfo").unwrap();
        assert_eq!(read(&table).unwrap(), std::fs::read("/proc/self/mountinfo").unwrap());
    }
}
