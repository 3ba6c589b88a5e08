//! The measurements that the ideas of ramfold come from, made anew: `seeds ageing FILE`, `seeds sharing [PROCESSES]`,
//! `seeds inversion RAMFOLD`.
//!
//! ageing: zbud, zsmalloc and xvmalloc as a half-full device grows old (Vitaly Wool, Embedded Linux Conference 2016).
//! In each of 40 rounds a tenth of the pages moves to other random sectors and as many are read; what counts is how
//! throughput, latency and density change. FILE has pages one after another (`collect-pages`).
//!
//! sharing: how many pages of many like processes are same-filled or duplicates, what sharing them saves, and what
//! looking for them costs a store (Srividya Desireddy, zswap patches of 2016). The processes are Python programs with
//! the same modules and different data: once as they are, once without random addresses and hashes (`setarch -R`),
//! which otherwise make every page with a pointer another.
//!
//! inversion: what a pool that is full does to a program, by `ramfold replay` and under `ramfold run`
//! ([`ramfold_bench::inversion`]). RAMFOLD is the binary.
//!
//! Each prints a table, and draws it with `--svg FILE`.

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use ramfold::{Config, PAGE_SIZE, Page};
use ramfold_bench::histogram::Histogram;
use ramfold_bench::inversion;
use ramfold_bench::plot::{self, Drawing, Panel};
use ramfold_bench::process::Running;
use ramfold_bench::random::Random;
use ramfold_survey::look::look;
use ramfold_survey::population::{Population, Target};
use ramfold_survey::shelf::{Shelf, thread_time};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "The measurements that the ideas of ramfold come from, made anew")]
struct Options {
    #[command(subcommand)]
    seed: Seed,
    /// Draw the table too
    #[arg(long, global = true, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Seed {
    /// zbud, zsmalloc and xvmalloc as a half-full device grows old
    Ageing {
        /// Pages of 4096 bytes, one after another
        file: PathBuf,
    },
    /// Same-filled and duplicate pages of many like processes
    Sharing {
        #[arg(default_value_t = 16)]
        processes: usize,
    },
    /// What a pool that is full does to a program under `ramfold run`
    Inversion {
        /// The binary
        ramfold: PathBuf,
    },
}

const ROUNDS: usize = 40;
/// Rounds of the second measurement; the two settings take turns.
const TURNS: usize = 5;

const LIKE: &str = "
import sys, json, re, decimal, random, email.message, http.client, unittest, xml.dom.minidom
r = random.Random(int(sys.argv[1]))
data = [{'id': i, 'name': 'customer %d' % r.randrange(10**6), 'score': r.random()} for i in range(8000)]
table = [0] * 200000
print('ready', flush=True); sys.stdin.read()
";

fn main() -> Result<()> {
    let Options { seed, svg } = Options::parse();
    let panels = match seed {
        Seed::Ageing { file } => ageing(&read(&[Target::File(file)])?)?,
        Seed::Sharing { processes } => sharing(processes)?,
        Seed::Inversion { ramfold } => inversion(&ramfold)?,
    };
    svg.map_or(Ok(()), |path| plot::write(&path, &panels))
}

fn inversion(ramfold: &Path) -> Result<Vec<Panel>> {
    let modelled = inversion::modelled(ramfold)?;
    println!("by replay, estimated:");
    modelled.iter().for_each(|(policy, seconds)| println!("{policy:<10} {seconds:>6.2} s"));
    let real = inversion::Real::measure(ramfold)?;
    println!("\nunder run:\n{}", real.table());
    Ok(vec![
        Panel { title: "replay: estimated seconds", drawing: Drawing::Bars(modelled) },
        Panel { title: "run: touches a second", drawing: Drawing::Bars(real.rates()) },
        Panel { title: "run: reads of the file", drawing: Drawing::Bars(real.reads()) },
    ])
}

/// All pages of the targets.
fn read(targets: &[Target]) -> Result<Vec<Page>> {
    let population = Population::open(targets, false)?;
    let (mut pages, mut page) = (Vec::new(), [0; PAGE_SIZE]);
    for rank in 0..population.pages() {
        if population.read(population.at(rank), &mut page)? {
            pages.push(page);
        }
    }
    Ok(pages)
}

/// A device of twice as many sectors as there are pages: where each page lies, and the free sectors.
struct Device {
    shelf: Shelf,
    sectors: Vec<usize>,
    free: Vec<usize>,
}

/// What a round took; `time` is processor time.
#[derive(Default)]
struct Round {
    time: Duration,
    stores: Histogram,
    loads: Histogram,
}

fn ageing(pages: &[Page]) -> Result<Vec<Panel>> {
    ensure!(pages.len() >= 1000, "too few pages to measure");
    println!("{} pages on a device of twice the size, lz4, {ROUNDS} rounds", pages.len());
    println!("zpool     round   pages/s   store us p50    p99   load us p50    p99   ratio");
    let mut histories = Vec::new();
    for zpool in ["zbud", "zsmalloc", "xvmalloc"] {
        let mut history = Vec::new();
        let mut random = Random::new(1);
        let mut device = Device::filled(pages, zpool)?;
        for round in 1..=ROUNDS {
            let seen = device.age(pages, &mut random)?;
            history.push([seen.rate(), microseconds(&seen.stores, 50), density(&device.shelf)]);
            if round == 1 || round % 10 == 0 {
                print_round(zpool, round, &seen, &device.shelf);
            }
        }
        histories.push((zpool, history));
    }
    let line = |history: &[[f64; 3]], figure: usize| {
        history.iter().enumerate().map(|(round, figures)| ((round + 1) as f64, figures[figure])).collect()
    };
    let titles = ["pages a second", "a store, us (median)", "bytes of pages / bytes of pool"];
    let panel = |(figure, title)| {
        let lines = histories.iter().map(|(zpool, history)| ((*zpool).to_owned(), line(history, figure)));
        Panel { title, drawing: Drawing::Lines("round", lines.collect()) }
    };
    Ok(titles.into_iter().enumerate().map(panel).collect())
}

impl Device {
    fn filled(pages: &[Page], zpool: &str) -> Result<Self> {
        let config = Config { zpool: zpool.into(), duplicate_pages_enabled: false, ..Shelf::unlimited() };
        let mut shelf = Shelf::with_config(&config)?;
        shelf.store_all(pages)?;
        let sectors = (0..pages.len()).collect();
        Ok(Self { shelf, sectors, free: (pages.len()..2 * pages.len()).collect() })
    }

    /// A tenth of the pages moves to free sectors, and a tenth of the sectors in use is read.
    fn age(&mut self, pages: &[Page], random: &mut Random) -> Result<Round> {
        let (mut round, mut page) = (Round::default(), [0; PAGE_SIZE]);
        let begun = thread_time();
        for _ in 0..pages.len() / 10 {
            let (moved, to) = (random.index(pages.len()), random.index(self.free.len()));
            let started = Instant::now();
            self.shelf.discard(self.sectors[moved]);
            self.shelf.put(self.free[to], &pages[moved])?;
            round.stores.add(nanoseconds(started.elapsed()));
            std::mem::swap(&mut self.sectors[moved], &mut self.free[to]);
            let other = random.index(pages.len());
            let started = Instant::now();
            self.shelf.get(self.sectors[other], &mut page)?;
            round.loads.add(nanoseconds(started.elapsed()));
            ensure!(page == pages[other], "a page came back changed");
        }
        round.time = thread_time() - begun;
        Ok(round)
    }
}

impl Round {
    /// Pages a second of processor time.
    fn rate(&self) -> f64 {
        (self.stores.total() + self.loads.total()) as f64 / self.time.as_secs_f64()
    }
}

/// That so many percent of them do not exceed.
fn microseconds(histogram: &Histogram, percent: u64) -> f64 {
    histogram.percentile(percent) as f64 / 1000.0
}

/// Bytes of pages to bytes of pool.
fn density(shelf: &Shelf) -> f64 {
    let stats = shelf.stats();
    stats.orig_data_size as f64 / stats.pool_total_size as f64
}

fn print_round(zpool: &str, number: usize, round: &Round, shelf: &Shelf) {
    println!(
        "{zpool:<9} {number:>5} {:>9.0} {:>14.1} {:>6.1} {:>13.1} {:>6.1} {:>7.2}",
        round.rate(),
        microseconds(&round.stores, 50),
        microseconds(&round.stores, 99),
        microseconds(&round.loads, 50),
        microseconds(&round.loads, 99),
        density(shelf)
    );
}

/// One of many like processes. `fixed`: the same addresses and hashes in each.
fn like(seed: usize, fixed: bool) -> Result<Running> {
    let mut command = Command::new(if fixed { "setarch" } else { "python3" });
    if fixed {
        command.args(["-R", "python3"]).env("PYTHONHASHSEED", "0");
    }
    command.args(["-c", LIKE, &seed.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut like = Running::start(&mut command)?;
    ensure!(like.first_line()? == "ready\n", "python3 did not get ready");
    Ok(like)
}

/// What storing all pages takes.
#[derive(Clone, Copy)]
struct Cost {
    /// Of processor time, a page.
    microseconds: f64,
    /// Of pool.
    mib: f64,
}

fn sharing(count: usize) -> Result<Vec<Panel>> {
    println!("as they are:");
    let random = share(count, false)?;
    println!("\nwithout random addresses and hashes:");
    let fixed = share(count, true)?;
    let bars = |of: fn(&Cost) -> f64| {
        let names = ["own addresses", "own, sharing", "equal addresses", "equal, sharing"];
        let costs = [random.0, random.1, fixed.0, fixed.1];
        Drawing::Bars(names.iter().zip(&costs).map(|(name, cost)| ((*name).to_owned(), of(cost))).collect())
    };
    Ok(vec![
        Panel { title: "pool, MiB", drawing: bars(|cost| cost.mib) },
        Panel { title: "a store, us", drawing: bars(|cost| cost.microseconds) },
    ])
}

/// Without sharing, and with it.
fn share(count: usize, fixed: bool) -> Result<(Cost, Cost)> {
    let likes = (0..count).map(|seed| like(seed, fixed)).collect::<Result<Vec<_>>>()?;
    let targets: Vec<Target> = likes.iter().map(|like| Target::Process(like.0.id())).collect();
    let seen = look(&Population::open(&targets, false)?, |_, _| {})?;
    let percent = |part: u64| seen.share(part) * 100.0;
    println!("{count} processes, {} pages, lz4, zsmalloc", seen.pages);
    println!("zero                      {:>6.1} %", percent(seen.zero));
    println!("otherwise same-filled     {:>6.1} %", percent(seen.same_filled - seen.zero));
    println!("duplicates in a process   {:>6.1} %", percent(seen.duplicates_within));
    println!("duplicates across         {:>6.1} %", percent(seen.duplicates_across));
    let pages = read(&targets)?;
    drop(likes);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        with.push(store_all(&pages, true)?);
        without.push(store_all(&pages, false)?);
    }
    let (with, without) = (middle(with), middle(without));
    println!("pool without, with sharing {:.1}, {:.1} MiB", without.mib, with.mib);
    println!("saved by sharing          {:>6.1} %", (1.0 - with.mib / without.mib) * 100.0);
    println!("store without, with       {:.2}, {:.2} us a page", without.microseconds, with.microseconds);
    Ok((without, with))
}

fn store_all(pages: &[Page], duplicate_pages_enabled: bool) -> Result<Cost> {
    let mut shelf = Shelf::with_config(&Config { duplicate_pages_enabled, ..Shelf::unlimited() })?;
    let started = thread_time();
    shelf.store_all(pages)?;
    let time = thread_time() - started;
    Ok(Cost {
        microseconds: time.as_secs_f64() * 1e6 / pages.len() as f64,
        mib: shelf.stats().pool_total_size as f64 / f64::from(1 << 20),
    })
}

/// The median by time.
fn middle(mut values: Vec<Cost>) -> Cost {
    values.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
    values[values.len() / 2]
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
