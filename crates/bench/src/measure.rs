//! One run of one workload on one side, and what it used.
//!
//! Every side's program starts in a memory cgroup of its own, so that all pay for the accounting; only the kernel's
//! sides have a limit there. While it runs, memory is sampled from outside.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cgroup::Cgroup;
use crate::kernel_swap::{PageCluster, Zswap, drop_caches, zswap_pool};
use crate::process::Running;

/// Set by Ctrl-C; every wait then ends with an error, and what was set up is taken down.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const SAMPLE: Duration = Duration::from_millis(50);

/// How a program's memory is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// No limit.
    Unlimited,
    /// The cgroup's limit, swap compressed by zswap, without read-ahead, as those who use zswap set it.
    Zswap,
    /// The same with the kernel's own read-ahead of eight pages.
    ZswapAhead,
    /// The cgroup's limit, swap on disk, without read-ahead.
    Disk,
    /// The same with read-ahead.
    DiskAhead,
    /// `ramfold run -m`, with what zswap has in all.
    Ramfold,
    /// `ramfold run -m` with the cgroup's limit alone, as disk swap has.
    RamfoldPlain,
}

impl Side {
    /// In the order of a round: ramfold comes after zswap, whose pool is added to its limit.
    pub const ALL: [Self; 7] = [
        Self::Unlimited,
        Self::Zswap,
        Self::ZswapAhead,
        Self::Disk,
        Self::DiskAhead,
        Self::Ramfold,
        Self::RamfoldPlain,
    ];

    /// As in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Zswap => "zswap",
            Self::ZswapAhead => "zswap-ahead",
            Self::Disk => "disk",
            Self::DiskAhead => "disk-ahead",
            Self::Ramfold => "ramfold",
            Self::RamfoldPlain => "ramfold-plain",
        }
    }

    /// Whether the kernel swaps.
    pub(crate) fn swaps(self) -> bool {
        self != Self::Unlimited && !self.is_ramfold()
    }

    pub(crate) fn is_ramfold(self) -> bool {
        matches!(self, Self::Ramfold | Self::RamfoldPlain)
    }

    /// The side of ramfold that has as much memory as this one.
    pub(crate) fn peer(self) -> Self {
        match self {
            Self::Disk | Self::DiskAhead | Self::RamfoldPlain => Self::RamfoldPlain,
            Self::Unlimited | Self::Zswap | Self::ZswapAhead | Self::Ramfold => Self::Ramfold,
        }
    }

    fn compresses(self) -> bool {
        matches!(self, Self::Zswap | Self::ZswapAhead)
    }

    /// vm.page-cluster: the logarithm of how many pages the kernel reads together.
    fn page_cluster(self) -> u32 {
        /// The kernel's own setting.
        const AHEAD: u32 = 3;
        if matches!(self, Self::ZswapAhead | Self::DiskAhead) { AHEAD } else { 0 }
    }
}

/// What each side gets, so that all have the same memory.
#[derive(Debug)]
pub struct Limits {
    kernel: u64,
    ramfold: u64,
    /// The kernel's limit does not include zswap's pool.
    adds_pool: bool,
}

impl Limits {
    /// `kernel` bytes for the kernel's sides, and for ramfold until more is known.
    ///
    /// # Errors
    /// As [`Cgroup::new`].
    pub fn new(kernel: u64) -> Result<Self> {
        Ok(Self { kernel, ramfold: kernel, adds_pool: !Cgroup::charge_zswap()? })
    }

    /// Bytes for one side.
    #[must_use]
    pub fn of(&self, side: Side) -> u64 {
        if side == Side::Ramfold { self.ramfold } else { self.kernel }
    }

    /// What zswap's pool took at most on this side.
    pub fn note(&mut self, side: Side, zswap_pool: u64) {
        if side.compresses() && self.adds_pool {
            self.ramfold = self.ramfold.max(self.kernel + zswap_pool);
        }
    }
}

/// A program, and who drives it from outside the limit, if not it itself.
#[derive(Debug)]
pub struct Workload {
    /// What runs under the limit.
    pub program: Vec<String>,
    /// Prints the JSON line in the program's place, and ends it.
    pub client: Option<Vec<String>>,
}

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The workload's JSON line.
    pub result: Value,
    /// The highest sum of resident memory and zswap pool, in bytes.
    pub dram: u64,
    /// The highest growth of zswap's pool, in bytes.
    pub zswap_pool: u64,
    /// Faults a second: of the measured phase where the workload counts them, else of the whole run.
    pub faults_per_s: f64,
}

/// Where the measuring program keeps its things.
#[derive(Debug)]
pub struct Bench {
    /// The ramfold binary.
    pub ramfold: Option<PathBuf>,
    /// More options for `ramfold run`.
    pub ramfold_options: Vec<String>,
    /// Prepared, off between runs.
    pub zswap: Option<Zswap>,
    /// Put back at the end.
    pub page_cluster: Option<PageCluster>,
}

impl Bench {
    /// Runs `workload` on `side` with at most `limit` bytes (ignored by the unlimited side).
    ///
    /// # Errors
    /// The program fails, or the limit cannot be set up.
    pub fn run(&self, workload: &Workload, side: Side, limit: u64) -> Result<Outcome> {
        let stats = Statistics::new();
        let cgroup = self.prepare(side, limit)?;
        drop_caches()?;
        let command = self.command(&workload.program, side, limit, &stats)?;
        let outcome = supervise(command, workload.client.as_deref(), &cgroup, &stats);
        outcome.with_context(|| format!("on {}", side.name()))
    }

    /// The group for one run on `side`, with the kernel set up for it.
    pub(crate) fn prepare(&self, side: Side, limit: u64) -> Result<Cgroup> {
        let cgroup = Cgroup::new(&format!("ramfold-bench-{}", std::process::id()))?;
        if side.swaps() {
            cgroup.limit(limit)?;
        }
        if let Some(zswap) = &self.zswap {
            zswap.enable(side.compresses())?;
        }
        if let Some(page_cluster) = &self.page_cluster {
            page_cluster.set(side.page_cluster())?;
        }
        Ok(cgroup)
    }

    /// What starts `program` on `side`; ramfold writes its statistics to `stats`.
    pub(crate) fn command(
        &self,
        program: &[String],
        side: Side,
        limit: u64,
        stats: &Statistics,
    ) -> Result<Command> {
        match side.is_ramfold() {
            true => self.under_ramfold(program, limit, stats),
            false => Ok(command(program)),
        }
    }

    fn under_ramfold(&self, program: &[String], limit: u64, stats: &Statistics) -> Result<Command> {
        let mut command = Command::new(self.ramfold.as_ref().context("no ramfold binary")?);
        command.args(["run", "-m", &limit.to_string(), "--stats"]).arg(&stats.0);
        command.args(&self.ramfold_options).arg("--").args(program);
        Ok(command)
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Runs the program in the group, and the client outside of it, to their ends.
fn supervise(
    mut program: Command,
    client: Option<&[String]>,
    cgroup: &Cgroup,
    stats: &Statistics,
) -> Result<Outcome> {
    cgroup.contain(&mut program);
    program.stdin(Stdio::null());
    program.stdout(if client.is_some() { Stdio::null() } else { Stdio::piped() });
    let start = Instant::now();
    let mut memory = Memory::before(cgroup)?;
    let mut program = Running::start(&mut program)?;
    let text = match client {
        None => memory.watch_to_end(&mut program)?,
        Some(words) => {
            let mut client = Running::start(command(words).stdout(Stdio::piped()))?;
            let text = memory.watch_to_end(&mut client)?;
            memory.watch_to_end(&mut program)?;
            text
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let last = text.lines().last().context("the workload printed nothing")?;
    let result: Value = serde_json::from_str(last).with_context(|| format!("not a JSON line: {last}"))?;
    let faults_per_s = match result["faults_per_s"].as_f64() {
        Some(counted) => counted,
        None => whole_run_faults(cgroup, stats)? / seconds,
    };
    Ok(Outcome { result, dram: memory.dram, zswap_pool: memory.pool, faults_per_s })
}

/// ramfold's own count where it ran, else the kernel's.
#[allow(clippy::cast_precision_loss)]
fn whole_run_faults(cgroup: &Cgroup, stats: &Statistics) -> Result<f64> {
    match stats.read()? {
        Some(stats) => stats["faults"].as_f64().context("ramfold's statistics have no faults"),
        None => Ok(cgroup.major_faults()? as f64),
    }
}

/// The file that ramfold writes its statistics to, removed on drop.
pub(crate) struct Statistics(PathBuf);

impl Statistics {
    pub(crate) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("ramfold-bench-{}.json", std::process::id())))
    }

    /// What ramfold wrote, if it ran.
    pub(crate) fn read(&self) -> Result<Option<Value>> {
        let Ok(text) = std::fs::read_to_string(&self.0) else { return Ok(None) };
        serde_json::from_str(&text).context("ramfold's statistics are no JSON").map(Some)
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // There is none if another side ran.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Peaks, sampled.
pub(crate) struct Memory<'a> {
    cgroup: &'a Cgroup,
    pool_before: u64,
    /// The highest growth of zswap's pool.
    pub(crate) pool: u64,
    /// The highest sum of resident memory and that.
    pub(crate) dram: u64,
}

impl<'a> Memory<'a> {
    pub(crate) fn before(cgroup: &'a Cgroup) -> Result<Self> {
        Ok(Self { cgroup, pool_before: zswap_pool().unwrap_or(0), pool: 0, dram: 0 })
    }

    fn sample(&mut self) -> Result<()> {
        let pool = zswap_pool().unwrap_or(0).saturating_sub(self.pool_before);
        self.pool = self.pool.max(pool);
        self.dram = self.dram.max(self.cgroup.resident()? + pool);
        Ok(())
    }

    /// How the program ended; if it has not, looks at its memory and sleeps until the next look is due.
    pub(crate) fn watch(&mut self, running: &mut Running) -> Result<Option<ExitStatus>> {
        if let Some(status) = running.0.try_wait()? {
            return Ok(Some(status));
        }
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        self.sample()?;
        std::thread::sleep(SAMPLE);
        Ok(None)
    }

    /// What the program printed.
    fn watch_to_end(&mut self, running: &mut Running) -> Result<String> {
        let status = loop {
            if let Some(status) = self.watch(running)? {
                break status;
            }
        };
        let mut text = String::new();
        if let Some(stdout) = &mut running.0.stdout {
            stdout.read_to_string(&mut text)?;
        }
        succeeded(status, &text)?;
        Ok(text)
    }
}

fn succeeded(status: ExitStatus, text: &str) -> Result<()> {
    if !status.success() {
        bail!("the program ended with {status}: {text}");
    }
    Ok(())
}
