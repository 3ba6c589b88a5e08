//! What it costs a process to be looked at by `ramfold inspect`, and how long a look takes: `inspect-cost RAMFOLD`.
//!
//! A program touches its memory at random, all the time. Beside it, in turns: nothing; `ramfold inspect` of it, again and again; the
//! same of another process, which sleeps and has the same in its memory. The third is the control: a second
//! busy thread slows a program down where both share a cache or a core, whatever it works at. What the looking itself
//! costs is the second beside the third; how a single look shows in the program's whole time follows from how long it takes.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ramfold_bench::comparison::median;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "What it costs a process to be looked at by `ramfold inspect`")]
struct Options {
    /// The binary
    ramfold: PathBuf,
    /// Memory of the program, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Seconds that each measurement lasts
    #[arg(long, default_value_t = 9)]
    seconds: u64,
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The order of its touches, as `workload` names them
    #[arg(long, default_value = "zipf")]
    order: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    Inspected,
    AnotherInspected,
}

const SIDES: [(Beside, &str); 3] = [
    (Beside::Nothing, "alone"),
    (Beside::Inspected, "inspected all the time"),
    (Beside::AnotherInspected, "another is inspected"),
];

/// One measurement: touches a second, and how long each look took.
struct Round {
    rate: f64,
    looks: Vec<f64>,
}

/// A child that is killed with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let sleeping = start(&options, 1_000_000)?;
    wait_until_filled(&sleeping, &options)?;
    signal(&sleeping, libc::SIGSTOP);
    let mut rounds: [Vec<Round>; SIDES.len()] = Default::default();
    for _ in 0..options.runs {
        for ((side, _), rounds) in SIDES.iter().zip(&mut rounds) {
            rounds.push(measure(&options, *side, &sleeping)?);
        }
    }
    println!(
        "{}, {} MiB, {} s each, medians of {}",
        options.order, options.mib, options.seconds, options.runs
    );
    println!("beside it                 touches/s   of alone   a look (s)");
    let rate = |rounds: &[Round]| median(rounds.iter().map(|round| round.rate).collect()).context("no round");
    let alone = rate(&rounds[0])?;
    for ((_, name), rounds) in SIDES.iter().zip(&rounds) {
        let rate = rate(rounds)?;
        let look = median(rounds.iter().flat_map(|round| round.looks.iter().copied()).collect());
        let look = look.map_or_else(|| "-".into(), |seconds| format!("{seconds:.2}"));
        println!("{name:<24} {rate:>10.0} {:>10.3} {look:>12}", rate / alone);
    }
    Ok(())
}

fn measure(options: &Options, beside: Beside, sleeping: &Running) -> Result<Round> {
    let mut program = start(options, options.seconds)?;
    wait_until_filled(&program, options)?;
    let pid = if beside == Beside::AnotherInspected { sleeping.0.id() } else { program.0.id() };
    let mut looks = Vec::new();
    while program.0.try_wait()?.is_none() {
        match beside {
            Beside::Nothing => std::thread::sleep(Duration::from_millis(100)),
            // The last look ends with the program.
            _ => looks.extend(look(&options.ramfold, pid)?),
        }
    }
    let output = std::io::read_to_string(program.0.stdout.take().context("no output")?)?;
    let result: Value =
        serde_json::from_str(&output).with_context(|| format!("the program said: {output}"))?;
    let rate = result["rate"].as_f64().context("no rate")?;
    Ok(Round { rate, looks })
}

/// The seconds of one look, if it came to its end.
fn look(ramfold: &Path, pid: u32) -> Result<Option<f64>> {
    let begun = Instant::now();
    let mut command = Command::new(ramfold);
    command.args(["inspect", &pid.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start {}", ramfold.display()))?;
    Ok(status.success().then(|| begun.elapsed().as_secs_f64()))
}

fn start(options: &Options, seconds: u64) -> Result<Running> {
    let program = std::env::current_exe()?.with_file_name("workload");
    let mut command = Command::new(&program);
    command.args([&options.order, "--mib", &options.mib.to_string(), "--seconds", &seconds.to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    Ok(Running(child.with_context(|| format!("cannot start {}", program.display()))?))
}

/// Waits until all of the memory has been written.
fn wait_until_filled(program: &Running, options: &Options) -> Result<()> {
    let begun = Instant::now();
    while anonymous_kib(program.0.id())? < options.mib << 10 {
        ensure!(begun.elapsed() < Duration::from_secs(600), "the program does not fill its memory");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn anonymous_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let Some(size) = status.lines().find_map(|line| line.strip_prefix("RssAnon:")) else {
        bail!("the program has ended");
    };
    Ok(size.trim().trim_end_matches(" kB").parse()?)
}

fn signal(program: &Running, signal: i32) {
    let Ok(pid) = i32::try_from(program.0.id()) else { return };
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(pid, signal) };
}
