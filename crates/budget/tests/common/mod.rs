//! A budget with one member.

use ramfold::Config;
use ramfold::tier::open_swap;
use ramfold_budget::Host;
use ramfold_budget::extents::open_tier;
use ramfold_budget::member::Member;
use ramfold_budget::segment::Segment;
use ramfold_budget::usage::{Account, Usage};
use std::sync::Arc;

struct Dies;

impl Host for Dies {
    fn die(&self, message: &str, _reported: bool) -> ! {
        panic!("{message}");
    }
}

/// The only member of a budget of `limit` bytes, with a store of these settings, whose swap file may have `swap` bytes;
/// without one if that is nothing.
pub fn member(limit: u64, swap: u64, config: &Config) -> Member {
    let segment = Arc::new(Segment::create(limit, swap).unwrap().1);
    let slot = segment.attach(&|_| ()).unwrap();
    let account = Arc::new(Account::new(segment, slot));
    let file = (swap > 0).then(|| open_swap(None).unwrap());
    let tier = open_tier(file, &account, &Dies, &mut Vec::new()).unwrap();
    Member::new(config, tier, Usage::new(account, false, &Dies).unwrap()).unwrap()
}
