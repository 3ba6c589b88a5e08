//! `ramfold inspect`: what the memory of a program would become.

mod drawing;
pub mod report;

use crate::failure::Failure;
use crate::names::{self, chosen};
use crate::output::{print, write};
use crate::survey::{COMPRESSORS, Plan, Survey, seconds, target};
use ramfold_survey::population::Target;
use std::path::PathBuf;
use std::process::ExitCode;

/// Tells what compression would make of memory: of live processes, page files, core dumps or VM memory.
///
/// A process is read while it runs; it is not stopped, and nothing in it is changed. Up to 1 GiB every page is looked
/// at; of larger memory a random sample, whose error is told. 8192 random pages are compressed.
///
/// ratio: bytes before to bytes after compression. pool: memory of the zpool if all pages were in it, each for itself;
/// shared: if equal pages share. saved: of all memory, with sharing. store, load: microseconds a page on this machine,
/// from a unit of 16 or 64 KiB all of which has to be decompressed for one page. Units of 16 and 64 KiB are a forecast:
/// they are kept in pieces of at most a page.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold inspect --tree --html report.html $(pidof -s firefox)")]
pub struct Options {
    /// Processes by number; files: raw pages, memory images, ELF core dumps
    #[arg(required = true, value_name = "PID|FILE", value_parser = target)]
    pub targets: Vec<Target>,

    /// Look at all descendants of the processes too
    #[arg(long)]
    pub tree: bool,

    /// Watch the processes for so long, and tell how much memory is not used meanwhile
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub watch: Option<f64>,

    /// Write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub json: bool,

    /// Write the sampled pages one after another, for `ramfold bench pages`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Only these compressors: lz4, lz4hc:9, zstd:-1, deflate:6, lzo
    #[arg(long, value_name = "NAME[:LEVEL]", value_delimiter = ',', value_parser = names::compressor)]
    pub compressor: Vec<String>,

    /// Only these zpools: zsmalloc, zbud, xvmalloc
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = names::zpool)]
    pub zpool: Vec<String>,
}

/// Makes the survey and reports it.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let survey = Survey::make(&Plan {
        targets: &options.targets,
        tree: options.tree,
        compressors: chosen(&options.compressor, COMPRESSORS),
        zpools: chosen(&options.zpool, &ramfold::zpool::NAMES),
        units: true,
        watch: options.watch,
    })?;
    if let Some(path) = &options.save {
        let pages: Vec<&[u8]> = survey.look.sample.iter().map(|sampled| &sampled.page[..]).collect();
        write("--save", path, &pages.concat())?;
    }
    if let Some(path) = &options.html {
        write("--html", path, drawing::html(&survey).as_bytes())?;
    }
    let text = if options.json { report::json(&survey) } else { report::table(&survey) };
    print(&text);
    Ok(ExitCode::SUCCESS)
}
