//! Who waits for room hears those who give up; and an allocation is refused only when nothing more can be held.

mod common;

use ramfold::{Config, PAGE_SIZE};
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::{Wait, until_low};
use ramfold_budget::member::Member;
use std::cell::Cell;

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
