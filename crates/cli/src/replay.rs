//! `ramfold replay`: what-if of a recorded or made-up trace.

mod report;

use crate::failure::Failure;
use crate::output::{print, progress, write};
use crate::size;
use clap::ValueEnum;
use ramfold::PAGE_SIZE;
use ramfold_survey::generate::{self, Generator};
use ramfold_survey::mrc::{self, Point};
use ramfold_survey::replay::{Costs, Outcome, Policy, Settings, replay};
use ramfold_survey::trace::{self, Operation};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

/// Plays a trace of page touches against pools of chosen sizes, thresholds and policies.
///
/// TRACE is a file (first line "ramfold-trace 1", then r PAGE, w PAGE [BYTES], c PAGE BYTES, d PAGE [COUNT], t
/// NANOSECONDS), as `ramfold run --trace` writes it, or made up: uniform, zipf, scan, loop or phases, with settings
/// as in zipf:pages=65536,touches=1000000,skew=0.9,writes=30,seed=1.
///
/// Policies: none (no pool), one-page (zswap until 2023: writes one page back each time that it is full), shrink (zswap
/// since: writes back until it is under the accept threshold), store (ramfold's own store and zsmalloc; the others are
/// models). Resident pages and pool share -m. hit: touches of resident pages; in pool: faults that the pool served.
/// limit hit: stores that found the pool full or above the threshold; at limit: those that found it full. Times are
/// estimated, from the costs given and one device that serves one request at a time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: ramfold replay zipf:pages=20000 -m 32M --max-pool-percent 10,30,50 --mrc --html curve.html"
)]
pub struct Options {
    /// A file, or uniform, zipf, scan, loop, phases
    #[arg(value_name = "TRACE")]
    pub trace: String,

    /// Memory for resident pages and pool together; by default half of the pages of the trace
    #[arg(short = 'm', long = "memory", value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Policies to compare
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum, default_values_t = Choice::ALL)]
    pub policy: Vec<Choice>,

    /// Pool sizes to compare, in percent of the memory
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "30")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=95))]
    pub max_pool_percent: Vec<u8>,

    /// Thresholds to compare, in percent of the pool's limit
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "90")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=100))]
    pub accept_threshold_percent: Vec<u8>,

    /// Microseconds for touch, fault, store, load, device read, device write
    #[arg(long, value_name = "US", value_delimiter = ',', num_args = 6, default_value = "1,5,5,2,100,100", value_parser = cost)]
    pub costs: Vec<f64>,

    /// The miss-ratio curve of the trace too: how often an LRU of any size would miss
    #[arg(long)]
    pub mrc: bool,

    /// Write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub json: bool,

    /// Write the trace, if it was made up
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// A policy on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Choice {
    None,
    OnePage,
    Shrink,
    Store,
}

impl Choice {
    const ALL: [Self; 4] = [Self::None, Self::OnePage, Self::Shrink, Self::Store];

    fn policy(self) -> Policy {
        match self {
            Self::None => Policy::None,
            Self::OnePage => Policy::OnePage,
            Self::Shrink => Policy::Shrink,
            Self::Store => Policy::Store,
        }
    }
}

/// What was played and what came of it.
#[derive(Debug)]
pub struct Played {
    trace: String,
    pages: u64,
    cases: Vec<(Settings, Outcome)>,
    /// With the share of pages that was followed.
    curve: Option<(Vec<Point>, f64)>,
}

/// Plays all cases and reports them.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let operations = read(options)?;
    let curve = (options.mrc || options.html.is_some()).then(|| mrc::curve(&operations));
    let pages = mrc::distinct(&operations);
    if pages == 0 {
        return Err(Failure::failed(format!(
            "{}: the trace touches no page (give one that does)",
            options.trace
        )));
    }
    let memory = options.memory.unwrap_or(pages * PAGE_SIZE as u64 / 2);
    let mut played = Played { trace: options.trace.clone(), pages, cases: vec![], curve };
    let cases = cases(options, memory);
    for (number, settings) in cases.iter().enumerate() {
        progress(&format!("{}/{} {}", number + 1, cases.len(), settings.policy.name()));
        played.cases.push((*settings, replay(&operations, settings)?));
    }
    progress("");
    if let Some(path) = &options.html {
        write("--html", path, report::html(&played).as_bytes())?;
    }
    let text = if options.json { report::json(&played) } else { report::table(&played, options.mrc) };
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// A name of a generator is one; a file of that name is `./zipf`.
fn read(options: &Options) -> Result<Vec<Operation>, Failure> {
    let text = &options.trace;
    if generate::NAMES.contains(&text.split(':').next().unwrap_or(text)) {
        let generator = Generator::parse(text).map_err(|error| Failure::usage(error.to_string()))?;
        let operations = generator.operations();
        if let Some(path) = &options.save {
            write("--save", path, trace::text(&operations).as_bytes())?;
        }
        return Ok(operations);
    }
    if options.save.is_some() {
        return Err(Failure::usage("--save: the trace is a file already (leave --save out)"));
    }
    let made_up = generate::NAMES.join(", ");
    let file = File::open(text)
        .map_err(|error| Failure::failed(format!("{text}: {error} (give a trace, or one of {made_up})")))?;
    trace::parse(BufReader::new(file)).map_err(|error| Failure::failed(format!("{text}: {error}")))
}

/// Every policy with every pool size and threshold; without a pool there is nothing to choose.
fn cases(options: &Options, memory: u64) -> Vec<Settings> {
    let [touch, fault, store, load, read, write] = options.costs[..] else { return vec![] };
    let costs = Costs { touch, fault, store, load, read, write };
    let mut cases: Vec<Settings> = Vec::new();
    for policy in &options.policy {
        let policy = policy.policy();
        for max_pool_percent in &options.max_pool_percent {
            for accept_threshold_percent in &options.accept_threshold_percent {
                let again = cases.last().is_some_and(|case| case.policy == Policy::None);
                if policy == Policy::None && again {
                    continue;
                }
                let (max_pool_percent, accept_threshold_percent) =
                    (*max_pool_percent, *accept_threshold_percent);
                cases.push(Settings { policy, memory, max_pool_percent, accept_threshold_percent, costs });
            }
        }
    }
    cases
}

fn cost(text: &str) -> Result<f64, String> {
    size::within(text, 0.001..=1e7, "number of microseconds")
}
