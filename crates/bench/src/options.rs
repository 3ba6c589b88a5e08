//! What the comparisons' command lines have in common, and the set-up that they ask for.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::kernel_swap::{PageCluster, SwapFile, Zswap};
use crate::measure::{Bench, INTERRUPTED, Side};

/// Options of every comparison.
#[derive(Debug, Args)]
pub struct Common {
    /// The ramfold binary (default: $RAMFOLD); without one, only the other sides run
    #[arg(long)]
    ramfold: Option<PathBuf>,
    /// One more option for `ramfold run` (may be repeated)
    #[arg(long = "ramfold-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub ramfold_options: Vec<String>,
    /// Only these sides: unlimited, zswap, zswap-ahead, disk, disk-ahead, ramfold, ramfold-plain (may be repeated).
    /// The kernel's read no pages ahead (vm.page-cluster=0); those named -ahead read eight together, the kernel's own
    /// setting. ramfold has the limit and zswap's pool, ramfold-plain the limit alone
    #[arg(long, value_name = "SIDE")]
    side: Vec<String>,
    /// Small and short, to see that everything works
    #[arg(long)]
    pub quick: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    pub json: bool,
    /// Where the kernel's swap file goes: a directory on a real file system
    #[arg(long, default_value = "/var/tmp")]
    pub swap_directory: PathBuf,
    /// The kernel's swap file's size, in MiB
    #[arg(long, default_value_t = 4096)]
    swap_mib: u64,
    /// zswap's compressor (default: lz4 if the kernel has it, else lzo)
    #[arg(long)]
    zswap_compressor: Option<String>,
}

/// What is put back as it was on drop.
#[derive(Debug)]
pub struct SetUp {
    /// zswap, and what starts ramfold.
    pub bench: Bench,
    /// zswap's.
    pub compressor: String,
    /// The kernel's.
    pub swap: SwapFile,
}

impl Common {
    fn ramfold(&self) -> Option<PathBuf> {
        self.ramfold.clone().or_else(|| std::env::var_os("RAMFOLD").map(PathBuf::from))
    }

    /// The sides that were asked for, else the `usual` ones, as far as they can run.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn sides(&self, usual: &[Side]) -> Result<Vec<Side>> {
        let mut sides = chosen(&self.side, Side::ALL, Side::name)?;
        if self.side.is_empty() {
            sides.retain(|side| usual.contains(side));
        }
        if self.ramfold().is_none() {
            sides.retain(|side| !side.is_ramfold());
        }
        Ok(sides)
    }

    /// ramfold's options. Its swap file lies where the kernel's does, unless the user says otherwise.
    ///
    /// # Errors
    /// That directory's name is not UTF-8.
    pub fn ramfold_options_with_swap(&self) -> Result<Vec<String>> {
        let mut all = self.ramfold_options.clone();
        if !all.iter().any(|option| option == "--swap" || option.starts_with("--swap=")) {
            let directory = self.swap_directory.to_str().context("--swap-directory is not UTF-8")?;
            all.push(format!("--swap={directory}"));
        }
        Ok(all)
    }

    /// Makes the swap file and prepares zswap; from here on signals only set a flag.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_up(&self, ramfold_options: Vec<String>) -> Result<SetUp> {
        catch_signals();
        let swap = SwapFile::activate(&self.swap_directory, self.swap_mib << 20)?;
        let zswap = match &self.zswap_compressor {
            Some(name) => Zswap::prepare(&[name])?,
            None => Zswap::prepare(&["lz4", "lzo"])?,
        };
        let compressor = zswap.compressor()?;
        // It may be started in another directory.
        let ramfold = self.ramfold().map(std::path::absolute).transpose()?;
        let page_cluster = Some(PageCluster::remember()?);
        let bench = Bench { ramfold, ramfold_options, zswap: Some(zswap), page_cluster };
        Ok(SetUp { bench, compressor, swap })
    }
}

/// Those of `all` that were named, or all.
///
/// # Errors
/// There is none of that name.
pub fn chosen<T: Copy, const N: usize>(
    names: &[String],
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<Vec<T>> {
    let known: Vec<_> = all.iter().map(|item| name(*item)).collect();
    let unknown = names.iter().find(|wanted| !known.contains(&wanted.as_str()));
    ensure!(unknown.is_none(), "unknown name {} (there are {})", unknown.map_or("", |s| s), known.join(", "));
    let wanted = |item: &T| names.is_empty() || names.iter().any(|wanted| wanted == name(*item));
    Ok(all.into_iter().filter(wanted).collect())
}

/// What a run is called while it lasts.
#[must_use]
pub fn side_and_limit(side: Side, limit: u64) -> String {
    match side {
        Side::Unlimited => side.name().to_owned(),
        _ => format!("{} in {} MiB", side.name(), limit >> 20),
    }
}

/// Ctrl-C only sets a flag, so that every guard still runs.
fn catch_signals() {
    extern "C" fn interrupt(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = interrupt as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
