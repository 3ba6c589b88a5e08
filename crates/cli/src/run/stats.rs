//! What a run reports at its end.

use crate::failure::Failure;
use crate::size;
use ramfold_budget::segment::{Counter, FaultTimes, Gauge, Segment};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Where the report goes.
#[derive(Debug)]
enum Sink {
    Nowhere,
    Stderr,
    File(File),
}

/// Gauges fall to 0 when their processes end, so the report has them as they were when the pool was largest.
#[derive(Debug)]
pub struct Stats {
    sink: Sink,
    gauges: Vec<u64>,
}

impl Stats {
    /// Opens the file at once: a wrong path is told before the program runs, not after.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let sink = match path {
            None => Sink::Nowhere,
            Some(path) if path.as_os_str() == "-" => Sink::Stderr,
            Some(path) => Sink::File(File::create(path).map_err(|error| {
                Failure::failed(format!("--stats {}: {error} (choose another file)", path.display()))
            })?),
        };
        Ok(Self { sink, gauges: vec![0; Gauge::ALL.len()] })
    }

    /// Looks at the gauges and keeps them if the pool is larger than ever before, or as large and more is
    /// resident.
    pub fn sample(&mut self, segment: &Segment) {
        let now: Vec<u64> = Gauge::ALL.iter().map(|gauge| segment.gauge_sum(*gauge)).collect();
        let rank = |gauges: &[u64]| (gauges[Gauge::Pool as usize], gauges[Gauge::Resident as usize]);
        if rank(&now) >= rank(&self.gauges) {
            self.gauges = now;
        }
    }

    /// Writes the report.
    pub fn report(&mut self, segment: &Segment, elapsed: Duration) -> Result<(), Failure> {
        let report = self.json(segment, elapsed);
        let written = match &mut self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Stderr => std::io::stderr().write_all(table(&report).as_bytes()),
            Sink::File(file) => serde_json::to_writer(&mut *file, &report)
                .map_err(std::io::Error::from)
                .and_then(|()| file.write_all(b"\n")),
        };
        written.map_err(|error| Failure::failed(format!("--stats: {error} (the program itself has ended)")))
    }

    fn json(&self, segment: &Segment, elapsed: Duration) -> Map<String, Value> {
        let mut report = Map::new();
        report.insert("limit".into(), segment.limit().into());
        report.insert("peak_bytes".into(), segment.peak().into());
        for (gauge, value) in Gauge::ALL.iter().zip(&self.gauges) {
            report.insert(gauge.name().into(), (*value).into());
        }
        for counter in Counter::ALL {
            report.insert(counter.name().into(), segment.total(*counter).into());
        }
        report.insert("elapsed_s".into(), elapsed.as_secs_f64().into());
        report.insert("fault_ns".into(), fault_ns(&segment.all_faults()));
        report
    }
}

/// The object that the command line promises.
pub fn fault_ns(faults: &FaultTimes) -> Value {
    json!({ "p50": faults.quantile_ns(0.5), "p99": faults.quantile_ns(0.99), "max": faults.max_ns() })
}

/// The lines that people look for first.
fn table(report: &Map<String, Value>) -> String {
    let number = |name: &str| report.get(name).and_then(Value::as_u64).unwrap_or(0);
    let bytes = |name: &str| size::display(number(name));
    let fault = |name: &str| report["fault_ns"][name].as_u64().unwrap_or(0) as f64 / 1000.0;
    let ratio = number("orig_data_size") as f64 / number("pool_total_size").max(1) as f64;
    let rows = [
        ("memory", format!("{} at most, of {}", bytes("peak_bytes"), bytes("limit"))),
        (
            "pool",
            format!(
                "{} for {} of pages ({ratio:.1} to 1)",
                bytes("pool_total_size"),
                bytes("orig_data_size")
            ),
        ),
        ("evicted", format!("{} pages, {} came back", number("evicted_pages"), number("refaults"))),
        (
            "swap file",
            format!(
                "{} pages, {} written, {} loads",
                number("written_back_pages"),
                bytes("writeback_bytes"),
                number("tier_loads")
            ),
        ),
        (
            "faults",
            format!(
                "{}; {:.1} us p50, {:.1} us p99, {:.1} us max",
                number("faults"),
                fault("p50"),
                fault("p99"),
                fault("max")
            ),
        ),
        ("processes", number("processes").to_string()),
        ("elapsed", format!("{:.2} s", report["elapsed_s"].as_f64().unwrap_or(0.0))),
    ];
    rows.iter().map(|(name, text)| format!("ramfold: {name:<10} {text}\n")).collect()
}
