//! The staging window: where evicted pages lie between the program and the store.
//!
//! A page leaves the program into a place of the window at once, and is compressed from there; a fault meanwhile
//! finds it in its place. Behind the window lie the parts through which contents are dropped, and the bells: pages that
//! are never there, so that whoever touches one causes a fault, which the handler hears.
//!
//! Price: the frames of the window while it is in use. Guarantee: they count until they are given back.

use crate::SetupError;
use crate::mask::Mask;
use crate::pages::{BLOCK_BYTES, BLOCK_PAGES};
use crate::sys::{self, PAGE};
use crate::uffd::Uffd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks that all evictors together can hold in the staging window.
pub(crate) const STAGING_BLOCKS: usize = 32;
/// Blocks of the window through which contents are dropped.
const TRASH_BLOCKS: usize = 4;
/// The window, the trash, the evictors', and the bells.
const STAGING_BYTES: usize = (STAGING_BLOCKS + TRASH_BLOCKS + 2) * BLOCK_BYTES + Bell::ALL.len() * PAGE;

/// A page that is rung by touching it. What one caller silences must not be what another waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bell {
    /// Of the threads: one has begun, or has ended.
    Threads = 0,
    /// Of who waits until changes are taken up ([`crate::changes`]).
    Changes = 1,
    /// Of the evictor that has pages to give back ([`crate::give_back`]).
    GiveBack = 2,
}

impl Bell {
    pub(crate) const ALL: [Self; 3] = [Self::Threads, Self::Changes, Self::GiveBack];
}

/// Where evicted pages lie between the program and the store: block-sized places in memory of the pager's own.
#[derive(Debug)]
pub(crate) struct Staging {
    base: usize,
    /// The block that a place holds, plus one; 0 for none. Changed under the block's group lock.
    holds: [AtomicUsize; STAGING_BLOCKS],
    /// Frames of pages that are in the store already.
    stored: AtomicU64,
    /// Of the reader, by an evictor.
    asked: Mutex<Option<Asked>>,
}

/// Pages of a stretch that the store does not take ([`crate::give_back`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unstored {
    /// The number of the stretch's first page.
    pub(crate) first: usize,
    /// The address in the window of what was there.
    pub(crate) staged: usize,
    /// Which of the stretch.
    pub(crate) pages: Mask,
}

/// What the evictor asks of the reader of messages, and its answer.
#[derive(Debug)]
enum Asked {
    For(Unstored),
    Given(Mask),
}

impl Staging {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let base = sys::map_own(STAGING_BYTES)?.addr().get();
        let holds = std::array::from_fn(|_| AtomicUsize::new(0));
        Ok(Self { base, holds, stored: AtomicU64::new(0), asked: Mutex::default() })
    }

    /// Has its faults told.
    pub(crate) fn register(&self, uffd: &Uffd) -> Result<(), Errno> {
        uffd.register(self.base, STAGING_BYTES)
    }

    /// The address of a place.
    pub(crate) fn addr(&self, place: usize) -> usize {
        self.base + place * BLOCK_BYTES
    }

    /// Says which block a place holds; the block's group is locked.
    pub(crate) fn hold(&self, place: usize, block: Option<usize>) {
        self.holds[place].store(block.map_or(0, |block| block + 1), Ordering::Relaxed);
    }

    /// Where a page that is being evicted lies; its group is locked.
    pub(crate) fn find(&self, page: usize) -> Option<usize> {
        let wanted = page / BLOCK_PAGES + 1;
        let place = self.holds.iter().position(|holds| holds.load(Ordering::Relaxed) == wanted)?;
        Some(self.addr(place) + page % BLOCK_PAGES * PAGE)
    }

    /// Has the reader give these back. One evictor asks at a time; nobody does when a process is forked.
    pub(crate) fn ask_for(&self, unstored: Unstored) {
        *self.asked() = Some(Asked::For(unstored));
    }

    /// What is to be given back now, once.
    pub(crate) fn asked_for(&self) -> Option<Unstored> {
        let mut asked = self.asked();
        let Some(Asked::For(unstored)) = *asked else { return None };
        *asked = None;
        Some(unstored)
    }

    /// These were given back.
    pub(crate) fn answer(&self, given: Mask) {
        *self.asked() = Some(Asked::Given(given));
    }

    /// The answer.
    pub(crate) fn given_back(&self) -> Option<Mask> {
        match *self.asked() {
            Some(Asked::Given(given)) => Some(given),
            _ => None,
        }
    }

    fn asked(&self) -> MutexGuard<'_, Option<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the address lies in the window.
    pub(crate) fn contains(&self, addr: usize) -> bool {
        (self.base..self.base + STAGING_BYTES).contains(&addr)
    }

    /// Causes a fault, for the handler to wake up and look around; returns when it has.
    pub(crate) fn ring(&self, bell: Bell) {
        let _ = sys::populate_read(self.bell(bell), PAGE);
    }

    /// Makes it possible to ring again, once a ring was answered.
    pub(crate) fn silence(&self, bell: Bell) {
        let _ = sys::discard_unseen(self.bell(bell), PAGE);
    }

    /// The page that is missing until the handler has heard the bell, or is gone.
    pub(crate) fn bell(&self, bell: Bell) -> usize {
        self.evictors_trash(true).end + bell as usize * PAGE
    }

    /// The part that nobody keeps anything in; whoever uses it has the space locked, and leaves it empty.
    pub(crate) fn trash(&self) -> std::ops::Range<usize> {
        self.addr(STAGING_BLOCKS)..self.addr(STAGING_BLOCKS + TRASH_BLOCKS)
    }

    /// The same for an evictor, which does not lock the space: one for the reader's own, one for the other.
    pub(crate) fn evictors_trash(&self, is_reader: bool) -> std::ops::Range<usize> {
        let place = STAGING_BLOCKS + TRASH_BLOCKS + usize::from(is_reader);
        self.addr(place)..self.addr(place + 1)
    }

    /// Whether the window is locked, as nothing of the pager's locks it.
    pub(crate) fn is_locked(&self) -> bool {
        sys::is_locked(self.base)
    }

    /// Pages in the window that are in the store already.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Notes that so many pages in the window are in the store now: their frames count until [`Staging::discard`].
    pub(crate) fn note_stored(&self, pages: u64) {
        self.stored.fetch_add(pages, Ordering::Relaxed);
    }

    /// Gives the frames of some places back to the system; `stored` of them were noted as such.
    pub(crate) fn discard(&self, places: std::ops::Range<usize>, stored: u64) {
        // Its own memory, writable and not locked: it cannot fail.
        let _ = sys::discard_unseen(self.addr(places.start), places.len() * BLOCK_BYTES);
        self.stored.fetch_sub(stored, Ordering::Relaxed);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        sys::unmap_own(self.base, STAGING_BYTES);
    }
}
