//! What is known of files: which version of a file the cache's pages belong to.
//!
//! Each version of a file is an object of its own in the store, so pages of two versions never meet. A file is known
//! by its identity, and stays so when the kernel has forgotten its name. Price: some 200 bytes a file; the files that
//! were used least lately go when there are too many. Guarantee: a page is kept only while its version is the one that
//! is known, and goes with it.
//!
//! Lock order: the table, then a file's version, then the store's.

use crate::stamp::{Identity, Stamp};
use ramfold::{PAGE_SIZE, PoolId, Store};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What the store calls a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The object in the store.
    pub object: u64,
    /// How the version was told from others.
    pub stamp: Stamp,
}

/// A regular file.
#[derive(Debug, Default)]
pub struct File {
    version: RwLock<Option<Version>>,
    /// When it was used last: the table's count of uses.
    used: AtomicU64,
}

/// All files that something is known of.
#[derive(Debug)]
pub struct Files {
    table: Mutex<HashMap<Identity, Arc<File>>>,
    most: usize,
    pool: PoolId,
    /// The number of the next version.
    objects: AtomicU64,
    uses: AtomicU64,
}

impl File {
    /// Locks what is known for who only reads. No thread panics while it has changed a half.
    fn known(&self) -> RwLockReadGuard<'_, Option<Version>> {
        self.version.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Option<Version>> {
        self.version.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Room for so many files.
    #[must_use]
    pub fn new(pool: PoolId, most: usize) -> Self {
        let (objects, uses) = (AtomicU64::new(1), AtomicU64::new(0));
        Self { table: Mutex::default(), most, pool, objects, uses }
    }

    /// The file of this identity. Forgets files that nobody has open when there are too many.
    pub fn file(&self, identity: Identity, store: &Store) -> Arc<File> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= self.most && !table.contains_key(&identity) {
            self.thin(&mut table, store);
        }
        let file = Arc::clone(table.entry(identity).or_default());
        file.used.store(self.uses.fetch_add(1, Relaxed), Relaxed);
        file
    }

    /// Files that something is known of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets a quarter of the files: those that nobody has, the least lately used first.
    fn thin(&self, table: &mut HashMap<Identity, Arc<File>>, store: &Store) {
        let unused = table.iter().filter(|(_, file)| Arc::strong_count(file) == 1);
        let mut unused: Vec<(u64, Identity)> =
            unused.map(|(identity, file)| (file.used.load(Relaxed), *identity)).collect();
        unused.sort_unstable();
        for (_, identity) in unused.into_iter().take(self.most.div_ceil(4)) {
            if let Some(file) = table.remove(&identity) {
                self.forget(&mut file.change(), store);
            }
        }
    }

    /// The version with this stamp, which the file has now. Pages of another version go.
    pub fn version(&self, file: &File, stamp: Stamp, store: &Store) -> Version {
        if let Some(version) = file.known().filter(|version| version.stamp == stamp) {
            return version;
        }
        let mut known = file.change();
        match *known {
            Some(version) if version.stamp == stamp => version,
            _ => {
                self.forget(&mut known, store);
                let version = Version { object: self.objects.fetch_add(1, Relaxed), stamp };
                *known = Some(version);
                version
            }
        }
    }

    /// The file has changed, or may have: its pages go. Whoever reads it later finds the version that it has then.
    pub fn changed(&self, file: &File, store: &Store) {
        self.forget(&mut file.change(), store);
    }

    /// Runs `keep` if this is still the version that is known; it goes on being that meanwhile.
    pub fn while_known(&self, file: &File, version: Version, keep: impl FnOnce()) {
        let known = file.known();
        if *known == Some(version) {
            keep();
        }
    }

    fn forget(&self, known: &mut Option<Version>, store: &Store) {
        if let Some(version) = known.take() {
            let pages = version.stamp.size.div_ceil(PAGE_SIZE as u64);
            store.invalidate_range(self.pool, version.object, 0..pages);
        }
    }
}
