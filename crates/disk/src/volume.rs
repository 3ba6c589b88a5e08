//! The disk: block requests over a store. How a request is cut at pages is in [`parts`].
//!
//! Guarantee: what was written and acknowledged is read until it is written over, or the read fails; a write that fails
//! leaves each page as it was or as it should be. The disk is volatile: it ends with its process, unless an image is
//! kept of it ([`crate::image`]).

mod parts;

use crate::ages::{Age, MAX_PAGES};
use crate::backing::Backing;
use crate::counts::Counts;
use crate::face::{Disk, DiskError, Extent, ExtentKind};
use crate::pages::Pages;
pub use crate::pages::Worker;
use crate::settler::{Bounds, Settler};
use crate::shrinker::Shrinker;
use parts::whole_pages;
use ramfold::tier::Tier;
use ramfold::{Config, PAGE_SIZE, PageState};
use ramfold_budget::member::Member;
use ramfold_budget::pressure::Pressure;
use ramfold_budget::segment::Segment;
use ramfold_budget::service::{self, Place, Server, Service};
use ramfold_budget::share::Offer;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that [`ramfold::Store::stored_near`] tells of.
const NEAR: u64 = 64;
/// The least memory that a disk can work in, in bytes: writers at the same time have some pages each.
pub const LEAST_MEMORY: u64 = 256 << 10;
/// The least limit that a disk can share.
pub const LEAST_SHARED: u64 = 16 << 20;
/// How often the keeper looks, uncalled.
const LOOK: Duration = Duration::from_millis(20);
/// The largest disk, in bytes.
pub const MOST_BYTES: u64 = MAX_PAGES * PAGE;

/// What a disk is made of.
#[derive(Debug)]
pub struct Settings {
    /// Bytes; a multiple of a page, [`MOST_BYTES`] at most.
    pub size: u64,
    /// Most bytes that the compressed pool may take, [`LEAST_MEMORY`] or more; None: as many as the disk needs.
    pub mem_limit: Option<u64>,
    /// Codecs, zpool and their knobs.
    pub store: Config,
    /// Where pages go when the pool is full, and the most bytes that may lie there.
    pub backing: Option<(File, u64)>,
}

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// the size is none that a disk can have
    #[error("a disk has whole pages, and {} TiB at most", MOST_BYTES >> 40)]
    Size,
    /// there is no service
    #[error(transparent)]
    Service(#[from] service::OpenError),
}

/// A disk. Its keeper's thread ends when it is dropped.
#[derive(Debug)]
pub struct Volume {
    /// Bytes; 0: it was reset, and takes no requests.
    size: AtomicU64,
    /// Bytes that it was opened with. Its budget is made for them, so it never has more.
    most: u64,
    bounds: Arc<Bounds>,
    backing: Option<Arc<Backing>>,
    /// Pages leave when others need the memory.
    gives_way: Arc<AtomicBool>,
    pages: Arc<Pages>,
    _settler: Settler,
    service: Service,
}

impl Volume {
    /// A disk of zeros.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        Self::with(settings, |tier| tier)
    }

    /// A disk of zeros in this budget. One that others may join has the limit of memory for its own, in which all
    /// anonymous memory of the process counts; [`LEAST_SHARED`] or more.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_in(settings: Settings, place: Place) -> Result<Self, OpenError> {
        Self::make(settings, place, |tier| tier)
    }

    /// A disk of zeros whose records of pages go through what `wrap` makes of its tier.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn with(
        settings: Settings,
        wrap: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<Self, OpenError> {
        Self::make(settings, Place::Alone, wrap)
    }

    fn make(
        settings: Settings,
        place: Place,
        wrap: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<Self, OpenError> {
        let Settings { size, mem_limit, store, backing } = settings;
        if !is_size(size) {
            return Err(OpenError::Size);
        }
        let most = mem_limit.unwrap_or_else(|| most_needed(size)).min(place.limit().unwrap_or(u64::MAX));
        let name = backing.as_ref().map(|(file, _)| path_of(file));
        let limit = if place.is_shared() { most } else { budget(most.max(most_needed(size))) };
        let settings = service::Settings {
            host: &Server("disk"),
            limit,
            whole_process: false,
            store: Config { max_pool_bytes: most, shrink_inline: false, ..store },
            backing,
        };
        let mut backing = None;
        let mut service = Service::open_in(settings, place, |tier| {
            let name = name.unwrap_or_else(|| "budget".to_owned());
            Arc::clone(backing.insert(Arc::new(Backing::new(wrap(tier), name)))) as _
        })?;
        let pages =
            Arc::new(Pages::new(Arc::clone(service.member()), Arc::clone(service.door()), size / PAGE));
        let kept = Arc::clone(&pages);
        let gives_way = Arc::new(AtomicBool::new(true));
        let mut shrinker = backing.as_ref().map(|_| Shrinker::new(Pressure::new(), Arc::clone(&gives_way)));
        let look = move |member: &Member| {
            kept.counts.note_used(member.store().pool_bytes());
            if let Some(shrinker) = &mut shrinker {
                shrinker.look(member.store(), Instant::now());
            }
        };
        service.keep(LOOK, look).map_err(service::OpenError::from)?;
        let bounds = Arc::new(Bounds::new(mem_limit.unwrap_or(0)));
        let settler = Settler::start(Arc::clone(service.member()), Arc::clone(&bounds));
        let _settler = settler.map_err(service::OpenError::from)?;
        Ok(Self { size: size.into(), most: size, bounds, backing, gives_way, pages, _settler, service })
    }

    /// The disk's budget, where its numbers are.
    #[must_use]
    pub fn segment(&self) -> Arc<Segment> {
        self.service.segment()
    }

    /// Calls it by a name where its numbers are: its process may have other disks.
    pub fn set_name(&self, name: &str) {
        self.service.set_name(name);
    }

    /// What others need to join its budget.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn offer(&self) -> std::io::Result<Offer> {
        self.service.offer()
    }

    /// Enters the numbers as they are now.
    pub fn publish(&self) {
        self.service.publish();
    }

    /// The store of the disk's pages.
    #[must_use]
    pub fn store(&self) -> &ramfold::Store {
        self.service.member().store()
    }
}

/// What can be asked and changed while it runs.
impl Volume {
    /// Where its cold pages go.
    #[must_use]
    pub fn backing(&self) -> Option<&Backing> {
        self.backing.as_deref()
    }

    /// Most bytes that the compressed pool may take; 0: as many as the disk needs.
    #[must_use]
    pub fn mem_limit(&self) -> u64 {
        self.bounds.mem_limit.load(Relaxed)
    }

    /// Sets it. What is over it is written back soon, if there is a backing. False if that is too little to work in.
    pub fn set_mem_limit(&self, bytes: u64) -> bool {
        if bytes != 0 && bytes < LEAST_MEMORY {
            return false;
        }
        self.bounds.mem_limit.store(bytes, Relaxed);
        let most = if bytes == 0 { most_needed(self.most) } else { bytes };
        self.service.set_max_pool(most);
        true
    }

    /// Whether pages go to the backing when others need the memory.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.gives_way.load(Relaxed) && self.backing.is_some()
    }

    /// Sets whether they do.
    pub fn set_gives_way(&self, it: bool) {
        self.gives_way.store(it, Relaxed);
    }

    /// Whether pages that were just written lie in memory as they are, to be compressed later.
    #[must_use]
    pub fn keeps_fresh(&self) -> bool {
        self.bounds.is_enabled.load(Relaxed)
    }

    /// Sets whether they do. Those that lie so are compressed soon.
    pub fn set_keeps_fresh(&self, it: bool) {
        self.bounds.enable(it, self.store());
    }

    /// See [`Bounds::settle_all`].
    pub(crate) fn settle_all(&self) {
        self.bounds.settle_all(self.store());
    }

    /// Takes no requests from now on. Gives the size that it had, in bytes, for [`Volume::reopen`]; None if it is in
    /// use, and then nobody notices. Who begins to use it meanwhile is one who has it in use, or finds it closed.
    pub fn close(&self) -> Option<u64> {
        let _nobody = self.pages.without_workers()?;
        Some(self.size.swap(0, Relaxed))
    }

    /// Takes requests again, with the pages that it had.
    pub fn reopen(&self, size: u64) {
        self.size.store(size, Relaxed);
    }

    /// Forgets all pages, and gives back what they took: of a disk that is closed.
    pub fn clear(&self) {
        self.pages.forget(self.all());
        self.store().compact();
    }

    /// Forgets all pages and counts. Until it is given a size again, the disk takes no requests. False if it is in
    /// use.
    pub fn reset(&self) -> bool {
        if self.close().is_none() {
            return false;
        }
        self.pages.forget(self.all());
        self.counts().clear();
        if let Some(backing) = &self.backing {
            backing.clear();
        }
        true
    }

    /// Gives a disk that was reset so many bytes, in whole pages, [`Volume::most`] at most. False if it has a size, or
    /// that is none.
    pub fn resize(&self, size: u64) -> bool {
        let size = size.checked_next_multiple_of(PAGE).filter(|size| is_size(*size) && *size <= self.most);
        size.is_some_and(|size| self.size.compare_exchange(0, size, Relaxed, Relaxed).is_ok())
    }

    /// Goes up with every change of a page.
    #[must_use]
    pub fn changes(&self) -> u64 {
        let stats = self.store().stats();
        stats.stores + stats.invalidates
    }

    /// Bytes that the disk was opened with.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.pages.counts
    }

    /// The pages that there may be.
    fn all(&self) -> Range<u64> {
        0..self.most / PAGE
    }

    /// The pages that the disk has room for.
    pub(crate) fn numbers(&self) -> Range<u64> {
        0..self.size() / PAGE
    }

    /// What the store calls a page.
    pub(crate) fn key(&self, number: u64) -> ramfold::Key {
        self.pages.key(number)
    }

    /// See [`Pages::look`].
    pub(crate) fn look(&self, pages: Range<u64>, each: &mut dyn FnMut(u64, PageState) -> bool) {
        self.pages.look(pages, each);
    }

    /// When the page was used last.
    pub(crate) fn age(&self, number: u64) -> Option<Age> {
        self.pages.ages.of(number)
    }

    /// How long ago the disk began.
    pub(crate) fn now(&self) -> Duration {
        self.pages.ages.now()
    }

    /// Marks pages idle that were not used for so long.
    pub(crate) fn mark_idle(&self, unused: Duration) {
        self.pages.ages.mark_idle(&self.numbers(), unused);
    }

    /// Whether the range lies on the disk: after a reset it does not, whatever the client was told before.
    fn check(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size()) {
            return Ok(());
        }
        self.counts().invalid_io.fetch_add(1, Relaxed);
        Err(DiskError::Io)
    }
}

/// Whether a disk can have so many bytes.
pub(crate) fn is_size(size: u64) -> bool {
    (PAGE..=MOST_BYTES).contains(&size) && size.is_multiple_of(PAGE)
}

/// Where a file is, as the kernel tells it.
fn path_of(file: &File) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.map_or_else(|_| "unknown".to_owned(), |path| path.display().to_string())
}

/// Bytes that the pool has at most when no page of the disk compresses.
fn most_needed(size: u64) -> u64 {
    size.saturating_add(size / 16).saturating_add(16 << 20)
}

/// The limit of the disk's budget: the pool's bound comes first.
fn budget(pool: u64) -> u64 {
    pool.saturating_add(pool / 32).saturating_add(16 << 20)
}

impl Disk for Volume {
    type Worker = Worker;

    fn worker(&self) -> Worker {
        self.pages.worker()
    }

    fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn read(&self, offset: u64, out: &mut [u8], worker: &mut Worker) -> Result<(), DiskError> {
        let read = self.check(offset, out.len() as u64).and_then(|()| self.read_parts(offset, out, worker));
        Counts::note(&self.counts().failed_reads, read)
    }

    fn lend(&self, offset: u64, len: u64, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let is_whole = offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        let end = offset.checked_add(len).filter(|end| is_whole && *end <= self.size());
        end.is_some_and(|end| self.pages.lend(offset / PAGE..end / PAGE, with))
    }

    fn fetch(&self, offset: u64, len: u64, worker: &mut Worker) -> Result<(), DiskError> {
        let pages = || offset / PAGE..(offset + len).div_ceil(PAGE);
        let fetched = self.check(offset, len).and_then(|()| self.pages.fetch(pages(), worker));
        Counts::note(&self.counts().failed_reads, fetched)
    }

    fn write(&self, offset: u64, data: &[u8], worker: &mut Worker) -> Result<(), DiskError> {
        let on_disk = self.check(offset, data.len() as u64);
        let written = on_disk.and_then(|()| self.write_parts(offset, data, worker));
        self.counts().note_used(self.store().pool_bytes());
        Counts::note(&self.counts().failed_writes, written)
    }

    fn zero(&self, offset: u64, len: u64, worker: &mut Worker) -> Result<(), DiskError> {
        let zeroed = self.check(offset, len).and_then(|()| self.zero_parts(offset, len, worker));
        Counts::note(&self.counts().failed_writes, zeroed)
    }

    fn discard(&self, offset: u64, len: u64, _: &mut Worker) -> Result<(), DiskError> {
        Counts::note(&self.counts().failed_writes, self.check(offset, len))?;
        self.pages.forget(whole_pages(offset, len));
        Ok(())
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.pages.flush()
    }

    fn extents(&self, offset: u64, len: u64, each: &mut dyn FnMut(Extent) -> bool) {
        let (mut at, end) = (offset, offset + len);
        let mut piece = Extent { len: 0, kind: ExtentKind::Hole };
        while at < end {
            let number = at / PAGE;
            let stored = self.store().stored_near(self.pages.key(number)) >> (number % NEAR);
            let (kind, alike) = match stored & 1 {
                0 => (ExtentKind::Hole, stored.trailing_zeros()),
                _ => (ExtentKind::Data, stored.trailing_ones()),
            };
            let next = ((number + u64::from(alike).min(NEAR - number % NEAR)) * PAGE).min(end);
            if kind != piece.kind && piece.len > 0 && !each(piece) {
                return;
            }
            let before = if kind == piece.kind { piece.len } else { 0 };
            piece = Extent { len: before + next - at, kind };
            at = next;
        }
        if piece.len > 0 {
            each(piece);
        }
    }
}
