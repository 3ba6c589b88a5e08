//! Who keeps pages that left: nobody, a model of zswap's pool, or the real store.

use super::lru::Lru;
use super::{BACKLOG, Device, Outcome, PAGE, Policy, Settings};
use crate::shelf::ShelfError;
use crate::standin::{self, Standin};
use ramfold::tier::MemoryTier;
use ramfold::zpool::{self, ArenaOptions};
use ramfold::{Config, Key, PAGE_SIZE, PoolId, PoolKind, Scratch, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// Where a page was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Pool,
    Device,
}

/// Keeps pages that left.
pub trait Keeper {
    /// Takes the page; false: it refuses, and the page is to be written to the device.
    fn store(&mut self, page: u64, bytes: u16) -> Result<bool, ShelfError>;
    /// Gives the page back.
    fn load(&mut self, page: u64) -> Result<Place, ShelfError>;
    fn discard(&mut self, page: u64);
    /// Bytes of memory.
    fn held(&self) -> u64;
    /// Whether a page that is loaded is no longer kept.
    fn gives_up(&self) -> bool {
        false
    }
    /// Lets a worker write back, as far as the device has time.
    fn work(&mut self, device: &mut Device, now: f64);
    /// Adds what it has counted.
    fn count(&self, outcome: &mut Outcome);
}

/// No pool.
pub struct Nothing;

impl Keeper for Nothing {
    fn store(&mut self, _: u64, _: u16) -> Result<bool, ShelfError> {
        Ok(false)
    }

    fn load(&mut self, _: u64) -> Result<Place, ShelfError> {
        Ok(Place::Device)
    }

    fn discard(&mut self, _: u64) {}

    fn held(&self) -> u64 {
        0
    }

    fn work(&mut self, _: &mut Device, _: f64) {}

    fn count(&self, _: &mut Outcome) {}
}

/// zswap's pool as a sum of compressed bytes, with one of its two ways to shrink.
pub struct Model {
    limit: u64,
    accept: u64,
    until_accepted: bool,
    pages: HashMap<u64, u16>,
    order: Lru,
    held: u64,
    /// It was full, and has not been under the threshold since.
    was_full: bool,
    awake: bool,
    counts: Outcome,
}

impl Model {
    pub fn new(settings: &Settings) -> Self {
        Self {
            limit: settings.pool_limit(),
            accept: settings.accept_bytes(),
            until_accepted: settings.policy == Policy::Shrink,
            pages: HashMap::new(),
            order: Lru::default(),
            held: 0,
            was_full: false,
            awake: false,
            counts: Outcome::default(),
        }
    }

    /// Whether a store may go on.
    fn accepts(&mut self) -> bool {
        if self.held >= self.limit {
            self.counts.pool_limit_hit_at_limit += 1;
            self.was_full = true;
            self.awake = true;
        } else if self.was_full && self.held <= self.accept {
            self.was_full = false;
        } else if self.was_full {
            // Seed of the trouble: one of the two tells nobody.
            self.awake |= self.until_accepted;
        }
        self.counts.pool_limit_hit += u64::from(self.was_full);
        !self.was_full
    }

    fn take(&mut self, page: u64) -> Option<u16> {
        let bytes = self.pages.remove(&page)?;
        self.order.remove(page);
        self.held -= u64::from(bytes);
        Some(bytes)
    }
}

impl Keeper for Model {
    fn store(&mut self, page: u64, bytes: u16) -> Result<bool, ShelfError> {
        if !self.accepts() {
            self.counts.rejects += 1;
            return Ok(false);
        }
        self.counts.stores += 1;
        self.take(page);
        self.pages.insert(page, bytes);
        self.order.touch(page);
        self.held += u64::from(bytes);
        Ok(true)
    }

    fn load(&mut self, page: u64) -> Result<Place, ShelfError> {
        if !self.pages.contains_key(&page) {
            return Ok(Place::Device);
        }
        self.order.touch(page);
        Ok(Place::Pool)
    }

    fn discard(&mut self, page: u64) {
        self.take(page);
    }

    fn held(&self) -> u64 {
        self.held
    }

    /// zswap writes pages back as they were before compression.
    fn work(&mut self, device: &mut Device, now: f64) {
        while self.awake && device.backlog(now) < BACKLOG / 2.0 {
            let Some(oldest) = self.order.pop_oldest() else {
                self.awake = false;
                return;
            };
            self.held -= self.pages.remove(&oldest).map_or(0, u64::from);
            self.counts.written_back_pages += 1;
            device.write(now, PAGE);
            self.awake = self.until_accepted && self.held > self.accept;
        }
    }

    fn count(&self, outcome: &mut Outcome) {
        let counts = &self.counts;
        (outcome.stores, outcome.rejects) = (counts.stores, counts.rejects);
        outcome.written_back_pages = counts.written_back_pages;
        outcome.pool_limit_hit = counts.pool_limit_hit;
        outcome.pool_limit_hit_at_limit = counts.pool_limit_hit_at_limit;
    }
}

/// The real store over a real zsmalloc, and a tier in memory: its device is modelled as the others' is.
pub struct Real {
    store: Store,
    pool: PoolId,
    scratch: Scratch,
    /// Bytes that were written back, not yet by the device.
    seen_bytes: u64,
}

impl Real {
    pub fn new(settings: &Settings) -> Result<Self, ShelfError> {
        let config = Config {
            max_pool_bytes: settings.pool_limit(),
            accept_threshold_percent: settings.accept_threshold_percent,
            duplicate_pages_enabled: false,
            ..Config::default()
        };
        let zpool = zpool::by_name(&config.zpool, &ArenaOptions::default())
            .map_err(|error| ShelfError::Name(error.to_string()))?;
        let tier = Arc::new(MemoryTier::new());
        let store = Store::from_parts(&config, Arc::new(Standin), zpool.into(), Some(tier));
        let (pool, scratch) = (store.create_pool(PoolKind::Persistent, None), store.scratch());
        Ok(Self { store, pool, scratch, seen_bytes: 0 })
    }

    fn key(&self, index: u64) -> Key {
        Key { pool: self.pool, object: 0, index }
    }
}

impl Keeper for Real {
    fn store(&mut self, page: u64, bytes: u16) -> Result<bool, ShelfError> {
        let stored = self.store.store(self.key(page), &standin::page(bytes, page), &mut self.scratch);
        stored.map(|()| true).map_err(|error| ShelfError::Refused(error.to_string()))
    }

    fn load(&mut self, page: u64) -> Result<Place, ShelfError> {
        let (before, mut contents) = (self.store.stats().tier_loads, [0; PAGE_SIZE]);
        let loaded = self.store.load(self.key(page), &mut contents, &mut self.scratch);
        loaded.map_err(|error| ShelfError::Refused(error.to_string()))?;
        self.store.invalidate(self.key(page));
        Ok(if self.store.stats().tier_loads > before { Place::Device } else { Place::Pool })
    }

    fn discard(&mut self, page: u64) {
        self.store.invalidate(self.key(page));
    }

    fn held(&self) -> u64 {
        self.store.pool_bytes()
    }

    fn gives_up(&self) -> bool {
        true
    }

    /// The store has shrunk already, within the store that found it full; the device has the compressed bytes to write.
    fn work(&mut self, device: &mut Device, now: f64) {
        let written = self.store.stats().writeback_bytes;
        if written > self.seen_bytes {
            device.write(now, written - self.seen_bytes);
            self.seen_bytes = written;
        }
    }

    fn count(&self, outcome: &mut Outcome) {
        let stats = self.store.stats();
        outcome.stores = stats.stores;
        outcome.rejects = stats.reject_reclaim_fail;
        outcome.written_back_pages = stats.written_back_pages;
        outcome.pool_limit_hit = stats.pool_limit_hit;
        outcome.pool_limit_hit_at_limit = stats.pool_limit_hit;
    }
}
