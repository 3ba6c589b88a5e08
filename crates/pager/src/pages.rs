//! Two bytes for each page of the managed range: where the page is, how often it came back and how, and when it left.
//!
//! ```text
//!            touch              evict             compressed
//!   None ------------> Resident -----> Evicting ------------> Stored
//!     ^                   ^  ^             |  touch: taken back  |
//!     |                   |  +-------------+                     |
//!     |   discard, unmap  +--------------------------------------+  touch: loaded
//!     +---- from any state
//! ```
//!
//! *None*: no contents; a touch gives zeros. *Resident*: present in the program's page tables. *Evicting*: taken
//! out of them, the contents lie in a staging window until the store has them. *Stored*: in the store only.
//!
//! Pages are grouped by 1024 (4 MiB); a page's word changes only under its group's lock (256 locks, by hash of
//! the group). What the lock also covers: the page-table change that goes with a state change, and the store
//! entry of a page while it is Stored. Two groups' locks are never held together.
//!
//! The tables are reserved for the whole range and cost memory only where they are touched: two bytes a page,
//! four bytes a block.

use crate::mutex::{Locked, Mutex};
use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Pages in a block, the unit of eviction.
pub(crate) const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE;
/// Pages in a group, the unit of locking.
pub(crate) const GROUP_PAGES: usize = 1024;
const LOCKS: usize = 256;
const MAX_HEAT: u16 = 15;
/// The parts of a page's word.
const STATE: u16 = 0x0007;
const PASSED: u16 = 0x0008;
const HEAT: u16 = 0x00f0;
const LEFT: u16 = 0xff00;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    None,
    Resident,
    Evicting,
    Stored,
}

/// Per block: whether the evictor's queue holds it, and whether an evictor works on it.
#[derive(Debug)]
pub(crate) struct Block {
    flags: AtomicU32,
}

const QUEUED: u32 = 1;
const BUSY: u32 = 2;

/// The tables of all pages. Page numbers count from the start of the managed range.
#[derive(Debug)]
pub(crate) struct Pages {
    base: usize,
    len: usize,
    states: NonNull<AtomicU16>,
    blocks: NonNull<Block>,
    live: NonNull<AtomicU32>,
    locks: Box<[Mutex]>,
    resident: AtomicU64,
}

// SAFETY: the pointers lead to tables of atomics that live as long as `Pages`.
unsafe impl Send for Pages {}
// SAFETY: as above; all access through the pointers is atomic.
unsafe impl Sync for Pages {}

/// The pages of one group, locked.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    pages: &'a Pages,
    _lock: Locked<'a>,
}

impl Pages {
    /// Tables for `len` bytes of address space from `base`, all None.
    pub(crate) fn new(base: usize, len: usize) -> Result<Self, Errno> {
        let count = len / PAGE;
        Ok(Self {
            base,
            len: count,
            states: sys::map_own(count * size_of::<AtomicU16>())?.cast(),
            blocks: sys::map_own(count / BLOCK_PAGES * size_of::<Block>())?.cast(),
            live: sys::map_own(count / GROUP_PAGES * size_of::<AtomicU32>())?.cast(),
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            resident: AtomicU64::new(0),
        })
    }

    /// The number of the page that holds the address.
    pub(crate) fn number(&self, addr: usize) -> usize {
        (addr - self.base) / PAGE
    }

    /// The managed addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        self.base..self.addr(self.len)
    }

    /// The address of a page.
    pub(crate) fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// Pages that are Resident or Evicting: those that have a frame of their own.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Whether the page has a frame; without the lock it may not have it any more.
    pub(crate) fn seems_framed(&self, page: usize) -> bool {
        framed(state(self.word(page).load(Ordering::Relaxed)))
    }

    /// Locks the group that holds the page.
    pub(crate) fn lock(&self, page: usize) -> Group<'_> {
        Group { pages: self, _lock: self.mutex(page).lock() }
    }

    /// The same, but waits no longer than about `patience`.
    pub(crate) fn lock_within(&self, page: usize, patience: Duration) -> Option<Group<'_>> {
        Some(Group { pages: self, _lock: self.mutex(page).lock_within(patience)? })
    }

    fn mutex(&self, page: usize) -> &Mutex {
        let group = page / GROUP_PAGES;
        &self.locks[group.wrapping_mul(0x9e37_79b9) >> 8 & (LOCKS - 1)]
    }

    /// Cuts a range of pages at the borders of groups.
    pub(crate) fn by_group(pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            (at < pages.end).then(|| {
                let end = ((at / GROUP_PAGES + 1) * GROUP_PAGES).min(pages.end);
                std::mem::replace(&mut at, end)..end
            })
        })
    }

    /// The block's record.
    pub(crate) fn block(&self, block: usize) -> &Block {
        assert!(block < self.len / BLOCK_PAGES);
        // SAFETY: the table has an element for each block; zeroed memory is a valid Block.
        unsafe { self.blocks.add(block).as_ref() }
    }

    /// Bytes of the pages that have contents, here or away, in all groups that a range of addresses touches.
    pub(crate) fn bytes_in(&self, range: Range<usize>) -> usize {
        let first = self.number(range.start) / GROUP_PAGES * GROUP_PAGES;
        let groups = (first..=self.number(range.end - 1)).step_by(GROUP_PAGES);
        let pages: usize = groups.map(|page| self.live(page).load(Ordering::Relaxed) as usize).sum();
        range.len().min(pages * PAGE)
    }

    fn live(&self, page: usize) -> &AtomicU32 {
        assert!(page < self.len);
        // SAFETY: the table has an element for each group.
        unsafe { self.live.add(page / GROUP_PAGES).as_ref() }
    }

    fn word(&self, page: usize) -> &AtomicU16 {
        assert!(page < self.len);
        // SAFETY: the table has an element for each page.
        unsafe { self.states.add(page).as_ref() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        sys::unmap_own(self.states.addr().get(), self.len * size_of::<AtomicU16>());
        sys::unmap_own(self.blocks.addr().get(), self.len / BLOCK_PAGES * size_of::<Block>());
        sys::unmap_own(self.live.addr().get(), self.len / GROUP_PAGES * size_of::<AtomicU32>());
    }
}

impl Group<'_> {
    /// Whether all pages of the group, which holds `page`, are None. There is no asking without the lock: the thread
    /// whose touch is resolved may run on, and ask, before its page is noted.
    pub(crate) fn is_empty(&self, page: usize) -> bool {
        self.pages.live(page).load(Ordering::Relaxed) == 0
    }

    pub(crate) fn state(&self, page: usize) -> State {
        state(self.pages.word(page).load(Ordering::Relaxed))
    }

    /// Changes the state, keeps heat and time (a page that becomes None forgets them), and keeps the counts right.
    pub(crate) fn set(&self, page: usize, state: State) {
        let word = self.pages.word(page);
        let old = self.state(page);
        let history = if state == State::None { 0 } else { word.load(Ordering::Relaxed) & !STATE };
        word.store(history | state as u16, Ordering::Relaxed);
        let live = u32::from(state != State::None).wrapping_sub((old != State::None).into());
        if live != 0 {
            self.pages.live(page).fetch_add(live, Ordering::Relaxed);
        }
        let resident = u64::from(framed(state)).wrapping_sub(framed(old).into());
        if resident != 0 {
            self.pages.resident.fetch_add(resident, Ordering::Relaxed);
        }
    }

    /// How often the page came back soon after it was evicted, 0..=15, less one for each time it was spared.
    pub(crate) fn heat(&self, page: usize) -> u16 {
        (self.pages.word(page).load(Ordering::Relaxed) & HEAT) >> HEAT.trailing_zeros()
    }

    pub(crate) fn set_heat(&self, page: usize, heat: u16) {
        let heat = heat.min(MAX_HEAT) << HEAT.trailing_zeros();
        let word = self.pages.word(page);
        word.store(word.load(Ordering::Relaxed) & !HEAT | heat, Ordering::Relaxed);
    }

    /// Whether a sequence passed over the page when it came back last.
    pub(crate) fn is_passed(&self, page: usize) -> bool {
        self.pages.word(page).load(Ordering::Relaxed) & PASSED != 0
    }

    pub(crate) fn set_passed(&self, page: usize, passed: bool) {
        let word = self.pages.word(page);
        let flag = if passed { PASSED } else { 0 };
        word.store(word.load(Ordering::Relaxed) & !PASSED | flag, Ordering::Relaxed);
    }

    /// Notes when the page left, by a clock of the caller's.
    pub(crate) fn set_left(&self, page: usize, time: u8) {
        let word = self.pages.word(page);
        let time = u16::from(time) << LEFT.trailing_zeros();
        word.store(word.load(Ordering::Relaxed) & !LEFT | time, Ordering::Relaxed);
    }

    /// When the page left.
    pub(crate) fn left(&self, page: usize) -> u8 {
        (self.pages.word(page).load(Ordering::Relaxed) >> LEFT.trailing_zeros()).to_le_bytes()[0]
    }
}

fn state(word: u16) -> State {
    match word & STATE {
        0 => State::None,
        1 => State::Resident,
        2 => State::Evicting,
        _ => State::Stored,
    }
}

fn framed(state: State) -> bool {
    matches!(state, State::Resident | State::Evicting)
}

impl Block {
    /// Marks the block as queued; true for the one who has to queue it.
    pub(crate) fn mark_queued(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & QUEUED == 0
            && self.flags.fetch_or(QUEUED, Ordering::Relaxed) & QUEUED == 0
    }

    pub(crate) fn clear_queued(&self) {
        self.flags.fetch_and(!QUEUED, Ordering::Relaxed);
    }

    /// Marks the block as being evicted from; false if another evictor works on it.
    pub(crate) fn try_begin_eviction(&self) -> bool {
        self.flags.fetch_or(BUSY, Ordering::Acquire) & BUSY == 0
    }

    pub(crate) fn end_eviction(&self) {
        self.flags.fetch_and(!BUSY, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_states() {
        let pages = Pages::new(0x10_0000_0000, 64 << 20).unwrap();
        let page = 5000;
        let group = pages.lock(page);
        for (state, resident) in [
            (State::Resident, 1),
            (State::Evicting, 1),
            (State::Stored, 0),
            (State::Resident, 1),
            (State::None, 0),
        ] {
            group.set(page, state);
            assert_eq!(group.state(page), state);
            assert_eq!(pages.resident(), resident);
            assert_eq!(group.is_empty(page), state == State::None);
        }
        group.set(page, State::Resident);
        group.set_heat(page, 99);
        group.set_passed(page, true);
        group.set_left(page, 200);
        group.set(page, State::Stored);
        assert_eq!((group.heat(page), group.is_passed(page), group.left(page)), (15, true, 200));
        group.set_passed(page, false);
        assert_eq!((group.heat(page), group.is_passed(page), group.left(page)), (15, false, 200));
        assert_eq!(group.state(page), State::Stored);
    }

    #[test]
    fn ranges_are_cut_at_groups() {
        let parts: Vec<_> = Pages::by_group(1000..2100).collect();
        assert_eq!(parts, [1000..1024, 1024..2048, 2048..2100]);
    }
}
