//! Nodes: what the kernel knows of the source, by number.
//!
//! A node is a file of any kind that the kernel has looked up and not forgotten. It holds a descriptor that stands for
//! the file and opens nothing (O_PATH), so a file stays what it is when it is renamed or deleted, and its inode number
//! is not given to another. When most descriptors are taken, further nodes hold a handle (name_to_handle_at) in its
//! place, where the process may open such; it names the file as long as that lives, and no other. A handle leads to the
//! source's mount, so what is found by another mount has none.
//!
//! The number of a node is the inode number of its file, which programs see, where the file lies on the device of the
//! source; others have numbers from the upper half. Price: some 200 bytes a node, and a descriptor.

use crate::kept::Slots;
use crate::known::File;
use crate::passage::Passage;
use crate::shown::Shown;
use crate::stamp::{Identity, Stamp};
use crate::sys::{FileHandle, handle_of, open_handle, way};
use crate::watch::Watched;
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags, Statx, fstatvfs, openat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The number of the root of every mount.
pub const ROOT: u64 = 1;
/// Numbers that no inode of the source's device has.
const UPPER: u64 = 1 << 63;

/// What stands for a file.
#[derive(Debug)]
enum Anchor {
    Descriptor(OwnedFd),
    /// With a descriptor of its file system.
    Handle(FileHandle, Arc<OwnedFd>),
}

/// A descriptor that stands for a file, for some system calls.
#[derive(Debug)]
pub(crate) enum At<'a> {
    Nodes(BorrowedFd<'a>),
    Own(OwnedFd),
}

impl AsFd for At<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Nodes(descriptor) => descriptor.as_fd(),
            Self::Own(descriptor) => descriptor.as_fd(),
        }
    }
}

impl At<'_> {
    /// A path to the file that follows no link and needs no permission.
    pub(crate) fn way(&self) -> String {
        way(self)
    }
}

/// A file of any kind.
#[derive(Debug)]
pub struct Node {
    /// What the kernel calls it.
    pub number: u64,
    pub(crate) identity: Identity,
    /// What it is.
    pub kind: FileType,
    /// Of a regular file that was opened, or changed.
    pub(crate) used: OnceLock<Box<Used>>,
    /// The version whose pages, or entries, the kernel may have, if that can be told from later ones.
    pub(crate) held: OnceLock<Box<Mutex<Option<Stamp>>>>,
    /// Changes by others are told. None: that is not to be had.
    pub(crate) watched: OnceLock<Option<Watched>>,
    /// What the mount that it was found by withholds.
    withheld: OnceLock<StatVfsMountFlags>,
    /// What is open of it, where the kernel opens without asking.
    kept: OnceLock<Arc<Slots>>,
    anchor: Anchor,
    /// Stands for it in the handle's place, once it may lose its last name.
    pinned: OnceLock<OwnedFd>,
}

/// What is known of a regular file beyond its name.
#[derive(Debug)]
pub(crate) struct Used {
    /// What the cache knows of it.
    pub(crate) file: Arc<File>,
    /// What the kernel was told of it.
    pub(crate) shown: Mutex<Shown>,
    /// Who reads it.
    pub(crate) passage: Passage,
}

impl Used {
    /// Of a file of which the cache knows this.
    pub(crate) fn new(file: Arc<File>) -> Box<Self> {
        Box::new(Self { file, shown: Mutex::default(), passage: Passage::default() })
    }
}

impl Node {
    /// What tells of changes by others from now on.
    pub(crate) fn watched(&self) -> Option<&Watched> {
        self.watched.get().and_then(Option::as_ref)
    }

    fn new(number: u64, identity: Identity, kind: FileType, anchor: Anchor) -> Arc<Self> {
        let (used, held, watched) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (withheld, kept, pinned) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Arc::new(Self { number, identity, kind, used, held, watched, withheld, kept, anchor, pinned })
    }

    /// What the mount that it was first found by withholds: nosuid, nodev, noexec. The source's own mount withholds
    /// nothing here, since the mount of the source has its flags.
    pub(crate) fn withheld(&self) -> StatVfsMountFlags {
        let all = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOEXEC;
        let told = || self.at().and_then(fstatvfs).map_or(all, |it| it.f_flag & all);
        *self.withheld.get_or_init(told)
    }

    /// A descriptor that stands for it.
    ///
    /// # Errors
    /// What the system answers; ESTALE if the file is gone.
    pub(crate) fn at(&self) -> Result<At<'_>, Errno> {
        match &self.anchor {
            Anchor::Descriptor(descriptor) => Ok(At::Nodes(descriptor.as_fd())),
            Anchor::Handle(handle, mount) => match self.pinned.get() {
                Some(pinned) => Ok(At::Nodes(pinned.as_fd())),
                None => Ok(At::Own(open_handle(mount, handle)?)),
            },
        }
    }

    /// The place for what is open of it.
    pub(crate) fn kept(&self) -> &Arc<Slots> {
        self.kept.get_or_init(Arc::default)
    }

    /// It is about to lose a name: who has it open needs it still, and a handle ends with the last name.
    pub(crate) fn pin(&self) {
        if let Anchor::Handle(handle, mount) = &self.anchor
            && self.pinned.get().is_none()
            && let Ok(descriptor) = open_handle(mount, handle)
        {
            // Another thread may have done it.
            let _ = self.pinned.set(descriptor);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(watched) = self.watched() {
            watched.end(self.at().ok());
        }
    }
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
}

/// All nodes.
#[derive(Debug)]
pub struct Nodes {
    table: Mutex<HashMap<u64, Entry>>,
    /// Of the source: its device, and its mount's number. 0 before Linux 5.8, which does not tell that of any.
    dev: u64,
    mounted: u64,
    root: Arc<Node>,
    /// The source, opened: handles are of its file system.
    mount: Option<Arc<OwnedFd>>,
    /// Descriptors that nodes hold, and may.
    descriptors: AtomicU64,
    most: u64,
    /// Nodes that handles stand for.
    handles: AtomicU64,
}

impl Nodes {
    /// The root alone: a directory, by a descriptor that stands for it, and what was told of it.
    #[must_use]
    pub fn new(path: OwnedFd, told: &Statx) -> Self {
        let identity = Identity::of(told);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = openat(&path, c".", flags, Mode::empty()).ok().map(Arc::new);
        // Whether it may is seen now, not when descriptors run out.
        let mount = mount.filter(|mount| handle_of(&path).and_then(|it| open_handle(mount, &it)).is_ok());
        let root = Node::new(ROOT, identity, FileType::Directory, Anchor::Descriptor(path));
        let _ = root.withheld.set(StatVfsMountFlags::empty());
        let (descriptors, handles) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            table: Mutex::default(),
            dev: identity.dev,
            mounted: told.stx_mnt_id,
            root,
            mount,
            descriptors,
            most: limit / 2,
            handles,
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node of this number.
    ///
    /// # Errors
    /// ESTALE if there is none: the kernel asks for what it has forgotten.
    pub fn get(&self, number: u64) -> Result<Arc<Node>, Errno> {
        if number == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.table().get(&number).map(|entry| Arc::clone(&entry.node)).ok_or(Errno::STALE)
    }

    /// Whether it lies on the device of the source.
    pub fn is_own(&self, node: &Node) -> bool {
        node.identity.dev == self.dev
    }

    /// The number of a file that is known already.
    pub fn number(&self, identity: Identity) -> Option<u64> {
        let table = self.table();
        let is_it = |number: &u64| table.get(number).is_some_and(|entry| entry.node.identity == identity);
        let is_root = self.root.identity == identity;
        if is_root { Some(ROOT) } else { self.numbers(identity).take(2).find(is_it) }
    }

    /// A file of this identity is about to lose a name.
    pub(crate) fn pin(&self, identity: Identity) {
        let node = self.number(identity).and_then(|number| self.get(number).ok());
        if let Some(node) = node {
            node.pin();
        }
    }

    /// Whether handles stand for some nodes.
    pub(crate) fn has_handles(&self) -> bool {
        self.handles.load(Relaxed) > 0
    }

    /// The node of a file that is known already. The kernel is told of it once more.
    pub fn find(&self, identity: Identity) -> Option<Arc<Node>> {
        let mut table = self.table();
        for number in self.numbers(identity) {
            let entry = table.get_mut(&number)?;
            if entry.node.identity == identity {
                entry.lookups += 1;
                return Some(Arc::clone(&entry.node));
            }
        }
        None
    }

    /// Whether it was found by the source's own mount.
    fn is_by_own_mount(&self, told: &Statx) -> bool {
        told.stx_mnt_id == self.mounted && (self.mounted != 0 || Identity::of(told).dev == self.dev)
    }

    /// The node of a file of which this was told, which is made if it is not there. The kernel is told of it once more.
    pub fn enter(&self, path: OwnedFd, told: &Statx) -> Arc<Node> {
        let (identity, kind) = (Identity::of(told), FileType::from_raw_mode(told.stx_mode.into()));
        let is_own = self.is_by_own_mount(told);
        let anchor = if is_own { self.anchor(path, identity) } else { Anchor::Descriptor(path) };
        let mut table = self.table();
        for number in self.numbers(identity) {
            match table.entry(number) {
                Place::Vacant(place) => {
                    self.count(&anchor, 1);
                    let node = Node::new(number, identity, kind, anchor);
                    if is_own {
                        let _ = node.withheld.set(StatVfsMountFlags::empty());
                    }
                    place.insert(Entry { node: Arc::clone(&node), lookups: 1 });
                    return node;
                }
                Place::Occupied(mut place) if place.get().node.identity == identity => {
                    place.get_mut().lookups += 1;
                    return Arc::clone(&place.get().node);
                }
                Place::Occupied(_) => {}
            }
        }
        unreachable!("there are more numbers than nodes")
    }

    /// The numbers that a file may have, the best first. The same file has the same number each time, but where others
    /// have it already.
    fn numbers(&self, identity: Identity) -> impl Iterator<Item = u64> {
        let is_own = identity.dev == self.dev && identity.ino > ROOT && identity.ino < UPPER;
        let first = BuildHasherDefault::<DefaultHasher>::default().hash_one(identity);
        let others = (0..).map(move |step: u64| UPPER | first.wrapping_add(step));
        is_own.then_some(identity.ino).into_iter().chain(others)
    }

    /// What is to stand for a file: its descriptor, or a handle if many nodes hold descriptors.
    fn anchor(&self, path: OwnedFd, identity: Identity) -> Anchor {
        if self.descriptors.load(Relaxed) >= self.most
            && identity.dev == self.dev
            && let Some(mount) = &self.mount
            && let Ok(handle) = handle_of(&path)
        {
            return Anchor::Handle(handle, Arc::clone(mount));
        }
        Anchor::Descriptor(path)
    }

    fn count(&self, anchor: &Anchor, more: i64) {
        let count = match anchor {
            Anchor::Descriptor(_) => &self.descriptors,
            Anchor::Handle(..) => &self.handles,
        };
        count.fetch_add(more.cast_unsigned(), Relaxed);
    }

    /// The kernel forgets that it was told of a node so many times.
    pub fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(&number) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 {
            let gone = table.remove(&number);
            if let Some(entry) = &gone {
                self.count(&entry.node.anchor, -1);
            }
            // Its descriptor is closed when the table is free again.
            drop(table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::look;
    use rustix::fs::CWD;
    use std::path::Path;
    use tempfile::TempDir;

    fn path(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn nodes() -> (Nodes, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let root = path(directory.path());
        let told = look(&root).unwrap();
        (Nodes::new(root, &told), directory)
    }

    fn enter(nodes: &Nodes, at: &Path) -> Arc<Node> {
        let path = path(at);
        let told = look(&path).unwrap();
        nodes.enter(path, &told)
    }

    #[test]
    fn a_node_lives_until_it_is_forgotten_as_often_as_it_was_told() {
        let (nodes, directory) = nodes();
        let file = directory.path().join("file");
        std::fs::write(&file, "a").unwrap();
        let (first, second) = (enter(&nodes, &file), enter(&nodes, &file));
        assert!(Arc::ptr_eq(&first, &second) && nodes.table().len() == 1);
        assert_eq!(first.number, std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
        nodes.forget(first.number, 1);
        assert!(nodes.get(first.number).is_ok());
        nodes.forget(first.number, 1);
        assert_eq!(nodes.get(first.number).unwrap_err(), Errno::STALE);
        assert!(first.withheld().is_empty(), "the mount of the source has what its own withholds");
        assert!(nodes.table().is_empty() && nodes.descriptors.load(Relaxed) == 0);
        assert_eq!(nodes.get(ROOT).unwrap().kind, FileType::Directory);
    }

    #[test]
    fn what_lies_elsewhere_has_a_number_from_the_upper_half() {
        let (nodes, _directory) = nodes();
        let elsewhere = enter(&nodes, Path::new("/proc/self/status"));
        assert!(elsewhere.number >= UPPER);
        assert!(elsewhere.withheld.get().is_none(), "its own mount's flags count");
        nodes.forget(elsewhere.number, 1);
        assert!(nodes.table().is_empty());
    }

    #[test]
    fn when_descriptors_are_short_handles_stand_for_files() {
        let (mut nodes, directory) = nodes();
        nodes.most = 3;
        if nodes.mount.is_none() {
            println!("skipped: handles (opening them wants root, and a file system that has them)");
            return;
        }
        let name = |number: u32| directory.path().join(number.to_string());
        let entered: Vec<_> = (0..9)
            .map(|number| {
                std::fs::write(name(number), number.to_string()).unwrap();
                enter(&nodes, &name(number))
            })
            .collect();
        assert_eq!(nodes.descriptors.load(Relaxed), 3);
        std::fs::rename(name(7), name(77)).unwrap();
        for (number, node) in entered.iter().enumerate() {
            let at = node.at().unwrap();
            assert_eq!(std::fs::read_to_string(at.way()).unwrap(), number.to_string());
        }
        std::fs::remove_file(name(8)).unwrap();
        assert_eq!(entered[8].at().and_then(look).unwrap_err(), Errno::STALE);
    }
}
