//! Many processes under one limit: whether it holds, and whether any of them is starved.
//!
//! The same processes run under `ramfold run`, in a memory cgroup without a limit, from which all their memory is read
//! every 10 ms. Each touches pages at random, checks them, and ends after a number of touches. Told are the most memory
//! seen, and when the first and the last of them ended. A round each way out, in turns.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::cgroup::Cgroup;
use ramfold_bench::comparison::median;
use ramfold_bench::process::Running;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(
    about = "Equal and very different processes under one limit",
    after_help = "Example: many-processes target/release/ramfold"
)]
struct Options {
    /// The ramfold binary
    #[arg(required_unless_present = "start")]
    ramfold: Option<PathBuf>,
    /// One more option for `ramfold run` (may be repeated)
    #[arg(long, allow_hyphen_values = true)]
    ramfold_option: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the equal ones, or the different ones
    #[arg(long)]
    only: Option<String>,
    /// Starts processes of so many MiB, and prints after how many seconds each ended: what runs under ramfold
    #[arg(long, hide = true, value_delimiter = ',', conflicts_with = "ramfold")]
    start: Vec<usize>,
    /// Touches a page of each
    #[arg(long, hide = true, default_value_t = 1)]
    touches: usize,
}

/// A set of processes.
struct Set {
    name: &'static str,
    mib: Vec<usize>,
    touches_per_page: usize,
}

const LIMIT_MIB: usize = 256;
const SAMPLE: Duration = Duration::from_millis(10);
const MIB: f64 = 1024.0 * 1024.0;

fn main() -> Result<()> {
    let options = Options::parse();
    if !options.start.is_empty() {
        return start(&options.start, options.touches);
    }
    let ramfold = options.ramfold.as_deref().context("no ramfold")?;
    println!("limit {LIMIT_MIB} MiB");
    println!("processes   together  way out   most memory   first ended   last ended   last / first");
    for set in [Set::equal(), Set::different()] {
        if options.only.as_ref().is_some_and(|only| only != set.name) {
            continue;
        }
        let mut seen: [Vec<[f64; 3]>; 2] = Default::default();
        for _ in 0..options.rounds {
            for (way, seen) in ["move", "wp"].iter().zip(&mut seen) {
                seen.push(set.run(ramfold, way, &options.ramfold_option)?);
            }
        }
        for (way, seen) in ["move", "wp"].iter().zip(&seen) {
            set.print(way, seen);
        }
    }
    Ok(())
}

impl Set {
    fn equal() -> Self {
        Self { name: "equal", mib: vec![96; 8], touches_per_page: 12 }
    }

    /// From 1 to 64 MiB, most of them small.
    fn different() -> Self {
        let mib = (0..50).map(|i| 1 + 63 * i * i / (49 * 49)).collect();
        Self { name: "different", mib, touches_per_page: 12 }
    }

    /// Most bytes of memory, seconds until the first ended, and until the last.
    fn run(&self, ramfold: &Path, way: &str, more: &[String]) -> Result<[f64; 3]> {
        let group = Cgroup::new(&format!("ramfold-bench-many-{}", std::process::id()))?;
        let sizes: Vec<String> = self.mib.iter().map(usize::to_string).collect();
        let mut command = Command::new(ramfold);
        command.args(["run", "-m", &format!("{LIMIT_MIB}M"), "--evict-mode", way]).args(more);
        command.arg("--").arg(std::env::current_exe()?);
        command.args(["--start", &sizes.join(","), "--touches", &self.touches_per_page.to_string()]);
        group.contain(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut running = Running::start(&mut command)?;
        let mut most = 0;
        let status = loop {
            if let Some(status) = running.0.try_wait()? {
                break status;
            }
            most = most.max(group.resident()?);
            std::thread::sleep(SAMPLE);
        };
        ensure!(status.success(), "ramfold run: {status}");
        let ended: Vec<f64> = serde_json::from_str(&running.first_line()?)?;
        let (first, last) = (ended.iter().copied().reduce(f64::min), ended.iter().copied().reduce(f64::max));
        Ok([most as f64, first.context("none")?, last.context("none")?])
    }

    fn print(&self, way: &str, seen: &[[f64; 3]]) {
        let of = |figure: fn(&[f64; 3]) -> f64| median(seen.iter().map(figure).collect()).unwrap_or(f64::NAN);
        let most = seen.iter().map(|[most, ..]| *most).fold(0.0, f64::max);
        println!(
            "{:>2} {:<9} {:>4} MiB  {way:<7} {:>7.1} MiB {:>11.1} s {:>10.1} s {:>13.2}",
            self.mib.len(),
            self.name,
            self.mib.iter().sum::<usize>(),
            most / MIB,
            of(|[_, first, _]| *first),
            of(|[_, _, last]| *last),
            of(|[_, first, last]| last / first)
        );
    }
}

/// Runs one process of each size, and prints after how many seconds each ended.
fn start(mib: &[usize], touches_per_page: usize) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("workload");
    let begun = Instant::now();
    let mut children = Vec::new();
    for (seed, mib) in mib.iter().enumerate() {
        let touches = (mib << 20) / ramfold::PAGE_SIZE * touches_per_page;
        let mut command = Command::new(&program);
        command.args([
            "uniform",
            "--seconds",
            "3600",
            "--mib",
            &mib.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        command.args(["--touches", &touches.to_string()]).stdout(Stdio::null());
        children.push(Running::start(&mut command)?);
    }
    let mut ended = vec![None; children.len()];
    while ended.contains(&None) {
        for (child, ended) in children.iter_mut().zip(&mut ended) {
            if ended.is_none()
                && let Some(status) = child.0.try_wait()?
            {
                ensure!(status.success(), "a process of the set: {status}");
                *ended = Some(begun.elapsed().as_secs_f64());
            }
        }
        std::thread::sleep(SAMPLE);
    }
    println!("{}", Value::from(ended.into_iter().flatten().collect::<Vec<f64>>()));
    Ok(())
}
