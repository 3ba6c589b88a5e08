//! What a program cost on one side: how it ended, how long it took, what it read and wrote, and its memory.
//!
//! The page cache is left as it is: the unlimited run, which comes first, has read what the program reads, and what
//! another group has read is not charged to this one. So no side pays for files but those that it writes, as ramfold's
//! limit is for anonymous memory too.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::kernel_swap::{DeviceSwap, write_back};
use crate::measure::{Bench, Memory, Side, Statistics};
use crate::process::Running;

/// One run of a program.
#[derive(Debug, Clone)]
pub struct Job {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Where.
    pub side: Side,
    /// In bytes; the unlimited side ignores it.
    pub limit: u64,
    /// How long it may take before it is killed.
    pub timeout: Duration,
}

/// How a program ended, if it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, without failing.
    Done,
    /// It was killed after the time-out.
    TimedOut,
    /// The kernel could not keep its own side's limit and killed a process.
    OutOfMemory,
}

/// What a run cost.
#[derive(Debug, Clone)]
pub struct Cost {
    /// How it ended.
    pub end: End,
    /// From start to end, whichever that was.
    pub seconds: f64,
    /// The kernel's count for the group. Under ramfold: of file pages only, as nothing else of the group is swapped.
    pub kernel_major_faults: u64,
    /// Pages that came back from ramfold's store, those brought ahead included.
    pub refaults: Option<u64>,
    /// Pages read from the swap device or ramfold's swap file.
    pub swap_read: Option<u64>,
    /// Pages written there; ramfold's are compressed.
    pub swap_written: Option<u64>,
    /// Processor time of the program and all its descendants, user and system. Kernel threads are not in it.
    pub cpu_seconds: Option<f64>,
    /// The highest sum of resident memory and zswap pool, in bytes.
    pub dram: u64,
    /// The highest growth of zswap's pool, in bytes.
    pub zswap_pool: u64,
}

impl Cost {
    /// Pages or faults that waited for what was not in memory.
    #[must_use]
    pub fn major_faults(&self) -> u64 {
        self.kernel_major_faults + self.refaults.unwrap_or(0)
    }
}

impl Bench {
    /// Runs a program that `place` has given its directory, input and output. The status is there if it failed for
    /// another reason than want of memory on the kernel's side.
    ///
    /// # Errors
    /// The program cannot be started, or the limit not set up.
    pub fn cost(
        &self,
        job: &Job,
        place: impl FnOnce(&mut Command) -> Result<()>,
    ) -> Result<(Cost, Option<ExitStatus>)> {
        let stats = Statistics::new();
        let cgroup = self.prepare(job.side, job.limit)?;
        let mut command = self.command(&job.words, job.side, job.limit, &stats)?;
        cgroup.contain(&mut command);
        place(&mut command)?;
        // What earlier runs wrote shall not be written out during this one.
        write_back();

        let (swap, cpu, start) = (DeviceSwap::now()?, children_cpu(), Instant::now());
        let mut memory = Memory::before(&cgroup)?;
        let mut running = Running::start(&mut command)?;
        let status = wait(&mut running, &mut memory, start + job.timeout)?;
        let mut cost = Cost {
            end: if status.is_some() { End::Done } else { End::TimedOut },
            seconds: start.elapsed().as_secs_f64(),
            kernel_major_faults: cgroup.major_faults()?,
            refaults: None,
            swap_read: None,
            swap_written: None,
            cpu_seconds: status.map(|_| children_cpu() - cpu),
            dram: memory.dram,
            zswap_pool: memory.pool,
        };
        let mut failed = status.filter(|status| !status.success());
        if failed.is_some() && job.side.swaps() && cgroup.ran_out()? {
            (cost.end, failed) = (End::OutOfMemory, None);
        }
        if !job.side.is_ramfold() {
            cost.add_device(DeviceSwap::now()?.since(swap));
        } else if cost.end == End::Done && failed.is_none() {
            cost.add_ramfold(&stats)?;
        }
        Ok((cost, failed))
    }
}

/// How it ended; nothing if it has not when the time is over.
fn wait(running: &mut Running, memory: &mut Memory<'_>, over: Instant) -> Result<Option<ExitStatus>> {
    loop {
        let status = memory.watch(running)?;
        if status.is_some() || Instant::now() >= over {
            return Ok(status);
        }
    }
}

impl Cost {
    fn add_device(&mut self, swap: DeviceSwap) {
        (self.swap_read, self.swap_written) = (Some(swap.read), Some(swap.written));
    }

    fn add_ramfold(&mut self, stats: &Statistics) -> Result<()> {
        let stats = stats.read()?.context("ramfold wrote no statistics")?;
        let counter = |name: &str| {
            stats[name].as_u64().with_context(|| format!("ramfold's statistics have no {name}")).map(Some)
        };
        self.refaults = counter("refaults")?;
        self.swap_read = counter("tier_loads")?;
        self.swap_written = counter("written_back_pages")?;
        Ok(())
    }
}

/// Seconds of all children that have been waited for, and theirs.
#[allow(clippy::cast_precision_loss)]
fn children_cpu() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, and the call only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
