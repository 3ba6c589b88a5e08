//! One build on one side, and what it cost.
//!
//! The page cache is left as it is: the unlimited build, which comes first, has read the compiler and the sources, and
//! what another group has read is not charged to this one. So no side pays for files but those that it writes, as
//! ramfold's limit is for anonymous memory too.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::{BuildDirectory, Objects, Sources};
use crate::kernel_swap::{DeviceSwap, write_back};
use crate::measure::{Bench, Memory, Side, Statistics};
use crate::process::Running;

/// What all builds have in common.
#[derive(Debug)]
pub struct Build {
    /// The sides' set-up.
    pub bench: Bench,
    /// What is compiled.
    pub sources: Sources,
    /// How long a build may take before it is killed.
    pub timeout: Duration,
}

/// One build.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Where.
    pub side: Side,
    /// `make -j` this.
    pub jobs: usize,
    /// In bytes; the unlimited side ignores it.
    pub limit: u64,
}

/// How a build ended. One that failed otherwise is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With all objects.
    Built,
    /// It was killed after the time-out.
    TimedOut,
    /// The kernel could not keep its own side's limit and killed a compiler.
    OutOfMemory,
}

/// What a build cost.
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
    /// Processor time of make and all its descendants, user and system. Kernel threads are not in it.
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

impl Build {
    /// Builds. Objects that are not as `expected` are an error, and are kept; there are none of a build that came to
    /// no end.
    ///
    /// # Errors
    /// The build fails or comes out differently, or the limit cannot be set up.
    pub fn run(&self, task: Task, expected: Option<&Objects>) -> Result<(Cost, Option<Objects>)> {
        let mut directory = BuildDirectory::new(&self.sources)?;
        let outcome = self.run_in(&mut directory, task, expected);
        outcome.with_context(|| format!("make -j{} on {}", task.jobs, task.side.name()))
    }

    fn run_in(
        &self,
        directory: &mut BuildDirectory,
        task: Task,
        expected: Option<&Objects>,
    ) -> Result<(Cost, Option<Objects>)> {
        let cost = self.supervise(directory, task, &Statistics::new())?;
        if cost.end != End::Built {
            return Ok((cost, None));
        }
        let objects = directory.objects(&self.sources);
        let same = objects.and_then(|objects| match expected {
            Some(expected) => objects.same_as(expected).map(|()| objects),
            None => Ok(objects),
        });
        let objects = same.with_context(|| format!("kept in {}", directory.keep().display()))?;
        Ok((cost, Some(objects)))
    }

    fn supervise(&self, directory: &mut BuildDirectory, task: Task, stats: &Statistics) -> Result<Cost> {
        let cgroup = self.bench.prepare(task.side, task.limit)?;
        let make = ["make".to_owned(), "-s".to_owned(), format!("-j{}", task.jobs)];
        let mut command = self.bench.command(&make, task.side, task.limit, stats)?;
        cgroup.contain(&mut command);
        directory.place(command.stdin(Stdio::null()))?;
        // What earlier builds wrote shall not be written out during this one.
        write_back();

        let (swap, cpu, start) = (DeviceSwap::now()?, children_cpu(), Instant::now());
        let mut memory = Memory::before(&cgroup)?;
        let mut running = Running::start(&mut command)?;
        let status = self.wait(&mut running, &mut memory, start)?;
        let mut cost = Cost {
            end: if status.is_some() { End::Built } else { End::TimedOut },
            seconds: start.elapsed().as_secs_f64(),
            kernel_major_faults: cgroup.major_faults()?,
            refaults: None,
            swap_read: None,
            swap_written: None,
            cpu_seconds: status.map(|_| children_cpu() - cpu),
            dram: memory.dram,
            zswap_pool: memory.pool,
        };
        if let Some(status) = status.filter(|status| !status.success()) {
            if !task.side.swaps() || !cgroup.ran_out()? {
                let (said, kept) = (directory.said(), directory.keep().display());
                bail!("{status} after {:.1} s (kept in {kept}): {said}", cost.seconds);
            }
            cost.end = End::OutOfMemory;
        }
        match task.side {
            Side::Ramfold if cost.end != End::Built => {}
            Side::Ramfold => cost.add_ramfold(stats)?,
            _ => cost.add_device(DeviceSwap::now()?.since(swap)),
        }
        Ok(cost)
    }

    /// How it ended; nothing if it has not when the time is over.
    fn wait(
        &self,
        running: &mut Running,
        memory: &mut Memory<'_>,
        start: Instant,
    ) -> Result<Option<ExitStatus>> {
        loop {
            let status = memory.watch(running)?;
            if status.is_some() || start.elapsed() >= self.timeout {
                return Ok(status);
            }
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
