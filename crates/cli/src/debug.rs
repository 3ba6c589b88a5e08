//! `ramfold debug`: a process of a run as a debugger wants to find it, with all of its memory in place.
//!
//! The kernel does not wait for a page that is away when somebody else reads it by /proc/PID/mem or ptrace. So the
//! process is asked, by a beat in the run's segment, to bring back what is away and to keep it; when the beat ends,
//! because the command has ended or because it was killed, the limit holds for the process again.

use crate::failure::{Failure, say};
use crate::find::{self, Run};
use crate::run::{exit_status, not_started, reap_children};
use ramfold_budget::pressure::Pressure;
use ramfold_budget::process;
use ramfold_budget::segment::{Segment, SlotId};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Between two beats.
const BEAT: Duration = Duration::from_millis(500);
/// A process that brings nothing back for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Brings all memory of a process back, and keeps it there while a debugger looks at it.
///
/// While it lasts the process may have more than the run's limit. It ends with COMMAND, or, without one, at Ctrl-C;
/// within seconds of that the process is held as before.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold debug 4711 -- gdb -p 4711")]
pub struct Options {
    /// A process of a run
    #[arg(value_name = "PID")]
    pub pid: u32,

    /// What to start when all is in place
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Holds the process until the command ends, or somebody ends this one.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let run = find::run_of("debug", options.pid)?;
    let held = Held::find(&run, options.pid)?;
    let signals = Signals::take()?;
    if !held.wait_until_complete(&signals)? {
        return Ok(ExitCode::SUCCESS);
    }
    let status = if options.command.is_empty() {
        say(&format!("debug: {}: all of its memory is in place, until Ctrl-C", options.pid));
        held.keep(|| (signals.are_there() || held.has_ended()).then_some(0))
    } else {
        reap_children();
        let mut command = start(&options.command)?;
        held.keep(|| {
            if signals.ended.load(Ordering::Relaxed) {
                // It may have ended meanwhile.
                let _ = command.kill();
            }
            // One that cannot be waited for has ended.
            command.try_wait().map_or(Some(125), |status| status.map(exit_status))
        })
    };
    Ok(ExitCode::from(status))
}

/// Signals that have come.
struct Signals {
    /// Ctrl-C, which a command gets from the terminal itself.
    interrupted: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Signals {
    fn take() -> Result<Self, Failure> {
        let signals = Self { interrupted: Arc::default(), ended: Arc::default() };
        for (signal, flag) in
            [(SIGINT, &signals.interrupted), (SIGTERM, &signals.ended), (SIGHUP, &signals.ended)]
        {
            flag::register(signal, Arc::clone(flag))
                .map_err(|error| Failure::failed(format!("debug: {error} (signals cannot be taken)")))?;
        }
        Ok(signals)
    }

    fn are_there(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) || self.ended.load(Ordering::Relaxed)
    }
}

fn start(words: &[OsString]) -> Result<Child, Failure> {
    Command::new(&words[0])
        .args(&words[1..])
        .spawn()
        .map_err(|error| not_started(&format!("debug: {}: {error}", words[0].display()), &error))
}

/// A process that is asked to hold its memory.
struct Held {
    pid: u32,
    segment: Segment,
    slot: SlotId,
}

impl Held {
    fn find(run: &Run, pid: u32) -> Result<Self, Failure> {
        let failed = |why: String| Failure::failed(format!("debug: {pid}: {why}"));
        if run.pid == pid {
            return Err(failed(
                "it is ramfold run itself (give the number of a program that it runs)".to_owned(),
            ));
        }
        let segment = Segment::open(&run.segment).map_err(|error| failed(error.to_string()))?;
        // As it numbers itself, which in a container of its own is not as this process numbers it.
        let inner = process::innermost(pid).unwrap_or(pid);
        let found = segment.processes().into_iter().find(|process| process.pid == inner);
        let slot = found.map(|process| process.slot).ok_or_else(|| {
            failed(
                "it is not managed, so nothing of its memory is away (start the debugger as ever)".to_owned(),
            )
        })?;
        let held = Self { pid, segment, slot };
        match (held.segment.away(held.slot), Pressure::new().available()) {
            (away, Some(free)) if away > free => Err(failed(format!(
                "{} MiB would have to come back, and the system has {} MiB left (end other programs first)",
                away / MIB,
                free / MIB
            ))),
            _ => Ok(held),
        }
    }

    fn has_ended(&self) -> bool {
        process::Stat::of(self.pid).is_none_or(|stat| stat.has_ended())
    }

    /// Waits until all is in place, as long as something comes. False if a signal came first.
    fn wait_until_complete(&self, signals: &Signals) -> Result<bool, Failure> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        let mut beat = Instant::now();
        let asked = self.segment.beat_hold(self.slot);
        while !self.segment.is_held(self.slot, asked) {
            if signals.are_there() {
                return Ok(false);
            }
            if self.segment.away(self.slot) < least {
                (least, since) = (self.segment.away(self.slot), Instant::now());
            }
            if self.has_ended() {
                return Err(Failure::failed(format!("debug: {}: it has ended", self.pid)));
            }
            if since.elapsed() > PATIENCE {
                let why = "it does not answer (if it is stopped, let it go on until this command has begun)";
                return Err(Failure::failed(format!("debug: {}: {why}", self.pid)));
            }
            self.beat(&mut beat);
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }

    /// Keeps the hold until `over` tells a status.
    fn keep(&self, mut over: impl FnMut() -> Option<u8>) -> u8 {
        let mut beat = Instant::now();
        loop {
            if let Some(status) = over() {
                return status;
            }
            // Its slot may be another's by now.
            if !self.has_ended() {
                self.beat(&mut beat);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn beat(&self, last: &mut Instant) {
        if last.elapsed() >= BEAT {
            *last = Instant::now();
            self.segment.beat_hold(self.slot);
        }
    }
}
