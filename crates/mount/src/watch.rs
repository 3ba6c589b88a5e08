//! Watching: changes that others make behind the mount, told by the kernel (fanotify).
//!
//! A file that is written through the mount gets another version with each write. Whether its other pages are still
//! right then depends on nobody else having written too, which stamps cannot tell. So such a file is watched: the
//! kernel queues an event before a write, a truncation or an fallocate of anybody returns, and says of whom. A reader
//! looks into the queue first; then it knows of every change that was over before it began.
//!
//! Price: a system call for each read of a file that is watched. Guarantee: a change by another process that has
//! returned is known after a look. Only where the kernel knows of all changes: local file systems, and as root, since
//! others are not told whose change it is. Stores to a shared mapping are not told; stamps tell them as they do of
//! files that are not watched.

use crate::sys::{FileHandle, change_queue, handle_of, tell_changes};
use rustix::fs::fstatfs;
use rustix::io::{Errno, dup, read};
use rustix::process::getpid;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that are watched at the same time.
const MOST: usize = 4096;
/// Magic numbers of file systems whose every change the kernel sees: ext2 to ext4, xfs, btrfs, f2fs, tmpfs.
const LOCAL: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];
/// Bytes of events that are read at a time.
const BATCH: usize = 4096;
/// Bytes of struct fanotify_event_metadata, and where in it what is.
const METADATA: usize = 24;
const MASK_AT: usize = 8;
const PID_AT: usize = 20;
/// Bytes before the handle in struct fanotify_event_info_fid: a header of four, and the file system.
const INFO: usize = 12;

/// What was told of a file.
#[derive(Debug, Default)]
pub struct Told {
    /// Another process has changed it.
    changed: AtomicBool,
    /// It is not watched any more.
    ended: AtomicBool,
}

impl Told {
    /// Whether another process may have changed the file since this was created or forgotten.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.load(SeqCst) || self.has_ended()
    }

    /// Whether no changes are told any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Forgets what was told. False if nothing more is told.
    pub(crate) fn forget(&self) -> bool {
        self.changed.store(false, SeqCst);
        !self.has_ended()
    }
}

type Table = HashMap<FileHandle, Arc<Told>>;

/// All files that are watched.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    /// Held by who reads the queue: what was read is entered when the next one looks.
    table: Mutex<Table>,
}

/// A file that is watched, until this is dropped.
#[derive(Debug)]
pub struct Watched {
    watch: Arc<Watch>,
    handle: FileHandle,
    file: OwnedFd,
    told: Arc<Told>,
}

impl Watch {
    /// None where the kernel, or this process's rights, do not allow it.
    #[must_use]
    pub fn new() -> Option<Arc<Self>> {
        let queue = change_queue().ok().filter(|_| rustix::process::geteuid().is_root())?;
        Some(Arc::new(Self { queue, table: Mutex::default() }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches an open file. None if that is not to be had.
    pub(crate) fn begin(self: &Arc<Self>, file: impl AsFd) -> Option<Watched> {
        let kind = fstatfs(&file).ok()?.f_type;
        let mut table = self.table();
        if !LOCAL.contains(&kind) || table.len() >= MOST {
            return None;
        }
        let (handle, told) = (handle_of(&file).ok()?, Arc::new(Told::default()));
        // A descriptor of its own, by which the kernel is told when it ends.
        let file = dup(file).ok()?;
        tell_changes(&self.queue, &file, true).ok()?;
        table.insert(handle.clone(), Arc::clone(&told));
        Some(Watched { watch: Arc::clone(self), handle, file, told })
    }

    /// Enters all that the kernel has told.
    pub fn look(&self) {
        let table = self.table();
        let mut events = [0; BATCH];
        loop {
            match read(&self.queue, &mut events) {
                Ok(len @ 1..) => enter(&events[..len], &table),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody can tell what was lost.
                Ok(0) | Err(_) => return all_changed(&table),
            }
        }
    }
}

impl Watched {
    /// What is told of the file.
    #[must_use]
    pub fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut table = self.watch.table();
        self.told.ended.store(true, SeqCst);
        table.remove(&self.handle);
        let _ = tell_changes(&self.watch.queue, &self.file, false);
    }
}

fn all_changed(table: &Table) {
    table.values().for_each(|told| told.changed.store(true, SeqCst));
}

/// A number of `N` bytes at this place; None if they are not all there.
fn bytes<const N: usize>(event: &[u8], at: usize) -> Option<[u8; N]> {
    event.get(at..at + N)?.try_into().ok()
}

/// Enters events, one after the other.
fn enter(mut events: &[u8], table: &Table) {
    let own = getpid().as_raw_nonzero().get();
    while !events.is_empty() {
        let len = bytes(events, 0).map_or(0, u32::from_ne_bytes) as usize;
        let Some((event, rest)) = events.split_at_checked(len).filter(|_| len >= METADATA) else {
            return all_changed(table);
        };
        events = rest;
        let mask = bytes(event, MASK_AT).map_or(0, u64::from_ne_bytes);
        if mask & libc::FAN_Q_OVERFLOW != 0 {
            all_changed(table);
        } else if bytes(event, PID_AT).map(i32::from_ne_bytes) != Some(own) {
            match handle_in(event).map(|handle| table.get(&handle)) {
                Some(Some(told)) => told.changed.store(true, SeqCst),
                // A file that is not watched any more.
                Some(None) => {}
                None => all_changed(table),
            }
        }
    }
}

/// The handle in an event, as [`handle_of`] gives it.
fn handle_in(event: &[u8]) -> Option<FileHandle> {
    let info = &event[METADATA..];
    if info.first() != Some(&libc::FAN_EVENT_INFO_TYPE_FID) {
        return None;
    }
    let len = u32::from_ne_bytes(bytes(info, INFO)?) as usize;
    let handle = INFO + 4;
    Some(info.get(handle..handle + 4 + len)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of these parts, as the kernel lays it out (include/uapi/linux/fanotify.h).
    fn event(mask: u64, pid: i32, handle: &[u8]) -> Vec<u8> {
        let fid = u16::try_from(INFO + 4 + handle.len()).unwrap();
        let len = METADATA + usize::from(fid);
        let mut event = u32::try_from(len).unwrap().to_ne_bytes().to_vec();
        event.extend([3, 0, 24, 0]);
        event.extend(mask.to_ne_bytes());
        event.extend((-1_i32).to_ne_bytes());
        event.extend(pid.to_ne_bytes());
        event.extend([libc::FAN_EVENT_INFO_TYPE_FID, 0]);
        event.extend(fid.to_ne_bytes());
        event.extend([0; 8]);
        event.extend(u32::try_from(handle.len() - 4).unwrap().to_ne_bytes());
        event.extend(handle);
        event
    }

    fn changed(events: &[u8]) -> [bool; 2] {
        let handles = [Box::from(*b"kindone"), Box::from(*b"kindtwo!")];
        let told = [(); 2].map(|()| Arc::new(Told::default()));
        let table = handles.into_iter().zip(told.clone()).collect();
        enter(events, &table);
        told.map(|told| told.has_changed())
    }

    #[test]
    fn others_changes_are_told_of_the_file_that_they_are_of() {
        let own = getpid().as_raw_nonzero().get();
        assert_eq!(changed(&event(libc::FAN_MODIFY, own, b"kindone")), [false, false]);
        assert_eq!(changed(&event(libc::FAN_MODIFY, own + 1, b"kindtwo!")), [false, true]);
        assert_eq!(changed(&event(libc::FAN_MODIFY, 0, b"kindmore")), [false, false]);
        let both =
            [event(libc::FAN_MODIFY, own, b"kindone"), event(libc::FAN_MODIFY, 0, b"kindone")].concat();
        assert_eq!(changed(&both), [true, false]);
    }

    #[test]
    fn what_is_lost_or_not_understood_may_be_of_any_file() {
        let own = getpid().as_raw_nonzero().get();
        assert_eq!(changed(&event(libc::FAN_Q_OVERFLOW, own, b"none")), [true, true]);
        let whole = event(libc::FAN_MODIFY, 0, b"kindmore");
        for len in 1..whole.len() {
            assert_eq!(changed(&whole[..len]), [true, true], "{len} bytes");
        }
        let mut other = whole;
        other[METADATA] = 77;
        assert_eq!(changed(&other), [true, true]);
    }
}
