//! Faults of the parts: nothing that was acknowledged is lost, and no page is ever a wrong one.

use crate::doubles::{Bench, FaultyCodec, FaultyZpool, MemoryTier, page, small_page};
use ramfold::tier::Tier;
use ramfold::tier::file::{FileTier, LocalExtents};
use ramfold::{Config, Corrupt, Key, LoadError, PAGE_SIZE, PoolId, PoolKind, Stop, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn small() -> Config {
    Config { max_pool_bytes: 64 * PAGE_SIZE as u64, ..Config::default() }
}

#[test]
fn whichever_write_fails_nothing_is_lost() {
    let mut most = 0;
    for nth in 1.. {
        let tier = Arc::new(MemoryTier::default());
        tier.write_error.nth.store(nth, Relaxed);
        let mut bench = Bench::new(&small(), Some(tier.clone()));
        let pool = bench.store.create_pool(PoolKind::Persistent, None);
        let stored: Vec<u64> = (0..1200).filter(|&n| bench.put(pool, n, &page(n)).is_ok()).collect();
        for &number in &stored {
            assert_eq!(bench.get(pool, number).unwrap(), page(number), "write {nth} failed");
        }
        assert_eq!(bench.stat("reject_reclaim_fail"), 1200 - stored.len() as u64);
        bench.store.check();
        bench.store.destroy_pool(pool);
        assert_eq!(tier.len(), 0, "no slot is forgotten");
        if tier.write_error.nth.load(Relaxed) > 0 {
            break;
        }
        assert_eq!(bench.stat("writeback_fail"), 1);
        most = nth;
    }
    assert!(most > 5, "writeback should happen often in this test, not {most} times");
}

#[test]
fn a_tier_that_fails_says_why() {
    let tier = Arc::new(MemoryTier::default());
    let mut bench = Bench::new(&Config { shrink_inline: false, ..small() }, Some(tier.clone()));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (0..2000).for_each(|number| {
        let _ = bench.put(pool, number, &small_page(number));
    });
    assert!(bench.store.needs_shrink());
    tier.write_error.one_in.store(1, Relaxed);
    let shrunk = bench.shrink();
    assert_eq!((shrunk.stop, shrunk.written_back), (Stop::TierError, 0));
    tier.write_error.one_in.store(0, Relaxed);
    tier.capacity.store(1, Relaxed);
    assert_eq!(bench.shrink().stop, Stop::TierFull);
    assert_eq!((bench.stat("writeback_fail"), bench.stat("written_back_pages")), (2, 0));
    tier.capacity.store(0, Relaxed);
    bench.store.set_max_pool_bytes(0);
    assert_eq!(bench.shrink().stop, Stop::Done);
    tier.read_error.one_in.store(1, Relaxed);
    assert!(matches!(bench.get(pool, 1), Err(LoadError::Tier(_))));
    tier.read_error.one_in.store(0, Relaxed);
    tier.read_damage.one_in.store(1, Relaxed);
    assert!(matches!(bench.get(pool, 1), Err(LoadError::Corrupt(Corrupt::Checksum))));
    tier.read_damage.one_in.store(0, Relaxed);
    assert_eq!(bench.get(pool, 1).unwrap(), small_page(1));
    assert_eq!((bench.stat("tier_fail"), bench.stat("checksum_fail")), (1, 1));
}

#[test]
fn a_flipped_byte_or_a_failing_codec_is_an_error_and_never_a_wrong_page() {
    let (codec, zpool) = (FaultyCodec::new("lz4"), FaultyZpool::new("zsmalloc"));
    let mut bench = Bench::over(Store::from_parts(&Config::default(), codec.clone(), zpool.clone(), None));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (0..100).for_each(|number| bench.put(pool, number, &page(number)).unwrap());
    zpool.damage.one_in.store(1, Relaxed);
    for number in (0..100).filter(|number| number % 4 != 0) {
        assert!(matches!(bench.get(pool, number), Err(LoadError::Corrupt(Corrupt::Checksum))));
        // A damaged object is no duplicate of anything.
        bench.put(pool, 1000 + number, &page(number)).unwrap();
    }
    assert_eq!(bench.stat("duplicate_pages"), 0);
    zpool.damage.one_in.store(0, Relaxed);
    codec.decompress_error.one_in.store(1, Relaxed);
    assert!(matches!(bench.get(pool, 1), Err(LoadError::Corrupt(Corrupt::Decompress))));
    codec.decompress_error.one_in.store(0, Relaxed);
    assert_eq!((bench.stat("checksum_fail"), bench.stat("decompress_fail")), (75, 1));
    (0..100).for_each(|number| assert_eq!(bench.get(pool, number).unwrap(), page(number)));
    codec.compress_error.one_in.store(1, Relaxed);
    assert_eq!(bench.put(pool, 1, &page(5001)), Err(StoreError::Compress));
    codec.compress_error.one_in.store(0, Relaxed);
    zpool.no_memory.one_in.store(1, Relaxed);
    assert_eq!(bench.put(pool, 1, &page(5001)), Err(StoreError::NoMemory));
    assert_eq!((bench.stat("reject_compress_fail"), bench.stat("reject_alloc_fail")), (1, 1));
    assert_eq!(bench.get(pool, 1).unwrap(), page(1));
    bench.store.destroy_pool(pool);
    assert_eq!(zpool.live(), 0, "no handle is forgotten");
}

#[test]
fn a_batch_that_the_tier_refuses_stays_where_it_is() {
    let (codec, zpool) = (FaultyCodec::new("lz4"), FaultyZpool::new("zsmalloc"));
    let tier = Arc::new(MemoryTier::default());
    let config = Config { shrink_inline: false, ..small() };
    let mut bench =
        Bench::over(Store::from_parts(&config, codec, zpool.clone(), Some(tier.clone() as Arc<dyn Tier>)));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (0..300).for_each(|number| {
        let _ = bench.put(pool, number, &small_page(number / 2));
    });
    let (live, held) = (zpool.live(), bench.stat("stored_pages"));
    bench.store.set_max_pool_bytes(0);
    for _ in 0..3 {
        tier.write_error.nth.store(1, Relaxed);
        assert_eq!(bench.shrink().stop, Stop::TierError);
        assert_eq!((zpool.live(), bench.stat("stored_pages"), tier.len()), (live, held, 0));
        bench.store.check();
    }
    assert_eq!(bench.shrink().stop, Stop::Done);
    assert_eq!((zpool.live(), tier.len()), (0, live));
}

#[test]
fn the_file_tier_brings_back_what_was_written() {
    let file = tempfile::tempfile().unwrap();
    let extents = Box::new(LocalExtents::new(64 << 20));
    let tier = Arc::new(FileTier::new(file, extents));
    let mut bench = Bench::new(&small(), Some(tier.clone()));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    for round in 0..3 {
        (0..3000).for_each(|number| bench.put(pool, number, &page(number * 3 + round)).unwrap());
        (0..3000).for_each(|number| assert_eq!(bench.get(pool, number).unwrap(), page(number * 3 + round)));
    }
    assert!(bench.stat("tier_loads") > 3000 && tier.used_bytes() > 0);
    bench.store.check();
}

/// What may happen to pages while writeback writes them.
const MEANWHILE: [fn(&Store, PoolId); 6] = [
    |store, pool| change(store, pool, |index| Some(index + 10_000)),
    |store, pool| change(store, pool, Some),
    |store, pool| change(store, pool, |_| None),
    |store, pool| store.rename_range(pool, 0, 0, 5000, 50),
    // There and back: under its key again, and not the one that was marked.
    |store, pool| {
        store.rename_range(pool, 0, 0, 5000, 50);
        store.rename_range(pool, 0, 5000, 0, 50);
    },
    |store, pool| {
        let mut scratch = store.scratch();
        (0..50).for_each(|index| {
            store.store(Key { pool, object: 1, index }, &small_page(index), &mut scratch).unwrap();
        });
    },
];

fn change(store: &Store, pool: PoolId, new: fn(u64) -> Option<u64>) {
    let mut scratch = store.scratch();
    for index in 0..50 {
        let key = Key { pool, object: 0, index };
        match new(index) {
            Some(number) => store.store(key, &small_page(number), &mut scratch).unwrap(),
            None => assert!(store.invalidate(key)),
        }
    }
}

#[test]
fn what_changes_while_it_is_written_back_is_not_lost() {
    for (case, meanwhile) in MEANWHILE.into_iter().enumerate() {
        for fails in [false, true] {
            let tier = Arc::new(MemoryTier::default());
            let config = Config {
                max_pool_bytes: 1000 * PAGE_SIZE as u64,
                accept_threshold_percent: 1,
                shrink_inline: false,
                ..Config::default()
            };
            let zpool = FaultyZpool::new("zsmalloc");
            let codec = FaultyCodec::new("lz4");
            let with_tier = Some(tier.clone() as Arc<dyn Tier>);
            let store = Arc::new(Store::from_parts(&config, codec, zpool.clone(), with_tier));
            let (mut scratch, pool) = (store.scratch(), store.create_pool(PoolKind::Persistent, None));
            for index in 0..2000 {
                store.store(Key { pool, object: 0, index }, &small_page(index), &mut scratch).unwrap();
            }
            let other = store.clone();
            tier.during_write.set(move || meanwhile(&other, pool));
            tier.write_error.nth.store(i64::from(fails), Relaxed);
            store.shrink();
            store.check();
            store.set_max_pool_bytes(0);
            assert_eq!(store.shrink().stop, Stop::Done, "case {case}: a page cannot leave");
            assert_eq!((zpool.live(), store.stats().stored_pages), (0, 0));
            for index in 0..2000 {
                let (from, number) = match (case, index) {
                    (0, 0..50) => (index, index + 10_000),
                    (3, 0..50) => (index + 5000, index),
                    _ => (index, index),
                };
                let mut page = [0; PAGE_SIZE];
                match store.load(Key { pool, object: 0, index: from }, &mut page, &mut scratch) {
                    Ok(()) => assert_eq!(page, small_page(number), "case {case}"),
                    Err(error) => assert!(case == 2 && index < 50, "case {case}: {error}"),
                }
            }
            store.destroy_pool(pool);
            assert_eq!(tier.len(), 0, "case {case}: a slot is forgotten");
        }
    }
}
