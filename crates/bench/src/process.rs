//! What /proc tells of a program that is measured.

use anyhow::{Context, Result};

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
