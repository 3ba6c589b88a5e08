//! One byte for each page of the managed range: where the page is, and how often it came back.
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
//! Pages are grouped by 1024 (4 MiB); a page's byte changes only under its group's lock (256 locks, by hash of
//! the group). What the lock also covers: the page-table change that goes with a state change, and the store
//! entry of a page while it is Stored. Two groups' locks are never held together.
//!
//! The tables are reserved for the whole range and cost memory only where they are touched: one byte a page,
//! eight bytes a block.

use crate::sys::{self, PAGE};
use rustix::io::Errno;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages in a block, the unit of eviction.
pub(crate) const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE;
/// Pages in a group, the unit of locking.
pub(crate) const GROUP_PAGES: usize = 1024;
const LOCKS: usize = 256;
const MAX_HEAT: u8 = 15;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    None,
    Resident,
    Evicting,
    Stored,
}

/// Per block: whether the evictor's queue holds it, whether an evictor works on it, and when it was last
/// evicted from (in evicted blocks since the start).
#[derive(Debug)]
pub(crate) struct Block {
    flags: AtomicU32,
    evicted_at: AtomicU32,
}

const QUEUED: u32 = 1;
const BUSY: u32 = 2;

/// The tables of all pages. Page numbers count from the start of the managed range.
#[derive(Debug)]
pub(crate) struct Pages {
    base: usize,
    len: usize,
    states: NonNull<AtomicU8>,
    blocks: NonNull<Block>,
    live: NonNull<AtomicU32>,
    locks: Box<[Mutex<()>]>,
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
    _lock: MutexGuard<'a, ()>,
}

impl Pages {
    /// Tables for `len` bytes of address space from `base`, all None.
    pub(crate) fn new(base: usize, len: usize) -> Result<Self, Errno> {
        let count = len / PAGE;
        Ok(Self {
            base,
            len: count,
            states: sys::map_own(count)?.cast(),
            blocks: sys::map_own(count / BLOCK_PAGES * size_of::<Block>())?.cast(),
            live: sys::map_own(count / GROUP_PAGES * size_of::<AtomicU32>())?.cast(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            resident: AtomicU64::new(0),
        })
    }

    /// The number of the page that holds the address.
    pub(crate) fn number(&self, addr: usize) -> usize {
        (addr - self.base) / PAGE
    }

    /// The address of a page.
    pub(crate) fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// Pages that are Resident or Evicting: those that have a frame of their own.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Locks the group that holds the page.
    pub(crate) fn lock(&self, page: usize) -> Group<'_> {
        let group = page / GROUP_PAGES;
        let index = group.wrapping_mul(0x9e37_79b9) >> 8 & (LOCKS - 1);
        Group { pages: self, _lock: self.locks[index].lock().unwrap_or_else(PoisonError::into_inner) }
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

    /// Whether all pages of the page's group are None; exact only for who excludes changes otherwise.
    pub(crate) fn group_is_empty(&self, page: usize) -> bool {
        self.live(page).load(Ordering::Relaxed) == 0
    }

    /// The block's record.
    pub(crate) fn block(&self, block: usize) -> &Block {
        assert!(block < self.len / BLOCK_PAGES);
        // SAFETY: the table has an element for each block; zeroed memory is a valid Block.
        unsafe { self.blocks.add(block).as_ref() }
    }

    fn live(&self, page: usize) -> &AtomicU32 {
        assert!(page < self.len);
        // SAFETY: the table has an element for each group.
        unsafe { self.live.add(page / GROUP_PAGES).as_ref() }
    }

    fn byte(&self, page: usize) -> &AtomicU8 {
        assert!(page < self.len);
        // SAFETY: the table has an element for each page.
        unsafe { self.states.add(page).as_ref() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        sys::unmap_own(self.states.addr().get(), self.len);
        sys::unmap_own(self.blocks.addr().get(), self.len / BLOCK_PAGES * size_of::<Block>());
        sys::unmap_own(self.live.addr().get(), self.len / GROUP_PAGES * size_of::<AtomicU32>());
    }
}

impl Group<'_> {
    pub(crate) fn state(&self, page: usize) -> State {
        match self.pages.byte(page).load(Ordering::Relaxed) & 0xf {
            0 => State::None,
            1 => State::Resident,
            2 => State::Evicting,
            _ => State::Stored,
        }
    }

    /// Changes the state, keeps the heat (a page that becomes None forgets it), and keeps the counts right.
    pub(crate) fn set(&self, page: usize, state: State) {
        let byte = self.pages.byte(page);
        let old = self.state(page);
        let heat = if state == State::None { 0 } else { byte.load(Ordering::Relaxed) & 0xf0 };
        byte.store(heat | state as u8, Ordering::Relaxed);
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
    pub(crate) fn heat(&self, page: usize) -> u8 {
        self.pages.byte(page).load(Ordering::Relaxed) >> 4
    }

    pub(crate) fn set_heat(&self, page: usize, heat: u8) {
        let byte = self.pages.byte(page);
        byte.store(byte.load(Ordering::Relaxed) & 0xf | heat.min(MAX_HEAT) << 4, Ordering::Relaxed);
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

    pub(crate) fn end_eviction(&self, now: u32) {
        self.evicted_at.store(now, Ordering::Relaxed);
        self.flags.fetch_and(!BUSY, Ordering::Release);
    }

    /// Evicted blocks between the last eviction from this one and `now`.
    pub(crate) fn age(&self, now: u32) -> u32 {
        now.wrapping_sub(self.evicted_at.load(Ordering::Relaxed))
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
            assert_eq!(pages.group_is_empty(page), state == State::None);
        }
        group.set(page, State::Resident);
        group.set_heat(page, 99);
        group.set(page, State::Stored);
        assert_eq!(group.heat(page), 15);
    }

    #[test]
    fn ranges_are_cut_at_groups() {
        let parts: Vec<_> = Pages::by_group(1000..2100).collect();
        assert_eq!(parts, [1000..1024, 1024..2048, 2048..2100]);
    }
}
