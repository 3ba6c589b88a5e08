//! The pages of a disk: each is a page of a store under its number; what the store does not have is zeros.
//!
//! Who changes a page is alone with it ([`crate::stripes`]). Guarantee: a page that cannot be stored stays as it was.

use crate::ages::Ages;
use crate::changed::Changed;
use crate::counts::Counts;
use crate::face::DiskError;
use crate::stripes::Stripes;
use ramfold::{Key, LoadError, PAGE_SIZE, Page, PageState, PoolId, PoolKind, Scratch, StoreError};
use ramfold_budget::member::Member;
use ramfold_budget::pooled::Pooled;
use std::fmt::Debug;
use std::ops::Range;
use std::slice::from_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How often a page is tried to be stored while others take the room.
const TRIES: usize = 256;
/// Up to so many pages are discarded one by one; more of them with all stripes held.
const FEW: u64 = 64;

/// What makes pages outlive the process.
pub(crate) trait Keeper: Debug + Send + Sync {
    /// Returns when all pages that were changed before are kept, as they were or as they were changed since.
    fn keep(self: Arc<Self>, pages: &Arc<Pages>) -> Result<(), DiskError>;
}

/// The pages that were not kept since they were changed, and who keeps them.
#[derive(Debug)]
struct Kept {
    changed: Changed,
    keeper: Arc<dyn Keeper>,
}

/// The pages, and what is known of them.
#[derive(Debug)]
pub(crate) struct Pages {
    member: Arc<Member>,
    door: Arc<Pooled>,
    pool: PoolId,
    stripes: Stripes,
    pub(crate) ages: Ages,
    pub(crate) counts: Counts,
    /// Pages that there may be.
    most: u64,
    kept: OnceLock<Kept>,
    /// Each worker has one. Locked where one begins.
    workers: Mutex<Arc<()>>,
}

/// One thread's working memory.
#[derive(Debug)]
pub struct Worker {
    pub(crate) scratch: Scratch,
    /// A page of which a part is wanted.
    pub(crate) page: Box<Page>,
    _counted: Arc<()>,
}

impl Pages {
    /// So many pages of zeros.
    pub(crate) fn new(member: Arc<Member>, door: Arc<Pooled>, most: u64) -> Self {
        let pool = member.store().create_pool(PoolKind::Persistent, None);
        let (stripes, ages, counts) = (Stripes::default(), Ages::new(), Counts::default());
        let kept = OnceLock::new();
        Self { member, door, pool, stripes, ages, counts, most, kept, workers: Mutex::default() }
    }

    /// Pages that there may be.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Pages that the store has.
    pub(crate) fn stored(&self) -> u64 {
        self.member.store().stats().stored_pages
    }

    /// From now on what changes is noted, and flushed to this keeper. Once, while nobody changes any.
    pub(crate) fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        let _ = self.kept.set(Kept { changed: Changed::new(self.most), keeper });
    }

    /// Those that were not kept since they were changed, if they are to be.
    pub(crate) fn changed(&self) -> Option<&Changed> {
        self.kept.get().map(|kept| &kept.changed)
    }

    /// Returns when what was changed before has the durability that was promised.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<(), DiskError> {
        self.kept.get().map_or(Ok(()), |kept| Arc::clone(&kept.keeper).keep(self))
    }

    fn mark(&self, number: u64) {
        if let Some(kept) = self.kept.get() {
            kept.changed.mark(number);
        }
    }

    /// Takes a mark off a page and gives the page, which is then as it was marked or later. None: there was no mark;
    /// false: the page is a hole.
    pub(crate) fn take(
        &self,
        marks: &Changed,
        number: u64,
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<Option<bool>, DiskError> {
        let _alone = self.stripes.of(number);
        if !marks.clear(number) {
            return Ok(None);
        }
        match self.member.store().load(self.key(number), page, scratch) {
            Ok(()) => Ok(Some(true)),
            Err(LoadError::Miss) => Ok(Some(false)),
            Err(_) => {
                marks.mark(number);
                Err(DiskError::Io)
            }
        }
    }

    /// Working memory for one thread.
    pub(crate) fn worker(&self) -> Worker {
        let (scratch, page) = (self.member.store().scratch(), Box::new([0; PAGE_SIZE]));
        Worker { scratch, page, _counted: Arc::clone(&self.counted()) }
    }

    fn counted(&self) -> MutexGuard<'_, Arc<()>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Working memory of the store.
    pub(crate) fn scratch(&self) -> Scratch {
        self.member.store().scratch()
    }

    /// While this is held there is no worker, and none begins. None: there are some.
    pub(crate) fn without_workers(&self) -> Option<MutexGuard<'_, Arc<()>>> {
        Some(self.counted()).filter(|workers| Arc::strong_count(workers) == 1)
    }

    /// Tells what the store knows of each page of a range that it has, in order, until `each` returns false.
    pub(crate) fn look(&self, pages: Range<u64>, each: &mut dyn FnMut(u64, PageState) -> bool) {
        self.member.store().look(self.pool, 0, pages, each);
    }

    /// Gives each page of the range that there is, in order, until `each` fails. If `is_alone`, nobody changes any
    /// meanwhile.
    pub(crate) fn each<E>(
        &self,
        pages: Range<u64>,
        is_alone: bool,
        mut each: impl FnMut(u64, Result<&Page, DiskError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (store, mut done) = (self.member.store(), Ok(()));
        let (mut scratch, mut page) = (store.scratch(), [0; PAGE_SIZE]);
        let _alone = is_alone.then(|| self.stripes.all());
        self.look(pages, &mut |number, _| {
            done = match store.load(self.key(number), &mut page, &mut scratch) {
                Ok(()) => each(number, Ok(&page)),
                Err(LoadError::Miss) if !is_alone => Ok(()),
                Err(_) => each(number, Err(DiskError::Io)),
            };
            done.is_ok()
        });
        done
    }

    /// What the store calls a page.
    pub(crate) fn key(&self, page: u64) -> Key {
        Key { pool: self.pool, object: 0, index: page }
    }

    /// Gives pages that follow one another.
    pub(crate) fn load(
        &self,
        first: u64,
        mut pages: &mut [Page],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        let mut number = first;
        while !pages.is_empty() {
            let count = match self.member.store().load_run(self.key(number), pages, scratch) {
                Ok(count) => {
                    self.ages.touch(number..number + count as u64);
                    count
                }
                Err(LoadError::Miss) => {
                    pages[0].fill(0);
                    1
                }
                Err(_) => return Err(DiskError::Io),
            };
            pages = &mut pages[count..];
            number += count as u64;
        }
        Ok(())
    }

    /// Lends pages that follow one another: see [`ramfold::Store::lend`].
    pub(crate) fn lend(&self, pages: Range<u64>, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let count = usize::try_from(pages.end - pages.start).unwrap_or(usize::MAX);
        let is_lent = self.member.store().lend(self.key(pages.start), count, with);
        if is_lent {
            self.ages.touch(pages);
        }
        is_lent
    }

    /// Makes pages fresh, in order, while there may be more of them.
    pub(crate) fn fetch(&self, pages: Range<u64>, worker: &mut Worker) -> Result<(), DiskError> {
        let Worker { scratch, page, .. } = worker;
        let mut done = Ok(());
        self.look(pages, &mut |number, _| {
            let _alone = self.stripes.of(number);
            match self.member.store().fetch(self.key(number), page, scratch) {
                Ok(has_room) => has_room,
                Err(LoadError::Miss) => true,
                Err(_) => {
                    done = Err(DiskError::Io);
                    false
                }
            }
        });
        done
    }

    /// Makes room in the budget for one more page, before its stripe is taken: others may take their time.
    fn fits(&self) -> Result<(), DiskError> {
        if self.door.fits(&self.member) { Ok(()) } else { Err(DiskError::NoSpace) }
    }

    /// Stores a page; the caller is alone with it. The room that this thread makes may be taken by others, so it tries
    /// again as long as room is to be had.
    fn store_alone(&self, number: u64, page: &Page, scratch: &mut Scratch) -> Result<(), DiskError> {
        let store = self.member.store();
        for _ in 0..TRIES {
            match store.store(self.key(number), page, scratch) {
                Ok(()) => {
                    self.ages.touch(number..number + 1);
                    self.mark(number);
                    self.member.enter(0);
                    return Ok(());
                }
                Err(StoreError::Full) if self.makes_room() => {}
                Err(StoreError::Full | StoreError::NoMemory | StoreError::NoMeta) => break,
                Err(_) => return Err(DiskError::Io),
            }
        }
        Err(DiskError::NoSpace)
    }

    /// Puts a page in the place of what was there.
    pub(crate) fn store(&self, number: u64, page: &Page, scratch: &mut Scratch) -> Result<(), DiskError> {
        self.fits()?;
        let _alone = self.stripes.of(number);
        self.store_alone(number, page, scratch)
    }

    /// Changes a part of a page.
    pub(crate) fn change(
        &self,
        number: u64,
        worker: &mut Worker,
        change: impl FnOnce(&mut Page),
    ) -> Result<(), DiskError> {
        self.fits()?;
        let _alone = self.stripes.of(number);
        let Worker { scratch, page, .. } = worker;
        self.load(number, from_mut(page), scratch)?;
        change(page);
        self.store_alone(number, page, scratch)
    }

    /// Forgets whole pages.
    pub(crate) fn forget(&self, pages: Range<u64>) {
        let store = self.member.store();
        let forget = |page: &u64| {
            let _alone = self.stripes.of(*page);
            self.ages.forget(&(*page..page + 1));
            let was_there = store.invalidate(self.key(*page));
            if was_there {
                self.mark(*page);
            }
            was_there
        };
        let forgotten = if pages.end - pages.start > FEW {
            let _alone = self.stripes.all();
            self.ages.forget(&pages);
            if let Some(kept) = self.kept.get() {
                // What is not there is a hole where it is kept as well, or is marked.
                self.look(pages.clone(), &mut |number, _| {
                    kept.changed.mark(number);
                    true
                });
            }
            store.invalidate_range(self.pool, 0, pages)
        } else {
            pages.filter(forget).count() as u64
        };
        self.counts.notify_free.fetch_add(forgotten, Relaxed);
    }

    /// Writes back a little, for a client waits. False if that gives no room.
    fn makes_room(&self) -> bool {
        self.counts.writestall.fetch_add(1, Relaxed);
        self.member.bite()
    }
}
