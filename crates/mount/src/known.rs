//! What is known of files: which version of a file the cache's pages belong to.
//!
//! Each version of a file is an object of its own in the store, so pages of two versions never meet. A file is known
//! by its identity, and stays so when the kernel has forgotten its name. Price: some 200 bytes a file; the files that
//! were used least lately go when there are too many. Guarantee: a page is kept only while its version is the one that
//! is known, and goes with it.
//!
//! A change through the mount makes another version. Of a file that is watched ([`crate::watch`]) the pages that the
//! change does not touch go over to it, if nobody else has changed the file; of others all go. Such a version needs not
//! settle: all that was changed of it is over.
//!
//! Lock order: the table, then a file's state, then the watch's, then the store's.

use crate::parts::{Noted, PartId};
use crate::stamp::{Identity, Stamp};
use crate::watch::{Told, Watch};
use ramfold::{PAGE_SIZE, Store};
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// What the store calls a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The object in the store.
    pub object: u64,
    /// Where the store has its pages.
    pub(crate) part: PartId,
    /// How the version was told from others.
    pub stamp: Stamp,
    /// Changes through the mount so far: two of them may have given the same stamp.
    changes: u64,
    /// A settled version, with nothing but changes through the mount since.
    pub(crate) is_own: bool,
}

/// What is known of a file.
#[derive(Debug, Default)]
struct State {
    version: Option<Version>,
    /// What is told of it, while it is watched.
    told: Option<Arc<Told>>,
    /// Changes through the mount that are being made.
    changing: u32,
    /// Changes through the mount that have begun.
    changes: u64,
}

impl State {
    /// Whether all changes by others are known that are over by now.
    fn is_told(&self, watch: Option<&Watch>) -> bool {
        let (Some(told), Some(watch)) = (&self.told, watch) else { return false };
        watch.look();
        !told.has_changed() && told.ended().is_none()
    }

    /// Whether the pages that are known may be old, whatever the stamp says. Once nothing more is told, those are good
    /// whose version had settled by then.
    fn is_doubtful(&self, watch: Option<&Watch>, settled: Duration) -> bool {
        let (Some(told), Some(watch)) = (&self.told, watch) else { return false };
        watch.look();
        let is_young = |ended| self.version.is_some_and(|it| !it.stamp.is_settled_at(ended, settled));
        told.has_changed() || told.ended().is_some_and(is_young)
    }
}

/// A change through the mount that has begun.
#[derive(Debug)]
#[must_use = "the file is being changed until the change is over"]
pub struct Begun {
    number: u64,
    /// Nobody else had changed the file before.
    is_alone: bool,
}

/// A regular file.
#[derive(Debug, Default)]
pub struct File {
    state: RwLock<State>,
    /// When it was used last: the table's count of uses.
    used: AtomicU64,
    /// Of which part it is.
    pub(crate) part: Noted,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Identity, Arc<File>>,
    /// There are too many when there are so many.
    most: usize,
}

/// All files that something is known of.
#[derive(Debug)]
pub struct Files {
    table: Mutex<Table>,
    most: usize,
    /// The number of the next version.
    objects: AtomicU64,
    uses: AtomicU64,
    watch: Option<Arc<Watch>>,
    /// How long a version takes to settle.
    settled: Duration,
}

impl File {
    /// Locks what is known for who only reads. No thread panics while it has changed a half.
    fn known(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    /// Room for so many files, whose versions settle after so long.
    #[must_use]
    pub fn new(most: usize, settled: Duration) -> Self {
        let (objects, uses) = (AtomicU64::new(1), AtomicU64::new(0));
        let table = Mutex::new(Table { files: HashMap::new(), most });
        Self { table, most, objects, uses, watch: Watch::of_files(most), settled }
    }

    /// What watches files, where that is to be had.
    #[must_use]
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.as_ref()
    }

    /// Files that there is room for.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The file of this identity. Forgets files that nobody has open when there are too many.
    pub fn file(&self, identity: Identity, store: &Store) -> Arc<File> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.files.len() >= table.most && !table.files.contains_key(&identity) {
            self.thin(&mut table, store);
        }
        let file = Arc::clone(table.files.entry(identity).or_default());
        file.used.store(self.uses.fetch_add(1, Relaxed), Relaxed);
        file
    }

    /// Files that something is known of.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).files.len()
    }

    /// Forgets a quarter of the files: those that nobody has, the least lately used first. If the kernel knows most of
    /// them, there may be more.
    fn thin(&self, table: &mut Table, store: &Store) {
        let unused = table.files.iter().filter(|(_, file)| Arc::strong_count(file) == 1);
        let mut unused: Vec<(u64, Identity)> =
            unused.map(|(identity, file)| (file.used.load(Relaxed), *identity)).collect();
        unused.sort_unstable();
        for (_, identity) in unused.into_iter().take(self.most.div_ceil(4)) {
            if let Some(file) = table.files.remove(&identity) {
                self.forget(&mut file.change(), store);
            }
        }
        table.most = self.most.max(table.files.len() + table.files.len() / 4);
    }

    /// The version with this stamp, which the file has now, in this part. Pages of another go. None while the file is
    /// being changed through the mount: what it has then is nobody's version.
    pub(crate) fn version(&self, file: &File, stamp: Stamp, part: PartId, store: &Store) -> Option<Version> {
        let is_it = |version: &Version| version.stamp == stamp && version.part == part;
        let watch = self.watch.as_deref();
        {
            let known = file.known();
            if known.changing > 0 {
                return None;
            }
            if let Some(version) = known.version.filter(is_it)
                && !known.is_doubtful(watch, self.settled)
            {
                return Some(version);
            }
        }
        let mut known = file.change();
        if known.changing > 0 {
            return None;
        }
        if known.is_doubtful(watch, self.settled) || known.version.is_some_and(|version| !is_it(&version)) {
            self.forget(&mut known, store);
        }
        let changes = known.changes;
        let new =
            || Version { object: self.objects.fetch_add(1, Relaxed), part, stamp, changes, is_own: false };
        Some(*known.version.get_or_insert_with(new))
    }

    /// The file is watched from now on.
    pub fn watched(&self, file: &File, told: Arc<Told>, store: &Store) {
        let mut known = file.change();
        if known.is_doubtful(self.watch.as_deref(), self.settled) {
            self.forget(&mut known, store);
        }
        known.told = Some(told);
    }

    /// A change through the mount begins.
    pub fn begin(&self, file: &File, source: BorrowedFd, store: &Store) -> Begun {
        let mut known = file.change();
        if known.is_doubtful(self.watch.as_deref(), self.settled) {
            self.forget(&mut known, store);
        }
        known.changing += 1;
        known.changes += 1;
        let has_stamp = |version: Version| Stamp::now(source) == Ok(version.stamp);
        let is_alone = known.changing == 1
            && known.is_told(self.watch.as_deref())
            && known.version.is_some_and(has_stamp);
        Begun { number: known.changes, is_alone }
    }

    /// The change has been made, or has failed; nobody has been told yet. `touched`: the pages that it may have
    /// changed, if that is known.
    pub fn end(
        &self,
        file: &File,
        source: BorrowedFd,
        begun: &Begun,
        touched: Option<Range<u64>>,
        store: &Store,
    ) {
        let mut known = file.change();
        known.changing -= 1;
        let now = Stamp::now(source);
        let is_alone =
            begun.is_alone && known.changes == begun.number && known.is_told(self.watch.as_deref());
        match (touched, now, known.version) {
            (Some(touched), Ok(stamp), Some(version)) if is_alone => {
                store.invalidate_range(version.part.pool, version.object, touched);
                let is_own = version.is_own || version.stamp.is_settled(self.settled);
                known.version = Some(Version { stamp, changes: begun.number, is_own, ..version });
            }
            _ => self.forget(&mut known, store),
        }
    }

    /// The object of the version with this stamp, if that is the one that is known, and all changes by others are.
    pub fn object(&self, file: &File, stamp: Stamp) -> Option<u64> {
        let known = file.known();
        let version = known.version.filter(|version| version.stamp == stamp && known.changing == 0)?;
        known.is_told(self.watch.as_deref()).then_some(version.object)
    }

    /// Runs `keep` if this is still the version that is known; it goes on being that meanwhile.
    pub fn while_known(&self, file: &File, version: Version, keep: impl FnOnce()) {
        let known = file.known();
        let is_known = known.changing == 0 && known.version == Some(version);
        if is_known && !known.is_doubtful(self.watch.as_deref(), self.settled) {
            keep();
        }
    }

    /// The pages that are known go. What was told was of them: what is read from now on has it.
    fn forget(&self, known: &mut State, store: &Store) {
        if known.told.as_ref().is_some_and(|told| !told.forget()) {
            known.told = None;
        }
        if let Some(version) = known.version.take() {
            let pages = version.stamp.size.div_ceil(PAGE_SIZE as u64);
            store.invalidate_range(version.part.pool, version.object, 0..pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::look;
    use ramfold::Config;
    use std::fs;

    #[test]
    fn files_that_nobody_has_are_forgotten_when_there_are_too_many() {
        let store = Store::new(&Config::default(), None).unwrap();
        let files = Files::new(8, Duration::ZERO);
        let directory = tempfile::tempdir().unwrap();
        let identity = |number: u32| {
            let path = directory.path().join(number.to_string());
            fs::write(&path, "").unwrap();
            Identity::of(&look(fs::File::open(path).unwrap()).unwrap())
        };
        let held: Vec<_> = (0..6).map(|number| files.file(identity(number), &store)).collect();
        for number in 6..40 {
            files.file(identity(number), &store);
            assert!(files.count() <= 9, "{}", files.count());
        }
        assert!(
            held.iter()
                .zip(0..)
                .all(|(file, number)| Arc::ptr_eq(file, &files.file(identity(number), &store)))
        );
        // Where all are held, it is not looked for others each time.
        let held: Vec<_> = (100..200).map(|number| files.file(identity(number), &store)).collect();
        assert!(held.len() == 100 && files.count() >= 100);
        assert!(files.table.lock().unwrap().most > 100);
    }
}
