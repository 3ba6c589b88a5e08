//! What it costs a process to be looked at by `ramfold inspect`, and how long a look takes: `inspect-cost RAMFOLD`.
//!
//! A program touches its memory at random, all the time, and tells its rate four times a second. Beside it, in turns:
//! nothing; `ramfold inspect` of it, again and again; the same of another process, which is stopped and has the same
//! in its memory. The third is the control: a second busy thread slows a program down where both share a cache or a
//! core, whatever it works at. What the looking itself costs is the second beside the third.
//!
//! One program lives through all rounds, since two that were filled one after the other differ by more than what is
//! looked for (where their pages lie). Shares are formed within a round, whose parts follow each other in turn; told
//! are their medians and quartiles over the rounds.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::process::{Running, anonymous_bytes};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How often the program tells its rate.
const TELLS: Duration = Duration::from_millis(250);
/// Longer than any measurement: the program is killed at the end.
const FOREVER: u64 = 1_000_000;

#[derive(Parser)]
#[command(about = "What it costs a process to be looked at by `ramfold inspect`")]
struct Options {
    /// The binary
    ramfold: PathBuf,
    /// Memory of the program, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Seconds of each part of a round
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// The order of its touches, as `workload` names them
    #[arg(long, default_value = "zipf")]
    order: String,
}

const ALONE: usize = 0;
const INSPECTED: usize = 1;
const ANOTHER: usize = 2;

/// What a round gave: the rate of each part.
type Rates = [f64; 3];

/// The program that is looked at, and the rates that it tells, each with when.
struct Busy {
    child: Running,
    told: Receiver<(Instant, f64)>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let stopped = start(&options)?;
    wait_until_filled(&stopped, &options)?;
    signal(&stopped, libc::SIGSTOP);
    let busy = Busy::start(&options)?;
    let (mut looks, mut rounds) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let mut rates = Rates::default();
        for part in (0..rates.len()).map(|part| (part + round) % 3) {
            let pid = [None, Some(busy.child.0.id()), Some(stopped.0.id())][part];
            rates[part] = measure(&options, &busy, pid, &mut looks)?;
        }
        eprintln!("round {}: {rates:.0?} touches a second", round + 1);
        rounds.push(rates);
    }
    report(&options, &rounds, looks);
    Ok(())
}

fn report(options: &Options, rounds: &[Rates], looks: Vec<f64>) {
    let Options { order, mib, seconds, rounds: count, .. } = options;
    println!("{order}, {mib} MiB, {count} rounds of parts of {seconds} s: median (quartiles)");
    for (name, part, of) in [
        ("inspected, of alone", INSPECTED, ALONE),
        ("another inspected, of alone", ANOTHER, ALONE),
        ("inspected, of another inspected", INSPECTED, ANOTHER),
    ] {
        let [low, middle, high] = quartiles(rounds.iter().map(|rates| rates[part] / rates[of]).collect());
        println!("{name:<32} {middle:.3} ({low:.3} to {high:.3})");
    }
    let [low, middle, high] = quartiles(looks);
    println!("{:<32} {middle:.2} s ({low:.2} to {high:.2})", "a look");
}

/// The program's rate while the process is looked at again and again, or nothing is done.
fn measure(options: &Options, busy: &Busy, pid: Option<u32>, looks: &mut Vec<f64>) -> Result<f64> {
    let begun = Instant::now();
    let end = begun + Duration::from_secs(options.seconds);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match pid {
            None => std::thread::sleep(left),
            Some(pid) => looks.extend(look(&options.ramfold, pid, end)?),
        }
    }
    busy.rate(begun, end)
}

/// The seconds of one look; None if it is not over at `end`, when it is broken off.
fn look(ramfold: &Path, pid: u32, end: Instant) -> Result<Option<f64>> {
    let begun = Instant::now();
    let mut command = Command::new(ramfold);
    command.args(["inspect", &pid.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Running::start(&mut command)?;
    while Instant::now() < end {
        if let Some(status) = child.0.try_wait()? {
            ensure!(status.success(), "ramfold inspect: {status}");
            return Ok(Some(begun.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

fn start(options: &Options) -> Result<Running> {
    let program = std::env::current_exe()?.with_file_name("workload");
    let mut command = Command::new(&program);
    command.args([&options.order, "--mib", &options.mib.to_string(), "--seconds", &FOREVER.to_string()]);
    command.args(["--tell-every", &TELLS.as_millis().to_string()]);
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

impl Busy {
    /// Returns when it has filled its memory and settled.
    fn start(options: &Options) -> Result<Self> {
        let mut child = start(options)?;
        let (tell, told) = channel();
        let output = child.0.stdout.take().context("no output")?;
        std::thread::spawn(move || {
            for rate in rates(output) {
                // Nobody listens any more: the measurement is over.
                let Ok(()) = tell.send((Instant::now(), rate)) else { return };
            }
        });
        told.recv_timeout(Duration::from_secs(600)).context("the program told nothing in ten minutes")?;
        Ok(Self { child, told })
    }

    /// The mean of the rates of all intervals between the two.
    fn rate(&self, begun: Instant, end: Instant) -> Result<f64> {
        // What was told last may still be on its way.
        std::thread::sleep(TELLS);
        let whole = |(when, _): &(Instant, f64)| *when >= begun + TELLS && *when <= end;
        let rates: Vec<f64> = self.told.try_iter().filter(whole).map(|(_, rate)| rate).collect();
        ensure!(!rates.is_empty(), "the program told nothing (is a part of {:?} too short?)", end - begun);
        Ok(rates.iter().sum::<f64>() / rates.len() as f64)
    }
}

fn rates(output: ChildStdout) -> impl Iterator<Item = f64> {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()?["rate"].as_f64())
}

/// The lower quartile, the median and the upper quartile; of nothing, zeros.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values.get(values.len() * quarter / 4).copied().unwrap_or(0.0);
    [at(1), at(2), at(3)]
}

/// Waits until all of the memory has been written.
fn wait_until_filled(program: &Running, options: &Options) -> Result<()> {
    let begun = Instant::now();
    while anonymous_bytes(program.0.id())? < options.mib << 20 {
        ensure!(begun.elapsed() < Duration::from_secs(600), "the program does not fill its memory");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn signal(program: &Running, signal: i32) {
    let Ok(pid) = i32::try_from(program.0.id()) else { return };
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(pid, signal) };
}
