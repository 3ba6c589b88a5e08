//! The store as it is measured: without a limit and without a tier, its pages under the numbers 0, 1, 2 ..

use super::{Quantiles, Random, thread_time};
use crate::failure::Failure;
use ramfold::codec::Codec;
use ramfold::zpool::{self, ArenaOptions};
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolId, PoolKind, Scratch, Stats, Store};
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A store, and one thread's working memory for it.
pub struct Shelf {
    store: Arc<Store>,
    pool: PoolId,
    scratch: Scratch,
}

impl Shelf {
    pub fn new(compressor: &str, zpool: &str) -> Result<Self, Failure> {
        let config = Config { compressor: compressor.into(), zpool: zpool.into(), ..unlimited() };
        Ok(Self::over(Store::new(&config, None).map_err(|error| Failure::usage(error.to_string()))?))
    }

    /// With a codec that has no name.
    pub fn with_codec(codec: Arc<dyn Codec>, zpool: &str) -> Result<Self, Failure> {
        let zpool = zpool::by_name(zpool, &ArenaOptions::default())
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self::over(Store::from_parts(&unlimited(), codec, zpool.into(), None)))
    }

    fn over(store: Store) -> Self {
        let (pool, scratch) = (store.create_pool(PoolKind::Persistent, None), store.scratch());
        Self { store: Arc::new(store), pool, scratch }
    }

    /// The same store for another thread.
    pub fn share(&self) -> Self {
        Self { store: Arc::clone(&self.store), pool: self.pool, scratch: self.store.scratch() }
    }

    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    pub fn store_all(&mut self, pages: &[Page]) -> Result<(), Failure> {
        pages.iter().enumerate().try_for_each(|(index, page)| self.put(index, page))
    }

    /// Stores the pages again where they were just invalidated. The invalidation is not timed: in a pager it
    /// belongs to the load before.
    pub fn replace(&mut self, pages: &[Page], range: Range<usize>) -> Result<Duration, Failure> {
        for index in range.clone() {
            self.store.invalidate(self.key(index));
        }
        let started = thread_time();
        for index in range {
            self.put(index, &pages[index])?;
        }
        Ok(thread_time() - started)
    }

    pub fn load(&mut self, range: Range<usize>) -> Result<Duration, Failure> {
        let mut page = [0; PAGE_SIZE];
        let started = thread_time();
        for index in range {
            self.get(index, &mut page)?;
            black_box(&page);
        }
        Ok(thread_time() - started)
    }

    /// Each of `count` stores and loads on its own, in an order without pattern.
    pub fn latencies(&mut self, pages: &[Page], count: usize) -> Result<(Quantiles, Quantiles), Failure> {
        let mut random = Random(1);
        let (mut stores, mut loads, mut page) = (Vec::new(), Vec::new(), [0; PAGE_SIZE]);
        for _ in 0..count {
            let index = random.below(pages.len());
            self.store.invalidate(self.key(index));
            let started = Instant::now();
            self.put(index, &pages[index])?;
            stores.push(nanoseconds(started.elapsed()));
            let other = random.below(pages.len());
            let started = Instant::now();
            self.get(other, &mut page)?;
            loads.push(nanoseconds(started.elapsed()));
        }
        Ok((Quantiles::of(stores), Quantiles::of(loads)))
    }

    pub fn put(&mut self, index: usize, page: &Page) -> Result<(), Failure> {
        self.store.store(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    fn get(&mut self, index: usize, page: &mut Page) -> Result<(), Failure> {
        self.store.load(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    fn key(&self, index: usize) -> Key {
        Key { pool: self.pool, object: 0, index: index as u64 }
    }
}

fn unlimited() -> Config {
    Config { max_pool_bytes: u64::MAX, ..Config::default() }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("bench pages: {error}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
