//! What a sample says about the whole, and how surely.

use serde::Serialize;

/// The 97.5 % point of the normal distribution: half the width of a 95 % interval in standard errors.
const HALF_WIDTH: f64 = 1.96;

/// A mean with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean of the sample.
    pub mean: f64,
    /// With a probability of 95 % the mean of the whole lies within `mean ± error95`.
    pub error95: f64,
}

impl Estimate {
    /// Of a simple random sample, without replacement, of `whole` values (Cochran, Sampling Techniques, 2.3 and 2.5):
    /// the standard error is `s / √n · √(1 − n / whole)`, and 0 if everything was taken.
    #[must_use]
    pub fn of(sample: &[f64], whole: u64) -> Self {
        let n = sample.len() as f64;
        if sample.is_empty() {
            return Self { mean: 0.0, error95: 0.0 };
        }
        let mean = sample.iter().sum::<f64>() / n;
        Self::from_squares(mean, sample.iter().map(|value| (value - mean).powi(2)).sum(), n, whole)
    }

    /// Of `part` among `n` of `whole`, as a share: the same for values of 0 and 1.
    #[must_use]
    pub fn share(part: u64, n: u64, whole: u64) -> Self {
        let n = n.max(1) as f64;
        let mean = part as f64 / n;
        Self::from_squares(mean, n * mean * (1.0 - mean), n, whole)
    }

    /// `squares`: of the deviations from the mean, their sum.
    fn from_squares(mean: f64, squares: f64, n: f64, whole: u64) -> Self {
        let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
        let taken = (1.0 - n / (whole as f64).max(n)).sqrt();
        Self { mean, error95: HALF_WIDTH * deviation / n.sqrt() * taken }
    }

    /// The error as a percentage of the mean; 0 of nothing.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.mean == 0.0 { 0.0 } else { self.error95 * 100.0 / self.mean }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_share_is_a_mean_of_ones_and_zeros() {
        let values: Vec<f64> = (0..400).map(|n| f64::from(u8::from(n % 4 == 0))).collect();
        let (mean, share) = (Estimate::of(&values, 1000), Estimate::share(100, 400, 1000));
        assert!((mean.mean - share.mean).abs() < 1e-12 && (mean.error95 - share.error95).abs() < 1e-9);
        assert_eq!(Estimate::share(3, 12, 12), Estimate { mean: 0.25, error95: 0.0 });
        assert_eq!(Estimate::share(0, 0, 0), Estimate { mean: 0.0, error95: 0.0 });
    }

    #[test]
    fn the_interval_holds_the_truth_about_19_times_in_20() {
        let mut random = Random::new(1);
        let all: Vec<f64> = (0..1000).map(|_| random.unit().powi(3)).collect();
        let truth = all.iter().sum::<f64>() / 1000.0;
        let held = (0..2000).filter(|_| {
            let mut left = all.clone();
            let sample: Vec<f64> = (0..200)
                .map(|_| left.swap_remove(usize::try_from(random.below(left.len() as u64)).unwrap()))
                .collect();
            let estimate = Estimate::of(&sample, 1000);
            (estimate.mean - truth).abs() <= estimate.error95
        });
        let held = held.count();
        assert!((1840..1960).contains(&held), "{held} of 2000");
    }

    #[test]
    fn everything_has_no_error() {
        assert_eq!(Estimate::of(&[1.0, 2.0, 6.0], 3), Estimate { mean: 3.0, error95: 0.0 });
        assert_eq!(Estimate::of(&[], 3).percent(), 0.0);
    }
}
