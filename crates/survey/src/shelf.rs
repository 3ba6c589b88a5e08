//! The store as it is measured: without a limit and without a tier, its pages under the numbers 0, 1, 2 ..

use crate::random::Random;
use ramfold::codec::Codec;
use ramfold::zpool::{self, ArenaOptions};
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolId, PoolKind, Scratch, Stats, Store};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why the store could not be measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShelfError {
    /// a name that is none
    #[error("{0}")]
    Name(String),
    /// the store did not take or give a page
    #[error("a page could not be stored and loaded: {0}")]
    Refused(String),
}

/// Durations in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// 99 of 100 take no longer.
    pub p99: f64,
}

impl Quantiles {
    fn of(mut ns: Vec<u64>) -> Self {
        ns.sort_unstable();
        let at = |percent: usize| ns[(ns.len() - 1) * percent / 100] as f64 / 1000.0;
        Self { p50: at(50), p99: at(99) }
    }
}

/// Processor time of this thread.
#[must_use]
pub fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A store, and one thread's working memory for it.
#[derive(Debug)]
pub struct Shelf {
    store: Arc<Store>,
    pool: PoolId,
    scratch: Scratch,
}

impl Shelf {
    /// With a compressor and a zpool by name.
    ///
    /// # Errors
    /// [`ShelfError::Name`].
    pub fn new(compressor: &str, zpool: &str) -> Result<Self, ShelfError> {
        Self::with_config(&Config { compressor: compressor.into(), zpool: zpool.into(), ..Self::unlimited() })
    }

    /// With any settings; [`Shelf::unlimited`] has no limit.
    ///
    /// # Errors
    /// [`ShelfError::Name`].
    pub fn with_config(config: &Config) -> Result<Self, ShelfError> {
        Ok(Self::over(Store::new(config, None).map_err(|error| ShelfError::Name(error.to_string()))?))
    }

    /// The settings of a shelf without a limit.
    #[must_use]
    pub fn unlimited() -> Config {
        Config { max_pool_bytes: u64::MAX, ..Config::default() }
    }

    /// With a codec that has no name.
    ///
    /// # Errors
    /// [`ShelfError::Name`] of the zpool.
    pub fn with_codec(codec: Arc<dyn Codec>, zpool: &str) -> Result<Self, ShelfError> {
        let zpool = zpool::by_name(zpool, &ArenaOptions::default())
            .map_err(|error| ShelfError::Name(error.to_string()))?;
        Ok(Self::over(Store::from_parts(&Self::unlimited(), codec, zpool.into(), None)))
    }

    fn over(store: Store) -> Self {
        let (pool, scratch) = (store.create_pool(PoolKind::Persistent, None), store.scratch());
        Self { store: Arc::new(store), pool, scratch }
    }

    /// The same store for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { store: Arc::clone(&self.store), pool: self.pool, scratch: self.store.scratch() }
    }

    /// What the store holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Stores all pages.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn store_all(&mut self, pages: &[Page]) -> Result<(), ShelfError> {
        pages.iter().enumerate().try_for_each(|(index, page)| self.put(index, page))
    }

    /// Stores the pages again that were just loaded and invalidated, as a pager does when they leave once more. That
    /// load is not timed.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn replace(&mut self, pages: &[Page], range: Range<usize>) -> Result<Duration, ShelfError> {
        let mut page = [0; PAGE_SIZE];
        for index in range.clone() {
            self.get(index, &mut page)?;
            self.store.invalidate(self.key(index));
        }
        let started = thread_time();
        for index in range {
            self.put(index, &pages[index])?;
        }
        Ok(thread_time() - started)
    }

    /// Loads the pages, in processor time of this thread.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn load(&mut self, range: Range<usize>) -> Result<Duration, ShelfError> {
        let mut page = [0; PAGE_SIZE];
        let started = thread_time();
        for index in range {
            self.get(index, &mut page)?;
            black_box(&page);
        }
        Ok(thread_time() - started)
    }

    /// Each of `count` stores and loads on its own, in an order without pattern.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn latencies(&mut self, pages: &[Page], count: usize) -> Result<(Quantiles, Quantiles), ShelfError> {
        let mut random = Random::new(1);
        let (mut stores, mut loads, mut page) = (Vec::new(), Vec::new(), [0; PAGE_SIZE]);
        for _ in 0..count {
            let index = random.index(pages.len());
            self.store.invalidate(self.key(index));
            let started = Instant::now();
            self.put(index, &pages[index])?;
            stores.push(nanoseconds(started.elapsed()));
            let other = random.index(pages.len());
            let started = Instant::now();
            self.get(other, &mut page)?;
            loads.push(nanoseconds(started.elapsed()));
        }
        Ok((Quantiles::of(stores), Quantiles::of(loads)))
    }

    /// Stores a page under a number.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn put(&mut self, index: usize, page: &Page) -> Result<(), ShelfError> {
        self.store.store(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    /// Loads the page of a number.
    ///
    /// # Errors
    /// [`ShelfError::Refused`].
    pub fn get(&mut self, index: usize, page: &mut Page) -> Result<(), ShelfError> {
        self.store.load(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    /// Gives the page of a number up.
    pub fn discard(&self, index: usize) {
        self.store.invalidate(self.key(index));
    }

    fn key(&self, index: usize) -> Key {
        Key { pool: self.pool, object: 0, index: index as u64 }
    }
}

fn refused(error: impl std::fmt::Display) -> ShelfError {
    ShelfError::Refused(error.to_string())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
