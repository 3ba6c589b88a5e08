//! What settings would do: how much of a memory has to leave for a limit, and how often it would come back.
//!
//! Of `memory` bytes, `evicted` lie in the pool and take `evicted · share` there, plus the store's tables; the rest
//! is resident. How often pages come back is known from watching alone: the working set w(τ) is what is used within τ
//! seconds, and a program that has its w(τ) last used bytes resident misses at the rate at which w grows at τ
//! (Denning and Schwartz, Properties of the working-set model, CACM 15(3), 1972). Each miss costs a fault, a load,
//! and a store of the page that makes room.

use crate::watch::Watched;
use ramfold::PAGE_SIZE;

/// Bytes of tables for a stored page, as a share of the page (22.3 bytes: docs/history.md).
const TABLES: f64 = 22.3 / PAGE_SIZE as f64;

/// What a limit does to a memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Bytes that leave: pages as they were.
    pub evicted: f64,
    /// Bytes of pool that they take.
    pub pool: f64,
    /// Bytes that find no room under the limit even if nothing is resident beside the pool.
    pub beyond: f64,
}

impl Forecast {
    /// For `memory` bytes under a `limit` in bytes; `share` is pool bytes per byte of memory; `resident` bytes at least
    /// stay where they are.
    #[must_use]
    pub fn of(memory: f64, limit: f64, share: f64, resident: f64) -> Self {
        let gain = 1.0 - share - TABLES;
        let most = (memory - resident).max(0.0);
        let wanted = (memory - limit).max(0.0);
        let evicted = if gain <= 0.0 { most } else { (wanted / gain).min(most) };
        let beyond = (memory - evicted * gain - limit).max(0.0);
        Self { evicted, pool: evicted * share, beyond }
    }

    /// Bytes that the pool saves.
    #[must_use]
    pub fn saved(&self) -> f64 {
        self.evicted - self.pool
    }
}

/// The limit for `resident` of `memory` bytes resident and the rest in the pool, in bytes.
#[must_use]
pub fn limit(memory: f64, resident: f64, share: f64) -> f64 {
    resident + (memory - resident).max(0.0) * (share + TABLES)
}

/// The least bytes that have to be resident for a slowdown of at most `percent`, when a miss costs `miss_us`
/// microseconds. None if even all that was seen in use misses more often.
#[must_use]
pub fn resident(watched: &Watched, memory: f64, miss_us: f64, percent: f64) -> Option<f64> {
    let working_set: Vec<(f64, f64)> =
        watched.ages.iter().map(|age| (age.seconds, memory * (1.0 - age.cold_share))).collect();
    let slowdown = |pair: &[(f64, f64)]| {
        let (seconds, bytes) = (pair[1].0 - pair[0].0, (pair[1].1 - pair[0].1).max(0.0));
        bytes / PAGE_SIZE as f64 / seconds.max(f64::MIN_POSITIVE) * miss_us * 1e-6 * 100.0
    };
    // From the greatest age down, as far as the rate is low enough.
    let quiet = working_set.windows(2).rev().take_while(|pair| slowdown(pair) <= percent).last();
    quiet.map(|pair| pair[0].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Age;

    #[test]
    fn memory_under_a_limit_adds_up() {
        let forecast = Forecast::of(1000.0, 600.0, 0.25, 0.0);
        let tables = forecast.evicted * TABLES;
        assert!((1000.0 - forecast.evicted + forecast.pool + tables - 600.0).abs() < 1e-6);
        assert_eq!(forecast.beyond, 0.0);
        assert_eq!(Forecast::of(1000.0, 2000.0, 0.25, 0.0).evicted, 0.0);
        let tight = Forecast::of(1000.0, 100.0, 0.25, 0.0);
        assert_eq!(tight.evicted, 1000.0);
        assert!((tight.beyond - 155.4).abs() < 0.1, "{tight:?}");
        assert!(Forecast::of(1000.0, 500.0, 1.0, 0.0).beyond > 499.0);
        assert!((limit(1000.0, 1000.0 - forecast.evicted, 0.25) - 600.0).abs() < 1e-6);
    }

    #[test]
    fn the_working_set_is_where_growth_slows_down() {
        // 400 pages within a second, then 100 pages a second, then 1 page a second.
        let bytes = |pages: f64| pages * PAGE_SIZE as f64;
        let memory = bytes(1000.0);
        let age = |seconds, pages: f64| Age { seconds, cold_bytes: 0, cold_share: 1.0 - pages / 1000.0 };
        let ages = vec![age(1.0, 400.0), age(2.0, 500.0), age(4.0, 502.0)];
        let watched = Watched { ages, written_share: 0.0 };
        let pages =
            |percent| resident(&watched, memory, 100.0, percent).map(|r| (r / PAGE_SIZE as f64).round());
        assert_eq!(pages(2.0), Some(400.0));
        assert_eq!(pages(0.5), Some(500.0));
        assert_eq!(pages(0.001), None);
    }
}
