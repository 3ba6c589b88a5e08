//! Random operations against a map, with faults, from one printed seed (`RAMFOLD_SEED` repeats one).
//!
//! The two may differ in this only: a store may be refused (then the persistent page is the old one, the
//! ephemeral one is gone); an ephemeral page may be missing, and is then missing until it is stored again; a
//! load may fail when a part was told to fail or to damage what it gives, but never gives another page.

use crate::doubles::{Bench, FaultyCodec, FaultyZpool, MemoryTier, Random, page};
use ramfold::tier::Tier;
use ramfold::{Config, Corrupt, Key, LoadError, PAGE_SIZE, PoolId, PoolKind, PoorPages, Store, Which};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const OBJECTS: u64 = 3;
const INDICES: u64 = 700;

struct Model {
    random: Random,
    bench: Bench,
    /// Each fails at random if the first does; none need be in use.
    tiers: [Arc<MemoryTier>; 2],
    zpool: Arc<FaultyZpool>,
    codec: Arc<FaultyCodec>,
    pools: Vec<PoolId>,
    pages: HashMap<Key, u64>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let tiers = [(); 2].map(|()| Arc::new(MemoryTier::default()));
        let (zpool, codec) = (FaultyZpool::new("zsmalloc"), FaultyCodec::new("lz4"));
        let config = Config {
            max_pool_bytes: (20 + random.below(150)) * PAGE_SIZE as u64,
            accept_threshold_percent: [100, 90, 50][random.below(3) as usize],
            poor: if random.below(3) == 0 { PoorPages::Refuse } else { PoorPages::KeepRaw },
            shrink_inline: random.below(3) != 0,
            ..Config::default()
        };
        if random.below(2) == 0 {
            for tier in &tiers {
                tier.write_error.one_in.store(5, Relaxed);
                tier.read_error.one_in.store(50, Relaxed);
                tier.read_damage.one_in.store(50, Relaxed);
            }
            zpool.no_memory.one_in.store(50, Relaxed);
            codec.compress_error.one_in.store(50, Relaxed);
            codec.decompress_error.one_in.store(50, Relaxed);
        }
        for tier in &tiers {
            tier.capacity.store([0, 0, 300][random.below(3) as usize], Relaxed);
        }
        let count = [0, 1, 1, 2, 2][random.below(5) as usize];
        let mut used = tiers.iter().take(count).map(|tier| tier.clone() as Arc<dyn Tier>);
        let bench = Bench::over(Store::from_parts(&config, codec.clone(), zpool.clone(), used.next()));
        used.for_each(|tier| bench.store.add_tier(tier).unwrap());
        let pools = vec![
            bench.store.create_pool(PoolKind::Persistent, None),
            bench.store.create_pool(PoolKind::Ephemeral, None),
            bench.store.create_pool(PoolKind::Ephemeral, Some(40_000)),
            bench.store.create_pool(PoolKind::Persistent, Some(60_000)),
        ];
        bench.store.set_most_fresh([0, 10, 60][random.below(3) as usize] * PAGE_SIZE as u64);
        Self { random, bench, tiers, zpool, codec, pools, pages: HashMap::new() }
    }

    fn key(&mut self) -> Key {
        let pool = self.pools[self.random.below(4) as usize];
        // Half of the operations meet in a few places.
        let bound = if self.random.below(2) == 0 { 20 } else { INDICES };
        Key { pool, object: self.random.below(OBJECTS), index: self.random.below(bound) }
    }

    fn step(&mut self) {
        let key = self.key();
        match self.random.below(100) {
            0..50 => self.store(key),
            50..75 => self.load(key),
            75..80 => self.lend(key),
            80..88 => {
                let existed = self.bench.store.invalidate(key);
                let expected = self.pages.remove(&key).is_some();
                assert!(existed == expected || key.pool.kind() == PoolKind::Ephemeral && expected, "{key:?}");
            }
            88..91 => self.invalidate_range(key),
            91..93 => self.rename(key),
            93..96 => drop(self.bench.shrink()),
            96 => self.sweep(),
            97 => self.turn_a_knob(),
            98 => assert!(self.bench.store.contains(key) <= self.pages.contains_key(&key)),
            _ => {
                let text = ["lz4", "zstd", "deflate:1"][self.random.below(3) as usize];
                self.bench.store.set_compressor(text).unwrap();
                let text = ["zsmalloc", "zbud", "xvmalloc"][self.random.below(3) as usize];
                self.bench.store.set_zpool(text).unwrap();
            }
        }
    }

    fn store(&mut self, key: Key) {
        let bound = if self.random.below(3) == 0 { 12 } else { 1 << 40 };
        let number = self.random.below(bound);
        match self.bench.store.store(key, &page(number), &mut self.bench.scratch) {
            Ok(()) => drop(self.pages.insert(key, number)),
            Err(_) if key.pool.kind() == PoolKind::Ephemeral => {
                self.pages.remove(&key);
                assert!(!self.bench.store.contains(key), "a stale entry is removed");
            }
            Err(_) => {}
        }
    }

    fn load(&mut self, key: Key) {
        let room = if self.random.below(2) == 0 { 1 } else { 1 + self.random.below(70) as usize };
        let mut found = vec![[0; PAGE_SIZE]; room];
        let expected = self.pages.get(&key).copied();
        match self.bench.store.load_run(key, &mut found, &mut self.bench.scratch) {
            Ok(count) => {
                assert!((1..=room).contains(&count));
                for (index, found) in (key.index..).zip(&found[..count]) {
                    let key = Key { index, ..key };
                    assert_eq!(Some(*found), self.pages.get(&key).copied().map(page), "{key:?}");
                }
            }
            Err(LoadError::Miss) => {
                assert!(expected.is_none() || key.pool.kind() == PoolKind::Ephemeral, "{key:?} is lost");
                self.pages.remove(&key);
            }
            Err(LoadError::Tier(error)) => {
                assert!(self.tiers[0].read_error.one_in.load(Relaxed) != 0 && expected.is_some(), "{error}");
            }
            Err(LoadError::Corrupt(why)) => {
                let part = match why {
                    Corrupt::Checksum => &self.tiers[0].read_damage,
                    Corrupt::Decompress => &self.codec.decompress_error,
                };
                assert!(part.one_in.load(Relaxed) != 0 && expected.is_some(), "{key:?}: {why}");
            }
        }
    }

    fn lend(&mut self, key: Key) {
        let count = 1 + self.random.below(8) as usize;
        let expected: Vec<_> = (key.index..)
            .take(count)
            .map(|index| self.pages.get(&Key { index, ..key }).copied().map(page))
            .collect();
        let mut times = 0;
        let is_lent = self.bench.store.lend(key, count, &mut |lent| {
            times += 1;
            assert!(
                lent.iter()
                    .map(|page| Some(*page))
                    .eq(expected.iter().map(|page| Some(page.as_ref()?.as_slice())))
            );
        });
        assert_eq!(times, u32::from(is_lent));
    }

    fn invalidate_range(&mut self, key: Key) {
        let end = if self.random.below(8) == 0 { u64::MAX } else { key.index + self.random.below(150) };
        let range = key.index..end;
        self.bench.store.invalidate_range(key.pool, key.object, range.clone());
        self.pages.retain(|k, _| (k.pool, k.object) != (key.pool, key.object) || !range.contains(&k.index));
    }

    fn rename(&mut self, key: Key) {
        let count = self.random.below(120);
        let to = if self.random.below(2) == 0 { INDICES + self.random.below(300) } else { key.index + count };
        if to < key.index + count {
            return;
        }
        self.bench.store.invalidate_range(key.pool, key.object, to..to + count);
        self.pages.retain(|k, _| {
            (k.pool, k.object) != (key.pool, key.object) || !(to..to + count).contains(&k.index)
        });
        self.bench.store.rename_range(key.pool, key.object, key.index, to, count);
        for index in 0..count {
            if let Some(number) = self.pages.remove(&Key { index: key.index + index, ..key }) {
                self.pages.insert(Key { index: to + index, ..key }, number);
            }
        }
    }

    fn sweep(&mut self) {
        let store = &self.bench.store;
        match self.random.below(3) {
            0 => drop(store.compact()),
            1 => drop(store.settle_fresh(self.random.below(40) as usize, Which::Idle)),
            _ => drop(store.settle_fresh(self.random.below(40) as usize, Which::All)),
        }
    }

    fn turn_a_knob(&mut self) {
        let on = self.random.below(3) != 0;
        let store = &self.bench.store;
        match self.random.below(7) {
            0 => store.set_duplicates(on),
            1 => store.set_same_filled(on),
            2 => store.set_enabled(on || self.random.below(4) != 0),
            3 => store.set_max_pool_bytes((10 + self.random.below(200)) * PAGE_SIZE as u64),
            4 => store.set_accept_threshold([100, 90, 30][self.random.below(3) as usize]),
            5 => store.set_most_fresh(if on { self.random.below(80) * PAGE_SIZE as u64 } else { 0 }),
            _ => store.set_max_compression_ratio([100, 50][self.random.below(2) as usize]),
        }
    }

    /// Everything is loaded, then everything goes; nothing is left anywhere.
    fn end(mut self) {
        let of_tiers = self.tiers.iter().flat_map(|tier| [&tier.read_error, &tier.read_damage]);
        let faults = of_tiers.chain([&self.codec.decompress_error]);
        faults.for_each(|fault| fault.one_in.store(0, Relaxed));
        let keys: Vec<Key> = self.pages.keys().copied().collect();
        keys.into_iter().for_each(|key| self.load(key));
        assert!(self.bench.stat("stored_pages") + self.bench.stat("tier_pages") >= self.pages.len() as u64);
        self.pools.iter().for_each(|&pool| self.bench.store.destroy_pool(pool));
        self.bench.store.check();
        let slots: usize = self.tiers.iter().map(|tier| tier.len()).sum();
        assert_eq!((slots, self.zpool.live()), (0, 0), "every slot and handle was given back");
        for gauge in ["stored_pages", "tier_pages", "compr_data_size", "duplicate_pages", "same_filled_pages"]
        {
            assert_eq!(self.bench.stat(gauge), 0, "{gauge}");
        }
        self.bench.store.compact();
        assert_eq!(self.bench.store.pool_bytes(), 0);
    }
}

fn run(seed: u64, steps: u32) -> [u64; 2] {
    println!("RAMFOLD_SEED={seed}");
    let mut model = Model::new(seed);
    for step in 0..steps {
        model.step();
        if step % 256 == 0 {
            model.bench.store.check();
        }
    }
    let done = [model.bench.stat("written_back_pages"), model.bench.stat("settled_pages")];
    model.end();
    done
}

#[test]
fn the_store_agrees_with_a_map() {
    if let Ok(seed) = std::env::var("RAMFOLD_SEED") {
        run(seed.parse().expect("RAMFOLD_SEED is a number"), 20_000);
        return;
    }
    let done: Vec<[u64; 2]> = (1..=32).map(|seed| run(seed, 6_000)).collect();
    let [written, settled] = [0, 1].map(|of| done.iter().map(|run| run[of]).sum::<u64>());
    assert!(written > 10_000, "writeback should happen often, not for {written} pages");
    assert!(settled > 3_000, "pages should be settled often, not {settled}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    run(now.as_nanos() as u64, 20_000);
}
