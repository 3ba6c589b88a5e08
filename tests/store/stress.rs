//! Many threads, small limits, knobs that turn: every page that is loaded is one that was stored under its key.

use crate::doubles::{MemoryTier, Random};
use ramfold::tier::Tier;
use ramfold::{Config, Key, LoadError, PAGE_SIZE, Page, PoolId, PoolKind, Scratch, Stop, Store, Which};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Pages of a thread's own.
const OWN: u64 = 1500;
const RUN: Duration = Duration::from_secs(3);

/// A page that says under which key it was stored, as which version.
fn versioned(key: Key, version: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut random = Random(key.index << 32 ^ version);
    let len = [40, 400, 2000, PAGE_SIZE][random.below(4) as usize];
    page.as_chunks_mut::<8>().0[..len / 8].fill_with(|| random.next().to_ne_bytes());
    page[..8].copy_from_slice(&key.index.to_ne_bytes());
    page[8..16].copy_from_slice(&version.to_ne_bytes());
    page
}

fn version_of(key: Key, page: &Page) -> u64 {
    let word = |at| u64::from_ne_bytes(page.as_chunks().0[at]);
    assert_eq!(word(0), key.index, "a page of another key");
    assert!(*page == versioned(key, word(1)), "a page that nobody stored");
    word(1)
}

/// One thread: keys of its own, of which it knows the version, and keys that all share.
fn work(store: &Store, of_all: [PoolId; 2], thread: u64, newest: &[AtomicU64], stop: &AtomicBool) -> u64 {
    let (mut scratch, mut random, pool) = (store.scratch(), Random(thread), of_all[0]);
    let (mut own, mut page, mut operations) = (HashMap::new(), [0; PAGE_SIZE], 0);
    while !stop.load(Relaxed) {
        operations += 1;
        let key = Key { pool, object: 10 + thread, index: random.below(OWN) };
        match random.below(12) {
            0..4 => {
                // One in four has contents that others have too.
                let stored = if random.below(4) == 0 {
                    let common = [random.below(8) as u8 + 1; 64].into_iter().cycle().zip(0u16..);
                    common
                        .take(PAGE_SIZE)
                        .for_each(|(byte, at)| page[usize::from(at)] = byte ^ (at >> 4) as u8);
                    page
                } else {
                    versioned(key, operations)
                };
                if store.store(key, &stored, &mut scratch).is_ok() {
                    own.insert(key, stored);
                }
            }
            4..7 => read(store, key, &mut random, &mut scratch, &own),
            7 => match store.fetch(key, &mut page, &mut scratch) {
                Ok(_) => assert!(own.contains_key(&key)),
                Err(LoadError::Miss) => assert!(!own.contains_key(&key), "a page is lost"),
                Err(error) => panic!("{error}"),
            },
            8 => assert_eq!(store.invalidate(key), own.remove(&key).is_some()),
            9 => rename(store, key, random.below(100), &mut own),
            // Shared keys: no older version than any that was acknowledged before the load began.
            10 => {
                let index = random.below(newest.len() as u64);
                let key = Key { pool: of_all[index as usize % 2], object: 1, index };
                let floor = newest[index as usize].load(Relaxed);
                match store.load(key, &mut page, &mut scratch) {
                    Ok(()) => assert!(version_of(key, &page) >= floor, "an older version came back"),
                    Err(LoadError::Miss) => assert!(index % 2 == 1 || floor == 0, "a page is lost"),
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                // Only one thread writes a shared key, so that its versions have an order.
                let index = random.below(newest.len() as u64 / 4) * 4 + thread % 4;
                let key = Key { pool: of_all[index as usize % 2], object: 1, index };
                if store.store(key, &versioned(key, operations), &mut scratch).is_ok() {
                    newest[index as usize].store(operations, Relaxed);
                }
            }
        }
    }
    for (key, expected) in &own {
        store.load(*key, &mut page, &mut scratch).unwrap();
        assert_eq!(page, *expected);
    }
    operations
}

/// Pages of a thread's own, some together: each is what it knows.
fn read(store: &Store, key: Key, random: &mut Random, scratch: &mut Scratch, own: &HashMap<Key, Page>) {
    let is_own = |index, found: &[u8]| own.get(&Key { index, ..key }).is_some_and(|page| page == found);
    if random.below(5) == 0 {
        let _ = store.lend(key, 1 + random.below(5) as usize, &mut |pages| {
            assert!((key.index..).zip(pages).all(|(index, found)| is_own(index, found)));
        });
        return;
    }
    let mut pages = vec![[0; PAGE_SIZE]; 1 + random.below(20) as usize];
    match store.load_run(key, &mut pages, scratch) {
        Ok(count) => assert!((key.index..).zip(&pages[..count]).all(|(index, found)| is_own(index, found))),
        Err(LoadError::Miss) => assert!(!own.contains_key(&key), "a page is lost"),
        Err(error) => panic!("{error}"),
    }
}

/// `count` pages from `key` on go to another place of the object and, the next time, back.
fn rename(store: &Store, key: Key, count: u64, own: &mut HashMap<Key, Page>) {
    let count = count.min(OWN / 2 - key.index % (OWN / 2));
    let to = (key.index + OWN / 2) % OWN;
    store.invalidate_range(key.pool, key.object, to..to + count);
    store.rename_range(key.pool, key.object, key.index, to, count);
    for offset in 0..count {
        let target = Key { index: to + offset, ..key };
        match own.remove(&Key { index: key.index + offset, ..key }) {
            Some(page) => drop(own.insert(target, page)),
            None => drop(own.remove(&target)),
        }
    }
}

fn turn_knobs(store: &Store, stop: &AtomicBool) {
    let mut random = Random(99);
    while !stop.load(Relaxed) {
        match random.below(7) {
            0 => store.set_duplicates(random.below(3) != 0),
            1 => store.set_same_filled(random.below(2) == 0),
            2 => store.set_compressor(["lz4", "zstd:-1"][random.below(2) as usize]).unwrap(),
            3 => store.set_zpool(["zsmalloc", "zbud", "xvmalloc"][random.below(3) as usize]).unwrap(),
            4 => store.set_max_pool_bytes((100 + random.below(400)) * PAGE_SIZE as u64),
            5 => store.set_most_fresh(random.below(3) * 50 * PAGE_SIZE as u64),
            _ => drop(store.compact()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stress(shrink_inline: bool) {
    let tiers = [(); 2].map(|()| Arc::new(MemoryTier::default()));
    // Now and then it is full, and nearly always somebody is writing to it.
    tiers[0].capacity.store(2000, Relaxed);
    let config = Config { max_pool_bytes: 300 * PAGE_SIZE as u64, shrink_inline, ..Config::default() };
    let store = Store::new(&config, Some(tiers[0].clone() as Arc<dyn Tier>)).unwrap();
    store.add_tier(tiers[1].clone()).unwrap();
    let pool = store.create_pool(PoolKind::Persistent, None);
    let ephemeral = store.create_pool(PoolKind::Ephemeral, Some(200_000));
    let (stop, newest) = (AtomicBool::new(false), (0..64).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let operations: u64 = std::thread::scope(|scope| {
        let (store, stop, newest) = (&store, &stop, &newest[..]);
        let workers: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || work(store, [pool, ephemeral], thread, newest, stop)))
            .collect();
        scope.spawn(|| turn_knobs(store, stop));
        let shrinker = || {
            while !stop.load(Relaxed) {
                if store.needs_shrink() {
                    store.shrink();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        (0..2).for_each(|_| drop(scope.spawn(shrinker)));
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                store.settle_fresh(20, Which::Idle);
                std::thread::yield_now();
            }
        });
        let start = Instant::now();
        while start.elapsed() < RUN && !workers.iter().any(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let stats = store.stats();
    println!("{operations} operations, {stats:?}");
    assert!(stats.settled_pages > 100, "pages were kept as they are, and compressed");
    assert!(operations > 1000 && stats.written_back_pages > 100 && stats.tier_loads > 100);
    store.check();
    store.set_max_pool_bytes(0);
    assert_eq!(store.shrink().stop, Stop::Done, "nothing is left that cannot leave");
    store.destroy_pool(pool);
    store.destroy_pool(ephemeral);
    store.check();
    assert!(tiers.iter().all(|tier| tier.writes.load(Relaxed) > 0), "both were written to");
    assert_eq!((tiers[0].len(), tiers[1].len(), store.stats().compr_data_size), (0, 0, 0));
    assert!(store.is_quiet());
}

#[test]
fn threads_that_shrink_for_themselves() {
    stress(true);
}

#[test]
fn threads_with_a_shrinker_beside_them() {
    stress(false);
}
