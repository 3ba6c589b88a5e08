//! What commands have in common that serve until they are told to stop: a control socket, `--stats`, `--metrics`,
//! signals.
//!
//! [`Prepared`] is had before anything is made, so that a wrong path is told first; [`Running`] lasts as long as the
//! server. A signal that comes in between ends the server as soon as it has begun.

use crate::failure::{Failure, say};
use crate::run::metrics::{Address, Metrics};
use crate::run::stats::Stats;
use ramfold_budget::control::{Answers, Control, NameError, Socket};
use ramfold_budget::segment::Segment;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// The control socket of a server of this kind. One that was given no name does without where there is no place for it.
pub fn socket(kind: &str, name: Option<&str>) -> Result<Option<Socket>, Failure> {
    match (Socket::bind(name, kind), name) {
        (Ok(socket), _) => Ok(Some(socket)),
        (Err(error @ NameError::NotAName(_)), _) => Err(Failure::usage(format!("--name: {error}"))),
        (Err(error), Some(name)) => Err(Failure::failed(format!("--name {name}: {error}"))),
        (Err(error), None) => {
            say(&format!("{kind}: ramfold ctl will not find it: {error}"));
            Ok(None)
        }
    }
}

/// Serves a control socket, if there is one.
pub fn control(
    kind: &str,
    socket: Option<Socket>,
    answers: Arc<dyn Answers>,
) -> Result<Option<Control>, Failure> {
    let control = socket.map(|socket| Control::start(socket, answers)).transpose();
    control.map_err(|error| Failure::failed(format!("{kind}: {error}")))
}

/// Whether this process was started by nohup(1): the end of its terminal is not its own then.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (SIGHUP - 1) & 1 != 0
}

/// A server that has not begun.
pub struct Prepared {
    stats: Stats,
    signals: Signals,
}

impl Prepared {
    /// Takes signals from now on, and opens the file of `--stats`. `kind`: the name of the command.
    pub fn new(kind: &'static str, stats: Option<&Path>) -> Result<Self, Failure> {
        let stats = Stats::open(stats)?;
        let hang_up = Some(SIGHUP).filter(|_| !ignores_hang_up());
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up));
        let signals = signals.map_err(|error| Failure::failed(format!("{kind}: {error}")))?;
        Ok(Self { stats, signals })
    }

    /// Serves the numbers of this budget, if they are wanted, and keeps the control socket until the end.
    pub fn start(
        self,
        segment: Arc<Segment>,
        metrics: Option<&Address>,
        control: Option<Control>,
    ) -> Result<Running, Failure> {
        let Self { stats, signals } = self;
        let metrics = metrics.map(|address| Metrics::serve(address, Arc::clone(&segment))).transpose()?;
        Ok(Running { signals, stats, segment, started: Instant::now(), control, metrics })
    }
}

/// A server, from its beginning to its report.
pub struct Running {
    signals: Signals,
    stats: Stats,
    segment: Arc<Segment>,
    started: Instant,
    control: Option<Control>,
    metrics: Option<Metrics>,
}

impl Running {
    /// Makes [`Running::wait`] return when it is closed: the server has ended without a signal.
    pub fn stop(&self) -> Handle {
        self.signals.handle()
    }

    /// Returns when a signal tells the server to stop. A service manager is told that it serves, and that it stops.
    pub fn wait(&mut self) {
        // Nobody need listen.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        self.signals.forever().next();
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }

    /// Goes on: signals that came since are of the stop that has failed.
    pub fn go_on(&mut self) {
        self.signals.pending().for_each(drop);
    }

    /// Ends what is served here, and reports. `publish` enters the last numbers.
    pub fn end(self, publish: impl FnOnce()) -> Result<ExitCode, Failure> {
        let Self { mut stats, segment, started, control, metrics, signals: _signals } = self;
        drop((control, metrics));
        publish();
        stats.sample(&segment);
        stats.report(&segment, started.elapsed())?;
        Ok(ExitCode::SUCCESS)
    }
}
