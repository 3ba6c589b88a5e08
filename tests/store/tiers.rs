//! Several tiers, and tiers that take their time: a double holds a write until the test lets it go.

use crate::doubles::{Bench, MemoryTier, page, small_page};
use ramfold::tier::Tier;
use ramfold::tier::file::{EXTENT_BYTES, FileTier, LocalExtents};
use ramfold::{Config, ConfigError, Key, LoadError, PAGE_SIZE, PoolId, PoolKind, Stop, Store, StoreError};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// After so long a thread that should have gone on is stuck, and the test has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A write that has begun and does not end before it is let go, or this is dropped.
struct Held {
    begun: Receiver<()>,
    go: Sender<()>,
}

impl Held {
    /// Holds the next write of the tier.
    fn next_of(tier: &MemoryTier) -> Self {
        let ((tell, begun), (go, wait)) = (channel(), channel());
        tier.during_write.set(move || {
            tell.send(()).unwrap();
            // An error is a test that has failed already.
            let _ = wait.recv();
        });
        Self { begun, go }
    }

    fn wait_until_begun(&self) {
        self.begun.recv_timeout(PATIENCE).expect("nobody writes to the tier");
    }

    fn let_go(&self) {
        self.go.send(()).unwrap();
    }
}

/// Does it in another thread, and fails if that does not end by itself.
fn goes_through<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (tell, done) = channel();
        let thread = scope.spawn(move || {
            let result = work();
            tell.send(()).unwrap();
            result
        });
        if done.recv_timeout(PATIENCE).is_err() && !thread.is_finished() {
            // The thread cannot be joined, and what is printed in a test would be kept back.
            let _ = writeln!(std::io::stderr(), "a store or load waits for a tier");
            std::process::abort();
        }
        thread.join().unwrap()
    })
}

fn shrinks<'scope>(scope: &'scope Scope<'scope, '_>, store: &'scope Store) -> ScopedJoinHandle<'scope, Stop> {
    scope.spawn(|| store.shrink().stop)
}

fn with_tiers(config: &Config, tiers: &[&Arc<MemoryTier>]) -> Bench {
    let bench = Bench::new(config, None);
    tiers.iter().for_each(|tier| bench.store.add_tier((*tier).clone()).unwrap());
    bench
}

fn limited(pages: u64) -> Config {
    Config { max_pool_bytes: pages * PAGE_SIZE as u64, shrink_inline: false, ..Config::default() }
}

fn assert_all_there(bench: &mut Bench, pool: PoolId, count: u64) {
    (0..count).for_each(|number| assert!(bench.get(pool, number).unwrap() == small_page(number), "{number}"));
    bench.store.check();
}

#[test]
fn a_tier_that_takes_its_time_holds_up_nobody_who_does_not_need_it() {
    let tier = Arc::new(MemoryTier::default());
    let mut bench = with_tiers(&Config { shrink_inline: true, ..limited(u64::MAX >> 12) }, &[&tier]);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let ephemeral = bench.store.create_pool(PoolKind::Ephemeral, Some(40_000));
    (0..2000).for_each(|number| bench.put(pool, number, &small_page(number)).unwrap());
    let Bench { store, scratch } = &mut bench;
    store.set_max_pool_bytes(store.pool_bytes() / 2);
    std::thread::scope(|scope| {
        let held = Held::next_of(&tier);
        let shrinker = shrinks(scope, store);
        held.wait_until_begun();
        assert!(!store.is_quiet());
        store.set_max_pool_bytes(u64::MAX);
        goes_through(|| {
            let mut found = [0; PAGE_SIZE];
            for index in 0..2000 {
                // Those that are being written among them.
                store.load(Key { pool, object: 0, index }, &mut found, scratch).unwrap();
                assert!(found == small_page(index));
                store.store(Key { pool, object: 1, index }, &small_page(index + 5000), scratch).unwrap();
                store
                    .store(Key { pool: ephemeral, object: 0, index }, &small_page(index + 9000), scratch)
                    .unwrap();
            }
            // Again, in the place of what is being written; and gone.
            for index in 0..500 {
                store.store(Key { pool, object: 0, index }, &small_page(index + 20_000), scratch).unwrap();
            }
            assert_eq!(store.invalidate_range(pool, 0, 500..1000), 500);
        });
        assert!(store.stats().dropped_pages > 1000 && store.stats().written_back_pages == 0);
        held.let_go();
        assert_eq!(shrinker.join().unwrap(), Stop::Done);
    });
    assert!(bench.store.is_quiet());
    for index in 0..2000 {
        match bench.get(pool, index) {
            Ok(found) => assert!(found == small_page(if index < 500 { index + 20_000 } else { index })),
            Err(error) => {
                assert!(matches!(error, LoadError::Miss) && (500..1000).contains(&index), "{error}");
            }
        }
    }
    bench.store.check();
    bench.store.destroy_pool(pool);
    assert_eq!(tier.len(), 0, "a slot is forgotten");
}

#[test]
fn two_tiers_take_batches_at_once() {
    let tiers = [Arc::new(MemoryTier::default()), Arc::new(MemoryTier::default())];
    let mut bench = with_tiers(&limited(400), &[&tiers[0], &tiers[1]]);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let count = bench.fill(pool, 400 * PAGE_SIZE as u64);
    bench.store.set_max_pool_bytes(0);
    let store = &bench.store;
    std::thread::scope(|scope| {
        let held = [Held::next_of(&tiers[0]), Held::next_of(&tiers[1])];
        let first = shrinks(scope, store);
        held[0].wait_until_begun();
        let second = shrinks(scope, store);
        held[1].wait_until_begun();
        // The one that is let go ends; what the other has on its way is not its own.
        held[1].let_go();
        while tiers[1].writes.load(Relaxed) < 2 && store.stats().stored_pages > 256 {
            std::thread::yield_now();
        }
        held[0].let_go();
        assert_eq!([first.join().unwrap(), second.join().unwrap()], [Stop::Done; 2]);
    });
    assert!(tiers.iter().all(|tier| tier.len() >= 200), "{} and {}", tiers[0].len(), tiers[1].len());
    assert_eq!((bench.stat("stored_pages"), bench.stat("tier_pages")), (0, count));
    assert_all_there(&mut bench, pool, count);
    bench.store.destroy_pool(pool);
    assert!(tiers.iter().all(|tier| tier.len() == 0), "each slot is given back where it is from");
}

#[test]
fn what_is_marked_by_one_batch_is_no_other_ones() {
    let tiers = [Arc::new(MemoryTier::default()), Arc::new(MemoryTier::default())];
    let config = Config { duplicate_pages_enabled: false, ..limited(400) };
    let mut bench = with_tiers(&config, &[&tiers[0], &tiers[1]]);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (0..100).for_each(|number| bench.put(pool, number, &small_page(number)).unwrap());
    bench.store.set_max_pool_bytes(0);
    let Bench { store, scratch } = &mut bench;
    std::thread::scope(|scope| {
        let held = [Held::next_of(&tiers[0]), Held::next_of(&tiers[1])];
        let first = scope.spawn(|| store.shrink());
        held[0].wait_until_begun();
        // The same pages anew: they get the same handles, and are taken out a second time.
        store.set_max_pool_bytes(u64::MAX);
        for index in 0..100 {
            let key = Key { pool, object: 0, index };
            assert!(store.invalidate(key));
            store.store(key, &small_page(index), scratch).unwrap();
        }
        store.set_max_pool_bytes(0);
        let second = scope.spawn(|| store.shrink());
        held[1].wait_until_begun();
        store.set_max_pool_bytes(u64::MAX);
        held[0].let_go();
        assert_eq!(first.join().unwrap().written_back, 0, "what it has marked is gone");
        held[1].let_go();
        assert_eq!(second.join().unwrap().written_back, 100);
    });
    assert_all_there(&mut bench, pool, 100);
}

#[test]
fn who_needs_room_waits_for_the_batch_under_way() {
    let tier = Arc::new(MemoryTier::default());
    let mut bench = with_tiers(&Config { shrink_inline: true, ..limited(100) }, &[&tier]);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let store = &bench.store;
    let store_all = |object| {
        let mut scratch = store.scratch();
        for index in 0..1000 {
            let page = small_page(object * 1000 + index);
            store.store(Key { pool, object, index }, &page, &mut scratch).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let held = Held::next_of(&tier);
        let [first, second] = [0, 1].map(|object| scope.spawn(move || store_all(object)));
        held.wait_until_begun();
        held.let_go();
        [first, second].into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_all_there(&mut bench, pool, 1000);
    assert_eq!(bench.stat("reject_reclaim_fail"), 0);
}

#[test]
fn a_full_tier_leaves_its_batch_to_the_next() {
    let tiers = [(); 3].map(|()| Arc::new(MemoryTier::default()));
    tiers[0].capacity.store(300, Relaxed);
    let mut bench = with_tiers(&limited(400), &[&tiers[0], &tiers[1], &tiers[2]]);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    let count = bench.fill(pool, 400 * PAGE_SIZE as u64);
    bench.store.set_max_pool_bytes(0);
    tiers[1].write_error.nth.store(1, Relaxed);
    assert_eq!(bench.shrink().stop, Stop::Done);
    assert_eq!(tiers[0].len(), 256, "one batch fits");
    assert_eq!(
        (tiers[1].len(), tiers[2].len() as u64),
        (0, count - 256),
        "one fails, and is left alone for now"
    );
    assert_eq!(bench.stat("writeback_fail"), 0, "no batch came back");
    assert_all_there(&mut bench, pool, count);
    bench.store.set_max_pool_bytes(u64::MAX);
    (count..2 * count).for_each(|number| bench.put(pool, number, &small_page(number)).unwrap());
    tiers[1].capacity.store(1, Relaxed);
    tiers[2].capacity.store(1, Relaxed);
    bench.store.set_max_pool_bytes(0);
    assert_eq!((bench.shrink().stop, bench.stat("writeback_fail")), (Stop::TierFull, 1));
    tiers[2].write_error.nth.store(1, Relaxed);
    assert_eq!((bench.shrink().stop, bench.stat("writeback_fail")), (Stop::TierError, 2));
    assert_eq!(bench.stat("stored_pages"), count);
    assert_all_there(&mut bench, pool, 2 * count);
    bench.store.destroy_pool(pool);
    assert!(tiers.iter().all(|tier| tier.len() == 0));
}

#[test]
fn two_file_tiers_hold_the_pages_of_one_store() {
    let file_tier = |extents: u64| {
        let source = Box::new(LocalExtents::new(extents * u64::from(EXTENT_BYTES)));
        Arc::new(FileTier::new(tempfile::tempfile().unwrap(), source))
    };
    let tiers = [file_tier(3), file_tier(64)];
    let config = Config { shrink_inline: true, ..limited(64) };
    let mut bench = Bench::new(&config, Some(tiers[0].clone()));
    bench.store.add_tier(tiers[1].clone()).unwrap();
    bench.store.add_tier(tiers[1].clone()).unwrap();
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    for round in 0..3 {
        (0..3000).for_each(|number| bench.put(pool, number, &page(number * 3 + round)).unwrap());
        (0..3000).for_each(|number| assert!(bench.get(pool, number).unwrap() == page(number * 3 + round)));
        bench.store.check();
    }
    assert!(tiers.iter().all(|tier| tier.live_bytes() > 1 << 19));
    assert_eq!(bench.stat("reject_reclaim_fail"), 0);
    bench.store.destroy_pool(pool);
    assert!(tiers.iter().all(|tier| tier.live_bytes() == 0));
}

#[test]
fn a_store_has_sixteen_tiers_at_most() {
    let bench = Bench::new(&Config::default(), None);
    (0..16).for_each(|_| bench.store.add_tier(Arc::new(MemoryTier::default())).unwrap());
    let more: Arc<dyn Tier> = Arc::new(MemoryTier::default());
    assert_eq!(bench.store.add_tier(more), Err(ConfigError::TooManyTiers));
}

#[test]
fn a_memlimit_writes_back_in_the_storing_thread_only_if_that_is_wanted() {
    for shrink_inline in [false, true] {
        let tier = Arc::new(MemoryTier::default());
        let config = Config { shrink_inline, accept_threshold_percent: 100, ..Config::default() };
        let mut bench = with_tiers(&config, &[&tier]);
        let pool = bench.store.create_pool(PoolKind::Persistent, Some(50_000));
        let refused = (0..1000).find(|&number| bench.put(pool, number, &small_page(number)).is_err());
        assert_eq!((refused.is_none(), tier.writes.load(Relaxed) > 0), (shrink_inline, shrink_inline));
        let Some(refused) = refused else { continue };
        assert_eq!(bench.put(pool, refused, &small_page(refused)), Err(StoreError::Full));
        assert!(bench.store.needs_shrink());
        let shrunk = bench.shrink();
        assert!(shrunk.stop == Stop::Done && shrunk.written_back > 0 && !bench.store.needs_shrink());
        bench.put(pool, refused, &small_page(refused)).unwrap();
        assert_all_there(&mut bench, pool, refused + 1);
    }
}
