//! The settings, from the environment variable `RAMFOLD_RUN`: `key=value;key=value`, as `ramfold run` writes them.
//!
//! `limit` (bytes) is the only one that must be there. `shm` and `swap` are paths of the run's shared memory and of
//! its swap file; a process without `shm` is a run of its own. The others are knobs of the store. Keys that this
//! version does not know are ignored, so that the command line and the library may differ by a version.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::sync::{Arc, OnceLock};

use ramfold_budget::segment::{OpenError, Segment};
use ramfold_pager::{Config, Mode};
use rustix::fs::{Mode as Permissions, OFlags};

use crate::descriptors;

/// Name of the variable that holds the settings.
const VARIABLE: &str = "RAMFOLD_RUN";
/// Bytes of address space for managed memory; reserved, not used.
const RANGE: usize = 16 << 40;
/// Nothing is managed up to this many writable bytes, or a 32nd of the limit if that is less.
const MAX_THRESHOLD: u64 = 16 << 20;
/// Programs expect low numbers for what they open themselves.
const LOWEST_FD: i32 = 900;

/// The directory in /proc of the `ramfold run` that the shared memory belongs to.
static RUN: OnceLock<String> = OnceLock::new();

/// Whether there is a `ramfold run` to tell the user what happens here.
pub fn run_lives() -> bool {
    RUN.get().is_some_and(|path| rustix::fs::access(path.as_str(), rustix::fs::Access::EXISTS).is_ok())
}

/// Why the settings are of no use.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// a setting cannot be understood
    #[error("{VARIABLE}: {0} cannot be understood")]
    Malformed(&'static str),
    /// there is no limit
    #[error("{VARIABLE}: limit is missing")]
    NoLimit,
    /// the run's shared memory is not there
    #[error("{0} (has ramfold run ended, or this process given up the user that it is of?)")]
    Segment(#[from] OpenError),
    /// a file of the run is not there
    #[error("the run's files cannot be opened: {0}")]
    Io(#[from] std::io::Error),
}

unsafe extern "C" {
    /// What the first library keeps of the environment (start/exec.c), which the program may have changed since: the settings,
    /// or a null pointer.
    static ramfold_kept: *const c_char;
}

fn value() -> Option<&'static str> {
    // SAFETY: written before this library is loaded, and never again; the string stays.
    let kept = unsafe { (!ramfold_kept.is_null()).then(|| CStr::from_ptr(ramfold_kept))? };
    kept.to_str().ok()?.strip_prefix(VARIABLE)?.strip_prefix('=')
}

/// The text of the settings, as they were read.
#[derive(Default)]
struct Settings {
    limit: Option<u64>,
    swap_size: u64,
    max_pool_percent: u64,
    mode: Mode,
    shm: Option<&'static str>,
    swap: Option<&'static str>,
    trace: Option<&'static str>,
    store: ramfold::Config,
}

fn number<T: std::str::FromStr>(key: &'static str, value: &str) -> Result<T, SettingsError> {
    value.parse().map_err(|_| SettingsError::Malformed(key))
}

fn switch(key: &'static str, value: &str) -> Result<bool, SettingsError> {
    number::<u8>(key, value).map(|n| n != 0)
}

impl Settings {
    fn parse(text: &'static str) -> Result<Self, SettingsError> {
        let mut settings = Self { max_pool_percent: 50, ..Self::default() };
        for setting in text.split(';').filter(|s| !s.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or(SettingsError::Malformed(setting))?;
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &'static str, value: &'static str) -> Result<(), SettingsError> {
        match key {
            "limit" => self.limit = Some(number(key, value)?),
            "swap_size" => self.swap_size = number(key, value)?,
            "max_pool_percent" => self.max_pool_percent = number(key, value)?,
            "shm" => self.shm = Some(value),
            "swap" => self.swap = Some(value),
            "trace" => self.trace = Some(value),
            "compressor" => value.clone_into(&mut self.store.compressor),
            "recomp_algorithm" => {
                self.store.recomp_algorithm = Some(value).filter(|name| *name != "none").map(str::to_owned);
            }
            "zpool" => value.clone_into(&mut self.store.zpool),
            "accept_threshold_percent" => self.store.accept_threshold_percent = number(key, value)?,
            "max_compression_ratio" => self.store.max_compression_ratio = number(key, value)?,
            "same_filled" => self.store.same_filled_pages_enabled = switch(key, value)?,
            "duplicates" => self.store.duplicate_pages_enabled = switch(key, value)?,
            "mode" => {
                self.mode = match value {
                    "auto" => Mode::Auto,
                    "move" => Mode::Move,
                    "wp" => Mode::WriteProtect,
                    _ => return Err(SettingsError::Malformed(key)),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn segment(&self, limit: u64) -> Result<Segment, SettingsError> {
        if let Some(path) = self.shm {
            let segment = Segment::open(path)?;
            if let Some(fd) = segment.raw_fd() {
                descriptors::protect(fd);
            }
            // A copy: programs overwrite the place of their arguments and environment.
            let _ = RUN.set(path.split_once("/fd/").map_or(path, |(process, _)| process).to_owned());
            return Ok(segment);
        }
        let (_, segment) = Segment::create(limit, self.swap_size)?;
        Ok(segment)
    }

    fn into_config(mut self) -> Result<Config, SettingsError> {
        let limit = self.limit.ok_or(SettingsError::NoLimit)?;
        self.store.max_pool_bytes = limit / 100 * self.max_pool_percent;
        Ok(Config {
            segment: Arc::new(self.segment(limit)?),
            swap: self.swap.map(|path| open(path, OFlags::RDWR)).transpose()?,
            trace: self.trace.map(|path| open(path, OFlags::WRONLY | OFlags::APPEND)).transpose()?,
            store: self.store,
            mode: self.mode,
            threshold: usize::try_from(MAX_THRESHOLD.min(limit / 32)).unwrap_or(usize::MAX),
            range: RANGE,
            whole_process: true,
        })
    }
}

fn open(path: &str, how: OFlags) -> std::io::Result<File> {
    let fd = rustix::fs::open(path, how | OFlags::CLOEXEC, Permissions::empty())?;
    let file = File::from(rustix::io::fcntl_dupfd_cloexec(&fd, LOWEST_FD).unwrap_or(fd));
    descriptors::protect(std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(file)
}

/// The pager's settings.
pub fn config() -> Result<Config, SettingsError> {
    Settings::parse(value().unwrap_or_default())?.into_config()
}
