//! What a full pool does: by the model of `ramfold replay`, and for real, a program under `ramfold run` whose pool is
//! too small for what leaves it.
//!
//! In the kernel's zswap before 2023 a pool at its limit wrote one page back for each wake-up and refused what was
//! newer, so that the newest pages went to disk and the oldest stayed: worse than no pool (Vitaly Wool, Domenico
//! Cerasuolo, "mm: zswap: shrink until can accept", May 2023). `ramfold run` has no way past its pool: what the store
//! refuses stays resident until room is made. So the settings compared here are those that come nearest: next to no
//! pool, writing back no more than room is needed for (an accept threshold of 100 percent), and until accepted.

use crate::comparison::columns;
use crate::suite::own_program;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Mebibytes that the program touches, and that it may have.
const TOUCHED: &str = "256";
const LIMIT: &str = "112M";
const ROUNDS: usize = 3;
/// The seed's case for `ramfold replay`: a working set that half of it does not fit, half of the touches write.
const TRACE: &str = "zipf:pages=6000,touches=200000,writes=50";

/// What is compared: `--max-pool-percent` and `--accept-threshold-percent`.
const SETTINGS: [(&str, &str, &str); 4] = [
    ("next to no pool", "1", "90"),
    ("no more than needed", "25", "100"),
    ("until accepted", "25", "90"),
    ("a large pool", "70", "90"),
];

/// What one run gave.
#[derive(Debug)]
struct Outcome {
    rate: f64,
    stats: Value,
}

/// What the trace of the seed's case takes by each policy, in seconds: the policies of `ramfold replay`.
///
/// # Errors
/// `ramfold replay` fails.
pub fn modelled(ramfold: &Path) -> Result<Vec<(String, f64)>> {
    let output = Command::new(ramfold).args(["replay", "--json", TRACE]).output()?;
    ensure!(output.status.success(), "ramfold replay: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let case = |case: &Value| Some((case["policy"].as_str()?.to_owned(), case["elapsed_s"].as_f64()?));
    report["cases"].as_array().and_then(|cases| cases.iter().map(case).collect()).context("no cases")
}

/// What the settings gave under `ramfold run`: the median of each by rate.
#[derive(Debug)]
pub struct Real([Outcome; SETTINGS.len()]);

impl Real {
    /// Settings take turns.
    ///
    /// # Errors
    /// A program that is missing or fails.
    pub fn measure(ramfold: &Path) -> Result<Self> {
        let mut outcomes: [Vec<Outcome>; SETTINGS.len()] = Default::default();
        for _ in 0..ROUNDS {
            for ((_, pool, accept), outcomes) in SETTINGS.iter().zip(&mut outcomes) {
                outcomes.push(run(ramfold, pool, accept)?);
            }
        }
        Ok(Self(outcomes.map(|mut outcomes| {
            outcomes.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            outcomes.swap_remove(ROUNDS / 2)
        })))
    }

    /// A line for each setting.
    #[must_use]
    pub fn table(&self) -> String {
        let heading = ["setting", "pool %", "accept %", "touches/s", "reads", "written back", "limit hit"];
        let mut lines = vec![heading.map(str::to_owned)];
        for ((name, pool, accept), median) in SETTINGS.into_iter().zip(&self.0) {
            let count = |name: &str| median.stats[name].to_string();
            lines.push([
                name.to_owned(),
                pool.to_owned(),
                accept.to_owned(),
                format!("{:.0}", median.rate),
                count("tier_loads"),
                count("written_back_pages"),
                count("pool_limit_hit"),
            ]);
        }
        columns(&lines, &[0])
    }

    /// Touches a second, by setting.
    #[must_use]
    pub fn rates(&self) -> Vec<(String, f64)> {
        self.by_setting(|outcome| outcome.rate)
    }

    /// Pages that came from the swap file, by setting.
    #[must_use]
    pub fn reads(&self) -> Vec<(String, f64)> {
        self.by_setting(|outcome| outcome.stats["tier_loads"].as_f64().unwrap_or(0.0))
    }

    fn by_setting(&self, of: fn(&Outcome) -> f64) -> Vec<(String, f64)> {
        SETTINGS.iter().zip(&self.0).map(|((name, ..), outcome)| ((*name).to_owned(), of(outcome))).collect()
    }
}

fn run(ramfold: &Path, pool: &str, accept: &str) -> Result<Outcome> {
    let directory = std::env::temp_dir().join(format!("ramfold-inversion-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let stats = directory.join("stats.json");
    let mut command = Command::new(ramfold);
    command.args(["run", "-m", LIMIT, "--max-pool-percent", pool, "--accept-threshold-percent", accept]);
    command
        .arg("--stats")
        .arg(&stats)
        .arg("--")
        .arg(own_program("workload")?)
        .args(["zipf", "--mib", TOUCHED]);
    let output = command.output().with_context(|| format!("{}", ramfold.display()))?;
    ensure!(output.status.success(), "ramfold run: {}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout)?;
    let read = std::fs::read_to_string(&stats)?;
    std::fs::remove_dir_all(&directory)?;
    let rate = result["rate"].as_f64().context("the workload prints its rate")?;
    Ok(Outcome { rate, stats: serde_json::from_str(&read)? })
}
