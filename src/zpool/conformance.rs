//! The suite that each zpool passes, against a map of plain vectors.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{ArenaOptions, Handle, MallocError, PageLimit, Xvmalloc, Zbud, Zpool, Zsmalloc};

/// A zpool whose structures can be checked while nobody is in it.
trait Checked: Zpool {
    fn check(&self);
}

/// A generator of numbers (splitmix64): short, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

/// `size` bytes that tell which object they belong to and where in it they are.
fn pattern(id: u64, size: usize) -> Vec<u8> {
    let mut random = Random(id);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.take(size.div_ceil(8)).flatten().take(size).collect()
}

fn contents(pool: &dyn Zpool, handle: Handle, size: usize) -> Vec<u8> {
    let (mut bytes, mut calls) = (Vec::new(), 0);
    pool.read(handle, size, &mut |lent| {
        bytes = lent.to_vec();
        calls += 1;
    });
    assert_eq!(calls, 1, "lent once");
    bytes
}

fn put(pool: &dyn Zpool, id: u64, size: usize) -> Result<Handle, MallocError> {
    let handle = pool.malloc(size)?;
    assert_eq!(Handle::from_bits(handle.to_bits()), handle);
    pool.write(handle, &pattern(id, size));
    Ok(handle)
}

/// Objects in a pool, each with the bytes it must have.
struct Model<'a> {
    pool: &'a dyn Checked,
    objects: HashMap<u64, (Handle, usize)>,
    next: u64,
}

impl<'a> Model<'a> {
    fn new(pool: &'a dyn Checked) -> Self {
        Self { pool, objects: HashMap::new(), next: 0 }
    }

    fn store(&mut self, size: usize) -> Result<u64, MallocError> {
        let handle = put(self.pool, self.next, size)?;
        assert!(self.objects.values().all(|(other, _)| *other != handle), "a handle twice");
        self.objects.insert(self.next, (handle, size));
        self.next += 1;
        Ok(self.next - 1)
    }

    fn remove(&mut self, id: u64) {
        let (handle, size) = self.objects.remove(&id).unwrap();
        assert!(contents(self.pool, handle, size) == pattern(id, size), "object {id} of {size} bytes");
        self.pool.free(handle);
    }

    fn any(&self, random: &mut Random) -> Option<u64> {
        let mut ids: Vec<u64> = self.objects.keys().copied().collect();
        ids.sort_unstable();
        (!ids.is_empty()).then(|| ids[random.below(ids.len())])
    }

    fn verify(&self) {
        self.pool.check();
        for (id, (handle, size)) in &self.objects {
            assert!(
                contents(self.pool, *handle, *size) == pattern(*id, *size),
                "object {id} of {size} bytes"
            );
        }
    }

    fn clear(&mut self) {
        let mut ids: Vec<u64> = self.objects.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.remove(id));
        self.pool.check();
        self.pool.compact(usize::MAX);
        self.pool.check();
        assert_eq!(self.pool.total_pages(), 0, "pages left");
    }
}

fn every_size_is_kept_and_the_next_is_refused(pool: &dyn Checked) {
    assert_eq!((pool.total_pages(), pool.compact(usize::MAX)), (0, 0));
    let mut model = Model::new(pool);
    for size in 1..=pool.max_size() {
        model.store(size).unwrap();
    }
    for size in [pool.max_size() + 1, pool.max_size() + 64, usize::MAX] {
        assert_eq!(pool.malloc(size), Err(MallocError::TooLarge));
    }
    model.verify();
    model.clear();
}

fn part_of_an_object_can_be_written_and_read(pool: &dyn Checked) {
    let handle = put(pool, 1, 1000).unwrap();
    pool.write(handle, &pattern(2, 10));
    let bytes = contents(pool, handle, 1000);
    assert_eq!(bytes[..10], pattern(2, 10));
    assert_eq!(bytes[10..], pattern(1, 1000)[10..]);
    assert_eq!(contents(pool, handle, 1), pattern(2, 1));
    pool.free(handle);
}

fn random_use_agrees_with_the_model(pool: &dyn Checked) {
    for seed in 0..4 {
        let mut random = Random(seed);
        let mut model = Model::new(pool);
        for step in 0..3000 {
            // The pool breathes: mostly stores, then mostly frees.
            let stores = if step / 500 % 2 == 0 { 7 } else { 3 };
            if random.below(10) < stores {
                let most = if random.below(4) == 0 { 100 } else { pool.max_size() };
                model.store(1 + random.below(most)).unwrap();
            } else if let Some(id) = model.any(&mut random) {
                model.remove(id);
            }
            if random.below(200) == 0 {
                let held = pool.total_pages();
                let freed = pool.compact(usize::MAX);
                assert_eq!(pool.total_pages(), held - freed, "seed {seed} step {step}");
                model.verify();
            }
        }
        model.verify();
        model.clear();
    }
}

fn compaction_keeps_every_object(pool: &dyn Checked) {
    let mut random = Random(7);
    let mut model = Model::new(pool);
    let sizes = [40, 500, 1300, 1700, 2500, 3300, pool.max_size()];
    for number in 0..3500 {
        model.store(sizes[number % sizes.len()]).unwrap();
    }
    for keep in [70, 40, 10] {
        for id in 0..model.next {
            if model.objects.contains_key(&id) && random.below(100) >= keep {
                model.remove(id);
            }
        }
        pool.check();
        let held = pool.total_pages();
        let freed = pool.compact(usize::MAX);
        assert_eq!(pool.total_pages(), held - freed);
        model.verify();
        assert_eq!(pool.compact(usize::MAX), 0, "one compaction is enough");
    }
    model.clear();
}

fn at_the_limit_there_is_no_memory(pool: &dyn Checked, limit: &PageLimit) {
    limit.set(50);
    let mut random = Random(3);
    let mut model = Model::new(pool);
    for round in 0..3 {
        let error = loop {
            if let Err(error) = model.store(1 + random.below(pool.max_size())) {
                break error;
            }
        };
        assert_eq!(error, MallocError::NoMemory);
        assert!(pool.total_pages() <= 50, "round {round}");
        assert!(model.objects.len() > 25, "the limit can be used up");
        model.verify();
        for _ in 0..20 {
            let id = model.any(&mut random).unwrap();
            model.remove(id);
        }
        pool.check();
    }
    // A lower limit takes effect as objects go; then there is room for one page again.
    limit.set(1);
    let ids: Vec<u64> = model.objects.keys().copied().collect();
    ids.into_iter().for_each(|id| model.remove(id));
    assert!(pool.total_pages() <= 1, "{} pages kept over the limit", pool.total_pages());
    model.store(pool.max_size()).unwrap();
    assert_eq!(model.store(pool.max_size()), Err(MallocError::NoMemory));
    limit.set(0);
    model.clear();
}

fn any_request_for_pages_may_fail(pool: &dyn Checked, limit: &PageLimit) {
    let mut failures = 0;
    for n in 1.. {
        limit.refuse_nth(n);
        let mut random = Random(5);
        let mut model = Model::new(pool);
        let mut refused = 0;
        for _ in 0..200 {
            match model.store(1 + random.below(pool.max_size())) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, MallocError::NoMemory);
                    refused += 1;
                    pool.check();
                }
            }
            if random.below(3) == 0 {
                let id = model.any(&mut random).unwrap();
                model.remove(id);
            }
        }
        model.verify();
        model.clear();
        assert!(refused <= 1);
        failures += refused;
        if refused == 0 {
            break;
        }
    }
    limit.refuse_nth(0);
    assert!(failures >= 5, "{failures} requests were refused");
}

fn threads_share_it_with_compaction(pool: &dyn Checked) {
    const THREADS: u64 = 4;
    let running = AtomicUsize::new(usize::try_from(THREADS).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let running = &running;
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut model = Model::new(pool);
                model.next = thread << 32;
                for step in 0..6000 {
                    let grows = step / 1000 % 2 == 0;
                    if model.objects.len() < 20 || (random.below(10) < if grows { 6 } else { 4 }) {
                        model
                            .store([64, 700, 1700, 1 + random.below(pool.max_size())][random.below(4)])
                            .unwrap();
                    } else if let Some(id) = model.any(&mut random) {
                        let (handle, size) = model.objects[&id];
                        match random.below(3) {
                            0 => pool.write(handle, &pattern(id, size)),
                            1 => assert!(contents(pool, handle, size) == pattern(id, size)),
                            _ => model.remove(id),
                        }
                    }
                }
                model.objects.drain().for_each(|(id, (handle, size))| {
                    assert!(contents(pool, handle, size) == pattern(id, size));
                    pool.free(handle);
                });
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while running.load(Ordering::Relaxed) > 0 {
            pool.compact(usize::MAX);
            std::thread::yield_now();
        }
    });
    pool.check();
    pool.compact(usize::MAX);
    pool.check();
    assert_eq!(pool.total_pages(), 0);
}

fn an_object_that_is_lent_stays_as_it_is(pool: &dyn Checked) {
    let mut model = Model::new(pool);
    let ids: Vec<u64> = (0..200).map(|_| model.store(1500).unwrap()).collect();
    let (handle, size) = model.objects[&ids[199]];
    for id in &ids[..199] {
        model.remove(*id);
    }
    let compacted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        pool.read(handle, size, &mut |lent| {
            // Another thread compacts while this one is inside the object.
            let compaction = scope.spawn(|| {
                pool.compact(usize::MAX);
                compacted.store(true, Ordering::Relaxed);
            });
            compaction.join().unwrap();
            assert!(compacted.load(Ordering::Relaxed), "compaction does not wait for readers");
            assert!(lent == pattern(ids[199], size));
        });
    });
    model.verify();
    model.clear();
}

fn metadata_is_small(pool: &dyn Checked) {
    let mut random = Random(11);
    let mut model = Vec::new();
    let before = pool.meta_bytes();
    for _ in 0..20_000 {
        model.push(pool.malloc(1 + random.below(3400)).unwrap());
    }
    let bytes = pool.meta_bytes() - before;
    assert!(bytes <= 7 * model.len(), "{} bytes an object", bytes as f64 / model.len() as f64);
    model.into_iter().for_each(|handle| pool.free(handle));
}

macro_rules! conformance {
    ($module:ident, $pool:ty) => {
        mod $module {
            use super::*;

            impl Checked for $pool {
                fn check(&self) {
                    <$pool>::check(self);
                }
            }

            fn pool() -> ($pool, Arc<PageLimit>) {
                let options = ArenaOptions { bytes: 1 << 30, ..ArenaOptions::default() };
                (<$pool>::new(&options).unwrap(), options.limit)
            }

            #[test]
            fn every_size_is_kept_and_the_next_is_refused() {
                super::every_size_is_kept_and_the_next_is_refused(&pool().0);
            }

            #[test]
            fn part_of_an_object_can_be_written_and_read() {
                super::part_of_an_object_can_be_written_and_read(&pool().0);
            }

            #[test]
            fn random_use_agrees_with_the_model() {
                super::random_use_agrees_with_the_model(&pool().0);
            }

            #[test]
            fn compaction_keeps_every_object() {
                super::compaction_keeps_every_object(&pool().0);
            }

            #[test]
            fn at_the_limit_there_is_no_memory() {
                let (pool, limit) = pool();
                super::at_the_limit_there_is_no_memory(&pool, &limit);
            }

            #[test]
            fn any_request_for_pages_may_fail() {
                let (pool, limit) = pool();
                super::any_request_for_pages_may_fail(&pool, &limit);
            }

            #[test]
            fn threads_share_it_with_compaction() {
                super::threads_share_it_with_compaction(&pool().0);
            }

            #[test]
            fn an_object_that_is_lent_stays_as_it_is() {
                super::an_object_that_is_lent_stays_as_it_is(&pool().0);
            }

            #[test]
            fn metadata_is_small() {
                super::metadata_is_small(&pool().0);
            }

            #[test]
            #[should_panic(expected = "no such object")]
            fn a_handle_freed_twice_is_noticed() {
                let (pool, _) = pool();
                let handles: Vec<_> = (0..100).map(|_| pool.malloc(1000).unwrap()).collect();
                pool.free(handles[50]);
                pool.free(handles[50]);
            }

            #[test]
            fn it_is_known_by_its_name() {
                let options = ArenaOptions { bytes: 1 << 20, ..ArenaOptions::default() };
                let name = pool().0.name();
                assert!(crate::zpool::NAMES.contains(&name));
                assert_eq!(crate::zpool::by_name(name, &options).unwrap().name(), name);
            }
        }
    };
}

conformance!(zsmalloc, Zsmalloc);
conformance!(zbud, Zbud);
conformance!(xvmalloc, Xvmalloc);

#[test]
fn an_unknown_name_is_refused() {
    let error = super::by_name("z3fold", &ArenaOptions::default()).unwrap_err();
    assert_eq!(error, super::NewZpoolError::Unknown("z3fold".to_owned()));
}
