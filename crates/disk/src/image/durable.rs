//! Durability: what was flushed outlives the process, and the power.
//!
//! A flush writes the pages that have changed since the last one as a group to the log of the image ([`super::log`]),
//! syncs it, and returns. Flushes that come meanwhile wait for one group more, which is all theirs. When the log has
//! grown as large as its image ([`LEAST_LOG`] at least), a thread folds it (`fold`).
//!
//! After a sync has failed nobody knows what of the file is on disk, and a later sync may succeed without telling. So
//! nothing is added to that log: the flush folds at once, into a fresh file. Only if that fails too does the flush
//! fail, and the next ones until a fold succeeds, which is tried again after [`PATIENCE`]. A log that has no room is
//! not in doubt: the flush fails, and the next writes the same place again. What was flushed before stays in any case.
//!
//! Price: a page is compressed once more for each flush that it changes before, a flush writes 4 KiB at least and syncs
//! once. Guarantee: after a crash at any moment a page is as it was when it was last flushed, or as it was at some
//! moment since.
//!
//! Lock order: fold, then live, then a stripe of the pages.

mod fold;

use super::calls::Calls;
use super::log::{Group, Log, Mark};
use super::{Image, SaveError};
use crate::changed::Changed;
use crate::face::DiskError;
use crate::pages::{Keeper, Pages};
use crate::volume::Volume;
use ramfold::codec::by_name;
use ramfold::{PAGE_SIZE, Page, Scratch};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The least bytes of a log that is folded.
pub const LEAST_LOG: u64 = 64 << 20;
/// Between a fold that has failed and the next, if flushes fail meanwhile.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Is told, in one line, that flushes fail, and that they do not any more.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// How it is done.
pub struct Settings {
    /// Compresses what is written; named as [`by_name`] has it.
    pub compressor: String,
    /// See [`LEAST_LOG`].
    pub least_log: u64,
    /// See [`PATIENCE`].
    pub patience: Duration,
    /// See [`Tell`].
    pub tell: Tell,
}

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Flushes that were asked for.
    pub flushes: u64,
    /// Groups that were written and synced: flushes at the same time have one.
    pub groups: u64,
    /// Pages in them; a run of holes counts as one.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Times that a new image was made.
    pub folds: u64,
}

/// Keeps a disk in an image and its log.
pub struct Durable {
    settings: Settings,
    calls: Arc<dyn Calls>,
    path: PathBuf,
    /// Groups that were begun. Raised with `live` held.
    begun: AtomicU64,
    flushes: AtomicU64,
    is_stopping: AtomicBool,
    live: Mutex<Live>,
    /// Held by who folds.
    fold: Mutex<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a flush needs for itself.
struct Live {
    image: Image,
    /// None: the disk was stopped.
    log: Option<Log>,
    /// It takes no more groups.
    is_in_doubt: bool,
    /// The last group that is on disk, and the last that failed and may be tried again.
    good: u64,
    failed: u64,
    error: DiskError,
    /// Pages that were flushed since a fold began.
    since: Option<Changed>,
    /// Bytes of the log from which on it is folded.
    most: u64,
    is_folding: bool,
    /// After a fold has failed that a flush needed.
    not_before: Option<Instant>,
    has_told: bool,
    has_told_of_fold: bool,
    counts: Counts,
    scratch: Scratch,
    page: Box<Page>,
}

/// Why a group is not on disk.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// a page could not be read
    #[error("a page could not be read")]
    Page,
    /// the log has no room
    #[error("{0}")]
    NoSpace(io::Error),
    /// what is on disk is not known
    #[error("{0}")]
    Doubt(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace(error),
            _ => Self::Doubt(error),
        }
    }
}

impl From<DiskError> for Failure {
    fn from(_: DiskError) -> Self {
        Self::Page
    }
}

impl From<Failure> for SaveError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Page => Self::Io(io::Error::other("a page could not be read")),
            Failure::NoSpace(error) | Failure::Doubt(error) => Self::Io(error),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("compressor", &self.compressor).finish_non_exhaustive()
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Adds the pages of the marks to a group, and takes the marks off. `taken`: whose were.
fn fill(
    group: &mut Group<'_>,
    (pages, marks): (&Pages, &Changed),
    taken: &mut Vec<u64>,
    (page, scratch): (&mut Page, &mut Scratch),
) -> Result<(), Failure> {
    let mut holes = 0..0;
    marks.take(|number| {
        let Some(is_there) = pages.take(marks, number, page, scratch)? else { return Ok(()) };
        taken.push(number);
        if !is_there && holes.end == number && !holes.is_empty() {
            holes.end += 1;
            return Ok(());
        }
        if !holes.is_empty() {
            group.holes(holes.start, holes.end - holes.start)?;
            holes = 0..0;
        }
        if is_there {
            group.page(number, page)?;
        } else {
            holes = number..number + 1;
        }
        Ok::<(), Failure>(())
    })?;
    if !holes.is_empty() {
        group.holes(holes.start, holes.end - holes.start)?;
    }
    Ok(())
}

fn stopped() -> io::Error {
    io::Error::other("the disk was stopped")
}

impl Live {
    /// Writes what has changed as one group, and syncs it.
    fn group(&mut self, pages: &Pages, changed: &Changed) -> Result<(), Failure> {
        let log = self.log.as_mut().ok_or_else(|| Failure::Doubt(stopped()))?;
        if changed.count() == 0 {
            return Ok(());
        }
        let (mut taken, before) = (Vec::new(), log.bytes());
        let scratch = (&mut *self.page, &mut self.scratch);
        let written = log.append(|group| fill(group, (pages, changed), &mut taken, scratch));
        let written = written.and_then(|written| match log.sync() {
            Ok(()) => Ok(written),
            Err(error) => Err(Failure::Doubt(error)),
        });
        match written {
            Ok(written) => log.accept(&written),
            Err(failure) => {
                taken.iter().for_each(|number| changed.mark(*number));
                return Err(failure);
            }
        }
        self.counts.groups += 1;
        self.counts.records += taken.len() as u64;
        self.counts.bytes += log.bytes() - before;
        if let Some(since) = &self.since {
            taken.iter().for_each(|number| since.mark(*number));
        }
        Ok(())
    }
}

impl Durable {
    /// Makes a disk durable that has what the image had, before clients come.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn start(image: Image, disk: &Volume, settings: Settings) -> Result<Arc<Self>, SaveError> {
        let (calls, path) = (Arc::clone(&image.calls), image.path.clone());
        let has_rest = image.has_rest()?;
        let most = settings.least_log.max(image.header.length);
        let live = Live {
            image,
            log: None,
            is_in_doubt: false,
            good: 0,
            failed: 0,
            error: DiskError::Io,
            since: None,
            most,
            is_folding: false,
            not_before: None,
            has_told: false,
            has_told_of_fold: false,
            counts: Counts::default(),
            scratch: disk.store().scratch(),
            page: Box::new([0; PAGE_SIZE]),
        };
        let durable = Arc::new(Self {
            settings,
            calls,
            path,
            begun: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            live: Mutex::new(live),
            fold: Mutex::default(),
            thread: Mutex::default(),
        });
        disk.pages().set_keeper(Arc::clone(&durable) as _);
        if has_rest {
            let alone = lock(&durable.fold);
            durable.fold(disk.pages())?;
            drop(alone);
        } else {
            let mut live = durable.live();
            let mark = durable.mark()?;
            live.image.mark(&mark.block())?;
            durable.calls.sync_directory_of(&durable.path)?;
            let (file, length) = (&live.image.file, live.image.header.length);
            let codec = by_name(&durable.settings.compressor).map_err(io::Error::other)?;
            live.log = Some(Log::new(&durable.calls, file, length, mark.seed, codec)?);
            live.image.is_new = false;
        }
        Ok(durable)
    }

    /// Brings the image up to date, of a disk that no client has any more, and ends its log; tells now and then how
    /// many pages of how many. If only the log could be brought up to date, that is told, and is a success: the next
    /// start finds all of it.
    ///
    /// # Errors
    /// [`SaveError`]. The disk is still durable then, and may be served and stopped again.
    pub fn stop(&self, disk: &Volume, tell: impl FnMut(u64, u64)) -> Result<(), SaveError> {
        self.is_stopping.store(true, SeqCst);
        let thread = lock(&self.thread).take();
        thread.map(JoinHandle::join);
        let _alone = lock(&self.fold);
        let mut live = self.live();
        if live.log.is_none() {
            return Ok(());
        }
        let Some(changed) = disk.pages().changed() else { return Ok(()) };
        let has_log = live.is_in_doubt || live.log.as_ref().is_some_and(|log| log.bytes() > 0);
        let flushed = if live.is_in_doubt {
            Err(Failure::Doubt(io::Error::other("its log is in doubt")))
        } else {
            live.group(disk.pages(), changed)
        };
        let is_as_image =
            !has_log && live.log.as_ref().is_some_and(|log| log.bytes() == 0) && flushed.is_ok();
        live.image.changes = if is_as_image { disk.changes() } else { super::NEVER };
        match (live.image.save(disk, &self.settings.compressor, tell), flushed) {
            (Ok(()), _) => {}
            (Err(error), Ok(())) => {
                (self.settings.tell)(&format!("its log keeps it, and no new image: {error}"));
            }
            (Err(error), Err(_)) => {
                live.is_in_doubt = true;
                self.is_stopping.store(false, SeqCst);
                return Err(error);
            }
        }
        live.log = None;
        Ok(())
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { flushes: self.flushes.load(SeqCst), ..self.live().counts }
    }

    /// A panic under the lock may have taken marks off pages that are in no group: all pages are to be written anew.
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(|poisoned| {
            self.live.clear_poison();
            let mut live = poisoned.into_inner();
            live.is_in_doubt = true;
            live
        })
    }

    fn mark(&self) -> Result<Mark, SaveError> {
        let mut seed = [0; 16];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let codec = by_name(&self.settings.compressor).map_err(io::Error::other)?;
        Ok(Mark { seed: u128::from_le_bytes(seed), codec: codec.name().to_owned() })
    }

    /// Tells once that flushes fail, and once that they do not any more.
    fn tell(&self, live: &mut Live, failure: Option<&dyn fmt::Display>) {
        let line = match failure {
            Some(failure) if !live.has_told => {
                format!("a flush has failed, and clients are told: {failure} (what was flushed before stays)")
            }
            None if live.has_told => "flushes are kept again".to_owned(),
            _ => return,
        };
        live.has_told = failure.is_some();
        (self.settings.tell)(&line);
    }
}

impl Keeper for Durable {
    fn keep(self: Arc<Self>, pages: &Arc<Pages>) -> Result<(), DiskError> {
        self.flushes.fetch_add(1, SeqCst);
        let Some(changed) = pages.changed() else { return Err(DiskError::Io) };
        // The next group sees all that was changed before now: who begins one writes here as well.
        let wanted = self.begun.fetch_add(0, SeqCst) + 1;
        loop {
            let mut live = self.live();
            if live.good >= wanted {
                return Ok(());
            }
            if live.failed >= wanted || live.log.is_none() {
                return Err(live.error);
            }
            if !live.is_in_doubt {
                let number = self.begun.fetch_add(1, SeqCst) + 1;
                match live.group(pages, changed) {
                    Ok(()) => {
                        live.good = number;
                        self.tell(&mut live, None);
                        self.call_folder(&mut live, pages);
                        return Ok(());
                    }
                    Err(Failure::Doubt(_)) => live.is_in_doubt = true,
                    Err(failure) => {
                        let is_full = matches!(failure, Failure::NoSpace(_));
                        live.error = if is_full { DiskError::NoSpace } else { DiskError::Io };
                        live.failed = number;
                        self.tell(&mut live, Some(&failure));
                        return Err(live.error);
                    }
                }
            }
            drop(live);
            self.renew(pages, wanted)?;
        }
    }
}

/// These locks have nothing that a panic could spoil.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
