//! Watching: changes that others make behind the mount, told by the kernel (fanotify).
//!
//! Two queues. One is for regular files: their bytes (a write, a truncation, an fallocate), times, owner, links,
//! attributes. One is for directories: names that come and go in them, and what they themselves are. Each file and
//! directory is marked by itself, for as long as the kernel of the mount knows it. The kernel of the source queues an
//! event before a change returns, and says whether it was this process's own. Two things come of that. A reader of the
//! cache looks into the queue first, and knows of every change that was over before it began. And the kernel of the
//! mount may believe what it was told, since [`crate::doubt`] takes that back with each event.
//!
//! Price: a mark in the kernel and some 200 bytes a file, three system calls when it is first looked up, one for each
//! read of the cache; who waits is told up to [`OWN`] late while this process writes. Guarantee: a change by another
//! process that has returned is known after a look; what was lost may be of anything. Only where the kernel knows of
//! changes: local file systems. Of stores to a shared mapping, libaio's writes and a loop device's nothing is told;
//! stamps tell them ([`crate::believed`]), as they do of files that are not watched.

use crate::events::{Event, Events, Told as Change};
use crate::sys::{Changes, FileHandle, change_queue, handle_of, tell_changes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::fstatfs;
use rustix::io::{Errno, read, write};
use rustix::time::{ClockId, clock_gettime};
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Magic numbers of file systems whose every change the kernel sees: ext2 to ext4, xfs, btrfs, f2fs, tmpfs.
const LOCAL: [i64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];
/// Bytes of events that are read at a time.
const BATCH: usize = 4096;
/// How long who waits leaves the queue alone when it was woken by nothing but this process's own changes: more of them
/// are to come, and each would wake it.
const OWN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// It is watched still.
const LIVES: i64 = i64::MAX;

/// What the kernel of the mount was told of a file. It changes only while the list of all such is locked
/// ([`crate::believed`]).
#[derive(Debug, Default)]
pub(crate) struct Belief {
    /// A sum of the stamp.
    pub(crate) stamp: AtomicU64,
    /// Until when it is believed: milliseconds since the list began.
    pub(crate) until: AtomicU64,
}

/// What was told of a file.
#[derive(Debug)]
pub struct Told {
    /// The number of its node.
    pub(crate) node: u64,
    handle: FileHandle,
    /// Another process has changed its bytes.
    changed: AtomicBool,
    /// When it ceased to be watched, in nanoseconds since 1970.
    ended: AtomicI64,
    pub(crate) belief: Belief,
}

impl Told {
    pub(crate) fn new(node: u64, handle: FileHandle) -> Arc<Self> {
        let (changed, ended) = (AtomicBool::new(false), AtomicI64::new(LIVES));
        Arc::new(Self { node, handle, changed, ended, belief: Belief::default() })
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

/// What the kernel of the mount is not to believe any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubtful {
    /// Nodes of which others have changed something.
    pub(crate) nodes: HashSet<u64>,
    /// Names that came or went, with the nodes of their directories.
    pub(crate) names: HashSet<(u64, OsString)>,
    /// Some were lost: all names.
    pub(crate) all_names: bool,
}

impl Doubtful {
    fn is_none(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty() && !self.all_names
    }
}

/// What was told, found by the file's handle.
#[derive(Debug)]
struct ByHandle(Arc<Told>);

impl Borrow<[u8]> for ByHandle {
    fn borrow(&self) -> &[u8] {
        &self.0.handle
    }
}

impl Hash for ByHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.handle.hash(state);
    }
}

impl PartialEq for ByHandle {
    fn eq(&self, other: &Self) -> bool {
        self.0.handle == other.0.handle
    }
}

impl Eq for ByHandle {}

#[derive(Debug, Default)]
struct Table {
    /// By device: copies of a file system have files with the same handles. An event does not tell of which it is (it
    /// has ext4's UUID, which the copy has as well), so it is taken for one of each.
    files: HashMap<u64, HashSet<ByHandle>>,
    /// What the kernel of the mount has not been told yet.
    doubtful: Doubtful,
}

/// All files, or directories, that are watched.
#[derive(Debug)]
pub struct Watch {
    queue: OwnedFd,
    of: Changes,
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
    /// On which the file lies.
    device: u64,
    told: Arc<Told>,
}

impl Watch {
    /// Watches so many regular files at most. None where the kernel does not allow it.
    #[must_use]
    pub fn of_files(most: usize) -> Option<Arc<Self>> {
        Self::new(Changes::Files, most)
    }

    /// Watches the names in so many directories at most. `is_endless`: none of what is told may be lost. None where
    /// the kernel does not allow it.
    pub(crate) fn of_names(most: usize, is_endless: bool) -> Option<Arc<Self>> {
        Self::new(Changes::Names { is_endless }, most)
    }

    fn new(of: Changes, most: usize) -> Option<Arc<Self>> {
        let queue = change_queue(of).ok()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Arc::new(Self { queue, of, table: Mutex::default(), bell, ended: AtomicBool::new(false), most }))
    }

    /// How many are watched.
    pub(crate) fn count(&self) -> usize {
        self.table().count()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the file of a node on this device, for which `file` stands. None if that is not to be had.
    pub(crate) fn begin(self: &Arc<Self>, (node, device): (u64, u64), file: impl AsFd) -> Option<Watched> {
        let handle = handle_of(&file).ok().filter(|_| is_told(&file))?;
        let mut table = self.table();
        if table.count() >= self.most {
            return None;
        }
        let told = Told::new(node, handle);
        tell_changes(&self.queue, self.of, file, true).ok()?;
        // A node that was forgotten, and has not gone yet, may have watched it.
        if let Some(before) = table.of(device).take(&*told.handle) {
            self.cease(&mut table, &before.0);
        }
        table.of(device).insert(ByHandle(Arc::clone(&told)));
        Some(Watched { watch: Arc::clone(self), device, told })
    }

    /// Enters all that the kernel has told.
    pub fn look(&self) {
        self.enter(&mut self.table());
    }

    /// The same, with the table locked. Who waits sleeps on the queue, which does not tell of what was read by others:
    /// so the bell does.
    fn enter(&self, table: &mut Table) {
        let was_none = table.doubtful.is_none();
        self.enter_all(table);
        if was_none && !table.doubtful.is_none() {
            self.ring();
        }
    }

    /// For who takes what is doubtful before the table is free again; all others [`Self::enter`].
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
        self.enter(table);
        told.ended.store(now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec), SeqCst);
    }

    fn ring(&self) {
        // A bell that cannot be rung any louder has been rung.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Waits until others have changed something, or for so long, and gives what. None at the end.
    pub(crate) fn wait(&self, most: Option<Duration>) -> Option<Doubtful> {
        let (mut is_first, mut was_told) = (true, false);
        loop {
            if self.ended.load(SeqCst) {
                return None;
            }
            let mut table = self.table();
            self.enter_all(&mut table);
            if !table.doubtful.is_none() || most.is_some() && !is_first {
                return Some(std::mem::take(&mut table.doubtful));
            }
            drop(table);
            // What interrupts it is seen by the next look.
            if was_told {
                let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&OWN));
            }
            let mut sources =
                [PollFd::new(&self.queue, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
            let most = most.and_then(|most| Timespec::try_from(most).ok());
            let _ = poll(&mut sources, most.as_ref());
            was_told = !sources[0].revents().is_empty();
            let _ = read(&self.bell, &mut [0; 8]);
            is_first = false;
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

    /// The file, for which `file` stands, if it can be had, is not watched any more.
    pub(crate) fn end(&self, file: Option<impl AsFd>) {
        let mut table = self.watch.table();
        if !table.of(self.device).get(&*self.told.handle).is_some_and(|it| Arc::ptr_eq(&it.0, &self.told)) {
            return;
        }
        self.watch.cease(&mut table, &self.told);
        table.of(self.device).remove(&*self.told.handle);
        table.files.retain(|_, files| !files.is_empty());
        // A file that cannot be reached has gone, and its mark with it.
        let _ = file.map(|file| tell_changes(&self.watch.queue, self.watch.of, file, false));
    }
}

/// Whether the kernel sees every change on the file system that this lies on.
pub(crate) fn is_told(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|it| LOCAL.contains(&it.f_type))
}

impl Table {
    /// Those that lie on a device.
    #[allow(clippy::mutable_key_type, reason = "a key is the handle, which stays")]
    fn of(&mut self, device: u64) -> &mut HashSet<ByHandle> {
        self.files.entry(device).or_default()
    }

    fn count(&self) -> usize {
        self.files.values().map(HashSet::len).sum()
    }

    fn all_changed(&mut self) {
        let told = || self.files.values().flatten().map(|ByHandle(told)| told);
        told().for_each(|told| told.changed.store(true, SeqCst));
        self.doubtful.nodes.extend(told().map(|told| told.node));
        self.doubtful.all_names = true;
    }

    /// Enters events, one after the other.
    fn enter(&mut self, events: &[u8]) {
        for told in Events::new(events) {
            match told {
                Change::All => self.all_changed(),
                // The kernel of the mount moves what it believes a name to be, which others may have changed before.
                Change::One(event) if event.is_own && event.mask & libc::FAN_MOVED_TO == 0 => {}
                Change::One(event) => self.change(&event),
            }
        }
    }

    fn change(&mut self, event: &Event) {
        // A file that is not watched any more may still be told of.
        for ByHandle(told) in self.files.values().filter_map(|files| files.get(&*event.handle)) {
            self.doubtful.nodes.insert(told.node);
            if let Some(name) = event.name {
                self.doubtful.names.insert((told.node, name.to_owned()));
            }
            if event.mask & libc::FAN_MODIFY != 0 {
                told.changed.store(true, SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::event;
    use rustix::process::getpid;

    /// Of which of two files the bytes, and of which anything, has changed.
    fn told(events: &[u8]) -> ([bool; 2], [bool; 2], Doubtful) {
        let handles: [FileHandle; 2] = [Box::from(*b"kindone"), Box::from(*b"kindtwo!")];
        let told = [1, 2].into_iter().zip(handles).map(|(node, handle)| Told::new(node, handle));
        let told: [Arc<Told>; 2] = told.collect::<Vec<_>>().try_into().unwrap();
        let mut table = Table::default();
        table.of(1).extend(told.clone().map(ByHandle));
        table.enter(events);
        let doubtful = [1, 2].map(|node| table.doubtful.nodes.contains(&node));
        (told.map(|told| told.has_changed()), doubtful, table.doubtful)
    }

    fn changed(events: &[u8]) -> [bool; 2] {
        let (changed, doubtful, _) = told(events);
        assert_eq!(changed, doubtful);
        changed
    }

    #[test]
    fn others_changes_are_told_of_the_file_that_they_are_of() {
        let own = getpid().as_raw_nonzero().get();
        let modify = |pid, handle: &[u8]| event(libc::FAN_MODIFY, pid, handle, None);
        assert_eq!(changed(&modify(own, b"kindone")), [false, false]);
        assert_eq!(changed(&modify(own + 1, b"kindtwo!")), [false, true]);
        assert_eq!(changed(&modify(0, b"kindmore")), [false, false]);
        let both = [modify(own, b"kindone"), modify(0, b"kindone")].concat();
        assert_eq!(changed(&both), [true, false]);
        let (bytes, anything, _) = told(&event(libc::FAN_ATTRIB, 0, b"kindtwo!", None));
        assert_eq!((bytes, anything), ([false, false], [false, true]));
    }

    #[test]
    fn names_are_told_with_their_directory() {
        let own = getpid().as_raw_nonzero().get();
        let names = |pid| {
            let all = [
                event(libc::FAN_CREATE, pid, b"kindone", Some("new")),
                event(libc::FAN_MOVED_FROM, pid, b"kindtwo!", Some("old")),
                event(libc::FAN_ATTRIB, pid, b"kindtwo!", Some(".")),
            ];
            told(&all.concat()).2
        };
        let wanted = [(1, "new".into()), (2, "old".into())].into();
        assert_eq!(names(0), Doubtful { nodes: [1, 2].into(), names: wanted, all_names: false });
        assert_eq!(names(own), Doubtful::default());
        let moved = event(libc::FAN_MOVED_TO, own, b"kindone", Some("moved"));
        assert_eq!(told(&moved).2.names, [(1, "moved".into())].into());
    }

    #[test]
    fn an_event_is_taken_for_one_of_each_copy_of_a_file_system() {
        let mut table = Table::default();
        let copies = [1, 2].map(|node| Told::new(node, Box::from(*b"kindone")));
        for (device, told) in [10, 20].into_iter().zip(&copies) {
            table.of(device).insert(ByHandle(Arc::clone(told)));
        }
        table.enter(&event(libc::FAN_MODIFY, 0, b"kindone", None));
        assert!(table.count() == 2 && copies.iter().all(|told| told.has_changed()));
        assert_eq!(table.doubtful.nodes, [1, 2].into());
    }

    #[test]
    fn what_is_lost_may_be_of_any_file_and_name() {
        let own = getpid().as_raw_nonzero().get();
        let (bytes, anything, doubtful) = told(&event(libc::FAN_Q_OVERFLOW, own, b"none", None));
        assert_eq!((bytes, anything), ([true, true], [true, true]));
        assert!(doubtful.all_names);
    }

    #[test]
    fn who_waits_hears_of_what_another_has_read() {
        let directory = tempfile::tempdir().unwrap();
        let paths =
            ["one", "two", "three"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
        paths.iter().for_each(|path| std::fs::write(path, "a").unwrap());
        let watch = Watch::of_files(8);
        let begin = |number: usize| {
            let file = std::fs::File::open(&paths[number]).unwrap();
            watch.as_ref()?.begin((number as u64, 1), file)
        };
        let (Some(watch), [Some(_), Some(_), Some(three)]) = (&watch, [0, 1, 2].map(begin)) else {
            println!("skipped: what is watched (watching the changes of others wants root)");
            return;
        };
        let tries: [(&str, &dyn Fn()); 3] = [
            ("looks", &|| watch.look()),
            ("watches a file anew", &|| drop(begin(1))),
            ("watches a file no more", &|| three.end(std::fs::File::open(&paths[2]).ok())),
        ];
        for (what, another) in tries {
            let mut change = std::process::Command::new("sh");
            assert!(change.args(["-c", "echo more >>$0", &paths[0]]).status().unwrap().success());
            another();
            let is_rung = read(&watch.bell, &mut [0; 8]).is_ok();
            assert!(is_rung, "nobody hears of a change that was read by one that {what}");
            let doubtful = watch.wait(None).unwrap();
            assert_eq!(doubtful.nodes, [0].into(), "{what}");
        }
    }
}
