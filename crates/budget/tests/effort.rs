//! Who waits for room hears those who give up; and an allocation is refused only when nothing more can be held.

use ramfold::tier::open_swap;
use ramfold::{Config, PAGE_SIZE};
use ramfold_budget::Host;
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::{Wait, until_low};
use ramfold_budget::extents::open_tier;
use ramfold_budget::member::Member;
use ramfold_budget::segment::Segment;
use ramfold_budget::usage::{Account, Usage};
use std::sync::Arc;

const LIMIT: u64 = 16 << 20;

struct Dies;

impl Host for Dies {
    fn die(&self, message: &str, _reported: bool) -> ! {
        panic!("{message}");
    }
}

/// The only member of a budget, whose swap file may have so many bytes.
fn member(swap: u64) -> Member {
    let segment = Arc::new(Segment::create(LIMIT, swap).unwrap().1);
    let slot = segment.attach(&|_| ()).unwrap();
    let account = Arc::new(Account::new(segment, slot));
    let file = (swap > 0).then(|| open_swap(None).unwrap());
    let tier = open_tier(file, &account, &Dies, &mut Vec::new()).unwrap();
    Member::new(&Config::default(), tier, Usage::new(account, false, &Dies).unwrap()).unwrap()
}

/// A door that is over the limit whatever it gives.
struct Over;

impl Door for Over {
    fn resident(&self) -> u64 {
        LIMIT + PAGE_SIZE as u64
    }

    fn candidates(&self) -> usize {
        1
    }

    fn oldest(&self) -> Option<u64> {
        None
    }
}

fn in_vain(member: &Member) {
    assert!(!until_low(member, &Over, Given::default));
}

#[test]
fn who_waits_hears_the_evictor_however_late_that_speaks() {
    let member = member(64 << 20);
    let mut wait = Wait::new(&member);
    for _ in 0..7 {
        in_vain(&member);
    }
    assert!(wait.is_unheard(&member), "it may have been at work already when the wait began, and get on now");
    in_vain(&member);
    assert!(!wait.is_unheard(&member));
    let mut pages = 1;
    assert!(!until_low(&member, &Over, || Given { pages: std::mem::take(&mut pages), ..Given::default() }));
    assert!(wait.is_unheard(&member), "a page was given");
}

#[test]
fn no_allocation_is_refused_while_the_swap_file_has_room() {
    for (swap, exhausted) in [(64 << 20, false), (0, true)] {
        let member = member(swap);
        assert!(!until_low(&member, &Over, || Given { refused: 1, ..Given::default() }));
        assert_eq!(member.is_exhausted(), exhausted, "{swap} bytes");
    }
}
