//! What `ramfold run` can be told, and how it is passed on to the preload library.

use super::metrics::Address;
use crate::failure::Failure;
use crate::sharing::Sharing;
use crate::{names, size};
use clap::ValueEnum;
use ramfold_budget::settings::{Mode, Settings};
use std::ffi::OsString;
use std::path::PathBuf;

/// The smallest limit: below it a process's own tables and reserve leave no room for its pages.
pub const MIN_LIMIT: u64 = 16 << 20;
/// The swap file's bound in multiples of the limit.
const SWAP_FACTOR: u64 = 4;

/// Runs a program with its memory held under a limit, by compressing its cold pages.
///
/// The anonymous memory of PROGRAM and of all its descendants stays under SIZE in total: resident pages,
/// compressed pool and ramfold's own memory together. What does not fit goes compressed and encrypted to a
/// swap file. Exit status: the program's own, 128+N if signal N killed it, 125 if ramfold failed, 126 if
/// PROGRAM cannot be executed, 127 if it is not found.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold run -m 512M --stats - -- sort --buffer-size=4G big.txt")]
pub struct Options {
    /// Most memory that all processes may use together: 512M, 1.5G or a number of bytes; with --budget the limit is the
    /// one that is joined
    #[arg(short = 'm', long = "memory", value_name = "SIZE", value_parser = size::parse)]
    #[arg(required_unless_present = "budget", conflicts_with = "budget")]
    pub memory: Option<u64>,

    /// Directory or file for writeback, or "none"; by default an unlinked file in /var/tmp; with --budget the file is
    /// the one that is joined
    #[arg(long, value_name = "PATH|none", default_value = "/var/tmp", hide_default_value = true)]
    #[arg(conflicts_with = "budget")]
    pub swap: PathBuf,

    /// Most that the swap file may take; by default 4 times the limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "budget")]
    pub swap_size: Option<u64>,

    /// Compressor, with a level if it has levels: lz4, lz4hc:9, zstd:-1, deflate:6, lzo
    #[arg(long, value_name = "NAME[:LEVEL]", default_value = "lz4", value_parser = names::compressor)]
    pub compressor: String,

    /// Compressor for pages that stay in the compressed pool for long, when the processor has time, or "none"
    #[arg(long, value_name = "NAME[:LEVEL]|none", default_value = "zstd:1", value_parser = names::recompressor)]
    pub recomp_algorithm: String,

    /// Allocator of the compressed pool: zsmalloc, zbud or xvmalloc
    #[arg(long, value_name = "NAME", default_value = "zsmalloc", value_parser = names::zpool)]
    pub zpool: String,

    /// Most of the limit, less memory that cannot leave, that the compressed pool may take; beyond it pages go to the
    /// swap file. (The kernel's zswap has 20, of a machine that also holds the page cache; here 20 would send half the
    /// memory to disk)
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=95))]
    pub max_pool_percent: u8,

    /// Once the pool is full, writeback goes on until it is under this share of its bound
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub accept_threshold_percent: u8,

    /// A page that compresses to more than this percentage of itself is kept as it is
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub max_compression_ratio: u8,

    /// Compress pages of one repeated word like any other
    #[arg(long)]
    pub no_same_filled: bool,

    /// Do not share pool memory between identical pages
    #[arg(long)]
    pub no_duplicates: bool,

    /// At exit write one JSON object to FILE, or a short table to stderr ("-"). Gauges (resident_bytes,
    /// pool_total_size, stored_pages and the like) are those of the moment when the pool was largest
    #[arg(long, value_name = "FILE|-")]
    pub stats: Option<PathBuf>,

    /// Serve the run's numbers for Prometheus while it lasts: 127.0.0.1:9100, or unix:PATH for a socket
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", value_parser = Address::parse)]
    pub metrics: Option<Address>,

    #[command(flatten)]
    pub sharing: Sharing,

    /// Record for `ramfold replay` what the program does to its pages, as far as it is seen: touches of pages that
    /// were away. A smaller limit shows more
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Fail instead of running a program that cannot be managed (statically linked, setuid, 32-bit)
    #[arg(long)]
    pub strict: bool,

    /// How pages leave the program
    #[arg(long, value_enum, default_value_t = EvictMode::Auto, hide = true)]
    pub evict_mode: EvictMode,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM [ARGS]")]
    pub command: Vec<OsString>,
}

/// How pages leave the program.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum EvictMode {
    /// As the kernel allows.
    Auto,
    /// UFFDIO_MOVE.
    Move,
    /// Write-protect and copy.
    Wp,
}

/// Where written-back pages go.
#[derive(Debug)]
pub enum Swap {
    /// Nowhere: what does not fit ends the program.
    None,
    /// To a file, or to an unlinked file in a directory, of at most `size` bytes.
    At {
        /// File or directory.
        path: PathBuf,
        /// Bytes.
        size: u64,
    },
}

/// Options that were found sound.
#[derive(Debug)]
pub struct Checked<'a> {
    options: &'a Options,
    /// Bytes.
    pub limit: u64,
    /// Where written-back pages go, if the budget is the run's own.
    pub swap: Swap,
    /// Unless told otherwise, pages leave as the kernel allows.
    pub kernel_can_move: bool,
}

impl<'a> Checked<'a> {
    /// Checks what the parser cannot. `joined`: the limit of the budget that the run has joined.
    pub fn new(options: &'a Options, joined: Option<u64>) -> Result<Self, Failure> {
        let limit = joined.or(options.memory).unwrap_or(0);
        if limit < MIN_LIMIT {
            let least = size::display(MIN_LIMIT);
            return Err(match joined {
                Some(_) => Failure::failed(format!(
                    "--budget: {limit} bytes: too small for a run to work in (share at least {least})"
                )),
                None => Failure::usage(format!("-m {limit}: too small to work in (give at least {least})")),
            });
        }
        let swap = if options.swap.as_os_str() == "none" {
            if options.swap_size.is_some() {
                return Err(Failure::usage("--swap-size: there is no swap file (leave out --swap none)"));
            }
            Swap::None
        } else {
            let size = options.swap_size.unwrap_or(limit.saturating_mul(SWAP_FACTOR));
            Swap::At { path: options.swap.clone(), size }
        };
        Ok(Self { options, limit, swap, kernel_can_move: true })
    }

    /// Bytes that the swap file may take.
    pub fn swap_size(&self) -> u64 {
        match self.swap {
            Swap::None => 0,
            Swap::At { size, .. } => size,
        }
    }
}

impl Checked<'_> {
    /// What the processes of the run are told; not yet where its files are.
    pub fn settings(&self) -> Settings {
        let o = self.options;
        let mode = match o.evict_mode {
            EvictMode::Auto if self.kernel_can_move => Mode::Auto,
            EvictMode::Move => Mode::Move,
            EvictMode::Auto | EvictMode::Wp => Mode::WriteProtect,
        };
        let store = ramfold::Config {
            compressor: o.compressor.clone(),
            recomp_algorithm: Some(o.recomp_algorithm.clone()).filter(|name| name != "none"),
            zpool: o.zpool.clone(),
            accept_threshold_percent: o.accept_threshold_percent,
            max_compression_ratio: o.max_compression_ratio,
            same_filled_pages_enabled: !o.no_same_filled,
            duplicate_pages_enabled: !o.no_duplicates,
            ..ramfold::Config::default()
        };
        let (swap_size, max_pool_percent) = (self.swap_size(), o.max_pool_percent);
        Settings { swap_size, max_pool_percent, mode, store, ..Settings::new(self.limit) }
    }
}
