//! `RAMFOLD_RUN`: what `ramfold run` tells its processes, in one variable of their environment.
//!
//! `key=value;key=value`. `limit` is the only key that must be there; of a key that is there twice, the last value
//! holds. A key that is not known is refused: who writes and who reads travel in one executable. The first library
//! (`start/start.c`) looks for `start`, `library`, `limit` and `mode` in the same text; an exec adds `address_space`
//! to it, which is for the first library alone.

use crate::process;
use std::fmt;

/// Name of the variable.
pub const VARIABLE: &str = "RAMFOLD_RUN";

/// How pages leave the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// UFFDIO_MOVE where the kernel has it, write-protect and copy where not.
    #[default]
    Auto,
    /// Only UFFDIO_MOVE.
    Move,
    /// Only write-protect and copy.
    WriteProtect,
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that all processes may use together.
    pub limit: u64,
    /// Bytes that the swap file may take.
    pub swap_size: u64,
    /// Hundredths of the limit that the pools may take together.
    pub max_pool_percent: u8,
    /// How pages leave.
    pub mode: Mode,
    /// The store's knobs. `max_pool_bytes` and `shrink_inline` are not among the settings.
    pub store: ramfold::Config,
    /// Where the first library is.
    pub start: Option<String>,
    /// Where the second library is.
    pub library: Option<String>,
    /// Where the segment is; a process without one is a run of its own.
    pub segment: Option<String>,
    /// Where the swap file is.
    pub swap: Option<String>,
    /// Where the trace is.
    pub trace: Option<String>,
    /// Which run of the segment's it is; 0 for none.
    pub run: u32,
    /// Where a device of userfaultfds is, if it need not be the system's: the first library writes it.
    pub device: Option<String>,
}

/// Why a text is no settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// a setting cannot be understood
    #[error("{VARIABLE}: {0} cannot be understood")]
    Malformed(String),
    /// there is no limit
    #[error("{VARIABLE}: limit is missing")]
    NoLimit,
}

impl Settings {
    /// Settings of a run with this limit in bytes, and nothing else.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            swap_size: 0,
            max_pool_percent: 50,
            mode: Mode::Auto,
            store: ramfold::Config::default(),
            start: None,
            library: None,
            segment: None,
            swap: None,
            trace: None,
            run: 0,
            device: None,
        }
    }

    /// What a process found in its environment when it began; `None` where nothing is to be read, or it is in no run.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        // What it has under a number of its own is there for others too.
        let text = process::variable(pid, VARIABLE)?.replace("=/proc/self/", &format!("=/proc/{pid}/"));
        Self::parse(&text).ok()
    }

    /// Reads the text of the variable.
    ///
    /// # Errors
    /// [`SettingsError`], of the first setting that is wrong.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let (mut settings, mut limit) = (Self::new(0), None);
        for setting in text.split(';').filter(|setting| !setting.is_empty()) {
            let malformed = || SettingsError::Malformed(setting.to_owned());
            let (key, value) = setting.split_once('=').ok_or_else(malformed)?;
            if key == "limit" {
                limit = Some(value.parse().map_err(|_| malformed())?);
            } else {
                settings.set(key, value).ok_or_else(malformed)?;
            }
        }
        settings.limit = limit.ok_or(SettingsError::NoLimit)?;
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let path = || Some(value.to_owned());
        match key {
            "swap_size" => self.swap_size = value.parse().ok()?,
            "max_pool_percent" => self.max_pool_percent = value.parse().ok()?,
            "mode" => self.mode = Mode::named(value)?,
            "run" => self.run = value.parse().ok()?,
            "start" => self.start = path(),
            "library" => self.library = path(),
            "shm" => self.segment = path(),
            "swap" => self.swap = path(),
            "trace" => self.trace = path(),
            "device" => self.device = path(),
            "compressor" => value.clone_into(&mut self.store.compressor),
            "recomp_algorithm" => self.store.recomp_algorithm = path().filter(|name| name != "none"),
            "zpool" => value.clone_into(&mut self.store.zpool),
            "accept_threshold_percent" => self.store.accept_threshold_percent = value.parse().ok()?,
            "max_compression_ratio" => self.store.max_compression_ratio = value.parse().ok()?,
            "same_filled" => self.store.same_filled_pages_enabled = switch(value)?,
            "duplicates" => self.store.duplicate_pages_enabled = switch(value)?,
            "address_space" => {}
            _ => return None,
        }
        Some(())
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Move => "move",
            Self::WriteProtect => "wp",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Auto, Self::Move, Self::WriteProtect].into_iter().find(|mode| mode.name() == name)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = &self.store;
        write!(f, "limit={};swap_size={}", self.limit, self.swap_size)?;
        write!(f, ";compressor={};zpool={}", store.compressor, store.zpool)?;
        write!(f, ";recomp_algorithm={}", store.recomp_algorithm.as_deref().unwrap_or("none"))?;
        write!(f, ";max_pool_percent={}", self.max_pool_percent)?;
        write!(f, ";accept_threshold_percent={}", store.accept_threshold_percent)?;
        write!(f, ";max_compression_ratio={}", store.max_compression_ratio)?;
        let switches = [store.same_filled_pages_enabled, store.duplicate_pages_enabled].map(u8::from);
        write!(f, ";same_filled={};duplicates={}", switches[0], switches[1])?;
        write!(f, ";mode={};run={}", self.mode.name(), self.run)?;
        let paths = [
            ("start", &self.start),
            ("library", &self.library),
            ("shm", &self.segment),
            ("swap", &self.swap),
            ("trace", &self.trace),
            ("device", &self.device),
        ];
        for (key, path) in paths {
            if let Some(path) = path {
                write!(f, ";{key}={path}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a_path() -> impl Strategy<Value = Option<String>> {
        prop::option::of("/proc/[1-9][0-9]{0,6}/fd/[0-9]{1,3}")
    }

    fn any_settings() -> impl Strategy<Value = Settings> {
        let mode = prop_oneof![Just(Mode::Auto), Just(Mode::Move), Just(Mode::WriteProtect)];
        let numbers = (any::<[u64; 2]>(), any::<[u8; 3]>(), any::<[bool; 2]>(), mode);
        let names = ("[a-z0-9:-]{1,9}", "[a-z]{1,9}", prop::option::of("[a-m0-9:-]{1,9}"));
        let paths = (a_path(), a_path(), a_path(), a_path(), a_path(), a_path());
        (numbers, names, paths).prop_map(|(numbers, names, paths)| {
            let ([limit, swap_size], [max_pool_percent, accept, ratio], [same, duplicates], mode) = numbers;
            let (start, library, segment, swap, trace, device) = paths;
            let store = ramfold::Config {
                compressor: names.0,
                zpool: names.1,
                recomp_algorithm: names.2,
                accept_threshold_percent: accept,
                max_compression_ratio: ratio,
                same_filled_pages_enabled: same,
                duplicate_pages_enabled: duplicates,
                ..ramfold::Config::default()
            };
            let run = u32::from(accept) * 1000;
            let numbers = Settings { swap_size, max_pool_percent, mode, store, run, ..Settings::new(limit) };
            Settings { start, library, segment, swap, trace, device, ..numbers }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(settings in any_settings()) {
            prop_assert_eq!(Settings::parse(&settings.to_string()), Ok(settings));
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,200}") {
            let _ = Settings::parse(&text);
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let malformed = |text: &str| Err(SettingsError::Malformed(text.to_owned()));
        assert_eq!(Settings::parse(""), Err(SettingsError::NoLimit));
        assert_eq!(Settings::parse("swap_size=4"), Err(SettingsError::NoLimit));
        for wrong in ["limit=-1", "limit", "mode=never", "same_filled=2", "colour=red", "=4"] {
            assert_eq!(Settings::parse(&format!("limit=5;{wrong}")), malformed(wrong));
        }
        assert_eq!(Settings::parse("limit=5;address_space=7,8"), Ok(Settings::new(5)));
        assert_eq!(Settings::parse("limit=5;limit=6"), Ok(Settings::new(6)));
    }
}
