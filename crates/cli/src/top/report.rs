//! What `top` shows: a table, or a JSON object a line.

use crate::find::Run;
use crate::live::{Process, Sample};
use crate::run::stats::fault_ns;
use crate::size;
use ramfold::PAGE_SIZE;
use ramfold_budget::segment::{Counter, FaultTimes, Gauge, Part};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What happened between two samples.
struct Interval<'a> {
    before: &'a Sample,
    now: &'a Sample,
}

impl Interval<'_> {
    fn rate(&self, events: u64) -> f64 {
        let time = self.now.taken.duration_since(self.before.taken).as_secs_f64();
        if time > 0.0 { events as f64 / time } else { 0.0 }
    }

    fn rate_of(&self, counter: Counter) -> f64 {
        self.rate(self.now.counter(counter).saturating_sub(self.before.counter(counter)))
    }

    fn faults(&self) -> FaultTimes {
        self.now.faults.since(&self.before.faults)
    }

    /// Of a process; all that it ever had if it is new.
    fn faults_of(&self, process: &Process) -> FaultTimes {
        let is_it = |other: &&Process| (other.pid, other.slot) == (process.pid, process.slot);
        let before = self.before.processes.iter().find(is_it);
        before.map_or_else(|| process.faults.clone(), |before| process.faults.since(&before.faults))
    }
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_SIZE as u64)
}

fn micros(faults: &FaultTimes, quantile: f64) -> f64 {
    faults.quantile_ns(quantile) as f64 / 1000.0
}

/// Four lines for the run, one for each process, and one for each directory of a mount that has a limit.
pub fn table(run: &Run, before: &Sample, now: &Sample) -> String {
    let interval = Interval { before, now };
    let mib = size::display;
    let faults = interval.faults();
    let mut text = format!("run {}: {}\n", run.pid, run.command(100));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "limit {}, in use {} ({} not managed), at most {}; swap file {} of {}",
        mib(now.limit),
        mib(now.in_use),
        mib(now.unmanaged),
        mib(now.peak),
        mib(now.swap_used),
        mib(now.swap_limit)
    );
    let _ = writeln!(
        text,
        "faults {:.0}/s, {:.1} us p50, {:.1} us p99; evicted {:.0}/s, came back {:.0}/s, from the swap file {:.0}/s",
        interval.rate(faults.count()),
        micros(&faults, 0.5),
        micros(&faults, 0.99),
        interval.rate_of(Counter::EvictedPages),
        interval.rate_of(Counter::Refaults),
        interval.rate_of(Counter::TierLoads)
    );
    text += "\n    PID   RESIDENT       POOL      HOLDS    SWAPPED      OTHER  FAULTS/S      P50      P99  COMMAND\n";
    for process in &now.processes {
        let faults = interval.faults_of(process);
        let _ = writeln!(
            text,
            "{:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9.0} {:>8.1} {:>8.1}  {}",
            process.pid,
            mib(process.gauge(Gauge::Resident)),
            mib(process.gauge(Gauge::Pool)),
            mib(process.gauge(Gauge::OrigDataSize)),
            mib(bytes(process.gauge(Gauge::TierPages))),
            mib(process.gauge(Gauge::Own)),
            interval.rate(faults.count()),
            micros(&faults, 0.5),
            micros(&faults, 0.99),
            process.name
        );
        for Part { path, limit, bytes } in &process.directories {
            let _ = writeln!(text, "{:>29} of {} for {path}", mib(*bytes), mib(*limit));
        }
    }
    text
}

/// One line.
pub fn json(run: &Run, before: &Sample, now: &Sample) -> String {
    let interval = Interval { before, now };
    let mut report = Map::new();
    let mut enter = |name: &str, value: Value| report.insert(name.to_owned(), value);
    enter("run", run.pid.into());
    enter("limit", now.limit.into());
    enter("in_use_bytes", now.in_use.into());
    enter("unmanaged_bytes", now.unmanaged.into());
    enter("peak_bytes", now.peak.into());
    enter("swap_used_bytes", now.swap_used.into());
    enter("swap_limit_bytes", now.swap_limit.into());
    for gauge in Gauge::ALL {
        enter(gauge.name(), now.sum(*gauge).into());
    }
    for counter in Counter::ALL {
        enter(counter.name(), now.counter(*counter).into());
    }
    let faults = interval.faults();
    enter("faults_per_s", interval.rate(faults.count()).into());
    enter("fault_ns", fault_ns(&faults));
    let processes: Vec<Value> = now.processes.iter().map(|process| of_process(&interval, process)).collect();
    // `processes` is the number of processes ever; these are those that live.
    enter("living", processes.into());
    format!("{}\n", Value::Object(report))
}

fn of_process(interval: &Interval<'_>, process: &Process) -> Value {
    let faults = interval.faults_of(process);
    let mut report = json!({
        "pid": process.pid,
        "command": process.name,
        "faults_per_s": interval.rate(faults.count()),
        "fault_ns": fault_ns(&faults),
    });
    for gauge in Gauge::ALL {
        report[gauge.name()] = process.gauge(*gauge).into();
    }
    if !process.directories.is_empty() {
        let each = process.directories.iter();
        let each =
            each.map(|part| json!({"directory": part.path, "memlimit": part.limit, "bytes": part.bytes}));
        report["directories"] = each.collect();
    }
    report
}
