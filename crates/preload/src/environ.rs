//! The settings of the run, from the environment, and what they name.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use ramfold_budget::fds::raise;
use ramfold_budget::segment::{OpenError, Segment};
use ramfold_budget::settings::{self, Settings, VARIABLE};
use ramfold_pager::Config;
use rustix::fs::{Mode as Permissions, OFlags};

use crate::descriptors;

/// Bytes of address space for managed memory; reserved, not used.
const RANGE: usize = 16 << 40;
/// Nothing is managed up to this many writable bytes, or a 32nd of the limit if that is less.
const MAX_THRESHOLD: u64 = 16 << 20;

/// The directory in /proc of the `ramfold run` that the shared memory belongs to. Empty where it cannot be seen: in
/// other namespaces.
static RUN: OnceLock<String> = OnceLock::new();

/// Whether there is a `ramfold run` to tell the user what happens here.
pub fn run_lives() -> bool {
    RUN.get().is_some_and(|path| rustix::fs::access(path.as_str(), rustix::fs::Access::EXISTS).is_ok())
}

/// Why the settings are of no use.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// they cannot be understood
    #[error("{0}")]
    Text(#[from] settings::SettingsError),
    /// the run's shared memory is not there
    #[error("{0} (has ramfold run ended, or this process given up the user that it is of?)")]
    Segment(#[from] OpenError),
    /// a file of the run is not there
    #[error("the run's files cannot be opened: {0}")]
    Io(#[from] std::io::Error),
}

unsafe extern "C" {
    /// What the first library keeps of the environment (start/exec.c), which the program may have changed since: the
    /// settings, or a null pointer.
    static ramfold_kept: *const c_char;
}

/// How the settings name a descriptor that came with the process (start/carry.c).
const CARRIED: &str = "/proc/self/fd/";

fn value() -> Option<&'static str> {
    // SAFETY: written before this library is loaded; the string stays, and so does each that takes its place.
    let kept = unsafe { (!ramfold_kept.is_null()).then(|| CStr::from_ptr(ramfold_kept))? };
    kept.to_str().ok()?.strip_prefix(VARIABLE)?.strip_prefix('=')
}

/// The run's segment, or one of this process's own.
fn segment(settings: &Settings) -> Result<Segment, SettingsError> {
    let Some(path) = &settings.segment else {
        return Ok(Segment::create(settings.limit, settings.swap_size)?.1);
    };
    let segment = Segment::open(path)?;
    segment.set_run(settings.run);
    if let Some(fd) = segment.raw_fd() {
        descriptors::protect(fd);
    }
    if path.starts_with(CARRIED) {
        return Ok(segment);
    }
    let _ = RUN.set(path.split_once("/fd/").map_or(path.as_str(), |(process, _)| process).to_owned());
    Ok(segment)
}

fn open(path: &str, how: OFlags) -> std::io::Result<File> {
    let fd = match path.strip_prefix(CARRIED).and_then(|number| number.parse().ok()) {
        // As it was opened: on this side of a namespace's border its file may not be permitted.
        // SAFETY: the number is only copied; if it is closed, that fails.
        Some(number) => rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 0)?,
        None => rustix::fs::open(path, how | OFlags::CLOEXEC, Permissions::empty())?,
    };
    let file = File::from(raise(fd)?);
    descriptors::protect(std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(file)
}

/// The pager's settings.
pub fn config() -> Result<Config, SettingsError> {
    let settings = Settings::parse(value().unwrap_or_default())?;
    let segment = Arc::new(segment(&settings)?);
    let limit = settings.limit;
    let open = |path: Option<&String>, how| path.map(|path| open(path, how)).transpose();
    Ok(Config {
        segment,
        swap: open(settings.swap.as_ref(), OFlags::RDWR)?,
        trace: open(settings.trace.as_ref(), OFlags::WRONLY | OFlags::APPEND)?,
        device: open(settings.device.as_ref(), OFlags::RDWR)?,
        store: ramfold::Config {
            max_pool_bytes: limit / 100 * u64::from(settings.max_pool_percent),
            ..settings.store
        },
        mode: settings.mode,
        threshold: usize::try_from(MAX_THRESHOLD.min(limit / 32)).unwrap_or(usize::MAX),
        range: RANGE,
        whole_process: true,
    })
}
