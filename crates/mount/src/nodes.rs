//! Nodes: what the kernel knows of the source, by number.
//!
//! A node is a file of any kind that the kernel has looked up and not forgotten. It holds a descriptor that stands for
//! the file and opens nothing (O_PATH), so a file stays what it is when it is renamed or deleted, and its inode number
//! is not given to another. The number of a node is the inode number of its file, which programs see, where the file
//! lies on the device of the source; others have numbers from the upper half. Price: a descriptor a node.

use crate::known::File;
use crate::stamp::{Identity, Stamp};
use crate::watch::Watched;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The number of the root of every mount.
pub const ROOT: u64 = 1;
/// Numbers that no inode of the source's device has.
const UPPER: u64 = 1 << 63;

/// A file of any kind.
#[derive(Debug)]
pub struct Node {
    /// What the kernel calls it.
    pub number: u64,
    identity: Identity,
    /// What it is.
    pub kind: FileType,
    /// It is watched for changes by others, from its first change through the mount on. None: that is not to be had. It
    /// ends before the descriptor is closed, by which the kernel is told.
    pub(crate) watched: OnceLock<Option<Watched>>,
    path: OwnedFd,
    /// What the cache knows of it, if it is a regular file.
    pub file: Option<Arc<File>>,
    /// The version whose pages the kernel may have, if that can be told from later ones.
    pub held: Mutex<Option<Stamp>>,
}

impl Node {
    /// A way to the file that follows no link and needs no permission.
    pub(crate) fn way(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
}

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Entry>,
    numbers: HashMap<Identity, u64>,
}

/// All nodes.
#[derive(Debug)]
pub struct Nodes {
    table: Mutex<Table>,
    /// Of the source.
    dev: u64,
    root: Arc<Node>,
}

impl Nodes {
    /// The root alone: a directory, by a descriptor.
    #[must_use]
    pub fn new(path: OwnedFd, identity: Identity) -> Self {
        let root = Arc::new(Node {
            number: ROOT,
            identity,
            kind: FileType::Directory,
            path,
            file: None,
            held: Mutex::default(),
            watched: OnceLock::new(),
        });
        Self { table: Mutex::default(), dev: identity.dev, root }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
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
        self.table().nodes.get(&number).map(|entry| Arc::clone(&entry.node)).ok_or(Errno::STALE)
    }

    /// The node of a file that is known already. The kernel is told of it once more.
    pub fn find(&self, identity: Identity) -> Option<Arc<Node>> {
        let mut table = self.table();
        let number = *table.numbers.get(&identity)?;
        let entry = table.nodes.get_mut(&number)?;
        entry.lookups += 1;
        Some(Arc::clone(&entry.node))
    }

    /// The node of a file, which is made if it is not there. The kernel is told of it once more.
    pub fn enter(
        &self,
        path: OwnedFd,
        identity: Identity,
        kind: FileType,
        file: impl FnOnce() -> Option<Arc<File>>,
    ) -> Arc<Node> {
        if let Some(node) = self.find(identity) {
            return node;
        }
        let file = file();
        let mut table = self.table();
        let Table { nodes, numbers } = &mut *table;
        // Another thread may have been quicker.
        let number = *numbers.entry(identity).or_insert_with(|| self.number(identity, nodes));
        let entry = nodes.entry(number).or_insert_with(|| {
            let (held, watched) = (Mutex::default(), OnceLock::new());
            let node = Arc::new(Node { number, identity, kind, path, file, held, watched });
            Entry { node, lookups: 0 }
        });
        entry.lookups += 1;
        Arc::clone(&entry.node)
    }

    /// A number that no other node has.
    fn number(&self, identity: Identity, nodes: &HashMap<u64, Entry>) -> u64 {
        let is_free = |number: &u64| !nodes.contains_key(number);
        let own = Some(identity.ino).filter(|ino| identity.dev == self.dev && *ino > ROOT && *ino < UPPER);
        if let Some(number) = own.filter(is_free) {
            return number;
        }
        // The same file has the same number each time, as far as possible.
        let first = BuildHasherDefault::<DefaultHasher>::default().hash_one(identity);
        let mut others = (0..).map(|step| UPPER | first.wrapping_add(step));
        others.find(is_free).unwrap_or(UPPER)
    }

    /// The kernel forgets that it was told of a node so many times.
    pub fn forget(&self, number: u64, lookups: u64) {
        let mut table = self.table();
        let Some(entry) = table.nodes.get_mut(&number) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 {
            let gone = table.nodes.remove(&number);
            if let Some(entry) = &gone {
                table.numbers.remove(&entry.node.identity);
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
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use std::path::Path;

    fn path(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn enter(nodes: &Nodes, at: &Path) -> Arc<Node> {
        let path = path(at);
        let told = look(&path).unwrap();
        nodes.enter(path, Identity::of(&told), FileType::RegularFile, || None)
    }

    #[test]
    fn a_node_lives_until_it_is_forgotten_as_often_as_it_was_told() {
        let directory = tempfile::tempdir().unwrap();
        let root = path(directory.path());
        let identity = Identity::of(&look(&root).unwrap());
        let nodes = Nodes::new(root, identity);
        let file = directory.path().join("file");
        std::fs::write(&file, "a").unwrap();
        let (first, second) = (enter(&nodes, &file), enter(&nodes, &file));
        assert!(Arc::ptr_eq(&first, &second) && nodes.table().nodes.len() == 1);
        assert_eq!(first.number, std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()));
        nodes.forget(first.number, 1);
        assert!(nodes.get(first.number).is_ok());
        nodes.forget(first.number, 1);
        assert_eq!(nodes.get(first.number).unwrap_err(), Errno::STALE);
        assert!(nodes.table().nodes.is_empty() && nodes.table().numbers.is_empty());
        assert_eq!(nodes.get(ROOT).unwrap().kind, FileType::Directory);
    }

    #[test]
    fn what_lies_elsewhere_has_a_number_from_the_upper_half() {
        let directory = tempfile::tempdir().unwrap();
        let root = path(directory.path());
        let identity = Identity::of(&look(&root).unwrap());
        let nodes = Nodes::new(root, identity);
        let elsewhere = enter(&nodes, Path::new("/proc/self/status"));
        assert!(elsewhere.number >= UPPER);
        let number = elsewhere.number;
        nodes.forget(number, 1);
        assert!(nodes.table().nodes.is_empty());
    }
}
