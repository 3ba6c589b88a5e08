//! Parts: directories whose files have a limit of their own, within that of the mount.
//!
//! A part is a pool of the store with a memlimit: what is over it goes, the least recently used first. A file is of the
//! nearest directory above it that has a limit, and counts there alone; without one it is of the rest of the mount. A
//! limit is of a path below the source, whatever directory is there. By which path the kernel knows a file is looked
//! at when the file is read, once in a [`TURN`]: its pages go if it has come to another part by then.
//!
//! Price: where any directory has a limit, two readlinks a file that is read and turn; a pool for each directory, which
//! stays for the next one. Guarantee: the pages of a directory take no more than its limit, but for what threads store
//! at the same moment.

use crate::admission::Admission;
use crate::sys::way;
use ramfold::{PAGE_SIZE, PoolId, PoolKind, Stats, Store};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlink};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Directories that have a limit at the same time.
const MOST: usize = 128;
/// How long it holds of which part a file is.
const TURN: Duration = Duration::from_secs(1);
/// A part counts as full when more than so many hundredths of its limit are taken: it drops pages down to 90.
const FULL_PERCENT: u64 = 85;
/// The rest of the mount.
const REST: u32 = 0;

/// Why a directory gets no limit.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// there is no such directory
    #[error("{}: {why} (give a directory below the source)", .path.display())]
    NoDirectory {
        /// As it was given.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// it is the source
    #[error("{} is the whole of the source (its limit is the mount's own)", .0.display())]
    Whole(PathBuf),
    /// too many have one
    #[error("{MOST} directories have limits (take one away: DIRECTORY none)")]
    TooMany,
    /// it has none
    #[error("{} has no limit of its own", .0.display())]
    NoLimit(PathBuf),
}

/// Names a part, and the pool that has its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartId {
    number: u32,
    pub(crate) pool: PoolId,
}

/// Which part a file was of, and in which turn that was looked at.
#[derive(Debug, Default)]
pub(crate) struct Noted(AtomicU64);

/// A directory with a limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Limited {
    /// Below the source.
    pub path: PathBuf,
    /// Bytes that its files' pages may take.
    pub limit: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

#[derive(Debug)]
struct Part {
    pool: PoolId,
    limit: AtomicU64,
    admission: Admission,
}

/// All parts of a mount.
#[derive(Debug)]
pub(crate) struct Parts {
    rest: PartId,
    /// By number, from 1 on. What was made stays.
    parts: Box<[OnceLock<Part>]>,
    /// Held by who changes limits. The numbers of parts that no directory has.
    free: Mutex<Vec<u32>>,
    /// The numbers, by paths below the source.
    directories: RwLock<HashMap<PathBuf, u32>>,
    count: AtomicU32,
    /// Goes on once in a [`TURN`], and when limits change. It begins with 1.
    turn: AtomicU32,
    turned: Mutex<Instant>,
    source: OnceLock<OwnedFd>,
}

impl Parts {
    /// No directory has a limit; this pool is for all files.
    pub(crate) fn new(pool: PoolId) -> Self {
        let numbers = (1..=u32::try_from(MOST).unwrap_or(0)).rev();
        Self {
            rest: PartId { number: REST, pool },
            parts: (0..MOST).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(numbers.collect()),
            directories: RwLock::default(),
            count: AtomicU32::new(0),
            turn: AtomicU32::new(1),
            turned: Mutex::new(Instant::now()),
            source: OnceLock::new(),
        }
    }

    /// The directory that paths are below of.
    pub(crate) fn begin(&self, source: OwnedFd) {
        let _ = self.source.set(source);
    }

    fn part(&self, number: u32) -> Option<&Part> {
        self.parts.get((number as usize).checked_sub(1)?)?.get()
    }

    fn id(&self, number: u32) -> PartId {
        self.part(number).map_or(self.rest, |part| PartId { number, pool: part.pool })
    }

    /// Of which part a file is; `noted` is the file's own.
    pub(crate) fn of(&self, noted: &Noted, file: BorrowedFd) -> PartId {
        if self.count.load(SeqCst) == 0 {
            return self.rest;
        }
        let (turn, note) = (u64::from(self.turn.load(SeqCst)), noted.0.load(Relaxed));
        if note >> 32 == turn {
            return self.id(u32::try_from(note & u64::from(u32::MAX)).unwrap_or(REST));
        }
        let number = self.find(file).unwrap_or(REST);
        noted.0.store(turn << 32 | u64::from(number), Relaxed);
        self.id(number)
    }

    /// The part of the nearest directory above the file that has a limit.
    fn find(&self, file: BorrowedFd) -> Option<u32> {
        let path = path_of(file).ok()?;
        let path = path.strip_prefix(path_of(self.source.get()?).ok()?).ok()?;
        let directories = self.directories.read().unwrap_or_else(PoisonError::into_inner);
        path.ancestors().skip(1).find_map(|above| directories.get(above).copied())
    }

    /// So many pages of a part are asked for, from this one on.
    pub(crate) fn note(&self, part: PartId, object: u64, page: u64, count: u64) {
        if let Some(part) = self.part(part.number) {
            part.admission.note(object, page, count);
        }
    }

    /// Whether what was read should be kept, as far as the part's own limit goes.
    pub(crate) fn admits(&self, store: &Store, part: PartId) -> bool {
        let Some(part) = self.part(part.number) else { return true };
        let limit = part.limit.load(Relaxed);
        let is_full = store.bytes_of_pool(part.pool) > limit / 100 * FULL_PERCENT;
        limit >= PAGE_SIZE as u64 && (!is_full || part.admission.admits())
    }

    /// To be called now and then: tells each part how much fits, if the pages of all have these numbers. True if there
    /// are parts and a [`TURN`] begins.
    pub(crate) fn look(&self, all: &Stats) -> bool {
        if self.count.load(SeqCst) == 0 {
            return false;
        }
        let mut turned = self.turned.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = turned.elapsed() >= TURN;
        if begins {
            *turned = Instant::now();
            self.turn.fetch_add(1, SeqCst);
        }
        for part in self.parts.iter().filter_map(OnceLock::get) {
            let pages = u128::from(all.stored_pages) * u128::from(part.limit.load(Relaxed));
            let capacity = pages.checked_div(all.pool_total_size.into()).unwrap_or(0);
            part.admission.set_room(u64::try_from(capacity).unwrap_or(u64::MAX), true);
        }
        begins
    }

    /// Sets the limit of a directory below the source; None: it has none of its own any more. What is over it is gone
    /// when this returns.
    pub(crate) fn set(&self, store: &Store, given: &Path, limit: Option<u64>) -> Result<(), PartError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(limit) = limit else { return self.remove(store, &mut free, given) };
        let path = self.resolve(given)?;
        if path.as_os_str().is_empty() {
            return Err(PartError::Whole(given.to_owned()));
        }
        let mut directories = self.directories.write().unwrap_or_else(PoisonError::into_inner);
        let known = directories.get(&path).copied();
        let number = match known.or_else(|| free.last().copied()) {
            Some(number) => number,
            None => return Err(PartError::TooMany),
        };
        let make = || {
            let pool = store.create_pool(PoolKind::Ephemeral, Some(0));
            Part { pool, limit: AtomicU64::new(0), admission: Admission::new() }
        };
        let Some(place) = self.parts.get(number as usize - 1) else { return Err(PartError::TooMany) };
        let part = place.get_or_init(make);
        part.limit.store(limit, Relaxed);
        if known.is_none() {
            free.pop();
            directories.insert(path, number);
            self.count.fetch_add(1, SeqCst);
        }
        drop(directories);
        self.turn.fetch_add(1, SeqCst);
        store.set_memlimit(part.pool, limit);
        // Until it is looked at again.
        part.admission.set_room(u64::MAX, true);
        Ok(())
    }

    fn remove(&self, store: &Store, free: &mut MutexGuard<Vec<u32>>, given: &Path) -> Result<(), PartError> {
        let mut directories = self.directories.write().unwrap_or_else(PoisonError::into_inner);
        // The directory may have gone.
        let written = given.components().collect::<PathBuf>();
        let number = directories.remove(&written).or_else(|| {
            let path = self.resolve(given).ok()?;
            directories.remove(&path)
        });
        let number = number.ok_or_else(|| PartError::NoLimit(given.to_owned()))?;
        drop(directories);
        self.count.fetch_sub(1, SeqCst);
        self.turn.fetch_add(1, SeqCst);
        if let Some(part) = self.part(number) {
            part.limit.store(0, Relaxed);
            store.set_memlimit(part.pool, 0);
        }
        free.push(number);
        Ok(())
    }

    /// All directories with a limit, by their paths.
    pub(crate) fn all(&self, store: &Store) -> Vec<Limited> {
        let directories = self.directories.read().unwrap_or_else(PoisonError::into_inner);
        let limited = |(path, number): (&PathBuf, &u32)| {
            let part = self.part(*number)?;
            let (limit, bytes) = (part.limit.load(Relaxed), store.bytes_of_pool(part.pool));
            Some(Limited { path: path.clone(), limit, bytes })
        };
        let mut all: Vec<Limited> = directories.iter().filter_map(limited).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    /// The path below the source that a directory has, as the kernel tells it.
    fn resolve(&self, given: &Path) -> Result<PathBuf, PartError> {
        let refused = |errno: Errno| PartError::NoDirectory { path: given.to_owned(), why: errno.into() };
        let source = self.source.get().ok_or_else(|| refused(Errno::NOENT))?;
        let above = path_of(source).map_err(refused)?;
        let below = given.strip_prefix(&above).unwrap_or(given);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = openat2(source, below, flags, Mode::empty(), ResolveFlags::BENEATH).map_err(refused)?;
        let path = path_of(&found).map_err(refused)?;
        path.strip_prefix(&above).map(Path::to_owned).map_err(|_| refused(Errno::XDEV))
    }
}

/// The path of a file, as the kernel tells it.
fn path_of(file: impl AsFd) -> Result<PathBuf, Errno> {
    let path = readlink(way(file), Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}
