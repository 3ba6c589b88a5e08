//! What one program cost on all sides: the rounds, medians over them, and their table.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::comparison::{Sides, columns, dash, median_of, number};
use crate::cost::{Cost, End};
use crate::measure::{Limits, Side};
use crate::options::side_and_limit;

/// All runs of one program in one limit.
#[derive(Debug)]
pub struct CostRow {
    /// As in the table.
    pub name: String,
    /// What the kernel's sides are limited to, in bytes.
    pub limit: u64,
    /// What ramfold was limited to, the highest over the rounds, in bytes.
    pub ramfold_limit: u64,
    /// One cost a round; unlimited has one in all.
    pub sides: Sides<Cost>,
}

/// One run, told on stderr.
///
/// # Errors
/// It fails.
pub fn told(name: &str, side: Side, limit: u64, run: impl FnOnce() -> Result<Cost>) -> Result<Cost> {
    eprintln!("{name}, {}", side_and_limit(side, limit));
    let cost = run()?;
    let end = match cost.end {
        End::Done => "done in",
        End::TimedOut => "killed after",
        End::OutOfMemory => "out of memory after",
    };
    let (dram, pool) = (cost.dram >> 20, cost.zswap_pool >> 20);
    eprintln!("    {end} {:.1} s, at most {dram} MiB, {pool} of them zswap's", cost.seconds);
    Ok(cost)
}

impl CostRow {
    /// Before the first run.
    #[must_use]
    pub fn new(name: String, limit: u64) -> Self {
        Self { name, limit, ramfold_limit: limit, sides: BTreeMap::new() }
    }

    /// The sides take turns, so that a change in the machine's speed meets all of them. What zswap's pool takes is
    /// added to ramfold's limit.
    ///
    /// # Errors
    /// A run fails.
    pub fn rounds(
        &mut self,
        runs: usize,
        sides: &[Side],
        mut run: impl FnMut(Side, u64) -> Result<Cost>,
    ) -> Result<()> {
        let mut limits = Limits::new(self.limit)?;
        for side in (0..runs).flat_map(|_| sides) {
            let limit = limits.of(*side);
            let cost = told(&self.name, *side, limit, || run(*side, limit))?;
            limits.note(*side, cost.zswap_pool);
            self.ramfold_limit = limits.of(Side::Ramfold);
            self.sides.entry(*side).or_default().push(cost);
        }
        Ok(())
    }

    fn median(&self, side: Side, value: impl Fn(&Cost) -> Option<f64>) -> Option<f64> {
        median_of(&self.sides, side, value)
    }

    #[allow(clippy::cast_precision_loss)]
    fn count(&self, side: Side, value: fn(&Cost) -> Option<u64>) -> Option<f64> {
        self.median(side, |cost| Some(value(cost)? as f64))
    }

    /// The median, infinite for a run that ended out of memory, and how the run that it is of ended: after a
    /// time-out it is a lower bound.
    fn seconds(&self, side: Side) -> Option<(f64, End)> {
        let time = |cost: &Cost| if cost.end == End::OutOfMemory { f64::INFINITY } else { cost.seconds };
        let median = self.median(side, |cost| Some(time(cost)))?;
        let mut costs: Vec<&Cost> = self.sides[&side].iter().collect();
        costs.sort_by(|a, b| time(a).total_cmp(&time(b)));
        Some((median, costs[costs.len() / 2].end))
    }

    /// The side's time over that of ramfold with the same memory: above 1, ramfold is faster.
    fn ramfold_over(&self, side: Side) -> Option<f64> {
        Some(self.seconds(side)?.0 / self.seconds(side.peer())?.0)
    }

    /// Medians, ratios and every run's time.
    #[must_use]
    pub fn json(&self) -> Value {
        let sides: serde_json::Map<_, _> =
            self.sides.keys().map(|side| (side.name().to_owned(), self.side_json(*side))).collect();
        json!({
            "name": self.name,
            "limit_bytes": self.limit,
            "ramfold_limit_bytes": self.ramfold_limit,
            "sides": sides,
        })
    }

    fn side_json(&self, side: Side) -> Value {
        let costs = &self.sides[&side];
        let count = |value| self.count(side, value);
        let ended = |end: End| costs.iter().filter(|cost| cost.end == end).count();
        json!({
            "seconds": self.seconds(side).map(|(seconds, _)| seconds),
            "all_seconds": costs.iter().map(|cost| cost.seconds).collect::<Vec<_>>(),
            "timed_out": ended(End::TimedOut),
            "out_of_memory": ended(End::OutOfMemory),
            "kernel_major_faults": count(|cost| Some(cost.kernel_major_faults)),
            "refaults": count(|cost| cost.refaults),
            "swap_read_pages": count(|cost| cost.swap_read),
            "swap_written_pages": count(|cost| cost.swap_written),
            "cpu_seconds": self.median(side, |cost| cost.cpu_seconds),
            "dram_bytes": count(|cost| Some(cost.dram)),
            "zswap_pool_bytes": count(|cost| Some(cost.zswap_pool)),
            "ramfold_over": self.ramfold_over(side),
        })
    }

    fn lines(&self) -> Vec<[String; 9]> {
        let line = |side: &Side| {
            let side = *side;
            let count = |value| number(self.count(side, value));
            let (seconds, ratio) = self.times(side);
            [
                self.name.clone(),
                side.name().to_owned(),
                seconds,
                count(|cost| Some(cost.major_faults())),
                count(|cost| cost.swap_read),
                count(|cost| cost.swap_written),
                self.median(side, |cost| cost.cpu_seconds).map_or_else(dash, |cpu| format!("{cpu:.1}")),
                count(|cost| Some(cost.dram >> 20)),
                ratio,
            ]
        };
        self.sides.keys().map(line).collect()
    }

    /// Seconds and ratio as they are shown: with the direction in which a bound is open, and no ratio of two bounds.
    fn times(&self, side: Side) -> (String, String) {
        let Some((seconds, end)) = self.seconds(side) else { return (dash(), dash()) };
        let shown = match end {
            End::Done => format!("{seconds:.1}"),
            End::TimedOut => format!("over {seconds:.0}"),
            End::OutOfMemory => "no memory".to_owned(),
        };
        let ramfold = self.seconds(side.peer()).map(|(_, end)| end);
        let ratio = match (self.ramfold_over(side), end, ramfold) {
            (Some(ratio), End::Done, Some(End::Done)) => format!("{ratio:.2}"),
            (Some(ratio), End::TimedOut, Some(End::Done)) => format!(">{ratio:.2}"),
            (Some(ratio), End::Done, Some(End::TimedOut)) => format!("<{ratio:.2}"),
            _ => dash(),
        };
        (shown, ratio)
    }
}

/// The table: one line a program and side, medians.
#[must_use]
pub fn table(rows: &[CostRow]) -> String {
    let heading = [
        "program",
        "side",
        "seconds",
        "major faults",
        "swap read",
        "swap written",
        "CPU s",
        "DRAM MiB",
        "ramfold/this",
    ]
    .map(str::to_owned);
    let lines: Vec<_> = std::iter::once(heading).chain(rows.iter().flat_map(CostRow::lines)).collect();
    columns(&lines, &[0, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(seconds: &[f64]) -> Vec<Cost> {
        let cost = |seconds: &f64| Cost {
            seconds: *seconds,
            end: match seconds {
                0.0 => End::OutOfMemory,
                300.0.. => End::TimedOut,
                _ => End::Done,
            },
            kernel_major_faults: 5,
            refaults: Some(2),
            swap_read: None,
            swap_written: Some(9),
            cpu_seconds: Some(3.0),
            dram: 3 << 20,
            zswap_pool: 0,
        };
        seconds.iter().map(cost).collect()
    }

    fn shown(sides: &[(Side, &[f64])]) -> Vec<Vec<String>> {
        let sides = sides.iter().map(|(side, seconds)| (*side, costs(seconds))).collect();
        let text = table(&[CostRow { name: "make -j8".to_owned(), limit: 1, ramfold_limit: 1, sides }]);
        let cells = |line: &str| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        };
        text.lines().skip(1).map(cells).collect()
    }

    #[test]
    fn times_are_medians_and_ratios_of_them() {
        let lines = shown(&[(Side::Zswap, &[50.0, 40.0, 300.0]), (Side::Ramfold, &[30.0, 20.0, 10.0])]);
        assert_eq!(lines[0], ["make -j8", "zswap", "50.0", "7", "-", "9", "3.0", "3", "2.50"]);
        assert_eq!(lines[1][8], "1.00");
    }

    #[test]
    fn what_came_to_no_end_is_slower_than_all_that_did() {
        let lines = shown(&[(Side::Disk, &[0.0, 0.0, 50.0]), (Side::RamfoldPlain, &[10.0])]);
        assert_eq!([&lines[0][2], &lines[0][8]], ["no memory", "-"]);
        let lines = shown(&[(Side::Disk, &[0.0, 40.0, 50.0]), (Side::RamfoldPlain, &[10.0])]);
        assert_eq!([&lines[0][2], &lines[0][8]], ["50.0", "5.00"]);
    }

    #[test]
    fn what_was_killed_is_a_bound() {
        let lines = shown(&[(Side::Disk, &[40.0, 300.0]), (Side::RamfoldPlain, &[10.0])]);
        assert_eq!([&lines[0][2], &lines[0][8]], ["over 170", ">17.00"]);
        let lines = shown(&[(Side::Disk, &[100.0]), (Side::RamfoldPlain, &[400.0])]);
        assert_eq!([&lines[0][8], &lines[1][2], &lines[1][8]], ["<0.25", "over 400", "-"]);
    }
}
