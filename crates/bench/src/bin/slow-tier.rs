//! What stores and loads of pages that fit take beside writeback to a slow tier.
//!
//! A thread stores and loads pages at random that all fit in the pool, and notes what each call takes. Beside it
//! another has the store write back pages that the first never touches. Three sides take turns, so that a change in the
//! machine's speed meets all: nobody writes back; to a tier in memory; to one of which every write takes `--delay`.
//! The table shows medians over the rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use ramfold::tier::{MemoryTier, ReadError, Slot, Tier, WriteError};
use ramfold::{Config, Key, PAGE_SIZE, PoolId, PoolKind, Store};
use ramfold_bench::comparison::median;
use ramfold_bench::histogram::Histogram;
use ramfold_bench::pages::Pages;
use ramfold_bench::random::Random;

#[derive(Parser)]
#[command(about = "Stores and loads of pages that fit, beside writeback to a slow tier")]
struct Options {
    /// Rounds
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Seconds a side and round
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Milliseconds that every write to the slow tier takes
    #[arg(long, default_value_t = 50)]
    delay: u64,
}

/// Pages that the measured thread works on: 64 MiB.
const WORKED_ON: u64 = 16 << 10;
/// Pages that are written back together.
const BATCH: u64 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Alone,
    Quick,
    Slow,
}

impl Side {
    const ALL: [Self; 3] = [Self::Alone, Self::Quick, Self::Slow];

    fn name(self) -> &'static str {
        match self {
            Self::Alone => "no writeback",
            Self::Quick => "tier in memory",
            Self::Slow => "slow tier",
        }
    }
}

/// A tier in memory of which every write takes so long.
#[derive(Debug)]
struct Slow(MemoryTier, Duration);

impl Tier for Slow {
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        std::thread::sleep(self.1);
        self.0.write(records)
    }

    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        self.0.read(slot, out)
    }

    fn discard(&self, slot: Slot) {
        self.0.discard(slot);
    }

    fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }

    fn meta_bytes(&self) -> usize {
        self.0.meta_bytes()
    }
}

/// What the calls of a run took, and how many pages were written back beside them.
struct Seen {
    stores: Histogram,
    loads: Histogram,
    written: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.runs > 0 && options.seconds > 0, "--runs and --seconds must be at least 1");
    let mut seen: [Vec<Seen>; 3] = Default::default();
    for _ in 0..options.runs {
        for (side, seen) in Side::ALL.into_iter().zip(&mut seen) {
            seen.push(run(side, &options)?);
        }
    }
    println!("a write to the slow tier takes {} ms; medians of {} rounds, ns", options.delay, options.runs);
    println!(
        "{:<16}{:>12}{:>12}{:>12}{:>12}{:>14}",
        "", "store p50", "p99", "load p50", "p99", "written back"
    );
    for (side, seen) in Side::ALL.into_iter().zip(&seen) {
        let of =
            |figure: &dyn Fn(&Seen) -> u64| median(seen.iter().map(|seen| figure(seen) as f64).collect());
        let figures = [
            of(&|seen| seen.stores.percentile(50)),
            of(&|seen| seen.stores.percentile(99)),
            of(&|seen| seen.loads.percentile(50)),
            of(&|seen| seen.loads.percentile(99)),
        ];
        print!("{:<16}", side.name());
        figures.iter().for_each(|figure| print!("{:>12.0}", figure.unwrap_or(f64::NAN)));
        println!("{:>14.0}", of(&|seen| seen.written).unwrap_or(f64::NAN));
    }
    Ok(())
}

fn run(side: Side, options: &Options) -> Result<Seen> {
    let delay = if side == Side::Slow { Duration::from_millis(options.delay) } else { Duration::ZERO };
    let tier: Arc<dyn Tier> = Arc::new(Slow(MemoryTier::new(), delay));
    let config = Config { max_pool_bytes: 1 << 30, shrink_inline: false, ..Config::default() };
    let store = Store::new(&config, Some(tier))?;
    let [worked_on, cold] = [(); 2].map(|()| store.create_pool(PoolKind::Persistent, None));
    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        if side != Side::Alone {
            scope.spawn(|| write_back(&store, cold, &done, &written));
        }
        let seen = measure(&store, worked_on, Duration::from_secs(options.seconds));
        done.store(true, Relaxed);
        let (stores, loads) = seen?;
        Ok(Seen { stores, loads, written: written.load(Relaxed) })
    })
}

/// Stores and loads in turns, pages at random.
fn measure(store: &Store, pool: PoolId, time: Duration) -> Result<(Histogram, Histogram)> {
    let (pages, mut scratch, mut random) = (Pages::open(None)?, store.scratch(), Random::new(7));
    let mut page = [0; PAGE_SIZE];
    let key = |index| Key { pool, object: 0, index };
    for index in 0..WORKED_ON {
        pages.fill(index, &mut page)?;
        store.store(key(index), &page, &mut scratch)?;
    }
    let (mut stores, mut loads) = (Histogram::default(), Histogram::default());
    let begun = Instant::now();
    while begun.elapsed() < time {
        let [from, to] = [(); 2].map(|()| key(random.below(WORKED_ON)));
        let before = Instant::now();
        store.load(from, &mut page, &mut scratch)?;
        let loaded = Instant::now();
        store.store(to, &page, &mut scratch)?;
        loads.add(nanoseconds(loaded - before));
        stores.add(nanoseconds(loaded.elapsed()));
    }
    Ok((stores, loads))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Fills a pool with pages and has them written back, again and again.
fn write_back(store: &Store, pool: PoolId, done: &AtomicBool, written: &AtomicU64) {
    let (mut scratch, mut random, mut page) = (store.scratch(), Random::new(11), [0; PAGE_SIZE]);
    let keys: Vec<_> = (0..BATCH).map(|index| Key { pool, object: 0, index }).collect();
    while !done.load(Relaxed) {
        for key in &keys {
            // Half of each does not compress.
            for word in page.chunks_exact_mut(16) {
                word[..8].copy_from_slice(&random.word().to_le_bytes());
            }
            // What is refused is not written back: the table tells how many were.
            let _ = store.store(*key, &page, &mut scratch);
        }
        written.fetch_add(store.write_back_pages(&keys).written_back, Relaxed);
    }
}
