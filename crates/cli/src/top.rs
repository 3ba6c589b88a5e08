//! `ramfold top`: a running tree, live.
//!
//! It copies what there is in the run's segment, and shows that. The run is not slowed down by it, and nothing that
//! the file says or that becomes of it does more to `top` than nonsense in a table, or one line.

mod report;

use crate::failure::Failure;
use crate::find;
use crate::live::Sample;
use ramfold_budget::segment::{OpenError, Segment};
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Shows what the processes of a run have and do, again and again.
///
/// RESIDENT: pages in memory. POOL: memory that the process's compressed pages take; HOLDS: what they were before.
/// SWAPPED: pages in the swap file, before compression. OTHER: all other anonymous memory of the process, ramfold's own
/// tables among it. A process that serves several disks has a line for each, and,
/// where they share a limit, one for what it has beside them. Below a mount are its directories that have a limit: what
/// they take of the pool, and what they may. P50, P99: microseconds that faults of the last interval
/// took. Ends with the run, or at Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold top --interval 2")]
pub struct Options {
    /// The `ramfold run`, or any process of the run; not needed when there is one run only
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub interval: f64,

    /// End after so many looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,

    /// One JSON object a line for each look
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("\"{text}\" is no time (write seconds, from 0.1 to 3600)");
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or_else(wrong)
}

/// Shows the run until it ends.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let run = options.pid.map_or_else(find::the_only_run, |pid| find::run_of("top", pid))?;
    let sample = || {
        let segment = Segment::look_at(&run.segment).map_err(|error| cannot_open(run.pid, &error))?;
        Ok(Sample::take(&segment))
    };
    let interval = Duration::from_secs_f64(options.interval);
    let mut before = sample()?;
    let mut left = options.count;
    while left != Some(0) {
        std::thread::sleep(interval);
        if !run.lives() {
            break;
        }
        let now = match sample() {
            Ok(now) => now,
            Err(_) if !run.lives() => break,
            Err(error) => return Err(error),
        };
        let text =
            if options.json { report::json(&run, &before, &now) } else { report::table(&run, &before, &now) };
        match show(&text, options.json) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            Err(error) => return Err(Failure::failed(format!("top: {error} (nothing can be shown)"))),
        }
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(ExitCode::SUCCESS)
}

/// On a terminal each table takes the place of the one before.
fn show(text: &str, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if !json && out.is_terminal() {
        let lines = rustix::termios::tcgetwinsize(&out).map_or(24, |size| usize::from(size.ws_row).max(2));
        let fitting: Vec<&str> = text.lines().take(lines - 1).collect();
        writeln!(out, "\x1b[H\x1b[J{}", fitting.join("\n"))?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()
}

fn cannot_open(pid: u32, error: &OpenError) -> Failure {
    match error {
        OpenError::Io(error) if error.kind() == ErrorKind::PermissionDenied => {
            Failure::failed(format!("top: run {pid} belongs to another user (run as that user, or as root)"))
        }
        error => Failure::failed(format!("top: run {pid}: {error}")),
    }
}
