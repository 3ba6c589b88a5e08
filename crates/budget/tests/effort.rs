//! Who waits for room hears those who give up; and an allocation is refused only when nothing more can be held.

mod common;

use ramfold::{Config, PAGE_SIZE};
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::{Wait, until_child_fits, until_low};
use ramfold_budget::member::Member;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: u64 = 16 << 20;

/// The only member of a budget, whose swap file may have so many bytes.
fn member(swap: u64) -> Member {
    common::member(LIMIT, swap, &Config::default())
}

/// A door with four candidates that is over the limit whatever it gives, and closes after so many turns.
struct Over(Cell<usize>);

const CANDIDATES: usize = 4;

impl Door for Over {
    fn resident(&self) -> u64 {
        LIMIT + PAGE_SIZE as u64
    }

    fn candidates(&self) -> usize {
        CANDIDATES
    }

    fn oldest(&self) -> Option<u64> {
        None
    }

    fn is_closing(&self) -> bool {
        self.0.get() == 0
    }
}

/// The evictor takes so many turns, looks at one candidate in each, and comes to this.
fn turns(member: &Member, count: usize, given: Given) {
    let door = Over(Cell::new(count));
    until_low(member, &door, || {
        door.0.update(|left| left - 1);
        Given { looked_at: 1, ..given }
    });
}

#[test]
fn who_waits_hears_the_evictor_however_late_that_speaks() {
    const PASSES: usize = 16;
    let nothing = Given::default();
    for (able, looks) in [(true, CANDIDATES), (false, PASSES * CANDIDATES)] {
        let member = member(64 << 20);
        let (mut wait, door) = (Wait::new(&member), Over(Cell::new(0)));
        turns(&member, looks, nothing);
        assert!(wait.is_unheard(&member, &door, able), "the last may have been looked at before");
        turns(&member, 1, nothing);
        assert!(!wait.is_unheard(&member, &door, able));
        turns(&member, 1, Given { pages: 1, ..nothing });
        turns(&member, looks, nothing);
        assert!(wait.is_unheard(&member, &door, able), "a page was given since");
    }
}

#[test]
fn no_allocation_is_refused_while_the_swap_file_has_room() {
    for (swap, exhausted) in [(64 << 20, false), (0, true)] {
        let member = member(swap);
        turns(&member, 100, Given { refused: 1, ..Given::default() });
        assert_eq!(member.is_exhausted(), exhausted, "{swap} bytes");
    }
}

/// A door that has so many bytes in memory, and an evictor that runs until it closes.
struct Held {
    resident: AtomicU64,
    is_closing: AtomicBool,
}

impl Door for Held {
    fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    fn candidates(&self) -> usize {
        CANDIDATES
    }

    fn oldest(&self) -> Option<u64> {
        None
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }
}

/// What is left in memory of so many bytes after a fork has asked for room, if the evictor gives so many pages a turn.
fn left_by_a_fork(bytes: u64, pages: usize) -> u64 {
    let member = member(64 << 20);
    let door = Held { resident: bytes.into(), is_closing: false.into() };
    member.refresh(bytes);
    let give = || {
        door.resident.fetch_sub((pages * PAGE_SIZE) as u64, Ordering::Relaxed);
        Given { pages, looked_at: 1, refused: 0 }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !door.is_closing() {
                until_low(&member, &door, give);
                member.event().wait(Duration::from_millis(1));
            }
        });
        until_child_fits(&member, &door);
        door.is_closing.store(true, Ordering::Relaxed);
    });
    door.resident()
}

#[test]
fn a_fork_finds_room_for_a_child_if_the_child_could_fill_it() {
    assert!(left_by_a_fork(LIMIT, 16) <= LIMIT - LIMIT / 8);
    assert_eq!(left_by_a_fork(LIMIT, 0), LIMIT, "nothing can be given, and nobody waits for it");
    assert_eq!(left_by_a_fork(LIMIT / 2 - 1, 16), LIMIT / 2 - 1, "there is room for two of it");
}
