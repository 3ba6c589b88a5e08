//! The disk: block requests over a store.
//!
//! A page of the disk is a page of the store under its number; what the store does not have is zeros. A request is cut
//! at pages. A whole page is stored from the caller's bytes and loaded into them. A part of a page is read, changed and
//! stored, while nobody else changes it ([`crate::stripes`]).
//!
//! Price: a part of a page costs a load and a store. Guarantee: what was written and acknowledged is read until it is
//! written over, or the read fails; a write that fails leaves each page as it was or as it should be. The disk is
//! volatile: it ends with its process.

use crate::face::{Disk, DiskError, Extent, ExtentKind};
use crate::keeper::Keeper;
use crate::stripes::Stripes;
use ramfold::{Config, Key, LoadError, PAGE_SIZE, Page, PoolId, PoolKind, Scratch, Shrunk, Stop, StoreError};
use ramfold_budget::Host;
use ramfold_budget::extents::open_tier;
use ramfold_budget::member::Member;
use ramfold_budget::segment::Segment;
use ramfold_budget::usage::{Account, Usage};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that [`ramfold::Store::stored_near`] tells of.
const NEAR: u64 = 64;
/// How often a page is tried to be stored while others take the room.
const TRIES: usize = 256;
/// Up to so many pages are discarded one by one; more of them with all stripes held.
const FEW: u64 = 64;

/// The least memory that a disk can work in, in bytes: writers at the same time have some pages each.
pub const LEAST_MEMORY: u64 = 256 << 10;

/// What a disk is made of.
#[derive(Debug)]
pub struct Settings {
    /// Bytes; a multiple of a page.
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
    /// a setting of the store is not to be had
    #[error("{0}")]
    Config(#[from] ramfold::ConfigError),
    /// the system refuses memory or a descriptor
    #[error("the system refuses memory or a descriptor: {0}")]
    Io(#[from] std::io::Error),
}

/// A disk. Its keeper's thread ends when it is dropped.
#[derive(Debug)]
pub struct Volume {
    shared: Arc<Shared>,
    _keeper: Keeper,
}

/// What the volume and its keeper share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) member: Member,
    pool: PoolId,
    size: u64,
    stripes: Stripes,
    /// Pages discarded so far.
    pub(crate) discarded: AtomicU64,
    pub(crate) closing: AtomicBool,
}

/// One thread's working memory.
#[derive(Debug)]
pub struct Worker {
    scratch: Scratch,
    page: Box<Page>,
}

/// The process of a disk, as its member sees it.
struct Server;

impl Host for Server {
    fn die(&self, message: &str, _reported: bool) -> ! {
        eprintln!("ramfold: disk: {message}");
        std::process::exit(125)
    }
}

impl Volume {
    /// A disk of zeros.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let Settings { size, mem_limit, store, backing } = settings;
        let most = mem_limit.unwrap_or_else(|| most_needed(size));
        let (file, swap_size) = backing.map_or((None, 0), |(file, size)| (Some(file), size));
        let segment = Arc::new(Segment::create(budget(most), swap_size)?.1);
        let slot = segment.attach(&|_| ())?;
        let account = Arc::new(Account::new(segment, slot));
        let tier = open_tier(file, &account, &Server, &mut Vec::new())?;
        let usage = Usage::new(account, false, &Server).map_err(std::io::Error::from)?;
        let member = Member::new(&Config { max_pool_bytes: most, ..store }, tier, usage)?;
        let pool = member.store().create_pool(PoolKind::Persistent, None);
        let shared = Arc::new(Shared {
            member,
            pool,
            size,
            stripes: Stripes::default(),
            discarded: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let keeper = Keeper::start(Arc::clone(&shared))?;
        Ok(Self { shared, _keeper: keeper })
    }

    /// The store of the disk's pages.
    #[must_use]
    pub fn store(&self) -> &ramfold::Store {
        self.shared.member.store()
    }
}

fn makes_room(shrunk: &Shrunk) -> bool {
    shrunk.stop == Stop::Done || shrunk.freed_bytes > 0
}

/// Bytes that the pool has at most when no page of the disk compresses.
fn most_needed(size: u64) -> u64 {
    size.saturating_add(size / 16).saturating_add(16 << 20)
}

/// The limit of the disk's budget: the pool's bound comes first.
fn budget(pool: u64) -> u64 {
    pool.saturating_add(pool / 32).saturating_add(16 << 20)
}

impl Shared {
    fn key(&self, page: u64) -> Key {
        Key { pool: self.pool, object: 0, index: page }
    }

    fn load(&self, number: u64, page: &mut Page, scratch: &mut Scratch) -> Result<(), DiskError> {
        match self.member.store().load(self.key(number), page, scratch) {
            Ok(()) => Ok(()),
            Err(LoadError::Miss) => {
                page.fill(0);
                Ok(())
            }
            Err(_) => Err(DiskError::Io),
        }
    }

    /// Stores a page; the caller is alone with it. The room that this thread makes may be taken by others, so it tries
    /// again as long as room is to be had.
    fn store(&self, number: u64, page: &Page, scratch: &mut Scratch) -> Result<(), DiskError> {
        let store = self.member.store();
        for _ in 0..TRIES {
            match store.store(self.key(number), page, scratch) {
                Ok(()) => return Ok(()),
                Err(StoreError::Full) if makes_room(&store.shrink()) => {}
                Err(StoreError::Full | StoreError::NoMemory | StoreError::NoMeta) => break,
                Err(_) => return Err(DiskError::Io),
            }
        }
        Err(DiskError::NoSpace)
    }

    /// Changes a part of a page.
    fn change(
        &self,
        number: u64,
        worker: &mut Worker,
        change: impl FnOnce(&mut Page),
    ) -> Result<(), DiskError> {
        let _alone = self.stripes.of(number);
        let Worker { scratch, page } = worker;
        self.load(number, page, scratch)?;
        change(page);
        self.store(number, page, scratch)
    }

    /// Forgets whole pages.
    fn forget(&self, pages: Range<u64>) {
        let store = self.member.store();
        let forgotten = if pages.end - pages.start > FEW {
            let _alone = self.stripes.all();
            store.invalidate_range(self.pool, 0, pages)
        } else {
            let forget = |page: &u64| {
                let _alone = self.stripes.of(*page);
                store.invalidate(self.key(*page))
            };
            pages.filter(forget).count() as u64
        };
        self.discarded.fetch_add(forgotten, Relaxed);
    }
}

/// A part of a page: its number, and bytes within it.
type Part = (u64, Range<usize>);

/// The parts of pages that a range of the disk consists of.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (number, from) = (at / PAGE, at % PAGE);
        let to = (end - number * PAGE).min(PAGE);
        at = number * PAGE + to;
        // Both are at most a page.
        #[allow(clippy::cast_possible_truncation)]
        (from < to).then_some((number, from as usize..to as usize))
    })
}

/// The pages that lie within a range as a whole.
fn whole_pages(offset: u64, len: u64) -> Range<u64> {
    let (first, end) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
    first..end.max(first)
}

impl Disk for Volume {
    type Worker = Worker;

    fn worker(&self) -> Worker {
        Worker { scratch: self.store().scratch(), page: Box::new([0; PAGE_SIZE]) }
    }

    fn size(&self) -> u64 {
        self.shared.size
    }

    fn read(&self, offset: u64, mut out: &mut [u8], worker: &mut Worker) -> Result<(), DiskError> {
        for (number, part) in parts(offset, out.len() as u64) {
            let (here, rest) = out.split_at_mut(part.len());
            out = rest;
            let Worker { scratch, page } = &mut *worker;
            if let Ok(page) = <&mut Page>::try_from(&mut *here) {
                self.shared.load(number, page, scratch)?;
            } else {
                self.shared.load(number, page, scratch)?;
                here.copy_from_slice(&page[part]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8], worker: &mut Worker) -> Result<(), DiskError> {
        for (number, part) in parts(offset, data.len() as u64) {
            let (here, rest) = data.split_at(part.len());
            data = rest;
            if let Ok(page) = <&Page>::try_from(here) {
                let _alone = self.shared.stripes.of(number);
                self.shared.store(number, page, &mut worker.scratch)?;
            } else {
                self.shared.change(number, worker, |page| page[part].copy_from_slice(here))?;
            }
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, worker: &mut Worker) -> Result<(), DiskError> {
        let (whole, end) = (whole_pages(offset, len), offset + len);
        let head = offset..(whole.start * PAGE).min(end);
        let tail = (whole.end * PAGE).clamp(head.end, end)..end;
        for (number, part) in
            [head, tail].into_iter().flat_map(|range| parts(range.start, range.end - range.start))
        {
            if self.store().contains(self.shared.key(number)) {
                self.shared.change(number, worker, |page| page[part].fill(0))?;
            }
        }
        self.shared.forget(whole);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, _: &mut Worker) -> Result<(), DiskError> {
        self.shared.forget(whole_pages(offset, len));
        Ok(())
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, each: &mut dyn FnMut(Extent) -> bool) {
        let (mut at, end) = (offset, offset + len);
        let mut piece = Extent { len: 0, kind: ExtentKind::Hole };
        while at < end {
            let number = at / PAGE;
            let stored = self.store().stored_near(self.shared.key(number)) >> (number % NEAR);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_pages() {
        let cut = |offset, len| parts(offset, len).collect::<Vec<_>>();
        assert_eq!(cut(0, 4096), [(0, 0..4096)]);
        assert_eq!(cut(100, 5000), [(0, 100..4096), (1, 0..1004)]);
        assert_eq!(cut(8191, 2), [(1, 4095..4096), (2, 0..1)]);
        assert_eq!((cut(5, 0), cut(4096, 0)), (vec![], vec![]));
        assert_eq!((whole_pages(1, 8191), whole_pages(0, 8191), whole_pages(100, 50)), (1..2, 0..1, 1..1));
    }
}
