//! Watching: changes that others make behind the mount, told by the kernel (fanotify).
//!
//! A regular file that is open is watched, for as long as the kernel of the mount knows it. The kernel of the source
//! queues an event before a change returns (a write, a truncation, an fallocate; of times, owner, links, attributes),
//! and says whether it was this process's own. Two things come of that. A reader of the cache looks into the queue
//! first, and knows of every change that was over before it began. And the kernel of the mount may believe what it was
//! told of the file, since [`crate::doubt`] takes that back with each event.
//!
//! Price: a mark in the kernel and some 200 bytes a file, three system calls an open, one for each read of the cache.
//! Guarantee: a change by another process that has returned is known after a look. Only where the kernel knows of
//! changes: local file systems. Of stores to a shared mapping, libaio's writes and a loop device's nothing is told;
//! stamps tell them, as they do of files that are not watched.

use crate::sys::{FileHandle, change_queue, handle_of, tell_changes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::fstatfs;
use rustix::io::{Errno, read, write};
use rustix::process::getpid;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
/// It is watched still.
const LIVES: i64 = i64::MAX;

/// What was told of a file.
#[derive(Debug)]
pub struct Told {
    /// The number of its node.
    node: u64,
    /// Another process has changed its bytes.
    changed: AtomicBool,
    /// When it ceased to be watched, in nanoseconds since 1970.
    ended: AtomicI64,
}

impl Told {
    fn new(node: u64) -> Arc<Self> {
        Arc::new(Self { node, changed: AtomicBool::new(false), ended: AtomicI64::new(LIVES) })
    }

    /// Whether another process may have changed the file's bytes since this was created or forgotten, as far as was
    /// told.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.load(SeqCst)
    }

    /// When the last change was told, in nanoseconds since 1970. None while they are told.
    #[must_use]
    pub fn ended(&self) -> Option<i64> {
        Some(self.ended.load(SeqCst)).filter(|ended| *ended != LIVES)
    }

    /// Forgets what was told. False if nothing more is told.
    pub(crate) fn forget(&self) -> bool {
        self.changed.store(false, SeqCst);
        self.ended().is_none()
    }
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<FileHandle, Arc<Told>>,
    /// Nodes of which others have changed something: the kernel of the mount has not been told yet.
    doubtful: HashSet<u64>,
}

/// All files that are watched.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    /// Held by who reads the queue: what was read is entered when the next one looks.
    table: Mutex<Table>,
    /// Rung when there are doubtful nodes that the queue does not tell of any more, and at the end.
    bell: OwnedFd,
    ended: AtomicBool,
    /// Files that are watched at the same time.
    most: usize,
}

/// A file that is watched, until it is told that it is not.
#[derive(Debug)]
pub struct Watched {
    watch: Arc<Watch>,
    handle: FileHandle,
    told: Arc<Told>,
}

impl Watch {
    /// Watches so many files at most. None where the kernel does not allow it.
    #[must_use]
    pub fn new(most: usize) -> Option<Arc<Self>> {
        let queue = change_queue().ok()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Arc::new(Self { queue, table: Mutex::default(), bell, ended: AtomicBool::new(false), most }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the file of a node: `file` stands for it, and `way` leads to it. None if that is not to be had.
    pub(crate) fn begin(self: &Arc<Self>, node: u64, file: impl AsFd, way: &str) -> Option<Watched> {
        let handle = handle_of(&file).ok().filter(|_| is_told(&file))?;
        let mut table = self.table();
        if table.files.len() >= self.most {
            return None;
        }
        let told = Told::new(node);
        tell_changes(&self.queue, way, true).ok()?;
        // A node that was forgotten, and has not gone yet, may have watched it.
        if let Some(before) = table.files.get(&handle).cloned() {
            self.cease(&mut table, &before);
        }
        table.files.insert(handle.clone(), Arc::clone(&told));
        Some(Watched { watch: Arc::clone(self), handle, told })
    }

    /// Enters all that the kernel has told.
    pub fn look(&self) {
        let mut table = self.table();
        let before = table.doubtful.len();
        self.enter_all(&mut table);
        if table.doubtful.len() > before {
            self.ring();
        }
    }

    fn enter_all(&self, table: &mut Table) {
        let mut events = [0; BATCH];
        loop {
            match read(&self.queue, &mut events) {
                Ok(len @ 1..) => table.enter(&events[..len]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody can tell what was lost.
                Ok(0) | Err(_) => return table.all_changed(),
            }
        }
    }

    /// Nothing more is told of a file. What changes from here on is young when that is entered.
    fn cease(&self, table: &mut Table, told: &Told) {
        let now = clock_gettime(ClockId::Realtime);
        self.enter_all(table);
        told.ended.store(now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec), SeqCst);
    }

    fn ring(&self) {
        // A bell that cannot be rung any louder has been rung.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Waits until others have changed something, and gives the nodes of which. None at the end.
    pub(crate) fn wait(&self) -> Option<HashSet<u64>> {
        loop {
            if self.ended.load(SeqCst) {
                return None;
            }
            let mut table = self.table();
            self.enter_all(&mut table);
            if !table.doubtful.is_empty() {
                return Some(std::mem::take(&mut table.doubtful));
            }
            drop(table);
            let mut sources =
                [PollFd::new(&self.queue, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
            // What interrupts it is seen by the next look.
            let _ = poll(&mut sources, None);
            let _ = read(&self.bell, &mut [0; 8]);
        }
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.ring();
    }
}

impl Watched {
    /// What is told of the file.
    #[must_use]
    pub fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }

    /// The file, to which `way` leads, if it can be told, is not watched any more.
    pub(crate) fn end(&self, way: Option<&str>) {
        let mut table = self.watch.table();
        if !table.files.get(&self.handle).is_some_and(|told| Arc::ptr_eq(told, &self.told)) {
            return;
        }
        self.watch.cease(&mut table, &self.told);
        table.files.remove(&self.handle);
        // A file that cannot be reached has gone, and its mark with it.
        let _ = way.map(|way| tell_changes(&self.watch.queue, way, false));
    }
}

/// Whether the kernel sees every change on the file system that this lies on.
pub(crate) fn is_told(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|it| LOCAL.contains(&it.f_type))
}

impl Table {
    fn all_changed(&mut self) {
        self.files.values().for_each(|told| told.changed.store(true, SeqCst));
        self.doubtful.extend(self.files.values().map(|told| told.node));
    }

    /// Enters events, one after the other.
    fn enter(&mut self, mut events: &[u8]) {
        let own = getpid().as_raw_nonzero().get();
        while !events.is_empty() {
            let len = bytes(events, 0).map_or(0, u32::from_ne_bytes) as usize;
            let Some((event, rest)) = events.split_at_checked(len).filter(|_| len >= METADATA) else {
                return self.all_changed();
            };
            events = rest;
            let mask = bytes(event, MASK_AT).map_or(0, u64::from_ne_bytes);
            if mask & libc::FAN_Q_OVERFLOW != 0 {
                self.all_changed();
            } else if bytes(event, PID_AT).map(i32::from_ne_bytes) != Some(own) {
                match handle_in(event).map(|handle| self.files.get(&handle)) {
                    Some(Some(told)) => {
                        self.doubtful.insert(told.node);
                        if mask & libc::FAN_MODIFY != 0 {
                            told.changed.store(true, SeqCst);
                        }
                    }
                    // A file that is not watched any more.
                    Some(None) => {}
                    None => self.all_changed(),
                }
            }
        }
    }
}

/// A number of `N` bytes at this place; None if they are not all there.
fn bytes<const N: usize>(event: &[u8], at: usize) -> Option<[u8; N]> {
    event.get(at..at + N)?.try_into().ok()
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

    /// Of which of two files the bytes, and of which anything, has changed.
    fn told(events: &[u8]) -> ([bool; 2], [bool; 2]) {
        let handles = [Box::from(*b"kindone"), Box::from(*b"kindtwo!")];
        let told = [1, 2].map(Told::new);
        let files = handles.into_iter().zip(told.clone()).collect();
        let mut table = Table { files, doubtful: HashSet::new() };
        table.enter(events);
        (told.map(|told| told.has_changed()), [1, 2].map(|node| table.doubtful.contains(&node)))
    }

    fn changed(events: &[u8]) -> [bool; 2] {
        let (changed, doubtful) = told(events);
        assert_eq!(changed, doubtful);
        changed
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
        assert_eq!(told(&event(libc::FAN_ATTRIB, 0, b"kindtwo!")), ([false, false], [false, true]));
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
