//! `ramfold run` against the kernel's zswap and disk swap, at equal memory on the same machine.
//!
//! Each round runs a workload on each side in turn, so that a change in the machine's speed meets all of them; the
//! table shows medians over the rounds. The kernel's sides run in a memory cgroup of the limit; zswap's compressed
//! pool lies outside that limit (cgroup version 1), so its peak is added to what ramfold gets for everything. Beside
//! disk swap stands ramfold with the limit alone.
//!
//! Needs root. Makes a swap file and changes zswap's parameters; both are put back at the end and on Ctrl-C.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::comparison::{Row, table};
use ramfold_bench::measure::{Bench, Limits, Outcome, Side};
use ramfold_bench::options::{Common, SetUp, chosen, side_and_limit};
use ramfold_bench::suite::{Kind, Limit, Scale};
use serde_json::json;

#[derive(Parser)]
#[command(about = "ramfold run against the kernel's zswap and disk swap at equal memory", after_help = EXAMPLE)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Only these workloads: uniform, sequential, zipf, python, redis (may be repeated)
    #[arg(long, value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// A file of 4096-byte pages to fill memory with (default: made-up pages)
    #[arg(long)]
    pages: Option<PathBuf>,
    /// The limit, in MiB (default: 512, and half of what python and redis have alone). Two calls whose results are
    /// compared want the same
    #[arg(long, value_name = "MIB")]
    limit_mib: Option<u64>,
    /// How long touches and redis are measured (default: 10, with --quick 2). redis's rate in ten seconds differs by a
    /// third from one server to the next, in ninety by a fiftieth
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
}

const EXAMPLE: &str = "Example: run-vs-kernel --ramfold target/release/ramfold --only uniform --runs 3";

fn main() -> Result<()> {
    let options = Options::parse();
    let kinds = chosen(&options.only, Kind::ALL, Kind::name)?;
    let sides = options.common.sides(&Side::ALL)?;
    ensure!(options.runs > 0, "--runs must be at least 1");
    let SetUp { bench, compressor, swap: _swap } =
        options.common.set_up(options.common.ramfold_options.clone())?;
    let scale = Scale {
        quick: options.common.quick,
        seconds: options.seconds.unwrap_or(if options.common.quick { 2 } else { 10 }),
        pages: options.pages.clone(),
        directory: std::env::temp_dir(),
    };
    let mut rows = Vec::new();
    for kind in kinds {
        rows.push(compare(kind, &scale, &sides, &options, &bench)?);
    }
    if options.common.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!("{:#}", json!({ "runs": options.runs, "zswap_compressor": compressor, "rows": rows }));
    } else {
        println!("medians of {} rounds; zswap compresses with {compressor}", options.runs);
        print!("{}", table(&rows));
    }
    Ok(())
}

/// All rounds of one workload.
fn compare(kind: Kind, scale: &Scale, sides: &[Side], options: &Options, bench: &Bench) -> Result<Row> {
    let workload = kind.workload(scale).with_context(|| format!("workload {}", kind.name()))?;
    let run = |side, limit| {
        eprintln!("{} on {}", kind.name(), side_and_limit(side, limit));
        let outcome =
            bench.run(&workload, side, limit).with_context(|| format!("workload {}", kind.name()))?;
        eprintln!("    {}", outcome.result);
        anyhow::Ok(outcome)
    };
    let limit = match options.limit_mib.map_or(kind.limit(scale), |mib| Limit::Fixed(mib << 20)) {
        Limit::Fixed(bytes) => bytes,
        Limit::Half => run(Side::Unlimited, 0)?.dram / 2,
    };
    let mut limits = Limits::new(limit)?;
    let mut row = Row { name: kind.name(), limit, ramfold_limit: limit, sides: BTreeMap::new() };
    for _ in 0..options.runs {
        for side in sides {
            let outcome = run(*side, limits.of(*side))?;
            limits.note(*side, outcome.zswap_pool);
            row.ramfold_limit = limits.of(Side::Ramfold);
            same_checksum(&row, &outcome)?;
            row.sides.entry(*side).or_default().push(outcome);
        }
    }
    Ok(row)
}

/// Where the workload prints a checksum, every run must print the same.
fn same_checksum(row: &Row, outcome: &Outcome) -> Result<()> {
    if let Some(first) = row.sides.values().flatten().next() {
        let (expected, got) = (&first.result["checksum"], &outcome.result["checksum"]);
        ensure!(expected == got, "{}: checksum {got} instead of {expected}", row.name);
    }
    Ok(())
}
