//! Fresh pages: kept as they are for now, compressed later, and never in the way of others.

use crate::doubles::{Bench, FaultyZpool, MemoryTier, page, small_page};
use ramfold::{Config, Key, LoadError, PAGE_SIZE, PoolId, PoolKind, Store, Which};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = PAGE_SIZE as u64;

fn bench(pool_pages: u64, fresh_pages: u64, tier: Option<Arc<MemoryTier>>) -> (Bench, PoolId) {
    let config = Config { max_pool_bytes: pool_pages * PAGE, shrink_inline: false, ..Config::default() };
    let bench = Bench::new(&config, tier.map(|tier| tier as _));
    bench.store.set_most_fresh(fresh_pages * PAGE);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (bench, pool)
}

/// With room for fresh pages, over a zpool that fails when told to.
fn bench_over_faulty() -> (Bench, Arc<FaultyZpool>, PoolId) {
    let zpool = FaultyZpool::new("zsmalloc");
    let codec = Arc::from(ramfold::codec::by_name("lz4").unwrap());
    let bench = Bench::over(Store::from_parts(&Config::default(), codec, zpool.clone(), None));
    bench.store.set_most_fresh(1 << 20);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (bench, zpool, pool)
}

fn settle_all(store: &Store) -> u64 {
    std::iter::repeat_with(|| store.settle_fresh(7, Which::All).pages).take_while(|pages| *pages > 0).sum()
}

#[test]
fn a_page_is_compressed_when_it_was_left_alone_from_one_sweep_to_the_next() {
    let (mut bench, pool) = bench(1 << 16, 1 << 10, None);
    (0..100).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    assert_eq!((bench.stat("fresh_pages"), bench.stat("stored_incompressible_pages")), (100, 0));
    assert_eq!((bench.store.fresh_bytes(), bench.stat("compr_data_size")), (100 * PAGE, 100 * PAGE));
    let sweep = |bench: &Bench| bench.store.settle_fresh(1000, Which::Idle);
    let first = sweep(&bench);
    assert_eq!((first.pages, first.swept), (0, true), "seen for the first time");
    assert_eq!(bench.get(pool, 5).unwrap(), small_page(5));
    bench.put(pool, 6, &small_page(1000)).unwrap();
    assert_eq!(sweep(&bench).pages, 98, "two were used meanwhile");
    assert_eq!((bench.stat("fresh_pages"), bench.stat("settled_pages")), (2, 98));
    assert_eq!(sweep(&bench).pages, 2, "5 was seen by the sweep that came after its load");
    assert!(bench.stat("compr_data_size") < 10 * PAGE && bench.store.fresh_bytes() == 0);
    for index in 0..100 {
        let number = if index == 6 { 1000 } else { index };
        assert_eq!(bench.get(pool, index).unwrap(), small_page(number));
    }
    bench.store.check();
}

#[test]
fn a_fresh_page_is_stored_anew_in_its_place() {
    let (mut bench, zpool, pool) = bench_over_faulty();
    bench.put(pool, 1, &page(1)).unwrap();
    // A zpool without memory refuses nothing that needs none.
    zpool.no_memory.one_in.store(1, Relaxed);
    for number in [2, 3, 5, 4, 7] {
        if number != 4 {
            bench.put(pool, 1, &page(number)).unwrap();
            assert_eq!(bench.get(pool, 1).unwrap(), page(number));
        }
    }
    assert_eq!((zpool.live(), bench.stat("stores")), (1, 5));
    bench.put(pool, 1, &page(4)).unwrap();
    assert_eq!((zpool.live(), bench.stat("stores")), (1, 6), "a page of one word as any other");
    assert_eq!(bench.get(pool, 1).unwrap(), page(4));
    settle_all(&bench.store);
    assert_eq!((zpool.live(), bench.stat("fresh_pages"), bench.stat("same_filled_pages")), (0, 0, 1));
    assert_eq!(bench.get(pool, 1).unwrap(), page(4));
    bench.store.check();
}

#[test]
fn a_page_of_one_word_is_fresh_only_in_the_place_of_a_fresh_one() {
    let (mut bench, pool) = bench(1000, 100, None);
    (0..10).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    settle_all(&bench.store);
    (5..15).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    assert_eq!((bench.stat("fresh_pages"), bench.stat("stored_pages")), (10, 15));
    let filled = |index: u64| [u8::try_from(index).unwrap(); PAGE_SIZE];
    (0..20).for_each(|index| bench.put(pool, index, &filled(index)).unwrap());
    assert_eq!((bench.stat("fresh_pages"), bench.stat("same_filled_pages")), (10, 10));
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), filled(index)));
    assert_eq!(settle_all(&bench.store), 10);
    assert_eq!((bench.stat("fresh_pages"), bench.stat("same_filled_pages")), (0, 20));
    assert_eq!(bench.stat("compr_data_size"), 0);
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), filled(index)));
    bench.store.check();
}

#[test]
fn after_settling_a_store_is_as_small_as_one_without_fresh_pages() {
    let sizes = [0, 1 << 20].map(|fresh_pages| {
        let (mut bench, pool) = bench(1 << 20, fresh_pages, None);
        for index in 0..3000 {
            // One in three is a duplicate, of small pages and of such as do not compress.
            let number = if index % 3 == 0 { index % 40 } else { index };
            bench.put(pool, index, &page(number)).unwrap();
        }
        settle_all(&bench.store);
        bench.store.compact();
        for index in 0..3000 {
            let number = if index % 3 == 0 { index % 40 } else { index };
            assert_eq!(bench.get(pool, index).unwrap(), page(number));
        }
        bench.store.check();
        let stats = bench.store.stats();
        assert_eq!(stats.fresh_pages, 0);
        assert_eq!((stats.same_filled_pages, stats.stored_pages), (750, 3000));
        [stats.compr_data_size, stats.pool_total_size, 3000 - stats.duplicate_pages]
    });
    // Which duplicates are found is a matter of the order.
    assert!(
        sizes[1].iter().zip(sizes[0]).all(|(with, without)| *with <= without + without / 50),
        "{sizes:?}"
    );
    assert!(sizes[1][2] < 2400, "duplicates are found");
}

#[test]
fn what_is_fresh_is_not_in_the_way_of_a_store() {
    let stored = [0, 12].map(|fresh_pages| {
        let (mut bench, pool) = bench(100, fresh_pages, None);
        let stored = bench.fill(pool, 100 * PAGE);
        assert_eq!(bench.stat("fresh_pages"), 0, "all were compressed before one was refused");
        assert_eq!(bench.stat("settled_pages"), fresh_pages);
        (0..stored).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
        stored
    });
    assert!(stored[1] >= stored[0] && stored[0] > 1000, "{stored:?}");
}

#[test]
fn fresh_pages_stay_within_their_bound_and_under_the_accept_threshold() {
    let (mut bench, pool) = bench(100, 30, None);
    (0..50).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    assert_eq!(bench.stat("fresh_pages"), 30);
    bench.store.set_most_fresh(1000 * PAGE);
    (50..200).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    let held = bench.store.pool_bytes();
    let fresh = bench.stat("fresh_pages");
    assert!(fresh >= 45 && held <= 84 * PAGE, "{fresh}, {held}: the last block is kept free");
    // None becomes fresh, those that are stay.
    bench.store.set_most_fresh(0);
    let fresh = bench.stat("fresh_pages");
    bench.put(pool, 500, &small_page(500)).unwrap();
    assert_eq!(bench.stat("fresh_pages"), fresh);
    assert_eq!(settle_all(&bench.store), fresh);
}

#[test]
fn writeback_writes_what_was_compressed() {
    let tier = Arc::new(MemoryTier::default());
    let (mut bench, pool) = bench(200, 100, Some(tier.clone()));
    (0..100).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    assert_eq!(bench.stat("fresh_pages"), 100);
    bench.store.reclaim(50 * PAGE);
    assert_eq!((tier.len(), bench.stat("written_back_pages")), (0, 0), "to compress was enough");
    bench.store.reclaim(50 * PAGE);
    assert_eq!((tier.len(), bench.stat("fresh_pages")), (100, 0));
    let written = bench.stat("writeback_bytes");
    assert!(written < 100 * 400, "{written} bytes for pages of some 200");
    (0..100).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    bench.store.check();
}

#[test]
fn a_limit_that_falls_is_kept_by_compressing() {
    let (mut bench, pool) = bench(1000, 500, None);
    (0..400).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    assert!(bench.store.pool_bytes() >= 400 * PAGE);
    bench.store.set_max_pool_bytes(100 * PAGE);
    bench.shrink();
    assert!(bench.store.pool_bytes() <= 84 * PAGE, "{}", bench.store.pool_bytes());
    (0..400).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
}

#[test]
fn a_page_that_is_loaded_twice_between_two_sweeps_becomes_fresh() {
    let (mut bench, pool) = bench(1000, 0, None);
    (0..20).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    bench.store.set_most_fresh(100 * PAGE);
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    assert!(bench.store.settle_fresh(1, Which::Idle).swept);
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    assert_eq!(bench.stat("fresh_pages"), 0, "once each time");
    (0..10).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    assert_eq!((bench.stat("fresh_pages"), bench.stat("stores")), (10, 20));
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    settle_all(&bench.store);
    (0..20).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    bench.store.check();
}

#[test]
fn a_page_that_is_damaged_while_it_is_fresh_is_told() {
    let (mut bench, zpool, pool) = bench_over_faulty();
    (0..2).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    zpool.damage.nth.store(1, Relaxed);
    assert!(bench.get(pool, 0).is_err(), "by a load");
    zpool.damage.nth.store(1, Relaxed);
    bench.store.settle_fresh(1, Which::All);
    assert_eq!(bench.stat("stored_pages"), 2, "by a sweep it is not compressed");
    assert!([0, 1].iter().all(|index| bench.get(pool, *index).unwrap() == small_page(*index)));
    assert!(bench.store.invalidate(Key { pool, object: 0, index: 0 }));
    bench.store.check();
}

#[test]
fn what_is_fetched_is_fresh_wherever_it_lay_as_long_as_there_may_be_more() {
    let tier = Arc::new(MemoryTier::default());
    let (mut bench, pool) = bench(200, 0, Some(tier.clone()));
    (0..40).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    bench.store.reclaim(100 * PAGE);
    assert_eq!(tier.len(), 40, "all have left memory");
    (40..80).for_each(|index| bench.put(pool, index, &small_page(index)).unwrap());
    let (mut room, mut scratch) = ([0; PAGE_SIZE], bench.store.scratch());
    let mut fetch =
        |store: &Store, index| store.fetch(Key { pool, object: 0, index }, &mut room, &mut scratch);
    assert!(!fetch(&bench.store, 0).unwrap(), "none may be fresh");
    bench.store.set_most_fresh(30 * PAGE);
    for index in (0..20).chain(40..50) {
        assert!(fetch(&bench.store, index).unwrap());
        assert!(fetch(&bench.store, index).unwrap(), "it is fresh already");
    }
    assert!(!fetch(&bench.store, 20).unwrap());
    assert!(matches!(fetch(&bench.store, 100), Err(LoadError::Miss)));
    assert_eq!((tier.len(), bench.stat("fresh_pages"), bench.stat("stores")), (20, 30, 80));
    bench.store.check();
    (0..80).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    assert_eq!(settle_all(&bench.store), 30);
    (0..80).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    bench.store.check();
}

#[test]
fn neighbours_that_lie_as_they_are_are_loaded_together() {
    let (mut bench, pool) = bench(1 << 16, 1 << 10, None);
    let numbers = || (0..100).filter(|number| number % 4 != 0);
    for (index, number) in (10..85).zip(numbers()) {
        bench.put(pool, index, &page(number)).unwrap();
    }
    let mut room = vec![[0; PAGE_SIZE]; 100];
    let mut run = |bench: &mut Bench, index| {
        let loads = bench.stat("loads");
        let loaded = bench.store.load_run(Key { pool, object: 0, index }, &mut room, &mut bench.scratch);
        assert_eq!(bench.stat("loads") - loads, *loaded.as_ref().unwrap_or(&0) as u64);
        loaded.map(|count| room[..count].to_vec())
    };
    let pages = |from: usize, count| numbers().skip(from).take(count).map(page).collect::<Vec<_>>();
    assert_eq!(run(&mut bench, 10).unwrap(), pages(0, 54), "to the end of a leaf");
    assert_eq!(run(&mut bench, 64).unwrap(), pages(54, 21), "to where there are no more");
    assert!(matches!(run(&mut bench, 85), Err(LoadError::Miss)));
    // 20 lies nowhere, and 25 is missing.
    bench.put(pool, 20, &[7; PAGE_SIZE]).unwrap();
    bench.store.invalidate(Key { pool, object: 0, index: 25 });
    let with_filled = [pages(5, 5), vec![[7; PAGE_SIZE]], pages(11, 4)].concat();
    assert_eq!(run(&mut bench, 15).unwrap(), with_filled);
    assert_eq!(run(&mut bench, 20).unwrap(), with_filled[5..]);
    // Those that were loaded stay as they are for one sweep more.
    bench.store.settle_fresh(1000, Which::Idle);
    assert_eq!(run(&mut bench, 30).unwrap(), pages(20, 34));
    bench.store.settle_fresh(1000, Which::Idle);
    assert_eq!((bench.stat("fresh_pages"), run(&mut bench, 29).unwrap().len()), (34, 35));
    bench.store.check();
}

#[test]
fn a_damaged_page_ends_a_run_and_is_told_to_who_loads_it() {
    let (mut bench, zpool, pool) = bench_over_faulty();
    (0..64).for_each(|index| bench.put(pool, index, &page(4 * index + 1)).unwrap());
    zpool.damage.one_in.store(8, Relaxed);
    let mut room = vec![[0; PAGE_SIZE]; 64];
    let (mut index, mut runs, mut told) = (0, 0, 0);
    while index < 64 {
        let key = Key { pool, object: 0, index };
        match bench.store.load_run(key, &mut room[..64 - index as usize], &mut bench.scratch) {
            Ok(count) => {
                assert!((index..).zip(&room[..count]).all(|(index, found)| *found == page(4 * index + 1)));
                (index, runs) = (index + count as u64, runs + 1);
            }
            Err(LoadError::Corrupt(_)) => told += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(runs > 1, "none was damaged");
    assert_eq!(bench.stat("checksum_fail"), told);
    // Nor is it lent.
    let lend = |from, count| bench.store.lend(Key { pool, object: 0, index: from }, count, &mut |_| ());
    zpool.damage.one_in.store(1, Relaxed);
    assert!(!lend(0, 1));
    zpool.damage.one_in.store(0, Relaxed);
    assert!(lend(0, 64) && lend(63, 1) && !lend(63, 2) && !lend(64, 1));
}

#[test]
fn only_pages_that_lie_as_they_are_are_lent() {
    let (mut bench, pool) = bench(1 << 16, 1 << 10, None);
    (0..64).for_each(|index| bench.put(pool, index, &page(4 * index + 1)).unwrap());
    let mut lent = Vec::new();
    let key = |index| Key { pool, object: 0, index };
    let loads = bench.stat("loads");
    assert!(bench.store.lend(key(5), 40, &mut |pages| lent = pages.concat()));
    assert_eq!(lent, (5..45).map(|index| page(4 * index + 1)).collect::<Vec<_>>().concat());
    assert_eq!(bench.stat("loads") - loads, 40);
    // Lent pages were used: the sweep that comes next leaves them.
    bench.store.settle_fresh(1000, Which::Idle);
    assert!(bench.store.lend(key(0), 64, &mut |_| ()));
    bench.store.settle_fresh(1000, Which::Idle);
    assert_eq!(bench.stat("fresh_pages"), 64);
    settle_all(&bench.store);
    assert!(!bench.store.lend(key(5), 1, &mut |_| panic!("it is compressed")));
    bench.put(pool, 5, &[7; PAGE_SIZE]).unwrap();
    assert!(!bench.store.lend(key(5), 1, &mut |_| panic!("it lies nowhere")));
    bench.put(pool, 6, &[0; PAGE_SIZE]).unwrap();
    assert!(bench.store.lend(key(6), 1, &mut |pages| assert_eq!(pages, [[0; PAGE_SIZE]])));
    // Such as do not compress stay as they are.
    (10..13).for_each(|index| bench.put(pool, index, &page(4 * index + 3)).unwrap());
    bench.put(pool, 11, &[0; PAGE_SIZE]).unwrap();
    settle_all(&bench.store);
    assert!(bench.store.lend(key(10), 3, &mut |pages| {
        assert_eq!(pages, [page(43), [0; PAGE_SIZE], page(51)]);
    }));
    bench.store.check();
}
