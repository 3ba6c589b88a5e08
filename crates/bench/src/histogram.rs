//! Latencies in logarithmic buckets: 32 an octave, so a percentile is off by at most 3 %, in 16 KiB of memory that
//! does not grow while the measured program runs short of it.

use serde_json::{Value, json};

const PER_OCTAVE: u32 = 32;
const BUCKETS: usize = 64 * PER_OCTAVE as usize;

/// Counts of nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one latency.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max = self.max.max(ns);
    }

    /// Counts all of `other` too.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The least latency that `percent` % of all do not exceed (its bucket's upper end); 0 when there are none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return upper_end(bucket).min(self.max);
            }
        }
        0
    }

    /// `{"p50", "p99", "max"}` in nanoseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "p50": self.percentile(50), "p99": self.percentile(99), "max": self.max })
    }
}

/// Values below 32 have a bucket each; above, the five bits after the leading one choose within the octave.
fn bucket(ns: u64) -> usize {
    if ns < u64::from(PER_OCTAVE) {
        return usize::try_from(ns).expect("below 32");
    }
    let octave = ns.ilog2() - 5;
    let within = (ns >> octave) & u64::from(PER_OCTAVE - 1);
    ((octave + 1) * PER_OCTAVE) as usize + usize::try_from(within).expect("below 32")
}

fn upper_end(bucket: usize) -> u64 {
    let (octave, within) = (bucket as u64 / u64::from(PER_OCTAVE), bucket as u64 % u64::from(PER_OCTAVE));
    if octave == 0 {
        return within;
    }
    ((u64::from(PER_OCTAVE) + within + 1) << (octave - 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_or_just_above_its_values() {
        for ns in (0..100_000).chain([u64::MAX / 3, 1 << 40, (1 << 41) - 1]) {
            let end = upper_end(bucket(ns));
            assert!(end >= ns && end - ns <= ns / 32, "{ns} ends at {end}");
        }
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|ns| histogram.add(ns));
        assert!((5_000..5_160).contains(&histogram.percentile(50)));
        assert!((9_900..=10_000).contains(&histogram.percentile(99)));
        assert_eq!(histogram.percentile(100), 10_000);
        assert_eq!(Histogram::default().percentile(50), 0);
    }
}
