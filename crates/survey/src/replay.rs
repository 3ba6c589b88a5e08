//! What a policy would have done: a trace played against a model of memory, a compressed pool and a device.
//!
//! Resident pages and pool share one amount of memory. A touch of a page that is not resident loads it from the pool,
//! or reads it from the device; then least recently used pages leave, through the pool or past it, until all fits. As
//! in the kernel, a copy stays where it was until the page is written, and a clean page leaves for nothing; ramfold's
//! store gives a page up when it is loaded. Resident pages are kept in exact LRU order.
//!
//! Time is estimated: each touch, fault, store and load costs what [`Costs`] says. The device serves one request at a
//! time; reads overtake writes and are waited for, writes only when [`BACKLOG`] of them are outstanding. A pool's
//! worker writes back while less than half of that is outstanding. What is not modelled: several threads, read-ahead,
//! the cost of scanning.
//!
//! A pool is one of four [`Policy`]s. [`Policy::Store`] is the real store; the others are models of bytes, without an
//! allocator, for comparison only.

mod keeper;
mod lru;

use crate::shelf::ShelfError;
use crate::trace::{DEFAULT_BYTES, Operation, given_up};
use keeper::{Keeper, Model, Nothing, Place, Real};
use lru::Lru;
use ramfold::PAGE_SIZE;
use serde::Serialize;
use std::collections::HashMap;

/// Writes that may be outstanding.
const BACKLOG: f64 = 256.0;
const PAGE: u64 = PAGE_SIZE as u64;

/// How pages are kept that do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// All go to the device.
    None,
    /// A full pool is told to write back, and writes one page; under the limit but above the accept threshold
    /// it refuses and tells nobody: zswap until 2023.
    OnePage,
    /// A pool that is full, or above the threshold after it was, writes back until it is under it: zswap since.
    Shrink,
    /// ramfold's store, with its zsmalloc.
    Store,
}

impl Policy {
    /// All, by name.
    pub const ALL: [(&'static str, Self); 4] =
        [("none", Self::None), ("one-page", Self::OnePage), ("shrink", Self::Shrink), ("store", Self::Store)];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map_or("", |(name, _)| name)
    }
}

/// Microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// Any touch.
    pub touch: f64,
    /// A touch of a page that is not resident, beside what follows.
    pub fault: f64,
    /// To compress a page into the pool.
    pub store: f64,
    /// To decompress one out of it.
    pub load: f64,
    /// To read a page from the device.
    pub read: f64,
    /// To write a page to the device.
    pub write: f64,
}

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Settings {
    /// The policy.
    pub policy: Policy,
    /// Bytes for resident pages and pool together.
    pub memory: u64,
    /// The most of it that the pool takes, in percent.
    pub max_pool_percent: u8,
    /// Of the pool's limit, in percent.
    pub accept_threshold_percent: u8,
    /// Times.
    pub costs: Costs,
}

impl Settings {
    /// The pool's limit in bytes.
    #[must_use]
    pub fn pool_limit(&self) -> u64 {
        self.memory / 100 * u64::from(self.max_pool_percent)
    }

    fn accept_bytes(&self) -> u64 {
        self.pool_limit() / 100 * u64::from(self.accept_threshold_percent)
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Touches of pages.
    pub touches: u64,
    /// Touches of pages that were not resident, first touches left out.
    pub faults: u64,
    /// Faults served by the pool.
    pub loads: u64,
    /// Faults that read the device.
    pub tier_reads: u64,
    /// Pages written to the device, by whomever.
    pub tier_writes: u64,
    /// Pages that the pool took.
    pub stores: u64,
    /// Pages that it refused; they were written to the device.
    pub rejects: u64,
    /// Pages that the pool wrote back.
    pub written_back_pages: u64,
    /// Stores that found the pool at its limit, or above the accept threshold after it was full.
    pub pool_limit_hit: u64,
    /// Of these, those at the limit: all that zswap counted before.
    pub pool_limit_hit_at_limit: u64,
    /// Seconds.
    pub elapsed_s: f64,
}

impl Outcome {
    /// Share of the touches that found their page resident.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.faults as f64 / self.touches.max(1) as f64
    }

    /// Share of the faults that the pool served.
    #[must_use]
    pub fn pool_hit_ratio(&self) -> f64 {
        self.loads as f64 / self.faults.max(1) as f64
    }
}

/// Serves one request after the other. Times in microseconds since the beginning.
#[derive(Debug)]
struct Device {
    free_at: f64,
    write: f64,
}

impl Device {
    /// How many writes are outstanding.
    fn backlog(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0) / self.write
    }

    /// How long a read takes that costs `time`: it overtakes the writes that wait, and not the one that is served.
    fn read(&mut self, now: f64, time: f64) -> f64 {
        let waits = (self.free_at - now).clamp(0.0, self.write);
        self.free_at = self.free_at.max(now) + time;
        waits + time
    }

    /// A write of so many bytes begins when its turn comes.
    fn write(&mut self, now: f64, bytes: u64) {
        self.free_at = self.free_at.max(now) + self.write * bytes as f64 / PAGE as f64;
    }
}

/// A page that was touched.
#[derive(Debug, Clone, Copy)]
struct Known {
    bytes: u16,
    /// There is no copy of it in the pool or on the device.
    dirty: bool,
}

struct Replay<'a> {
    settings: &'a Settings,
    keeper: Box<dyn Keeper>,
    device: Device,
    resident: Lru,
    known: HashMap<u64, Known>,
    /// The first bytes that are said of pages.
    sizes: HashMap<u64, u16>,
    now: f64,
    outcome: Outcome,
}

/// Plays the trace.
///
/// # Errors
/// [`ShelfError`] of the real store.
pub fn replay(operations: &[Operation], settings: &Settings) -> Result<Outcome, ShelfError> {
    let keeper: Box<dyn Keeper> = match settings.policy {
        Policy::None => Box::new(Nothing),
        Policy::OnePage | Policy::Shrink => Box::new(Model::new(settings)),
        Policy::Store => Box::new(Real::new(settings)?),
    };
    let mut replay = Replay {
        settings,
        keeper,
        device: Device { free_at: 0.0, write: settings.costs.write },
        resident: Lru::default(),
        known: HashMap::new(),
        sizes: first_sizes(operations),
        now: 0.0,
        outcome: Outcome::default(),
    };
    for operation in operations {
        match *operation {
            Operation::Read(page) => replay.touch(page, None)?,
            Operation::Write(page, bytes) => replay.touch(page, Some(bytes))?,
            Operation::Size(page, bytes) => replay.learn(page, bytes),
            Operation::Discard(from, count) => {
                given_up(from, count, &replay.known).into_iter().for_each(|page| replay.discard(page));
            }
            Operation::Work(ns) => replay.now += ns as f64 / 1000.0,
        }
    }
    Ok(replay.finish())
}

/// What is said first of each page that is touched before anything is said of it.
fn first_sizes(operations: &[Operation]) -> HashMap<u64, u16> {
    let mut sizes = HashMap::new();
    for operation in operations {
        if let Operation::Write(page, Some(bytes)) | Operation::Size(page, bytes) = *operation {
            sizes.entry(page).or_insert(bytes);
        }
    }
    sizes
}

impl Replay<'_> {
    /// `written`: the page is written, and what it compresses to then if that is said.
    fn touch(&mut self, page: u64, written: Option<Option<u16>>) -> Result<(), ShelfError> {
        self.outcome.touches += 1;
        self.now += self.settings.costs.touch;
        if !self.resident.contains(page) {
            self.bring(page)?;
        }
        self.resident.touch(page);
        if let (Some(bytes), Some(known)) = (written, self.known.get_mut(&page)) {
            if !known.dirty {
                self.keeper.discard(page);
            }
            *known = Known { bytes: bytes.unwrap_or(known.bytes), dirty: true };
        }
        while self.resident.len() > 1
            && self.resident.len() * PAGE + self.keeper.held() > self.settings.memory
        {
            self.evict()?;
        }
        self.keeper.work(&mut self.device, self.now);
        Ok(())
    }

    /// Makes the page resident.
    fn bring(&mut self, page: u64) -> Result<(), ShelfError> {
        let costs = self.settings.costs;
        if let Some(known) = self.known.get_mut(&page) {
            self.outcome.faults += 1;
            self.now += costs.fault;
            known.dirty = self.keeper.gives_up();
            if self.keeper.load(page)? == Place::Pool {
                self.outcome.loads += 1;
                self.now += costs.load;
            } else {
                self.outcome.tier_reads += 1;
                self.now += self.device.read(self.now, costs.read);
            }
        } else {
            // Fresh memory, which the program is about to fill.
            let bytes = self.sizes.get(&page).copied().unwrap_or(DEFAULT_BYTES);
            self.known.insert(page, Known { bytes, dirty: true });
        }
        Ok(())
    }

    /// Lets the least recently used page go.
    fn evict(&mut self) -> Result<(), ShelfError> {
        let Some(page) = self.resident.pop_oldest() else { return Ok(()) };
        let known = self.known[&page];
        if !known.dirty {
            return Ok(());
        }
        if self.keeper.store(page, known.bytes)? {
            self.now += self.settings.costs.store;
            return Ok(());
        }
        self.outcome.tier_writes += 1;
        self.device.write(self.now, PAGE);
        self.now += (self.device.backlog(self.now) - BACKLOG).max(0.0) * self.settings.costs.write;
        Ok(())
    }

    /// A page that left says what it compresses to, touched before or not.
    fn learn(&mut self, page: u64, bytes: u16) {
        if let Some(known) = self.known.get_mut(&page) {
            known.bytes = bytes;
        } else {
            self.known.insert(page, Known { bytes, dirty: true });
            self.resident.touch(page);
        }
    }

    fn discard(&mut self, page: u64) {
        if self.known.remove(&page).is_some() {
            self.resident.remove(page);
            self.keeper.discard(page);
        }
    }

    fn finish(mut self) -> Outcome {
        self.keeper.count(&mut self.outcome);
        self.outcome.tier_writes += self.outcome.written_back_pages;
        self.outcome.elapsed_s = self.now / 1e6;
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Generator;

    const COSTS: Costs = Costs { touch: 1.0, fault: 5.0, store: 5.0, load: 2.0, read: 100.0, write: 100.0 };

    fn case(policy: Policy, pages: u64, max_pool_percent: u8) -> Settings {
        Settings {
            policy,
            memory: pages * PAGE,
            max_pool_percent,
            accept_threshold_percent: 90,
            costs: COSTS,
        }
    }

    fn outcome(trace: &str, settings: &Settings) -> Outcome {
        replay(&Generator::parse(trace).unwrap().operations(), settings).unwrap()
    }

    #[test]
    fn enough_memory_never_faults() {
        for (_, policy) in Policy::ALL {
            let done = outcome("uniform:pages=100,touches=1000", &case(policy, 100, 20));
            assert_eq!((done.touches, done.faults, done.tier_writes), (1100, 0, 0));
            assert!((done.elapsed_s - 1100e-6).abs() < 1e-9);
        }
    }

    #[test]
    fn a_scan_misses_always_and_each_fault_is_served_once() {
        for (_, policy) in Policy::ALL {
            let done = outcome("scan:pages=1000,touches=3000,writes=0", &case(policy, 400, 20));
            assert_eq!(done.faults, 3000, "{policy:?}");
            assert_eq!(done.loads + done.tier_reads, done.faults);
            assert!(policy != Policy::None || done.loads == 0, "{done:?}");
        }
    }

    #[test]
    fn clean_pages_leave_for_nothing() {
        let read_only = outcome("uniform:pages=1000,touches=5000,writes=0", &case(Policy::None, 500, 20));
        assert!(read_only.tier_writes <= 1000 && read_only.tier_reads > 1500, "{read_only:?}");
        let written = outcome("uniform:pages=1000,touches=5000,writes=100", &case(Policy::None, 500, 20));
        assert!(written.tier_writes > 2000, "{written:?}");
    }

    #[test]
    fn a_pool_that_holds_everything_needs_no_device() {
        for policy in [Policy::OnePage, Policy::Shrink, Policy::Store] {
            let done = outcome("uniform:pages=1000,touches=5000", &case(policy, 700, 90));
            assert_eq!((done.tier_reads, done.tier_writes, done.rejects), (0, 0, 0), "{policy:?} {done:?}");
            assert!(done.loads > 1000);
        }
    }

    #[test]
    fn one_page_a_wake_up_turns_the_lru_upside_down() {
        let trace = "phases:pages=6000,touches=200000,writes=60";
        let [none, one, shrink, store] =
            Policy::ALL.map(|(_, policy)| outcome(trace, &case(policy, 900, 40)));
        assert!(one.elapsed_s > none.elapsed_s, "worse than no pool: {one:?} {none:?}");
        assert!(shrink.elapsed_s < none.elapsed_s, "better than no pool: {shrink:?} {none:?}");
        assert!(store.elapsed_s < none.elapsed_s, "better than no pool: {store:?} {none:?}");
        assert!(
            one.pool_limit_hit > 100 * one.pool_limit_hit_at_limit,
            "the second half was missing: {one:?}"
        );
        assert!(one.written_back_pages < 100 && shrink.written_back_pages > 1000, "{one:?} {shrink:?}");
    }

    #[test]
    fn what_is_given_up_is_forgotten() {
        let mut operations: Vec<Operation> = (0..100).map(|page| Operation::Write(page, None)).collect();
        operations.extend((0..40).map(|page| Operation::Discard(page, 1)));
        operations.push(Operation::Discard(40, 1 << 40));
        operations.extend((0..100).map(Operation::Read));
        for (_, policy) in Policy::ALL {
            assert_eq!(replay(&operations, &case(policy, 50, 50)).unwrap().faults, 0, "{policy:?}");
        }
    }
}
