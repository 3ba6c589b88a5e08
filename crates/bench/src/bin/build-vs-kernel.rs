//! A parallel C build in too little memory: `make -jN` under `ramfold run`, the kernel's zswap and its disk swap.
//!
//! What is built is zstd, from the crate that Cargo has unpacked. For each N one build without a limit comes first;
//! every other build must make the same objects, byte for byte. Then the sides take turns, so that a change in the
//! machine's speed meets all of them; the table shows medians over the rounds.
//!
//! The kernel's sides run in a memory cgroup of the limit. zswap's compressed pool lies outside that limit (cgroup
//! version 1), so its peak with that N is added to what ramfold gets for everything; disk swap has the limit alone, as
//! in `run-vs-kernel`. A build that the kernel kills for want of memory has no time, and leaves ramfold a pool that may
//! be too small. ramfold's group has no limit of its own: the column DRAM shows all its resident memory, charged
//! to ramfold's limit or not. Files in the page cache are charged to nobody but who writes them (see `build_run`).
//!
//! Needs root. Makes a swap file and changes zswap's parameters; both are put back at the end and on Ctrl-C.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::build::{Objects, Sources};
use ramfold_bench::build_run::{Build, Cost, End, Task};
use ramfold_bench::build_table::{BuildRow, table};
use ramfold_bench::cgroup::Cgroup;
use ramfold_bench::kernel_swap::{SwapFile, Zswap};
use ramfold_bench::measure::{Bench, Side};
use ramfold_bench::options::{catch_signals, chosen, side_and_limit};
use serde_json::json;

#[derive(Parser)]
#[command(about = "make -jN under ramfold run, zswap and disk swap at equal memory", after_help = EXAMPLE)]
struct Options {
    /// The ramfold binary (default: $RAMFOLD); without one, only the other sides run
    #[arg(long)]
    ramfold: Option<PathBuf>,
    /// One more option for `ramfold run` (may be repeated)
    #[arg(long = "ramfold-option", value_name = "OPTION", allow_hyphen_values = true)]
    ramfold_options: Vec<String>,
    /// Only these sides beside unlimited: zswap, disk, ramfold (may be repeated)
    #[arg(long, value_name = "SIDE")]
    side: Vec<String>,
    /// Jobs of make (may be repeated; default: 2, 4, 8 and 16)
    #[arg(long, value_name = "N")]
    jobs: Vec<usize>,
    /// Rounds
    #[arg(long)]
    runs: Option<usize>,
    /// What the limited sides get, in MiB
    #[arg(long, value_name = "MIB")]
    limit_mib: Option<u64>,
    /// A build that takes longer is killed and shown as "over"
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// The crate zstd-sys, unpacked (default: the newest in $CARGO_HOME/registry/src)
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Few files, 4 jobs, one round, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Where the swap files go, the kernel's and ramfold's: a directory on a real file system
    #[arg(long, default_value = "/var/tmp")]
    swap_directory: PathBuf,
    /// The kernel's swap file's size, in MiB
    #[arg(long, default_value_t = 4096)]
    swap_mib: u64,
    /// zswap's compressor (default: lz4 if the kernel has it, else lzo)
    #[arg(long)]
    zswap_compressor: Option<String>,
}

const EXAMPLE: &str = "Example: build-vs-kernel --ramfold target/release/ramfold --jobs 8 --runs 1";

/// In MiB. 16 compilers have 660 resident together, the largest 250 alone. In 176 the kernel (6.18) killed compilers
/// of 16 under zswap, in 128 of 8, while disk swap went on.
const LIMIT: u64 = 256;
const QUICK_LIMIT: u64 = 40;

/// The options with their defaults filled in.
struct Plan {
    jobs: Vec<usize>,
    sides: Vec<Side>,
    runs: usize,
    limit: u64,
}

impl Plan {
    fn new(options: &Options, has_ramfold: bool) -> Result<Self> {
        let mut sides = chosen(&options.side, Side::ALL, Side::name)?;
        sides.retain(|side| *side != Side::Unlimited && (has_ramfold || *side != Side::Ramfold));
        let jobs = match (&options.jobs[..], options.quick) {
            ([], true) => vec![4],
            ([], false) => vec![2, 4, 8, 16],
            (given, _) => given.to_vec(),
        };
        ensure!(!jobs.contains(&0), "--jobs must be at least 1");
        let runs = options.runs.unwrap_or(if options.quick { 1 } else { 3 });
        ensure!(runs > 0, "--runs must be at least 1");
        let limit = options.limit_mib.unwrap_or(if options.quick { QUICK_LIMIT } else { LIMIT });
        Ok(Self { jobs, sides, runs, limit: limit << 20 })
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let ramfold = options.ramfold.clone().or_else(|| std::env::var_os("RAMFOLD").map(PathBuf::from));
    let plan = Plan::new(&options, ramfold.is_some())?;
    let sources = Sources::find(options.source.as_deref(), options.quick)?;
    catch_signals();
    let _swap = SwapFile::activate(&options.swap_directory, options.swap_mib << 20)?;
    let zswap = match &options.zswap_compressor {
        Some(name) => Zswap::prepare(&[name])?,
        None => Zswap::prepare(&["lz4", "lzo"])?,
    };
    let compressor = zswap.compressor()?;
    let bench = Bench { ramfold, ramfold_options: ramfold_options(&options)?, zswap: Some(zswap) };
    let build = Build { bench, sources, timeout: Duration::from_secs(options.timeout) };
    let rows = compare(&build, &plan)?;
    if options.json {
        let rows: Vec<_> = rows.iter().map(BuildRow::json).collect();
        let common = json!({
            "runs": plan.runs,
            "limit_bytes": plan.limit,
            "objects": build.sources.count(),
            "source": build.sources.root(),
            "zswap_compressor": compressor,
            "rows": rows,
        });
        println!("{common:#}");
    } else {
        println!(
            "{} objects in {} MiB; medians of {} rounds; zswap compresses with {compressor}; all objects that were built are the same",
            build.sources.count(),
            plan.limit >> 20,
            plan.runs
        );
        print!("{}", table(&rows));
    }
    Ok(())
}

/// ramfold's swap file lies where the kernel's does, unless the user says otherwise.
fn ramfold_options(options: &Options) -> Result<Vec<String>> {
    let mut all = options.ramfold_options.clone();
    if !all.iter().any(|option| option == "--swap" || option.starts_with("--swap=")) {
        let directory = options.swap_directory.to_str().context("--swap-directory is not UTF-8")?;
        all.push(format!("--swap={directory}"));
    }
    Ok(all)
}

/// All builds. The first unlimited one makes the objects that all others must make too.
fn compare(build: &Build, plan: &Plan) -> Result<Vec<BuildRow>> {
    let adds_pool = !Cgroup::charge_zswap()?;
    let mut expected = None;
    let mut rows = Vec::new();
    for jobs in &plan.jobs {
        let (cost, objects) =
            one(build, Task { side: Side::Unlimited, jobs: *jobs, limit: 0 }, expected.as_ref())?;
        expected = expected.or(objects);
        let expected = expected.as_ref().context("the unlimited build took too long (see --timeout)")?;
        let mut row = BuildRow {
            jobs: *jobs,
            ramfold_limit: plan.limit,
            sides: BTreeMap::from([(Side::Unlimited, vec![cost])]),
        };
        for _ in 0..plan.runs {
            round(build, plan, &mut row, expected, adds_pool)?;
        }
        rows.push(row);
    }
    Ok(rows)
}

fn round(build: &Build, plan: &Plan, row: &mut BuildRow, expected: &Objects, adds_pool: bool) -> Result<()> {
    for side in &plan.sides {
        let limit = if *side == Side::Ramfold { row.ramfold_limit } else { plan.limit };
        let (cost, _) = one(build, Task { side: *side, jobs: row.jobs, limit }, Some(expected))?;
        if *side == Side::Zswap && adds_pool {
            row.ramfold_limit = row.ramfold_limit.max(plan.limit + cost.zswap_pool);
        }
        row.sides.entry(*side).or_default().push(cost);
    }
    Ok(())
}

/// One build, told on stderr.
fn one(build: &Build, task: Task, expected: Option<&Objects>) -> Result<(Cost, Option<Objects>)> {
    eprintln!("make -j{}, {}", task.jobs, side_and_limit(task.side, task.limit));
    let (cost, objects) = build.run(task, expected)?;
    let end = match cost.end {
        End::Built => "built in",
        End::TimedOut => "killed after",
        End::OutOfMemory => "out of memory after",
    };
    eprintln!(
        "    {end} {:.1} s, at most {} MiB, {} of them zswap's",
        cost.seconds,
        cost.dram >> 20,
        cost.zswap_pool >> 20
    );
    Ok((cost, objects))
}
