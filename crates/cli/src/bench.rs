//! `ramfold bench`: measurements of one's own data on one's own machine.

mod corpus;
mod measure;
mod report;

use crate::failure::Failure;
use crate::names::chosen;
use crate::output::{print, progress};
use clap::Subcommand;
use corpus::Corpus;
use measure::{Bare, Row};
use std::path::PathBuf;
use std::process::ExitCode;

/// What is measured when no compressor is chosen.
const COMPRESSORS: &[&str] =
    &["lz4", "lz4hc", "zstd:-1", "zstd:1", "zstd:3", "deflate:1", "deflate:6", "lzo", "lzo-rle"];

/// Measures the store on the user's own data.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example: ramfold bench pages core.1234")]
pub enum Command {
    Pages(Options),
}

/// Stores and loads the pages of files with every compressor and every zpool.
///
/// Same-filled pages and duplicates are counted and then left out, so that the store and the bare compressor do
/// the same work; rates are medians of rounds in which the two take turns on the same pages, in megabytes (10^6)
/// of pages a second of one thread's processor time. The pool's memory is in use before the first round that counts.
///
/// ratio: bytes before to bytes after compression. pool_overhead: bytes of pool memory to compressed bytes,
/// after storing only (fresh) and after 40 rounds in which a tenth of the pages was replaced at random (aged:
/// the mean of the last ten rounds; only the store itself compacts). store_of_codec, load_of_codec: the store's
/// rate as a share of the bare compressor's. two_threads_x: pages that two threads replace and load in a given
/// time, as a multiple of one; codec_two_threads_x: the same for the bare compressor, the most that can be had.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold bench pages --compressor lz4,zstd:-1 core.1234")]
pub struct Options {
    /// Files of any kind: memory images, core dumps, disk images; a last part of a page is left out
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// One JSON object on standard output instead of a table
    #[arg(long)]
    pub json: bool,

    /// Only these compressors: lz4, lz4hc:9, zstd:-1, deflate:6, lzo
    #[arg(long, value_name = "NAME[:LEVEL]", value_delimiter = ',', value_parser = crate::names::compressor)]
    pub compressor: Vec<String>,

    /// Only these zpools: zsmalloc, zbud, xvmalloc
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = crate::names::zpool)]
    pub zpool: Vec<String>,

    /// Measure with at most so many different pages, taken evenly from the files
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(256..))]
    pub max_pages: u32,
}

/// Runs the benchmark and prints its report.
pub fn run(command: &Command) -> Result<ExitCode, Failure> {
    let Command::Pages(options) = command;
    let corpus = Corpus::read(&options.files, options.max_pages as usize)?;
    let memcpy = measure::memcpy_mb_s(&corpus);
    let compressors = chosen(&options.compressor, COMPRESSORS);
    let zpools = chosen(&options.zpool, &ramfold::zpool::NAMES);
    let mut rows = Vec::new();
    for compressor in &compressors {
        let mut bare = Bare::new(compressor, &corpus.unique)?;
        for zpool in &zpools {
            progress(&format!(
                "{}/{} {compressor} {zpool}",
                rows.len() + 1,
                compressors.len() * zpools.len()
            ));
            rows.push(Row::measure(&corpus, &mut bare, zpool)?);
        }
    }
    progress("");
    let text = if options.json {
        report::json(&corpus, memcpy, &rows)
    } else {
        report::table(&corpus, memcpy, &rows)
    };
    print(&text);
    Ok(ExitCode::SUCCESS)
}
