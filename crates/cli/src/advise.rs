//! `ramfold advise`: which settings, for ramfold and for the kernel's zram and zswap.

mod kernel;
mod plan;
mod report;

use crate::failure::Failure;
use crate::output::print;
use crate::size;
use crate::survey::{self, COMPRESSORS, Survey, seconds, target};
use kernel::Kernel;
use plan::Plan;
use ramfold_survey::population::Target;
use std::process::ExitCode;

/// Says how to keep memory small: settings for `ramfold run` and for the kernel's zram and zswap, with what to expect.
///
/// Measures as `ramfold inspect` does, and reads what this kernel offers. What is promised is what the pool saves on
/// these pages; how often pages come back is known only by watching (--slowdown). Without an aim, half of what there
/// is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold advise --slowdown 5 --watch 30 $(pidof postgres)")]
pub struct Options {
    /// Processes by number; files: raw pages, memory images, ELF core dumps
    #[arg(required = true, value_name = "PID|FILE", value_parser = target)]
    pub targets: Vec<Target>,

    /// Look at all descendants of the processes too
    #[arg(long)]
    pub tree: bool,

    /// Memory that all of it may take: 512M, 1.5G or a number of bytes
    #[arg(long, value_name = "N", value_parser = size::parse, conflicts_with = "slowdown")]
    pub target_bytes: Option<u64>,

    /// Time that may go into pages that come back, in percent; watches the processes for it
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub slowdown: Option<f64>,

    /// How long to watch for --slowdown
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, requires = "slowdown")]
    pub watch: f64,

    /// One JSON object on standard output instead of text
    #[arg(long)]
    pub json: bool,
}

/// What is wanted.
#[derive(Debug)]
pub enum Aim {
    /// So many bytes for all of it.
    Bytes(u64),
    /// At most so many percent of time.
    Slowdown(f64),
}

/// Makes the survey and prints the advice.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let survey = Survey::make(&survey::Plan {
        targets: &options.targets,
        tree: options.tree,
        compressors: COMPRESSORS.to_vec(),
        zpools: vec!["zsmalloc"],
        units: false,
        watch: options.slowdown.map(|_| options.watch),
    })?;
    let aim = match options.slowdown {
        Some(percent) => Aim::Slowdown(percent),
        None => Aim::Bytes(options.target_bytes.unwrap_or(survey.memory() / 2)),
    };
    let kernel = Kernel::read();
    let plan = Plan::make(&survey, &aim, &kernel);
    let text = if options.json {
        report::json(&survey, &aim, &plan, &kernel)
    } else {
        report::text(&survey, &aim, &plan, &kernel)
    };
    print(&text);
    Ok(ExitCode::SUCCESS)
}

fn percent(text: &str) -> Result<f64, String> {
    size::within(text, 0.01..=1000.0, "percentage")
}
