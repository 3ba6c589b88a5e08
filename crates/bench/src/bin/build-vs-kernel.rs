//! A parallel C build in too little memory: `make -jN` under `ramfold run`, the kernel's zswap and its disk swap.
//!
//! What is built is zstd, from the crate that Cargo has unpacked. For each N one build without a limit comes first;
//! every other build must make the same objects, byte for byte. Then the sides take turns, so that a change in the
//! machine's speed meets all of them; the table shows medians over the rounds.
//!
//! The kernel's sides run in a memory cgroup of the limit. zswap's compressed pool lies outside that limit (cgroup
//! version 1), so its peak with that N is added to what ramfold gets for everything; disk swap has the limit alone,
//! and so has ramfold-plain, as in `run-vs-kernel`. A build that the kernel kills for want of memory has no time, and
//! leaves ramfold a pool that may be too small. ramfold's group has no limit of its own: the column DRAM shows all
//! its resident memory, charged to ramfold's limit or not. Files in the page cache are charged to nobody but who
//! writes them (see `cost`).
//!
//! Needs root. Makes a swap file and changes zswap's parameters; both are put back at the end and on Ctrl-C.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use ramfold_bench::build::Sources;
use ramfold_bench::build_run::Build;
use ramfold_bench::cost_table::{CostRow, table, told};
use ramfold_bench::measure::Side;
use ramfold_bench::options::{Common, SetUp};
use serde_json::json;

#[derive(Parser)]
#[command(about = "make -jN under ramfold run, zswap and disk swap at equal memory", after_help = EXAMPLE)]
struct Options {
    #[command(flatten)]
    common: Common,
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
    /// Without the unlimited side, which builds once for each number of jobs in any case.
    fn new(options: &Options) -> Result<Self> {
        let quick = options.common.quick;
        let mut sides = options.common.sides(&Side::ALL)?;
        sides.retain(|side| *side != Side::Unlimited);
        let jobs = match (&options.jobs[..], quick) {
            ([], true) => vec![4],
            ([], false) => vec![2, 4, 8, 16],
            (given, _) => given.to_vec(),
        };
        ensure!(!jobs.contains(&0), "--jobs must be at least 1");
        let runs = options.runs.unwrap_or(if quick { 1 } else { 3 });
        ensure!(runs > 0, "--runs must be at least 1");
        let limit = options.limit_mib.unwrap_or(if quick { QUICK_LIMIT } else { LIMIT });
        Ok(Self { jobs, sides, runs, limit: limit << 20 })
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let plan = Plan::new(&options)?;
    let sources = Sources::find(options.source.as_deref(), options.common.quick)?;
    let SetUp { bench, compressor, swap: _swap } =
        options.common.set_up(options.common.ramfold_options_with_swap()?)?;
    let build = Build { bench, sources, timeout: Duration::from_secs(options.timeout) };
    let rows = compare(&build, &plan)?;
    if options.common.json {
        let rows: Vec<_> = rows.iter().map(CostRow::json).collect();
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

/// All builds. The first unlimited one makes the objects that all others must make too.
fn compare(build: &Build, plan: &Plan) -> Result<Vec<CostRow>> {
    let mut expected = None;
    let mut rows = Vec::new();
    for jobs in &plan.jobs {
        let name = format!("make -j{jobs}");
        let unlimited = told(&name, Side::Unlimited, 0, || {
            let (cost, objects) = build.run(*jobs, Side::Unlimited, 0, expected.as_ref())?;
            expected = expected.take().or(objects);
            Ok(cost)
        })?;
        ensure!(expected.is_some(), "the unlimited build took too long (see --timeout)");
        let mut row = CostRow::new(name, plan.limit);
        row.sides.insert(Side::Unlimited, vec![unlimited]);
        let one = |side, limit| Ok(build.run(*jobs, side, limit, expected.as_ref())?.0);
        row.rounds(plan.runs, &plan.sides, one)?;
        rows.push(row);
    }
    Ok(rows)
}
