//! Runs a program plainly and under `ramfold run`, watches its memory from outside, and compares what it gave.

#![allow(dead_code)] // each test binary uses its part

pub mod cgroup;
pub mod core;
pub mod heavy;
pub mod lines;
pub mod memory;
pub mod need;
pub mod patience;
pub mod progress;
pub mod small;

use cgroup::Cgroup;
use memory::Sampler;
use progress::Progress;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Both ways in which pages leave a program.
pub const MODES: &[&[&str]] = &[&["--evict-mode", "move"], &["--evict-mode", "wp"]];
/// The smallest limit that `ramfold run` takes.
const LEAST_LIMIT: u64 = 16 * MIB;

/// A program whose output depends on nothing but its arguments.
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    words: Vec<OsString>,
    variables: Vec<(String, String)>,
    /// Files that it writes into its working directory.
    outputs: Vec<String>,
    patience: Duration,
}

impl Program {
    /// `name` is for messages.
    pub fn new<W: AsRef<OsStr>>(name: &str, words: &[W]) -> Self {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        let patience = Duration::from_secs(300);
        Self { name: name.to_owned(), words, variables: Vec::new(), outputs: Vec::new(), patience }
    }

    /// The same as the arguments of other words.
    pub fn behind<W: AsRef<OsStr>>(mut self, name: &str, words: &[W]) -> Self {
        name.clone_into(&mut self.name);
        self.words.splice(0..0, words.iter().map(|word| word.as_ref().to_owned()));
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn output(mut self, file: &str) -> Self {
        self.outputs.push(file.to_owned());
        self
    }

    /// See [`Progress::hangs`].
    pub fn patience(mut self, seconds: u64) -> Self {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// The command, as it is or with `ramfold run` in front.
    pub fn command(&self, ramfold: Option<&Ramfold>) -> Command {
        let mut command = match ramfold {
            None => Command::new(&self.words[0]),
            Some(ramfold) => {
                let mut command = Command::new(binary());
                command.args(["run", "--strict", "-m", &ramfold.limit.to_string()]);
                command.args(&ramfold.options).arg("--").arg(&self.words[0]);
                command
            }
        };
        command.args(&self.words[1..]).envs(self.variables.iter().cloned());
        command
    }
}

/// How `ramfold run` is called.
#[derive(Debug, Clone)]
pub struct Ramfold {
    /// Bytes.
    pub limit: u64,
    pub options: Vec<String>,
}

impl Ramfold {
    pub fn new(limit: u64, options: &[&str]) -> Self {
        Self { limit: limit.max(LEAST_LIMIT), options: options.iter().map(|o| (*o).to_owned()).collect() }
    }

    /// What its processes may have resident at any moment, seen from outside.
    pub fn bound(&self) -> u64 {
        self.limit + self.limit / 20 + 8 * MIB
    }
}

/// A directory on a real file system, for the time of a test.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// The binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("RAMFOLD").map_or_else(|| env!("CARGO_BIN_EXE_ramfold").into(), PathBuf::from)
}

/// A file of the tests' folder.
pub fn test_file(name: &str) -> String {
    format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `c/NAME.c` into the directory.
pub fn compiled(name: &str, directory: &Path) -> PathBuf {
    compiled_with(name, directory, &[])
}

/// The same with further words for the compiler.
pub fn compiled_with(name: &str, directory: &Path, flags: &[&str]) -> PathBuf {
    compile(name, directory.join(name), flags)
}

/// The part of the C program in tests/c that is a library of its own: `NAME_module.so`.
pub fn compiled_module(name: &str, directory: &Path, flags: &[&str]) -> PathBuf {
    let output = directory.join(format!("{name}_module.so"));
    compile(name, output, &[&["-DMODULE", "-shared", "-fPIC"], flags].concat())
}

fn compile(name: &str, output: PathBuf, flags: &[&str]) -> PathBuf {
    let source = test_file(&format!("c/{name}.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-pthread", &source, "-o"]).arg(&output).args(flags);
    assert!(compiler.status().unwrap().success(), "{source} does not compile");
    output
}

/// What a run gave.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stderr: String,
    /// Where its standard output and its files are.
    pub directory: PathBuf,
    /// The most memory its processes had at once, in bytes.
    pub peak: u64,
    pub elapsed: Duration,
}

impl Finished {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.join("stdout")).unwrap()).into_owned()
    }
}

/// Runs `program` in the new directory `directory`.
pub fn run(program: &Program, ramfold: Option<&Ramfold>, directory: &Path) -> Finished {
    run_in(Cgroup::new().map(Arc::new), program, ramfold, directory)
}

/// The same in a memory cgroup.
pub fn run_in(
    group: Option<Arc<Cgroup>>,
    program: &Program,
    ramfold: Option<&Ramfold>,
    directory: &Path,
) -> Finished {
    let mut command = program.command(ramfold);
    fs::create_dir_all(directory).unwrap();
    command.current_dir(directory).stdin(Stdio::null());
    command.stdout(File::create(directory.join("stdout")).unwrap());
    command.stderr(File::create(directory.join("stderr")).unwrap());
    let started = Instant::now();
    let mut running = Running::start_in(group.as_deref(), &mut command);
    let sampler = Sampler::start(running.child.id(), group, ramfold.map_or(u64::MAX, Ramfold::bound));
    let mut progress = Progress::new(running.child.id(), program.patience);
    let status = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status;
        }
        if let Some(why) = progress.hangs() {
            panic!("{command:?} hangs: {why}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let peak = sampler.stop();
    let stderr = String::from_utf8_lossy(&fs::read(directory.join("stderr")).unwrap()).into_owned();
    Finished { status, stderr, directory: directory.to_owned(), peak, elapsed: started.elapsed() }
}

/// A child in a process group of its own, which ends with its owner: a tree that outlives a failed test holds the
/// pipe open that the test's output goes to.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self::start_in(None, command)
    }

    /// As a member of a memory cgroup.
    pub fn start_in(group: Option<&Cgroup>, command: &mut Command) -> Self {
        group.iter().for_each(|group| group.contain(command));
        let child = command.process_group(0).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = -i32::try_from(self.child.id()).unwrap();
        // SAFETY: plain integers; whoever is left of the group, be it the child alone, keeps its number taken.
        unsafe { libc::kill(group, libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// Runs `program` plainly, then in each share (1/2, 1/4, ...) of its own peak with each set of options, and insists on
/// the same output and on the limit.
pub fn same_in_shares(program: &Program, shares: &[u64], option_sets: &[&[&str]]) {
    let scratch = scratch();
    let plain = run(program, None, &scratch.path().join("plain"));
    assert!(
        plain.status.success(),
        "{} fails without ramfold: {} {}",
        program.name,
        plain.status,
        plain.stderr
    );
    report(&program.name, "plain", &plain);
    for share in shares {
        for options in option_sets {
            let ramfold = Ramfold::new(plain.peak / share, options);
            let name = format!("1/{share} {}", options.join(" "));
            let limited = run(program, Some(&ramfold), &scratch.path().join("limited"));
            report(&program.name, &format!("{name} ({} MiB)", ramfold.limit / MIB), &limited);
            assert_eq!(
                limited.status.into_raw(),
                plain.status.into_raw(),
                "{} in {name}: {}",
                program.name,
                limited.stderr
            );
            same_files(program, &plain, &limited, &name);
            within_limit(&program.name, &ramfold, &limited);
            fs::remove_dir_all(&limited.directory).unwrap();
        }
    }
}

pub fn within_limit(name: &str, ramfold: &Ramfold, finished: &Finished) {
    let (peak, limit) = (finished.peak, ramfold.limit);
    assert!(peak <= ramfold.bound(), "{name}: {} MiB resident under -m {} MiB", peak / MIB, limit / MIB);
}

pub fn report(name: &str, how: &str, finished: &Finished) {
    eprintln!("{name}, {how}: peak {} MiB, {:.1} s", finished.peak / MIB, finished.elapsed.as_secs_f64());
}

fn same_files(program: &Program, plain: &Finished, limited: &Finished, name: &str) {
    for file in program.outputs.iter().map(String::as_str).chain(["stdout"]) {
        let difference = first_difference(&plain.directory.join(file), &limited.directory.join(file));
        assert_eq!(difference, None, "{} in {name}: {file} differs from byte {difference:?}", program.name);
    }
}

/// The first byte in which two files differ.
fn first_difference(a: &Path, b: &Path) -> Option<u64> {
    let open = |path: &Path| File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut a, mut b) = (open(a), open(b));
    let mut at = 0;
    loop {
        let (left, right) = (chunk(&mut a), chunk(&mut b));
        if left == right {
            if left.is_empty() {
                return None;
            }
            at += left.len() as u64;
            continue;
        }
        let same = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
        return Some(at + same as u64);
    }
}

fn chunk(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 << 20);
    file.take(1 << 20).read_to_end(&mut bytes).unwrap();
    bytes
}
