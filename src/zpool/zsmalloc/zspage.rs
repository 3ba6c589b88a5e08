//! The descriptor of a zspage, and the lists by fullness that a class keeps its zspages in.
//!
//! Descriptors lie in one table, by the number of the zspage's block, and link to each other by number. All
//! fields are atomics so that they may be looked at without a lock, but only `pins` is ever changed without
//! the lock of the class.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::zpool::reservation::{Field8, Field16, Field32, Table, Zeroed};

/// No zspage: the end of a list.
pub(super) const NONE: u32 = u32::MAX;
/// No slot: the end of a zspage's chain of free slots.
pub(super) const NO_SLOT: u16 = u16::MAX;

/// Lists by the share of slots in use, in eighths of the zspage's full number (as the kernel's fullness
/// groups); zspages with no free slot are not among them.
const GROUPS: u8 = 8;
/// The list of zspages without a free slot that still have pages to commit.
const GROWABLE: u8 = GROUPS;
/// No list: all pages are committed and all slots in use.
const FULL: u8 = GROUPS + 1;

/// Set in `pins` while the objects of the zspage are being moved.
const MOVING: u32 = 1 << 31;

/// One zspage, in the block that has the descriptor's number.
///
/// Equations, under the lock of the class, for shape `(size, pages_max, slots_max)`:
/// `live <= fresh <= slots <= slots_max`; `slots` = the slots that fit into the `pages` committed pages;
/// the chain from `free` has `fresh - live` slots, all below `fresh` and not in use;
/// the tag of each slot in use names a handle whose place is that slot.
/// `live == 0`: the descriptor is not in use.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Zspage {
    /// Readers and writers inside the objects, and [`MOVING`].
    pins: AtomicU32,
    next: Field32,
    prev: Field32,
    /// Where the tags are, for the class of whole pages.
    pub(super) side: Field32,
    /// The first slot of the chain of free slots.
    pub(super) free: Field16,
    /// The first slot that was never used.
    pub(super) fresh: Field16,
    /// Slots in use.
    pub(super) live: Field16,
    /// Slots in committed pages.
    pub(super) slots: Field16,
    pub(super) class: Field8,
    /// Pages committed.
    pub(super) pages: Field8,
    list: Field8,
}

// SAFETY: the type consists of atomic integers, for which zero bytes are zeros.
unsafe impl Zeroed for Zspage {}

impl Zspage {
    /// Keeps the objects where they are until [`Zspage::unpin`]. False if they are being moved just now.
    pub(super) fn pin(&self) -> bool {
        let before = self.pins.fetch_add(1, Ordering::Acquire);
        before & MOVING == 0 || {
            self.unpin();
            false
        }
    }

    /// Takes one pin back.
    pub(super) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Release);
    }

    /// Keeps pins away, if there are none, until [`Zspage::settle`]. Under the lock of the class.
    pub(super) fn start_moving(&self) -> bool {
        self.pins.compare_exchange(0, MOVING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends what [`Zspage::start_moving`] began.
    pub(super) fn settle(&self) {
        self.pins.fetch_and(!MOVING, Ordering::Release);
    }

    /// Makes the descriptor that of a new zspage without objects, which is on no list. Pins stay: a reader who
    /// comes too late may hold one for the moment that it takes to see that its object is elsewhere.
    pub(super) fn reset(&self, class: u8, side: u32) {
        self.class.set(class);
        self.side.set(side);
        self.free.set(NO_SLOT);
        self.fresh.set(0);
        self.live.set(0);
        self.list.set(FULL);
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.live.get() < self.slots.get()
    }
}

/// The zspages of one class, by fullness. Under the lock of the class.
#[derive(Debug)]
pub(super) struct Lists {
    heads: [u32; GROUPS as usize + 1],
}

impl Default for Lists {
    fn default() -> Self {
        Self { heads: [NONE; GROUPS as usize + 1] }
    }
}

impl Lists {
    /// The fullest zspage with a free slot.
    pub(super) fn fullest(&self) -> Option<u32> {
        self.heads[..GROUPS as usize].iter().rev().copied().find(|head| *head != NONE)
    }

    /// A zspage without a free slot, and with pages to commit.
    pub(super) fn growable(&self) -> Option<u32> {
        Some(self.heads[GROWABLE as usize]).filter(|head| *head != NONE)
    }

    /// The zspages with free slots, the sparsest group first.
    pub(super) fn sparsest<'a>(&'a self, zspages: &'a Table<Zspage>) -> impl Iterator<Item = u32> + 'a {
        let groups = self.heads[..GROUPS as usize].iter();
        groups.flat_map(|head| follow(zspages, *head))
    }

    /// Puts the zspage on the list where it belongs now, for a class of `most` slots a zspage.
    pub(super) fn refile(&mut self, zspages: &Table<Zspage>, number: u32, most: usize) {
        let zspage = &zspages[number];
        let (live, slots) = (usize::from(zspage.live.get()), usize::from(zspage.slots.get()));
        debug_assert!(live <= usize::from(zspage.fresh.get()) && usize::from(zspage.fresh.get()) <= slots);
        debug_assert!(slots <= most);
        let list = if live < slots {
            // The shift stands for a division of `most` by GROUPS; live < most.
            let shift = most.next_power_of_two().trailing_zeros().saturating_sub(GROUPS.trailing_zeros());
            u8::try_from(live >> shift).expect("below GROUPS")
        } else if slots < most {
            GROWABLE
        } else {
            FULL
        };
        if list != zspage.list.get() {
            self.unlink(zspages, number);
            self.link(zspages, number, list);
        }
    }

    /// Takes the zspage off its list, if it is on one.
    pub(super) fn unlink(&mut self, zspages: &Table<Zspage>, number: u32) {
        let zspage = &zspages[number];
        let list = zspage.list.get();
        if list == FULL {
            return;
        }
        let (prev, next) = (zspage.prev.get(), zspage.next.get());
        match prev {
            NONE => self.heads[list as usize] = next,
            _ => zspages[prev].next.set(next),
        }
        if next != NONE {
            zspages[next].prev.set(prev);
        }
        zspage.list.set(FULL);
    }

    fn link(&mut self, zspages: &Table<Zspage>, number: u32, list: u8) {
        let zspage = &zspages[number];
        zspage.list.set(list);
        if list == FULL {
            return;
        }
        let head = std::mem::replace(&mut self.heads[list as usize], number);
        zspage.prev.set(NONE);
        zspage.next.set(head);
        if head != NONE {
            zspages[head].prev.set(number);
        }
    }

    /// Checks that the listed zspages have class `class` and are where they belong. Returns how many there are.
    pub(super) fn check(&self, zspages: &Table<Zspage>, class: u8) -> usize {
        let mut count = 0;
        for (list, head) in self.heads.iter().enumerate() {
            let mut prev = NONE;
            for number in follow(zspages, *head) {
                let zspage = &zspages[number];
                assert_eq!((usize::from(zspage.list.get()), zspage.prev.get()), (list, prev));
                assert_eq!(zspage.class.get(), class);
                assert_eq!(zspage.has_free_slot(), list < usize::from(GROUPS));
                prev = number;
                count += 1;
            }
        }
        count
    }

    /// Whether the zspage is on a list, by its own account.
    pub(super) fn is_listed(zspage: &Zspage) -> bool {
        zspage.list.get() != FULL
    }
}

fn follow(zspages: &Table<Zspage>, head: u32) -> impl Iterator<Item = u32> + '_ {
    let some = |number: u32| Some(number).filter(|number| *number != NONE);
    std::iter::successors(some(head), move |number| some(zspages[*number].next.get()))
}
