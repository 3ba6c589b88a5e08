//! Which runs there are: a `ramfold run` holds its segment open under a name that nothing else has, and locked, as who
//! looks after it. Its members have the segment open too, without that lock; runs that have joined are such.

use crate::failure::Failure;
use ramfold_budget::segment::KEEPER;
use ramfold_budget::settings::Settings;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// What /proc/PID/fd/N of a run's segment leads to.
const SEGMENT: &str = "/memfd:ramfold-segment (deleted)";

/// A `ramfold run`.
#[derive(Debug)]
pub struct Run {
    /// Its process.
    pub pid: u32,
    /// Path of its segment.
    pub segment: String,
}

impl Run {
    fn of(pid: u32) -> Option<Self> {
        Self::held(pid, |descriptor| is_locked(pid, descriptor))
    }

    /// What a process holds without a lock: a copy, or a segment whose run has ended.
    fn left_with(pid: u32) -> Option<Self> {
        Self::held(pid, |_| true)
    }

    /// Of the segments that a process holds, the first that counts.
    fn held(pid: u32, counts: impl Fn(&OsStr) -> bool) -> Option<Self> {
        let held = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut segments = held.flatten().filter(|entry| leads_to_segment(&entry.path()));
        let segment = segments.find(|entry| counts(&entry.file_name()))?.path();
        Some(Self { pid, segment: segment.to_str()?.to_owned() })
    }

    /// Whether it goes on.
    pub fn lives(&self) -> bool {
        leads_to_segment(Path::new(&self.segment))
    }

    /// The program and its arguments, as far as they are to be read, and as `most` characters allow.
    pub fn command(&self, most: usize) -> String {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words: Vec<String> = line
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).collect())
            .collect();
        let program = words.iter().position(|word| word == "--").map_or(0, |at| at + 1);
        let command = words[program..].join(" ");
        let command = command.trim_end();
        match command.char_indices().nth(most) {
            Some((cut, _)) => format!("{}...", &command[..cut]),
            None => command.to_owned(),
        }
    }
}

fn leads_to_segment(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target.as_os_str() == SEGMENT)
}

/// Whether who looks after the segment has it under this descriptor: the lock is there, of the one byte that says so.
fn is_locked(pid: u32, descriptor: &OsStr) -> bool {
    let told =
        fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(descriptor)).unwrap_or_default();
    let range = format!(" {KEEPER} {KEEPER}");
    told.lines().any(|line| line.starts_with("lock:") && line.ends_with(&range))
}

/// The run that `ramfold COMMAND` is asked for, which has this process.
pub fn run_of(command: &str, pid: u32) -> Result<Run, Failure> {
    named(pid).ok_or_else(|| {
        let what = if Path::new(&format!("/proc/{pid}")).exists() {
            "is in no run of ramfold that this user may see"
        } else {
            "there is no such process"
        };
        Failure::failed(format!("{command}: {pid}: {what} (see ramfold top without PID)"))
    })
}

/// The run that a process is, that it is in, or whose segment it has.
fn named(pid: u32) -> Option<Run> {
    Run::of(pid).or_else(|| Run::of(run_above(pid)?)).or_else(|| Run::left_with(pid))
}

/// The run whose settings the process has in its environment.
fn run_above(pid: u32) -> Option<u32> {
    let segment = Settings::of_process(pid)?.segment?;
    segment.strip_prefix("/proc/")?.split('/').next()?.parse().ok()
}

/// The only run there is.
pub fn the_only_run() -> Result<Run, Failure> {
    let processes = fs::read_dir("/proc").map_err(|error| Failure::failed(format!("top: /proc: {error}")))?;
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut runs: Vec<Run> = numbers.filter_map(Run::of).collect();
    match runs.len() {
        0 => Err(Failure::failed(
            "top: there is no run of ramfold that this user may see (start one with ramfold run)",
        )),
        1 => Ok(runs.remove(0)),
        _ => {
            let list: Vec<String> =
                runs.iter().map(|run| format!("{} {}", run.pid, run.command(24))).collect();
            Err(Failure::usage(format!("top: which run? (give its PID: {})", list.join("; "))))
        }
    }
}
