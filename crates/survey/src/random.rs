//! Repeatable randomness: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), and the zipfian ranks of Gray et al.,
//! "Quickly generating billion-record synthetic databases" (SIGMOD 1994), as YCSB uses them.

/// A 64-bit finalizer: every input bit changes about half the output bits, and no two inputs collide.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A SplitMix64 sequence.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound` (by multiplication; the bias is below 2^-40 for every bound used here).
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.word()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a product of two words")
    }

    /// Uniform in `0..bound`, for places in memory.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipfian ranks: rank `k` of `0..items` comes with a probability proportional to `1 / (k + 1)^theta`.
#[derive(Debug, Clone)]
pub struct Zipf {
    items: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// `theta` in `0.0..1.0`; YCSB's is 0.99.
    #[must_use]
    pub fn new(items: u64, theta: f64) -> Self {
        let zeta: f64 = (1..=items).map(|k| (k as f64).powf(-theta)).sum();
        let zeta_of_two = 1.0 + 2f64.powf(-theta);
        let items = items as f64;
        let eta = (1.0 - (2.0 / items).powf(1.0 - theta)) / (1.0 - zeta_of_two / zeta);
        Self { items, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// The next rank.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn rank(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let rank = self.items * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank.min(self.items - 1.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(random.below(10)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
    }

    #[test]
    fn zipf_has_the_shares_of_its_definition() {
        let (items, draws) = (1000u64, 200_000);
        let zipf = Zipf::new(items, 0.99);
        let mut random = Random::new(1);
        let mut counts = vec![0u32; 1000];
        for _ in 0..draws {
            counts[usize::try_from(zipf.rank(&mut random)).unwrap()] += 1;
        }
        let zeta: f64 = (1..=items).map(|k| f64::from(u32::try_from(k).unwrap()).powf(-0.99)).sum();
        let first = f64::from(counts[0]) / f64::from(draws) * zeta;
        assert!((0.95..1.05).contains(&first), "rank 0 has {first} of its share");
        let upper_half: u32 = counts[500..].iter().sum();
        let expected: f64 =
            (501..=items).map(|k| f64::from(u32::try_from(k).unwrap()).powf(-0.99)).sum::<f64>() / zeta;
        let share = f64::from(upper_half) / f64::from(draws) / expected;
        assert!((0.9..1.1).contains(&share), "the upper half has {share} of its share");
    }
}
