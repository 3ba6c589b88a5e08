//! Settings with what they promise, for `ramfold run`, zram and zswap.
//!
//! One formula chooses the compressor: of those there are, the one with which the least time goes into pages that
//! come back, if all pages are used alike: the share of memory that has to leave, times what a page costs that leaves
//! and comes back. A denser compressor lets fewer pages leave, a quicker one makes each cheaper.

use super::Aim;
use super::kernel::{Compressor, Kernel};
use crate::survey::Survey;
use ramfold_survey::forecast::{self, Forecast};
use ramfold_survey::measure::Row;

/// What a fault costs beside loading the page, in microseconds: that of `ramfold run` (13.3 us at the median, of which
/// lz4 has three; README.md).
const RAMFOLD_FAULT_US: f64 = 10.0;
/// The same in the kernel: its zswap has 8.2 us at the median with lzo.
const KERNEL_FAULT_US: f64 = 5.0;
/// Part of the pool's bound that stays free for what the sample did not show.
const HEADROOM: f64 = 1.1;
/// The largest pool that `ramfold run` takes, in percent of its limit, and the one it has by itself.
const POOL_PERCENT: (f64, f64) = (50.0, 95.0);

/// Settings of one of the three.
#[derive(Debug, Clone)]
pub struct Settings {
    /// As the program or the kernel calls it.
    pub compressor: String,
    /// Whose figures these are.
    pub measured_as: String,
    /// Bytes that all may take together.
    pub limit: f64,
    /// What then leaves, and what it takes.
    pub forecast: Forecast,
    /// Pool memory if all of it left, in bytes.
    pub whole_pool: f64,
    /// Microseconds for a page that comes back: fault, load, and the store that makes room.
    pub miss_us: f64,
}

/// The three, as far as there are any.
#[derive(Debug)]
pub struct Plan {
    pub ramfold: Settings,
    pub zram: Option<Settings>,
    pub zswap: Option<Settings>,
    /// Why the aim is missed, if it is.
    pub missed: Option<String>,
}

/// Who keeps the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// Equal pages share; the pool is ramfold's own zsmalloc.
    Ramfold,
    /// Equal pages do not share; the pool is the kernel's zsmalloc.
    Kernel,
}

impl Plan {
    /// For what was found, and what is wanted.
    pub fn make(survey: &Survey, aim: &Aim, kernel: &Kernel) -> Self {
        let own: Vec<Compressor> = survey
            .sizes
            .iter()
            .zip(crate::survey::COMPRESSORS)
            .map(|(sizes, name)| Compressor { name: sizes.compressor.clone(), measured_as: name })
            .collect();
        let ramfold = best(survey, aim, &own, Keeper::Ramfold);
        let ramfold = ramfold.expect("a survey has at least one compressor");
        let missed = missed(survey, aim, &ramfold);
        Self {
            zram: best(survey, aim, &kernel.zram, Keeper::Kernel),
            zswap: best(survey, aim, &kernel.zswap, Keeper::Kernel),
            ramfold,
            missed,
        }
    }
}

fn best(survey: &Survey, aim: &Aim, compressors: &[Compressor], keeper: Keeper) -> Option<Settings> {
    let all = compressors.iter().filter_map(|compressor| settings(survey, aim, compressor, keeper));
    match aim {
        Aim::Slowdown(_) => all.min_by(|a, b| a.limit.total_cmp(&b.limit)),
        Aim::Bytes(_) => all.min_by(|a, b| cost(a).total_cmp(&cost(b))),
    }
}

/// What does not fit is worse than anything that does.
fn cost(settings: &Settings) -> f64 {
    settings.forecast.evicted * settings.miss_us + settings.forecast.beyond * 1e6
}

fn settings(survey: &Survey, aim: &Aim, compressor: &Compressor, keeper: Keeper) -> Option<Settings> {
    let row = survey.page_rows().find(|row| row.compressor == compressor.measured_as)?;
    let (memory, whole_pool) = (survey.memory() as f64, pool(survey, row, keeper)?);
    let share = whole_pool / memory;
    let fault_us = if keeper == Keeper::Ramfold { RAMFOLD_FAULT_US } else { KERNEL_FAULT_US };
    let miss_us = fault_us + row.load_us + row.store_us;
    let limit = match aim {
        Aim::Bytes(bytes) => *bytes as f64,
        Aim::Slowdown(percent) => {
            let watched = survey.watched.as_ref()?;
            let resident = forecast::resident(watched, memory, miss_us, *percent).unwrap_or(memory);
            forecast::limit(memory, resident, share)
        }
    };
    Some(Settings {
        compressor: compressor.name.clone(),
        measured_as: compressor.measured_as.to_owned(),
        limit,
        forecast: Forecast::of(memory, limit, share, 0.0),
        whole_pool,
        miss_us,
    })
}

/// Bytes for all pages.
fn pool(survey: &Survey, row: &Row, keeper: Keeper) -> Option<f64> {
    match keeper {
        Keeper::Ramfold => Some(row.pool_bytes_shared),
        Keeper::Kernel => {
            survey.kernel_pools().find(|(name, _)| *name == row.compressor).map(|(_, pool)| pool)
        }
    }
}

fn missed(survey: &Survey, aim: &Aim, ramfold: &Settings) -> Option<String> {
    match aim {
        Aim::Bytes(_) if ramfold.forecast.beyond > 0.0 => Some(format!(
            "{} of it do not fit even if all is compressed, and go to the swap file",
            crate::inspect::report::bytes(ramfold.forecast.beyond)
        )),
        Aim::Slowdown(percent) if ramfold.limit >= survey.memory() as f64 => Some(format!(
            "it uses all its memory too often for a slowdown under {percent} % (watch it for longer, or allow more)"
        )),
        _ => None,
    }
}

impl Settings {
    /// `--max-pool-percent` of `ramfold run`.
    pub fn max_pool_percent(&self) -> f64 {
        let needed = self.forecast.pool * HEADROOM * 100.0 / self.limit.max(1.0);
        needed.ceil().clamp(POOL_PERCENT.0, POOL_PERCENT.1)
    }

    /// zswap's `max_pool_percent` on a machine of so many bytes.
    pub fn zswap_percent(&self, machine: u64) -> f64 {
        (self.forecast.pool * HEADROOM * 100.0 / machine.max(1) as f64).ceil().clamp(1.0, 50.0)
    }

    /// zram's `mem_limit`, in bytes.
    pub fn mem_limit(&self) -> f64 {
        self.forecast.pool * HEADROOM
    }
}
