//! Programs that are measured: they do not outlive their owner; what they say first, and what /proc tells of them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use ramfold_budget::process::Stat;

/// A child that does not outlive its owner.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        Ok(Self(command.spawn().with_context(|| format!("cannot start {name}"))?))
    }

    /// The first line of its output, which has to be a pipe; what follows is not read.
    ///
    /// # Errors
    /// There is no output to read.
    pub fn first_line(&mut self) -> Result<String> {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().context("no output")?).read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time that the process has used.
///
/// # Errors
/// The process has ended.
pub fn processor_time(pid: u32) -> Result<Duration> {
    Ok(Stat::of(pid).context("the program has ended")?.ran)
}

/// Bytes of anonymous memory that are resident.
///
/// # Errors
/// The process has ended.
pub fn anonymous_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line.context("the program has ended")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
