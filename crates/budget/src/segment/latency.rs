//! How long faults took to resolve: a histogram for each process, and one for all that have ended.
//!
//! Eight buckets to a power of two: what is read from it is right to an eighth. The price is four kilobytes of shared
//! memory for each process that has had a fault.

use super::{Segment, SlotId};
use std::sync::atomic::{AtomicU64, Ordering};

const SUB_BUCKETS: usize = 8;
const BUCKETS: usize = 64 * SUB_BUCKETS;

/// A histogram in the segment.
#[repr(C, align(64))]
pub(super) struct Latency {
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The faults of a process, or of the whole run, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultTimes {
    max_ns: u64,
    buckets: Vec<u64>,
}

impl Latency {
    fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Takes over what the other has, and leaves it empty.
    pub(super) fn take(&self, other: &Self) {
        self.max_ns.fetch_max(other.max_ns.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        for (mine, others) in self.buckets.iter().zip(&other.buckets) {
            if others.load(Ordering::Relaxed) != 0 {
                mine.fetch_add(others.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

/// Fault latencies.
impl Segment {
    /// Records how long a fault of the process took to resolve, in nanoseconds. Does not count it.
    pub fn record_fault_ns(&self, slot: SlotId, ns: u64) {
        self.faults()[slot.0].record(ns);
    }

    /// The faults of one process.
    #[must_use]
    pub fn faults_of(&self, slot: SlotId) -> FaultTimes {
        let mut times = FaultTimes::default();
        times.add(&self.faults()[slot.0]);
        times
    }

    /// The faults of all processes, living and ended.
    #[must_use]
    pub fn all_faults(&self) -> FaultTimes {
        let mut times = FaultTimes::default();
        times.add(&self.header().past_faults);
        for latency in &self.faults()[..self.used_slots().len()] {
            times.add(latency);
        }
        times
    }
}

impl Default for FaultTimes {
    fn default() -> Self {
        Self { max_ns: 0, buckets: vec![0; BUCKETS] }
    }
}

impl FaultTimes {
    fn add(&mut self, latency: &Latency) {
        self.max_ns = self.max_ns.max(latency.max_ns.load(Ordering::Relaxed));
        for (sum, bucket) in self.buckets.iter_mut().zip(&latency.buckets) {
            *sum = sum.saturating_add(bucket.load(Ordering::Relaxed));
        }
    }

    /// The faults that came after `earlier` was taken. The longest is that of all time.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        Self { max_ns: self.max_ns, buckets: pairs.map(|(now, then)| now.saturating_sub(*then)).collect() }
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().copied().fold(0, u64::saturating_add)
    }

    /// The longest, in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The time in nanoseconds within which the share `quantile` (0 to 1) of the faults was resolved, to an
    /// eighth of its power of two. 0 if there were none.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let total = self.count();
        let mut seen = 0u64;
        for (index, count) in self.buckets.iter().enumerate() {
            seen = count.saturating_add(seen);
            if *count > 0 && seen as f64 >= quantile * total as f64 {
                return bucket_end(index).min(self.max_ns);
            }
        }
        0
    }
}

/// The bucket of a duration: eight to a power of two.
fn bucket(ns: u64) -> usize {
    let power = ns.max(SUB_BUCKETS as u64).ilog2();
    let sub = usize::try_from(ns >> (power - SUB_BUCKETS.ilog2())).unwrap_or(0) % SUB_BUCKETS;
    if ns < SUB_BUCKETS as u64 { sub } else { power as usize * SUB_BUCKETS + sub }
}

/// The largest duration in a bucket.
fn bucket_end(index: usize) -> u64 {
    if index < SUB_BUCKETS {
        return index as u64;
    }
    let (power, sub) = (index / SUB_BUCKETS, index % SUB_BUCKETS);
    let width = 1u128 << (power - SUB_BUCKETS.ilog2() as usize);
    u64::try_from((1u128 << power) + (sub as u128 + 1) * width - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;

    #[test]
    fn buckets_cover_every_duration() {
        for ns in (0..70).map(|power| (1u128 << power) - 1).chain(0..3000) {
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            let end = bucket_end(bucket(ns));
            assert!(end >= ns && (end as f64) <= ns as f64 * 1.125 + 1.0, "{ns} ends at {end}");
        }
    }

    #[test]
    fn quantiles_come_from_what_was_recorded() {
        let (_fd, segment) = segment(0);
        let slot = segment.attach(&|_| ()).unwrap();
        assert_eq!(segment.all_faults().quantile_ns(0.5), 0);
        for ns in 1..=1000 {
            segment.record_fault_ns(slot, ns);
        }
        let faults = segment.faults_of(slot);
        assert!((500..=563).contains(&faults.quantile_ns(0.5)));
        assert_eq!((faults.quantile_ns(1.0), faults.max_ns(), faults.count()), (1000, 1000, 1000));
        assert_eq!(faults, segment.all_faults());
    }

    #[test]
    fn the_run_remembers_the_faults_of_a_process_that_ended_and_the_next_one_begins_anew() {
        let (_fd, segment) = segment(0);
        let slot = segment.attach(&|_| ()).unwrap();
        segment.record_fault_ns(slot, 100);
        let before = segment.all_faults();
        segment.release(slot, &|_| ());
        let slot = segment.attach(&|_| ()).unwrap();
        assert_eq!(segment.faults_of(slot).count(), 0);
        segment.record_fault_ns(slot, 3);
        let after = segment.all_faults();
        assert_eq!((after.count(), after.max_ns()), (2, 100));
        assert_eq!((after.since(&before).count(), after.since(&before).quantile_ns(1.0)), (1, 3));
    }
}
