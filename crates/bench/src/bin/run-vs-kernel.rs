//! `ramfold run` against the kernel's zswap and disk swap, at equal memory on the same machine.
//!
//! Each round runs a workload on each side in turn, so that a change in the machine's speed meets all of them; the
//! table shows medians over the rounds. The kernel's sides run in a memory cgroup of the limit; zswap's compressed
//! pool lies outside that limit (cgroup version 1), so its peak is added to what ramfold gets for everything.
//!
//! Needs root. Makes a swap file and changes zswap's parameters; both are put back at the end and on Ctrl-C.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::cgroup::Cgroup;
use ramfold_bench::comparison::{Row, table};
use ramfold_bench::kernel_swap::{SwapFile, Zswap};
use ramfold_bench::measure::{Bench, Outcome, Side};
use ramfold_bench::options::{catch_signals, chosen, side_and_limit};
use ramfold_bench::suite::{Kind, Limit, Scale};
use serde_json::json;

#[derive(Parser)]
#[command(about = "ramfold run against the kernel's zswap and disk swap at equal memory", after_help = EXAMPLE)]
struct Options {
    /// The ramfold binary (default: $RAMFOLD); without one, only the other sides run
    #[arg(long)]
    ramfold: Option<PathBuf>,
    /// One more option for `ramfold run` (may be repeated)
    #[arg(long = "ramfold-option", value_name = "OPTION", allow_hyphen_values = true)]
    ramfold_options: Vec<String>,
    /// Only these workloads: uniform, sequential, zipf, python, redis (may be repeated)
    #[arg(long, value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Only these sides: unlimited, zswap, disk, ramfold (may be repeated)
    #[arg(long, value_name = "SIDE")]
    side: Vec<String>,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Small and short, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// A file of 4096-byte pages to fill memory with (default: made-up pages)
    #[arg(long)]
    pages: Option<PathBuf>,
    /// Where the swap file goes: a directory on a real file system
    #[arg(long, default_value = "/var/tmp")]
    swap_directory: PathBuf,
    /// The swap file's size, in MiB
    #[arg(long, default_value_t = 4096)]
    swap_mib: u64,
    /// zswap's compressor (default: lz4 if the kernel has it, else lzo)
    #[arg(long)]
    zswap_compressor: Option<String>,
}

const EXAMPLE: &str = "Example: run-vs-kernel --ramfold target/release/ramfold --only uniform --runs 3";

fn main() -> Result<()> {
    let options = Options::parse();
    let kinds = chosen(&options.only, Kind::ALL, Kind::name)?;
    let mut sides = chosen(&options.side, Side::ALL, Side::name)?;
    let ramfold = options.ramfold.clone().or_else(|| std::env::var_os("RAMFOLD").map(PathBuf::from));
    if ramfold.is_none() {
        sides.retain(|side| *side != Side::Ramfold);
    }
    ensure!(options.runs > 0, "--runs must be at least 1");
    catch_signals();
    let _swap = SwapFile::activate(&options.swap_directory, options.swap_mib << 20)?;
    let zswap = match &options.zswap_compressor {
        Some(name) => Zswap::prepare(&[name])?,
        None => Zswap::prepare(&["lz4", "lzo"])?,
    };
    let compressor = zswap.compressor()?;
    let bench = Bench { ramfold, ramfold_options: options.ramfold_options.clone(), zswap: Some(zswap) };
    let scale = Scale { quick: options.quick, pages: options.pages.clone(), directory: std::env::temp_dir() };
    let mut rows = Vec::new();
    for kind in kinds {
        rows.push(compare(kind, &scale, &sides, &options, &bench)?);
    }
    if options.json {
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
    let limit = match kind.limit(scale) {
        Limit::Fixed(bytes) => bytes,
        Limit::Half => run(Side::Unlimited, 0)?.dram / 2,
    };
    let mut row = Row { name: kind.name(), limit, ramfold_limit: limit, sides: BTreeMap::new() };
    let adds_pool = !Cgroup::charge_zswap()?;
    for _ in 0..options.runs {
        for side in sides {
            let own_limit = if *side == Side::Ramfold { row.ramfold_limit } else { limit };
            let outcome = run(*side, own_limit)?;
            if *side == Side::Zswap && adds_pool {
                row.ramfold_limit = row.ramfold_limit.max(limit + outcome.zswap_pool);
            }
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
