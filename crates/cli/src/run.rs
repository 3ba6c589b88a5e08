//! `ramfold run`: a program, and all that it starts, within a limit of memory.
//!
//! Everything that the run needs hangs on descriptors of this process: the preload library, the segment and the
//! swap file have no name on any disk and are reached as `/proc/PID/fd/N`. Nothing is left behind, however the
//! run ends. The price is that descendants that outlive ramfold and start further programs start them
//! unmanaged (the loader says on stderr that it cannot find the library).
//!
//! ramfold stays the parent of the program and in its process group. It returns when the program ends, as
//! `env` would, whatever the program left running.

mod access;
mod budget;
mod child;
mod crowd;
mod lookers;
mod lookout;
pub mod metrics;
mod options;
mod pace;
mod program;
mod quota;
pub mod stats;
mod swap;
mod uncounted;
mod unmanaged;

pub use child::{exit_status, not_started, reap_children};
pub use options::{MIN_LIMIT, Options};

use crate::failure::{Failure, say};
use crate::sharing;
use budget::Budget;
use child::Tick;
use lookout::Lookout;
use metrics::Metrics;
use options::Checked;
use pace::Pace;
use ramfold_budget::segment::Death;
use ramfold_budget::service::Place;
use ramfold_budget::settings::{self, Settings};
use ramfold_budget::share::Offer;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use stats::Stats;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use unmanaged::{Beyond, Unmanaged};

/// The library that every program gets, and the one that it loads when the program needs memory; build.rs built them.
static START: &[u8] = include_bytes!(env!("RAMFOLD_START"));
static PRELOAD: &[u8] = include_bytes!(env!("RAMFOLD_PRELOAD"));
/// The latter's name in memory: who has it mapped is managed.
const PRELOAD_NAME: &str = "ramfold-preload";

/// Exit status of a program that ramfold had to kill: that of SIGKILL.
const KILLED: u8 = 128 + 9;

/// Runs the program and gives its exit status.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let (place, share) = options.sharing.place()?;
    let mut checked = Checked::new(options, place.limit())?;
    refuse_nesting()?;
    checked.kernel_can_move = access::check()?;
    tell_what_may_go_wrong(options)?;
    let mut stats = Stats::open(options.stats.as_deref())?;
    let trace = options.trace.as_deref().map(open_trace).transpose()?;
    let signals = child::Signals::block();
    let run = Run::prepare(&checked, trace)?;
    let mut budget = match place {
        Place::Joined(joined) => Budget::join(*joined)?,
        _ => Budget::make(&checked, share.is_some())?,
    };
    let share = sharing::start(share, || Offer::new(&budget.segment, budget.swap.as_ref().map(AsFd::as_fd)))?;
    let segment = Arc::clone(&budget.segment);
    let metrics = options.metrics.as_ref();
    let metrics = metrics.map(|address| Metrics::serve(address, Arc::clone(&segment))).transpose()?;

    let (mut unmanaged, mut lookout) = (Unmanaged::default(), Lookout::new());
    let (mut not_managed, mut beyond) = (0, Beyond::default());
    if budget.is_lookout() {
        lookout.begin(&segment);
    }
    let started = Instant::now();
    let mut child = child::Child::spawn(&options.command, &run.environment(&budget), &signals)?;
    let program = child.pid();
    let mut told = 0;
    // What is not counted passes the limit until it is found.
    let (mut often, mut seldom) = (Pace::of(50), Pace::new(Duration::from_millis(100)));
    let status = child.wait(&mut |tick| {
        often.look(|| not_managed = unmanaged.look(&segment, program));
        let not_counted = if budget.is_lookout() { lookout.look(&segment, tick) } else { 0 };
        budget.enter(not_managed, not_counted);
        if matches!(tick, Tick::Stops) {
            budget.pause();
        }
        seldom.look(|| {
            stats.sample(&segment);
            budget.reap();
            told = tell_deaths(&budget, told, program);
            beyond.look(not_managed, checked.limit).iter().for_each(|line| say(line));
        });
    });
    stats.sample(&segment);
    budget.reap();
    tell_deaths(&budget, told, program);
    drop((metrics, share));
    if options.trace.is_some() && segment.is_trace_incomplete() {
        say(
            "--trace: the file took no more, and the record ends there (the program itself was not disturbed)",
        );
    }
    stats.report(&segment, started.elapsed())?;
    let was_killed = own_deaths(&budget).any(|death| death.pid == program);
    Ok(ExitCode::from(if was_killed { KILLED } else { status }))
}

/// What the user should know before the program runs.
fn tell_what_may_go_wrong(options: &Options) -> Result<(), Failure> {
    let name = &options.command[0];
    if let Some(reason) = program::unmanageable(name) {
        let what = format!("{}: {reason}", name.display());
        if options.strict {
            return Err(Failure::failed(format!("{what} (leave --strict out to run it without a limit)")));
        }
        say(&format!("{what}; it runs without a limit (--strict refuses such programs)"));
    }
    if let Some(quota) = quota::too_small() {
        say(&format!(
            "a quota of {quota:.2} processors on this kernel: a program with signals may stand still (give it one \
             processor or more; docs/platform.md tells why: Processor quotas)"
        ));
    }
    Ok(())
}

/// Why processes of this run were killed.
fn own_deaths(budget: &Budget) -> impl Iterator<Item = Death> {
    let run = budget.run;
    budget.segment.deaths().into_iter().filter(move |death| death.run == run)
}

/// Says which processes ramfold killed and why, from the `told`th on; how many there are.
fn tell_deaths(budget: &Budget, told: usize, program: u32) -> usize {
    let deaths: Vec<Death> = own_deaths(budget).collect();
    for death in deaths.iter().skip(told) {
        let who = if death.pid == program { String::new() } else { format!("process {}: ", death.pid) };
        say(&format!("{who}{}", death.message));
    }
    deaths.len()
}

/// Makes the record's file at once: a wrong path is told before the program runs.
fn open_trace(path: &Path) -> Result<File, Failure> {
    let made = File::create(path).and_then(|mut file| {
        // To open a pipe anew may wait for ever.
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        writeln!(file, "{}", ramfold_survey::trace::HEAD)?;
        Ok(file)
    });
    made.map_err(|error| {
        Failure::failed(format!("--trace {}: {error} (choose another file)", path.display()))
    })
}

fn refuse_nesting() -> Result<(), Failure> {
    match std::env::var_os(settings::VARIABLE) {
        Some(_) => Err(Failure::failed(
            "run: this process already runs under ramfold (start the inner program without ramfold run: \
             the outer limit holds for it)",
        )),
        None => Ok(()),
    }
}

/// What the processes of the run reach through this one.
struct Run {
    start: OwnedFd,
    library: OwnedFd,
    trace: Option<File>,
    settings: Settings,
}

impl Run {
    fn prepare(checked: &Checked, trace: Option<File>) -> Result<Self, Failure> {
        let failed = |what: &str, why: &dyn std::fmt::Display| Failure::failed(format!("{what}: {why}"));
        let in_memory = |name, bytes| {
            library(name, bytes).map_err(|error| {
                let what = "the preload library cannot be put into memory";
                match error.kind() {
                    ErrorKind::FileTooLarge => {
                        failed(what, &"file too large (raise ulimit -f to 64 MiB or more)")
                    }
                    _ => failed(what, &error),
                }
            })
        };
        let start = in_memory("ramfold-start", START)?;
        let library = in_memory(PRELOAD_NAME, PRELOAD)?;
        Ok(Self { start, library, trace, settings: checked.settings() })
    }

    /// The variables that make a program a managed one.
    fn environment(&self, budget: &Budget) -> [(&'static str, OsString); 2] {
        let mut preload = OsString::from(path(&self.start));
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(OsStr::new(":"));
            preload.push(others);
        }
        let settings = Settings {
            start: Some(path(&self.start)),
            library: Some(path(&self.library)),
            segment: Some(path(&budget.segment_fd)),
            swap: budget.swap.as_ref().map(path),
            trace: self.trace.as_ref().map(path),
            run: budget.run,
            ..self.settings.clone()
        };
        [("LD_PRELOAD", preload), (settings::VARIABLE, settings.to_string().into())]
    }
}

/// A library as a file in memory that nobody can change.
fn library(name: &str, bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    // Nothing has it mapped to be written, so this is all; the stronger WRITE waits for whoever uses a page for a
    // moment, the kernel itself too, and gives up (EBUSY).
    let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// How other processes reach a descriptor of this one.
fn path(fd: impl AsFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd())
}
