//! What a member holds of the swap file follows what lives there, though nobody else asks for room; and what goes there
//! follows what memory that cannot leave takes of the limit.

mod common;

use ramfold::tier::Tier;
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolKind};
use ramfold_budget::member::Member;
use ramfold_budget::pooled::Pooled;
use ramfold_budget::segment::{EXTENT_SIZE, Gauge};

fn member() -> Member {
    let config = Config { max_pool_bytes: 1 << 20, duplicate_pages_enabled: false, ..Config::default() };
    common::member(64 << 20, 256 << 20, &config)
}

/// A page that does not compress.
fn page(number: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.as_chunks_mut::<8>().0 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        *word = random.to_le_bytes();
    }
    page
}

#[test]
fn what_is_mostly_dead_is_given_back() {
    /// Pages in all, and of how many one is kept.
    const PAGES: u64 = 16 << 10;
    const KEPT: u64 = 64;
    let member = member();
    let store = member.store();
    let pool = store.create_pool(PoolKind::Persistent, None);
    let key = |index| Key { pool, object: 0, index };
    let mut scratch = store.scratch();
    for number in 0..PAGES {
        if store.store(key(number), &page(number), &mut scratch).is_err() {
            store.shrink();
            store.store(key(number), &page(number), &mut scratch).unwrap();
        }
    }
    let held = member.segment().swap_used();
    assert!(held > 48 << 20, "{held}");
    (0..PAGES).filter(|number| number % KEPT != 0).for_each(|number| assert!(store.invalidate(key(number))));
    let tier = member.tier.as_ref().unwrap();
    assert_eq!(member.segment().swap_used(), held, "something lives in each extent");
    // An extent at a time.
    (0..held / EXTENT_SIZE).for_each(|_| member.tick(&Pooled::default()));
    let (left, live) = (tier.used_bytes(), tier.live_bytes());
    assert!(left <= 8 * live + 8 * EXTENT_SIZE && left < held / 2, "{left} of {held} for {live}");
    let mut found = Box::new([0; PAGE_SIZE]);
    for number in (0..PAGES).step_by(KEPT.try_into().unwrap()) {
        store.load(key(number), &mut found, &mut scratch).unwrap();
        assert!(found == page(number), "page {number}");
    }
}

#[test]
fn memory_that_cannot_leave_is_beyond_a_sixteenth_no_part_of_what_pools_share() {
    /// Pages in all, 31 MiB.
    const PAGES: u64 = 31 << 8;
    for (unmanaged, most) in [(0, 32 << 20), (4 << 20, 32 << 20), (48 << 20, 10 << 20)] {
        let member = member();
        let (store, segment) = (member.store(), member.segment());
        let other = segment.attach(&|_| ()).unwrap();
        segment.charge(other, Gauge::Own, unmanaged);
        member.set_max_pool(32 << 20);
        let pool = store.create_pool(PoolKind::Persistent, None);
        let mut scratch = store.scratch();
        for index in 0..PAGES {
            let key = Key { pool, object: 0, index };
            if store.store(key, &page(index), &mut scratch).is_err() {
                store.shrink();
                store.store(key, &page(index), &mut scratch).unwrap();
            }
        }
        assert!(store.pool_bytes() <= most, "{} of {most}", store.pool_bytes());
        assert_eq!(store.stats().tier_pages > 0, most < 32 << 20);
    }
}
