//! Real programs in a half and a third of their own memory: under `ramfold run`, the kernel's zswap and its disk swap.
//!
//! Each program runs once without a limit: that tells its peak, and what it gives. Every other run must give the same,
//! byte for byte. Then the sides take turns; the table shows medians over the rounds.
//!
//! The kernel's sides run in a memory cgroup of the limit, and read no pages ahead (vm.page-cluster=0), as those who
//! use zswap set it. zswap's compressed pool lies outside that limit (cgroup version 1), so its peak is added to what
//! ramfold gets for everything; beside disk swap stands ramfold with the limit alone, ramfold-plain. What the kernel
//! kills for want of memory has no time: the table says "no memory".
//!
//! `--busy N` has N processes keep processors busy all the while, on the same ones as the programs: a fault that needs
//! two threads to be scheduled suffers there more than the kernel's.
//!
//! Needs root. Makes a swap file and changes zswap's parameters and vm.page-cluster; all are put back at the end and on
//! Ctrl-C.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::cost::Job;
use ramfold_bench::cost_table::{CostRow, table, told};
use ramfold_bench::measure::{Bench, INTERRUPTED, Side};
use ramfold_bench::options::{Common, SetUp, chosen};
use ramfold_bench::process::Running;
use ramfold_bench::programs::{Kind, Program};
use serde_json::json;

#[derive(Parser)]
#[command(about = "Real programs under ramfold run, zswap and disk swap at equal memory", after_help = EXAMPLE)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Only these programs: python, sort, node, java, sqlite, g++, numpy, perl (may be repeated)
    #[arg(long, value_name = "PROGRAM")]
    only: Vec<String>,
    /// The limit is the program's peak divided by this (may be repeated; default: 2 and 3, with --quick 2)
    #[arg(long, value_name = "N")]
    share: Vec<u64>,
    /// Rounds (default: 3, with --quick 1)
    #[arg(long)]
    runs: Option<usize>,
    /// Processes that keep processors busy meanwhile
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: usize,
    /// A run that takes longer is killed and shown as "over"
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

const EXAMPLE: &str = "Example: programs-vs-kernel --ramfold target/release/ramfold --only python --busy 2";

/// The others are asked for by `--side`.
const USUAL: [Side; 5] = [Side::Unlimited, Side::Zswap, Side::Disk, Side::Ramfold, Side::RamfoldPlain];

/// The smallest limit that `ramfold run` takes.
const LEAST_LIMIT: u64 = 16 << 20;

/// The options with their defaults filled in.
struct Plan {
    kinds: Vec<Kind>,
    sides: Vec<Side>,
    shares: Vec<u64>,
    runs: usize,
    timeout: Duration,
    quick: bool,
}

impl Plan {
    fn new(options: &Options) -> Result<Self> {
        let quick = options.common.quick;
        let plan = Self {
            kinds: chosen(&options.only, Kind::ALL, Kind::name)?,
            sides: options.common.sides(&USUAL)?,
            shares: match (&options.share[..], quick) {
                ([], true) => vec![2],
                ([], false) => vec![2, 3],
                (given, _) => given.to_vec(),
            },
            runs: options.runs.unwrap_or(if quick { 1 } else { 3 }),
            timeout: Duration::from_secs(options.timeout),
            quick,
        };
        ensure!(plan.runs > 0 && !plan.shares.contains(&0), "--runs and --share must be at least 1");
        Ok(plan)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let plan = Plan::new(&options)?;
    let SetUp { bench, compressor, swap: _swap } =
        options.common.set_up(options.common.ramfold_options_with_swap()?)?;
    let _busy = (0..options.busy).map(|_| busy()).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for kind in &plan.kinds {
        let scratch = tempfile::tempdir_in(&options.common.swap_directory)?;
        let compared = Program::new(*kind, scratch.path(), plan.quick)
            .and_then(|program| compare(kind.name(), &program, &bench, &plan));
        match compared {
            Ok(compared) => rows.extend(compared),
            Err(error) if INTERRUPTED.load(Ordering::Relaxed) => return Err(error),
            Err(error) => return Err(error.context(format!("kept in {}", scratch.keep().display()))),
        }
    }
    if options.common.json {
        let rows: Vec<_> = rows.iter().map(CostRow::json).collect();
        let (runs, busy) = (plan.runs, options.busy);
        println!("{:#}", json!({ "runs": runs, "busy": busy, "zswap_compressor": compressor, "rows": rows }));
    } else {
        println!(
            "medians of {} rounds, {} busy processes beside; zswap compresses with {compressor}; all output is the same",
            plan.runs, options.busy
        );
        print!("{}", table(&rows));
    }
    Ok(())
}

/// Ends with its owner.
fn busy() -> Result<Running> {
    Running::start(Command::new("sh").args(["-c", "while :; do :; done"]))
}

/// One row for each share of the program's memory.
fn compare(name: &str, program: &Program, bench: &Bench, plan: &Plan) -> Result<Vec<CostRow>> {
    let job = |side, limit| Job { words: program.words().to_vec(), side, limit, timeout: plan.timeout };
    let mut expected = None;
    let plain = told(name, Side::Unlimited, 0, || {
        let (cost, made) = program.run(bench, &job(Side::Unlimited, 0), None)?;
        expected = made;
        Ok(cost)
    })?;
    let expected = expected.context("the run without a limit took too long (see --timeout)")?;
    let row = |share: &u64| {
        let mut row = CostRow::new(format!("{name} 1/{share}"), (plain.dram / share).max(LEAST_LIMIT));
        row.rounds(plan.runs, &plan.sides, |side, limit| {
            Ok(program.run(bench, &job(side, limit), Some(&expected))?.0)
        })?;
        Ok(row)
    };
    plan.shares.iter().map(row).collect()
}
