//! How much memory stays cold: not used for so many seconds.
//!
//! Use is told by the referenced bits. Writing 1 to /proc/PID/clear_refs takes them away from all pages of a process;
//! `Referenced` in /proc/PID/smaps then says, mapping by mapping, how much was used since, by reads or writes. One
//! clearing and several readings at growing ages give a curve that can only fall. Writes are told apart by contents:
//! the pages of the sample are read again at the end, and those that changed were written.
//!
//! The price: clearing costs the process one TLB miss a page, and reading smaps walks its page tables; the
//! kernel's own idea of what is hot in this process begins anew. What it cannot see: use of one page within a huge
//! page counts for all of it; a page that is written with what it held is not seen as written; devices. Soft-dirty
//! bits and idle page tracking would tell pages, not sums, but are compiled into few kernels, and PAGEMAP_SCAN tells
//! writes only of memory that the process itself registered for it; so none of them is used.

use crate::look::Sampled;
use crate::population::{OpenError, Population, Source};
use crate::process::explain;
use ramfold::{PAGE_SIZE, page::same_filled};
use serde::Serialize;
use std::fs;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// Readings of the referenced bits; each age is twice the one before.
const READINGS: u32 = 7;

/// Memory of a process as smaps has it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Used {
    anonymous: u64,
    referenced: u64,
}

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Age {
    /// Seconds since the referenced bits were cleared.
    pub seconds: f64,
    /// Anonymous bytes that were not used since.
    pub cold_bytes: u64,
    /// The same as a share of all anonymous bytes.
    pub cold_share: f64,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Watched {
    /// The curve, by age.
    pub ages: Vec<Age>,
    /// Share of the sample whose contents changed between the first reading and the end.
    pub written_share: f64,
}

impl Watched {
    /// Cold bytes at the greatest age.
    #[must_use]
    pub fn coldest(&self) -> u64 {
        self.ages.last().map_or(0, |age| age.cold_bytes)
    }
}

/// Watches the processes of the population for `seconds`. Of a descendant that ends, nothing counts from then on.
///
/// # Errors
/// [`OpenError`]: a process has ended meanwhile, or its referenced bits may not be cleared.
pub fn watch(population: &Population, sample: &[Sampled], seconds: f64) -> Result<Watched, OpenError> {
    let started = Instant::now();
    for (source, pid) in processes(population) {
        let cleared = fs::write(format!("/proc/{pid}/clear_refs"), "1");
        source.unless_ended(cleared.map_err(|error| explain(pid, &error)))?;
    }
    let mut ages = Vec::new();
    for reading in (0..READINGS).rev() {
        let due = Duration::from_secs_f64(seconds / f64::from(1u32 << reading));
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let age = started.elapsed().as_secs_f64();
        let used = sum(population)?;
        let cold_bytes = used.anonymous - used.referenced;
        ages.push(Age {
            seconds: age,
            cold_bytes,
            cold_share: cold_bytes as f64 / used.anonymous.max(1) as f64,
        });
    }
    Ok(Watched { ages, written_share: written_share(population, sample)? })
}

fn processes(population: &Population) -> impl Iterator<Item = (&Source, u32)> {
    population.sources().iter().filter_map(|source| Some((source, source.pid?)))
}

fn sum(population: &Population) -> Result<Used, OpenError> {
    let mut sum = Used::default();
    for (source, pid) in processes(population) {
        let used = source.unless_ended(used(pid))?.unwrap_or_default();
        sum.anonymous += used.anonymous;
        sum.referenced += used.referenced;
    }
    Ok(sum)
}

fn used(pid: u32) -> Result<Used, OpenError> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).map_err(|error| explain(pid, &error))?;
    if smaps.is_empty() { Err(OpenError::NoProcess(pid)) } else { Ok(parse(&smaps)) }
}

/// Of a mapping that also has pages of a file, no more than its anonymous pages can have been referenced.
fn parse(smaps: &str) -> Used {
    let (mut sum, mut referenced) = (Used::default(), 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next(), words.next().and_then(|kib| kib.parse::<u64>().ok()));
        match (name, value) {
            (Some("Referenced:"), Some(kib)) => referenced = kib << 10,
            (Some("Anonymous:"), Some(kib)) => {
                sum.anonymous += kib << 10;
                sum.referenced += referenced.min(kib << 10);
            }
            _ => {}
        }
    }
    sum
}

/// Pages that have gone do not count.
fn written_share(population: &Population, sample: &[Sampled]) -> Result<f64, OpenError> {
    let (mut page, mut there, mut written) = ([0; PAGE_SIZE], 0u32, 0u32);
    for sampled in sample {
        if population.read(sampled.at, &mut page)? {
            there += 1;
            let same = same_filled(&page).is_none() && XxHash3_64::oneshot(&page) == sampled.hash;
            written += u32::from(!same);
        }
    }
    Ok(f64::from(written) / f64::from(there.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referenced_memory_is_that_of_anonymous_pages() {
        let smaps = "7f00-7f10 rw-p 00000000 00:00 0 [heap]\nSize: 100 kB\nReferenced: 12 kB\nAnonymous: 40 kB\n\
                     7f10-7f20 r--p 00000000 fd:00 1 /lib/x\nReferenced: 80 kB\nAnonymous: 4 kB\n";
        assert_eq!(parse(smaps), Used { anonymous: 44 << 10, referenced: 16 << 10 });
        assert_eq!(parse(""), Used::default());
    }
}
