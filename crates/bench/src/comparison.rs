//! Medians over the rounds, their ratios, and the table.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::measure::{Outcome, Side};

/// What each round gave, by side.
pub type Sides<T> = BTreeMap<Side, Vec<T>>;

/// All outcomes of one workload.
#[derive(Debug)]
pub struct Row {
    /// The workload's name.
    pub name: &'static str,
    /// What the kernel's sides were limited to, in bytes.
    pub limit: u64,
    /// What ramfold was limited to, the highest over the rounds, in bytes.
    pub ramfold_limit: u64,
    /// One outcome a round.
    pub sides: Sides<Outcome>,
}

impl Row {
    fn median(&self, side: Side, value: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        median_of(&self.sides, side, value)
    }

    fn rate(&self, side: Side) -> Option<f64> {
        self.median(side, |outcome| outcome.result["rate"].as_f64())
    }

    /// The rate of ramfold with the same memory over the other side's: above 1, ramfold is faster.
    fn ramfold_over(&self, side: Side) -> Option<f64> {
        Some(self.rate(side.peer())? / self.rate(side)?)
    }

    #[allow(clippy::cast_precision_loss)]
    fn dram(&self, side: Side) -> Option<f64> {
        self.median(side, |outcome| Some(outcome.dram as f64))
    }

    /// Share of the memory that the program takes where nothing limits it, which this side did without.
    fn saved(&self, side: Side) -> Option<f64> {
        Some(1.0 - self.dram(side)? / self.dram(Side::Unlimited)?)
    }

    fn unit(&self) -> String {
        let first = self.sides.values().flatten().next();
        first.and_then(|outcome| outcome.result["unit"].as_str()).unwrap_or("").to_owned()
    }

    fn latency(&self, side: Side, percentile: &str) -> Option<f64> {
        self.median(side, |outcome| outcome.result["latency_ns"][percentile].as_f64())
    }

    /// Medians, ratios and every round's rate.
    #[must_use]
    pub fn json(&self) -> Value {
        let sides: serde_json::Map<_, _> =
            self.sides.keys().map(|side| (side.name().to_owned(), self.side_json(*side))).collect();
        json!({
            "workload": self.name,
            "unit": self.unit(),
            "limit_bytes": self.limit,
            "ramfold_limit_bytes": self.ramfold_limit,
            "sides": sides,
            "ramfold_over_zswap": self.ramfold_over(Side::Zswap),
            "ramfold_over_zswap_ahead": self.ramfold_over(Side::ZswapAhead),
            "ramfold_over_disk": self.ramfold_over(Side::Disk),
            "ramfold_over_disk_ahead": self.ramfold_over(Side::DiskAhead),
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn side_json(&self, side: Side) -> Value {
        let rates: Vec<&Value> = self.sides[&side].iter().map(|outcome| &outcome.result["rate"]).collect();
        json!({
            "rate": self.rate(side),
            "rates": rates,
            "faults_per_s": self.median(side, |outcome| Some(outcome.faults_per_s)),
            "p50_ns": self.latency(side, "p50"),
            "p99_ns": self.latency(side, "p99"),
            "max_ns": self.latency(side, "max"),
            "dram_bytes": self.dram(side),
            "dram_saved": self.saved(side),
            "zswap_pool_bytes": self.median(side, |outcome| Some(outcome.zswap_pool as f64)),
        })
    }

    fn lines(&self) -> Vec<[String; 10]> {
        let line = |side: &Side| {
            [
                self.name.to_owned(),
                side.name().to_owned(),
                number(self.rate(*side)),
                self.unit(),
                number(self.median(*side, |outcome| Some(outcome.faults_per_s))),
                microseconds(self.latency(*side, "p50")),
                microseconds(self.latency(*side, "p99")),
                number(self.dram(*side).map(|bytes| bytes / f64::from(1 << 20))),
                self.saved(*side).map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
                self.ramfold_over(*side).map_or_else(dash, |ratio| format!("{ratio:.2}")),
            ]
        };
        self.sides.keys().map(line).collect()
    }
}

/// The table: one line a workload and side, medians.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let heading =
        ["workload", "side", "rate", "", "faults/s", "p50 us", "p99 us", "DRAM MiB", "saved", "ramfold/this"]
            .map(str::to_owned);
    let lines: Vec<_> = std::iter::once(heading).chain(rows.iter().flat_map(Row::lines)).collect();
    columns(&lines, &[0, 1, 3])
}

/// The median of a value over the rounds of one side.
pub(crate) fn median_of<T>(sides: &Sides<T>, side: Side, value: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(sides.get(&side)?.iter().filter_map(value).collect())
}

/// The middle one, or the mean of the two in the middle.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Lines under each other: columns of `names` to the left, numbers to the right.
pub(crate) fn columns<const N: usize>(lines: &[[String; N]], names: &[usize]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let aligned = |line: &[String; N]| {
        let cell = |column: usize| match names.contains(&column) {
            true => format!("{:<1$}", line[column], widths[column]),
            false => format!("{:>1$}", line[column], widths[column]),
        };
        (0..N).map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(aligned).collect()
}

pub(crate) fn number(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| format!("{value:.0}"))
}

fn microseconds(ns: Option<f64>) -> String {
    ns.map_or_else(dash, |ns| format!("{:.1}", ns / 1000.0))
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(rates: &[f64]) -> Vec<Outcome> {
        let outcome = |rate: &f64| Outcome {
            result: json!({ "unit": "touches/s", "rate": rate, "latency_ns": { "p50": 1500 } }),
            dram: 3 << 20,
            zswap_pool: 0,
            faults_per_s: 7.0,
        };
        rates.iter().map(outcome).collect()
    }

    #[test]
    fn ratios_are_of_medians() {
        let sides =
            [(Side::Zswap, outcomes(&[1.0, 100.0, 2.0])), (Side::Ramfold, outcomes(&[3.0, 4.0, 5.0]))];
        let row = Row { name: "uniform", limit: 1, ramfold_limit: 2, sides: BTreeMap::from(sides) };
        assert_eq!(row.json()["ramfold_over_zswap"], json!(2.0));
        assert_eq!(row.json()["ramfold_over_disk"], Value::Null);
        let table = table(&[row]);
        let zswap: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(zswap, ["uniform", "zswap", "2", "touches/s", "7", "1.5", "-", "3", "-", "2.00"]);
    }

    #[test]
    fn what_is_saved_is_a_share_of_what_the_program_takes() {
        let mut sides = [(Side::Unlimited, outcomes(&[9.0])), (Side::Ramfold, outcomes(&[3.0]))];
        sides[0].1[0].dram = 12 << 20;
        let row = Row { name: "uniform", limit: 1, ramfold_limit: 2, sides: BTreeMap::from(sides) };
        assert_eq!(row.json()["sides"]["ramfold"]["dram_saved"], json!(0.75));
        assert!(table(&[row]).contains(" 75 %"));
    }
}
