//! A run as it is at one moment: what `top` shows and what the metrics tell.

use ramfold_budget::process;
use ramfold_budget::segment::{Counter, FaultTimes, Gauge, Part, Segment};
use std::time::Instant;

/// All numbers of a run.
#[derive(Debug)]
pub struct Sample {
    /// When it was taken.
    pub taken: Instant,
    /// Bytes.
    pub limit: u64,
    /// Bytes charged to the limit.
    pub in_use: u64,
    /// Bytes of them that no managed process accounts for: of processes that are not managed, and what related ones
    /// have in common.
    pub unmanaged: u64,
    /// The most that was ever charged.
    pub peak: u64,
    /// Bytes of the swap file that are taken.
    pub swap_used: u64,
    /// Bytes that it may take.
    pub swap_limit: u64,
    /// In the order of [`Counter::ALL`].
    pub counters: Vec<u64>,
    /// Of all processes, living and ended.
    pub faults: FaultTimes,
    /// The living, the largest first.
    pub processes: Vec<Process>,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// As the `/proc` of the run numbers it.
    pub pid: u32,
    /// Its place in the run: a process of several disks has several.
    pub slot: usize,
    /// The disk's name, or the process's as ps(1) shows it; empty if it has just ended.
    pub name: String,
    /// In the order of [`Gauge::ALL`].
    pub gauges: Vec<u64>,
    /// Its faults.
    pub faults: FaultTimes,
    /// Directories of a mount that have a limit.
    pub directories: Vec<Part>,
}

impl Sample {
    /// Reads the segment. Other processes go on meanwhile: the numbers need not add up.
    pub fn take(segment: &Segment) -> Self {
        let process = |process: ramfold_budget::segment::Process| Process {
            pid: process.pid,
            slot: process.slot.number(),
            name: segment.name(process.slot).unwrap_or_else(|| process::name(process.pid)),
            gauges: Gauge::ALL.iter().map(|gauge| segment.gauge(process.slot, *gauge)).collect(),
            faults: segment.faults_of(process.slot),
            directories: segment.parts(process.slot),
        };
        let mut processes: Vec<Process> = segment.processes().into_iter().map(process).collect();
        processes.sort_by_key(|process| std::cmp::Reverse(process.charged()));
        Self {
            taken: Instant::now(),
            limit: segment.limit(),
            in_use: segment.in_use(),
            unmanaged: segment.unmanaged(),
            peak: segment.peak(),
            swap_used: segment.swap_used(),
            swap_limit: segment.swap_limit(),
            counters: Counter::ALL.iter().map(|counter| segment.total(*counter)).collect(),
            faults: segment.all_faults(),
            processes,
        }
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A gauge's sum over the living processes.
    pub fn sum(&self, gauge: Gauge) -> u64 {
        self.processes.iter().map(|process| process.gauge(gauge)).fold(0, u64::saturating_add)
    }
}

impl Process {
    /// A gauge's value.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.gauges[gauge as usize]
    }

    /// Bytes that the process has of the limit.
    pub fn charged(&self) -> u64 {
        let charged = Gauge::ALL.iter().filter(|gauge| gauge.is_charged());
        charged.map(|gauge| self.gauge(*gauge)).fold(0, u64::saturating_add)
    }
}
