//! The rules of the store, one at a time.

use crate::doubles::{Bench, MemoryTier, Random, page, small_page};
use ramfold::{
    Config, ConfigError, Key, LoadError, PAGE_SIZE, PoolKind, PoorPages, Shrunk, Stop, StoreError,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = PAGE_SIZE as u64;

fn limited(pages: u64) -> Config {
    Config { max_pool_bytes: pages * PAGE, ..Config::default() }
}

#[test]
fn what_is_stored_is_loaded_until_it_is_invalidated() {
    let mut bench = Bench::new(&Config::default(), None);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    for number in 0..400 {
        bench.put(pool, number, &page(number)).unwrap();
    }
    for number in 0..400 {
        assert_eq!(bench.get(pool, number).unwrap(), page(number));
    }
    assert_eq!(bench.stat("same_filled_pages"), 100);
    assert_eq!(bench.stat("stored_incompressible_pages"), 100);
    assert_eq!((bench.stat("stored_pages"), bench.stat("stores"), bench.stat("loads")), (400, 400, 400));
    let key = Key { pool, object: 0, index: 7 };
    assert!(bench.store.contains(key) && bench.store.invalidate(key) && !bench.store.invalidate(key));
    assert!(!bench.store.contains(key));
    assert!(matches!(bench.get(pool, 7), Err(LoadError::Miss)));
    assert_eq!(bench.store.invalidate_range(pool, 0, 5..69), 63);
    assert_eq!(bench.store.invalidate_range(pool, 0, 0..u64::MAX), 336);
    assert_eq!((bench.stat("stored_pages"), bench.stat("compr_data_size")), (0, 0));
    assert_eq!((bench.stat("invalidates"), bench.stat("misses")), (400, 1));
    bench.store.check();
}

#[test]
fn put_put_get_gives_the_second() {
    let mut bench = Bench::new(&Config::default(), None);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    for first in 0..8 {
        for second in 0..8 {
            bench.put(pool, 1, &page(first)).unwrap();
            bench.put(pool, 1, &page(second)).unwrap();
            assert_eq!(bench.get(pool, 1).unwrap(), page(second));
        }
    }
    assert_eq!(bench.stat("stored_pages"), 1);
    bench.store.check();
}

#[test]
fn a_refused_store_leaves_the_persistent_page_and_removes_the_ephemeral() {
    let config = Config { poor: PoorPages::Refuse, ..Config::default() };
    let mut bench = Bench::new(&config, None);
    let persistent = bench.store.create_pool(PoolKind::Persistent, None);
    let ephemeral = bench.store.create_pool(PoolKind::Ephemeral, None);
    for pool in [persistent, ephemeral] {
        bench.put(pool, 1, &page(1)).unwrap();
        assert_eq!(bench.put(pool, 1, &page(3)), Err(StoreError::Poor));
    }
    assert_eq!(bench.get(persistent, 1).unwrap(), page(1));
    assert!(matches!(bench.get(ephemeral, 1), Err(LoadError::Miss)));
    assert_eq!((bench.stat("reject_compress_poor"), bench.stat("invalidates")), (2, 0));
    bench.store.set_enabled(false);
    assert_eq!(bench.put(persistent, 1, &page(5)), Err(StoreError::Disabled));
    assert_eq!(bench.get(persistent, 1).unwrap(), page(1));
}

#[test]
fn the_compression_ratio_says_what_is_poor() {
    for zpool in ["zsmalloc", "zbud", "xvmalloc"] {
        let config = Config { zpool: zpool.to_owned(), max_compression_ratio: 40, ..Config::default() };
        let mut bench = Bench::new(&config, None);
        let pool = bench.store.create_pool(PoolKind::Persistent, None);
        for number in 1..4 {
            bench.put(pool, number, &page(number)).unwrap();
        }
        assert_eq!(bench.stat("stored_incompressible_pages"), 2, "{zpool}: pages 2 and 3 are above 40 %");
        bench.store.set_max_compression_ratio(60);
        bench.put(pool, 2, &page(6)).unwrap();
        assert_eq!(bench.stat("stored_incompressible_pages"), 1, "{zpool}: half a page is not");
        for (index, number) in [(1, 1), (2, 6), (3, 3)] {
            assert_eq!(bench.get(pool, index).unwrap(), page(number), "{zpool}");
        }
        assert!(bench.store.pool_bytes() >= PAGE);
        bench.store.check();
    }
}

#[test]
fn a_full_pool_is_shrunk_until_it_accepts_and_the_oldest_go_first() {
    let tier = Arc::new(MemoryTier::default());
    let config = Config { shrink_inline: false, ..limited(200) };
    let mut bench = Bench::new(&config, Some(tier.clone()));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let stored = bench.fill(pool, 200 * PAGE);
    assert_eq!((bench.stat("reject_reclaim_fail"), bench.stat("pool_limit_hit")), (1, 1));
    assert!(bench.store.needs_shrink());
    // The oldest ten are used again.
    (0..10).for_each(|index| assert_eq!(bench.get(pool, index).unwrap(), small_page(index)));
    let Shrunk { written_back, stop, freed_bytes, .. } = bench.shrink();
    assert_eq!(stop, Stop::Done);
    assert!(written_back > 50 && freed_bytes >= 20 * PAGE, "{written_back} pages, {freed_bytes} bytes");
    assert!(bench.store.pool_bytes() <= 180 * PAGE && !bench.store.needs_shrink());
    assert_eq!(tier.len() as u64, written_back);
    assert!(tier.writes.load(Relaxed) <= 1 + written_back / 16, "never one page a write");
    // Second chance: the loaded ones stayed; of the others, the first stored went.
    for index in 0..stored {
        let before = bench.stat("tier_loads");
        assert_eq!(bench.get(pool, index).unwrap(), small_page(index));
        let from_tier = bench.stat("tier_loads") > before;
        match index {
            0..10 => assert!(!from_tier, "page {index} was used again"),
            index if index < written_back / 2 => assert!(from_tier, "page {index} is old"),
            index if index > written_back * 2 => assert!(!from_tier, "page {index} is young"),
            _ => {}
        }
    }
    assert_eq!(bench.stat("written_back_pages"), written_back);
    bench.store.check();
}

#[test]
fn who_is_waited_for_shrinks_a_full_pool_by_little_and_leaves_the_rest() {
    const LITTLE: u64 = 64 << 10;
    let tier = Arc::new(MemoryTier::default());
    let config = Config { shrink_inline: false, ..limited(2000) };
    let mut bench = Bench::new(&config, Some(tier.clone()));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let stored = bench.fill(pool, 2000 * PAGE);
    let Shrunk { written_back, stop, .. } = bench.store.shrink_by(LITTLE);
    assert_eq!(stop, Stop::Done);
    let bytes = bench.stat("writeback_bytes");
    assert!(written_back > 0 && (LITTLE..5 * LITTLE).contains(&bytes), "{written_back} pages, {bytes} bytes");
    assert!(bench.store.needs_shrink(), "it is not under the accept threshold");
    bench.put(pool, stored, &small_page(stored)).expect("objects of this size have left");
    assert_eq!(bench.shrink().stop, Stop::Done);
    assert!(bench.stat("writeback_bytes") > 2 * bytes && !bench.store.needs_shrink());
    assert_eq!(bench.store.shrink_by(LITTLE).written_back, 0, "there is nothing to do");
    bench.store.check();
}

#[test]
fn above_the_accept_threshold_after_full_is_a_limit_hit_too() {
    let tier = Arc::new(MemoryTier::default());
    tier.capacity.store(1, Relaxed);
    let mut bench = Bench::new(&limited(100), Some(tier));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    bench.fill(pool, 100 * PAGE);
    assert_eq!(bench.stat("pool_limit_hit"), 1);
    assert_eq!(bench.shrink().stop, Stop::TierFull);
    bench.store.invalidate_range(pool, 0, 0..60);
    bench.store.compact();
    let held = bench.store.pool_bytes();
    assert!(held > 90 * PAGE && held < 100 * PAGE, "{held}");
    bench.put(pool, 0, &small_page(0)).unwrap();
    assert_eq!(bench.stat("pool_limit_hit"), 2);
}

#[test]
fn a_store_makes_room_for_itself() {
    for (percent, zpool) in [(100, "zsmalloc"), (90, "zbud"), (0, "xvmalloc")] {
        let tier = Arc::new(MemoryTier::default());
        let config = Config { accept_threshold_percent: percent, zpool: zpool.to_owned(), ..limited(100) };
        let mut bench = Bench::new(&config, Some(tier));
        let pool = bench.store.create_pool(PoolKind::Persistent, None);
        for number in 0..3000 {
            bench.put(pool, number, &page(number)).unwrap();
            assert!(bench.store.pool_bytes() <= 100 * PAGE);
        }
        for number in 0..3000 {
            assert_eq!(bench.get(pool, number).unwrap(), page(number), "{zpool} {number}");
        }
        assert!(bench.stat("written_back_pages") > 1000 && bench.stat("tier_loads") > 1000);
        assert_eq!(bench.stat("reject_reclaim_fail"), 0);
        bench.store.check();
    }
}

#[test]
fn ephemeral_pages_are_dropped_and_persistent_ones_never() {
    let mut bench = Bench::new(&limited(100), None);
    let persistent = bench.store.create_pool(PoolKind::Persistent, None);
    let ephemeral = bench.store.create_pool(PoolKind::Ephemeral, None);
    for number in 0..200 {
        bench.put(persistent, number, &small_page(number)).unwrap();
    }
    for number in 1000..5000 {
        bench.put(ephemeral, number, &small_page(number)).unwrap();
    }
    let there = (1000..5000).filter(|&number| bench.get(ephemeral, number).is_ok()).count();
    assert!(there > 100 && there < 3000, "{there}");
    assert!((4900..5000).all(|number| bench.get(ephemeral, number).is_ok()), "the youngest are there");
    (0..200).for_each(|number| assert_eq!(bench.get(persistent, number).unwrap(), small_page(number)));
    assert_eq!(bench.stat("dropped_pages"), 4000 - there as u64);
    bench.store.destroy_pool(ephemeral);
    assert_eq!(bench.stat("stored_pages"), 200);
    assert_eq!(bench.put(ephemeral, 1, &page(1)), Err(StoreError::NoPool));
    // Without anything to drop, a full pool refuses, and loses nothing.
    let refused =
        (200..3000).find(|&number| bench.put(persistent, number, &small_page(number)).is_err()).unwrap();
    assert_eq!(bench.shrink().stop, Stop::NothingToEvict);
    (0..refused).for_each(|number| assert_eq!(bench.get(persistent, number).unwrap(), small_page(number)));
    bench.store.check();
}

#[test]
fn a_memlimit_takes_the_least_recently_used_of_its_own_pool() {
    let mut bench = Bench::new(&Config::default(), None);
    let other = bench.store.create_pool(PoolKind::Ephemeral, None);
    let pool = bench.store.create_pool(PoolKind::Ephemeral, Some(64 << 10));
    for number in 0..500 {
        bench.put(other, number, &small_page(10_000 + number)).unwrap();
        bench.put(pool, number, &small_page(number)).unwrap();
        bench.get(pool, 0).unwrap();
    }
    assert!((0..500).all(|number| bench.get(other, number).is_ok()), "the other pool is left alone");
    assert!(bench.get(pool, 0).is_ok() && (460..500).all(|number| bench.get(pool, number).is_ok()));
    assert!((1..100).all(|number| bench.get(pool, number).is_err()), "the oldest went first");
    let persistent = bench.store.create_pool(PoolKind::Persistent, Some(1000));
    assert!(bench.put(persistent, 0, &small_page(1)).is_ok());
    let refused =
        (1..50).filter(|&number| bench.put(persistent, number, &small_page(20_000 + number)).is_err());
    assert!(refused.count() > 40, "no tier: a full persistent pool refuses");
    bench.store.check();
}

#[test]
fn a_memlimit_changes_and_counts_what_others_have_as_well() {
    let mut bench = Bench::new(&Config::default(), None);
    let other = bench.store.create_pool(PoolKind::Ephemeral, None);
    let pool = bench.store.create_pool(PoolKind::Ephemeral, Some(1 << 20));
    for number in 0..500 {
        // The same bytes in both pools, and twice in one of them.
        bench.put(other, number, &small_page(number)).unwrap();
        bench.put(pool, number, &small_page(number)).unwrap();
        bench.put(pool, 1000 + number, &small_page(number)).unwrap();
    }
    let (bytes, all) = (bench.store.bytes_of_pool(pool), bench.store.stats());
    assert_eq!((all.stored_pages, all.duplicate_pages), (1500, 0));
    assert_eq!(bytes, all.compr_data_size / 3 * 2, "each page counts");
    bench.store.set_memlimit(pool, bytes / 4);
    let left = bench.store.bytes_of_pool(pool);
    assert!(left <= bytes / 4 && left > bytes / 8, "{left} of {bytes}");
    assert!(
        (0..100).chain(1000..1100).all(|number| bench.get(pool, number).is_err()),
        "the oldest went first"
    );
    assert!((480..500).chain(1480..1500).all(|number| bench.get(pool, number).is_ok()));
    assert!((0..500).all(|number| bench.get(other, number).is_ok()));
    bench.store.set_memlimit(pool, 1 << 20);
    (0..500).for_each(|number| bench.put(pool, number, &small_page(number)).unwrap());
    assert!((0..500).all(|number| bench.get(pool, number).is_ok()));
    bench.store.set_memlimit(pool, 0);
    assert_eq!(bench.store.bytes_of_pool(pool), 0);
    assert!(bench.put(pool, 0, &small_page(1)).is_err());
    bench.store.check();
}

#[test]
fn duplicates_share_and_let_go_one_by_one() {
    let tier = Arc::new(MemoryTier::default());
    let mut bench = Bench::new(&Config { shrink_inline: false, ..limited(1000) }, Some(tier.clone()));
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    for index in 0..300 {
        bench.put(pool, index, &page(3)).unwrap();
    }
    assert_eq!((bench.stat("duplicate_pages"), bench.stat("compr_data_size")), (299, PAGE));
    bench.put(pool, 0, &page(3)).unwrap();
    assert_eq!((bench.stat("duplicate_pages"), bench.stat("stores")), (299, 301), "the same page again");
    bench.put(pool, 5, &page(7)).unwrap();
    assert_eq!(bench.get(pool, 4).unwrap(), page(3));
    assert_eq!((bench.get(pool, 5).unwrap(), bench.stat("duplicate_pages")), (page(7), 298));
    bench.store.set_duplicates(false);
    bench.put(pool, 300, &page(3)).unwrap();
    assert_eq!((bench.stat("duplicate_pages"), bench.stat("compr_data_size")), (298, 3 * PAGE));
    bench.store.check();
    // Written back, the object is one record for all.
    bench.store.set_max_pool_bytes(0);
    assert_eq!(bench.shrink().stop, Stop::Done);
    assert_eq!((tier.len(), bench.stat("stored_pages"), bench.stat("tier_pages")), (3, 0, 301));
    for index in 0..=300 {
        assert_eq!(bench.get(pool, index).unwrap(), page(if index == 5 { 7 } else { 3 }));
    }
    bench.store.check();
    assert_eq!(bench.store.invalidate_object(pool, 0), 301);
    assert_eq!((tier.len(), bench.stat("tier_pages"), bench.store.pool_bytes()), (0, 0, 0));
    bench.store.check();
}

#[test]
fn old_entries_stay_readable_when_compressor_and_zpool_change() {
    let mut bench = Bench::new(&Config::default(), None);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let compressors = ["lz4", "zstd:-1", "deflate:1", "lz4hc:4", "lz4", "zstd:3"];
    let zpools = ["zbud", "zsmalloc", "xvmalloc"];
    for (round, compressor) in compressors.iter().cycle().take(30).enumerate() {
        bench.store.set_compressor(compressor).unwrap();
        bench.store.set_zpool(zpools[round % 3]).unwrap();
        for number in round as u64 * 20..round as u64 * 20 + 20 {
            bench.put(pool, number, &page(number)).unwrap();
        }
    }
    for number in 0..600 {
        assert_eq!(bench.get(pool, number).unwrap(), page(number));
    }
    assert!(matches!(bench.store.set_compressor("snappy"), Err(ConfigError::Compressor { .. })));
    assert!(matches!(bench.store.set_zpool("slab"), Err(ConfigError::Zpool { .. })));
    bench.store.set_same_filled(false);
    bench.put(pool, 0, &page(0)).unwrap();
    assert_eq!((bench.get(pool, 0).unwrap(), bench.stat("same_filled_pages")), (page(0), 149));
    bench.store.destroy_pool(pool);
    bench.store.compact();
    assert_eq!(bench.store.pool_bytes(), 0);
}

#[test]
fn a_range_is_renamed_wherever_its_pages_are() {
    for (from, to, count) in [(0, 1000, 300), (7, 4096, 200), (130, 1, 64), (63, 128, 2), (5, 300, 1)] {
        let tier = Arc::new(MemoryTier::default());
        let mut bench = Bench::new(&limited(40), Some(tier));
        let pool = bench.store.create_pool(PoolKind::Persistent, None);
        for index in (from..from + count).filter(|index| index % 5 != 2) {
            bench.put(pool, index, &page(index)).unwrap();
        }
        bench.store.rename_range(pool, 0, from, to, count);
        for index in 0..count {
            let old = Key { pool, object: 0, index: from + index };
            assert!(!bench.store.contains(old));
            match bench.get(pool, to + index) {
                Ok(found) => assert_eq!(found, page(from + index)),
                Err(error) => assert!((from + index) % 5 == 2 && matches!(error, LoadError::Miss), "{error}"),
            }
        }
        bench.store.check();
    }
}

#[test]
fn a_store_in_use_stays_dense_by_itself() {
    let mut bench = Bench::new(&Config { max_pool_bytes: u64::MAX, ..Config::default() }, None);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let mut random = Random(1);
    let mut put = |bench: &mut Bench, index| {
        let mut page = [0; PAGE_SIZE];
        let len = 100 + random.below(3400) as usize;
        page[..len].fill_with(|| random.next() as u8);
        bench.put(pool, index, &page).unwrap();
        random.below(6000)
    };
    for index in 0..6000 {
        put(&mut bench, index);
    }
    (0..20_000).fold(0, |index, _| put(&mut bench, index));
    let overhead = bench.stat("pool_total_size") as f64 / bench.stat("compr_data_size") as f64;
    assert!(bench.stat("pages_compacted") > 100 && overhead < 1.07, "{overhead}");
}
