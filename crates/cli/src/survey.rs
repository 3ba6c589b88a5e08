//! A survey as `inspect` and `advise` both make it: open the targets, look, compress, fill the pools.

use crate::failure::Failure;
use crate::output::progress;
use crate::size;
use ramfold_survey::kernel_pool;
use ramfold_survey::look::{self, Look};
use ramfold_survey::measure::{Row, Sizes};
use ramfold_survey::population::{Population, Target};
use ramfold_survey::units::{Groups, KIB};
use ramfold_survey::watch::{self, Watched};

/// What is measured when no compressor is chosen.
pub const COMPRESSORS: &[&str] = &["lz4", "lz4hc", "zstd:-1", "zstd:3", "deflate:6", "lzo", "lzo-rle"];

/// What is asked of a survey.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Processes and files.
    pub targets: &'a [Target],
    /// With the processes' descendants.
    pub tree: bool,
    pub compressors: Vec<&'a str>,
    pub zpools: Vec<&'a str>,
    /// Units of 16 and 64 KiB too.
    pub units: bool,
    /// Seconds to watch for.
    pub watch: Option<f64>,
}

/// Of a survey: beside who wants a processor all the time, it has a quarter of one. At 19 it would have a seventieth,
/// and not end on a busy machine.
const NICENESS: i32 = 5;

/// What was found.
#[derive(Debug)]
pub struct Survey {
    pub population: Population,
    pub look: Look,
    /// Compressed sizes of pages, one for each compressor.
    pub sizes: Vec<Sizes>,
    /// By compressor, unit and zpool.
    pub rows: Vec<Row>,
    pub watched: Option<Watched>,
}

impl Survey {
    /// Makes the survey: where processors are short, the programs looked at go first.
    pub fn make(plan: &Plan<'_>) -> Result<Self, Failure> {
        // Lowering is always allowed; where it is refused, the survey is as good.
        let _ = rustix::process::nice(NICENESS);
        progress("listing pages");
        let population = Population::open(plan.targets, plan.tree)?;
        if plan.watch.is_some() && population.sources().iter().all(|source| source.pid.is_none()) {
            return Err(Failure::usage("--watch: a file does not change (give a process)"));
        }
        let look = look::look(&population, |done, all| progress(&format!("reading page {done} of {all}")))?;
        let groups = if plan.units { Some(Groups::read(&population, &look)?) } else { None };
        let watched = plan.watch.map(|seconds| {
            progress(&format!("watching for {seconds} s"));
            watch::watch(&population, &look.sample, seconds)
        });
        let watched = watched.transpose()?;
        let (mut sizes, mut rows) = (Vec::new(), Vec::new());
        for compressor in &plan.compressors {
            progress(&format!("measuring {compressor}"));
            let size = Sizes::of(compressor, &look.sample)?;
            for zpool in &plan.zpools {
                rows.push(Row::measure(&look, &size, zpool)?);
            }
            sizes.push(size);
            for kib in groups.iter().flat_map(|_| KIB) {
                let Some(groups) = &groups else { continue };
                let units = groups.compress(compressor, kib)?;
                for zpool in &plan.zpools {
                    rows.push(units.row(&look, zpool)?);
                }
            }
        }
        progress("");
        Ok(Self { population, look, sizes, rows, watched })
    }

    /// Bytes of all pages.
    pub fn memory(&self) -> u64 {
        self.look.pages * ramfold::PAGE_SIZE as u64
    }

    /// Bytes of the kernel's zsmalloc for all pages, each for itself, by compressor.
    pub fn kernel_pools(&self) -> impl Iterator<Item = (&str, f64)> {
        let pages = self.look.filled_pages();
        self.sizes
            .iter()
            .map(move |sizes| (sizes.compressor.as_str(), kernel_pool::pool_bytes(&sizes.bytes, pages)))
    }

    /// The rows of pages as units.
    pub fn page_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.unit_kib == 4)
    }
}

/// A target of the command line.
pub fn target(text: &str) -> Result<Target, String> {
    Ok(Target::parse(text))
}

/// Seconds of the command line.
pub fn seconds(text: &str) -> Result<f64, String> {
    size::within(text, 0.1..=86_400.0, "number of seconds")
}
