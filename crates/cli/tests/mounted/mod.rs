//! `ramfold mount` as a test has it: started, waited for, watched, and gone at the end, however the test ends.
//!
//! One thread looks every 10 ms at the server's anonymous memory, and at the clock: a server whose test is not done in
//! time is killed, so that whoever hangs in it gets an error and the test fails with a message.

#![allow(dead_code)] // each test binary uses its part

#[path = "../common/need.rs"]
pub mod need;
#[path = "../common/patience.rs"]
mod patience;

pub use patience::wait_for;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
/// Seconds in which a test with a mount is done.
const PATIENCE: u64 = 300;
/// How long a server may take to get under a limit that was lowered.
const SETTLING: Duration = Duration::from_secs(1);

/// How long a test that can be of any length lasts: `RAMFOLD_MOUNT_SECONDS`.
pub fn seconds() -> u64 {
    std::env::var("RAMFOLD_MOUNT_SECONDS").map_or(10, |text| text.parse().expect("seconds"))
}

/// Whether this machine can do what these tests do; says what it cannot.
pub fn can_mount() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let is_there = device.map_or_else(|error| need::skip(&format!("/dev/fuse: {error}")), |_| true);
    is_there && need::root() && need::programs(&["fusermount3", "setpriv"])
}

/// The binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("RAMFOLD").map_or_else(|| env!("CARGO_BIN_EXE_ramfold").into(), PathBuf::from)
}

/// What the server may have in anonymous memory under a limit.
pub fn bound(limit: u64) -> u64 {
    limit + limit / 50 + 8 * MIB
}

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end; one that takes more seconds than these is killed, and the test with it.
pub fn finish(command: &mut Command, seconds: u64) -> Outcome {
    let output = TempDir::new_in("/var/tmp").unwrap();
    let file = |name: &str| File::create(output.path().join(name)).unwrap();
    let text =
        |name: &str| String::from_utf8_lossy(&fs::read(output.path().join(name)).unwrap()).into_owned();
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr")).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let status = wait(&mut child, seconds);
    if status.is_none() {
        // SAFETY: plain integers; the child is not waited for, so its number is still taken.
        unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
        let _ = child.wait();
        panic!("{command:?} has not ended after {seconds} s: {}{}", text("stdout"), text("stderr"));
    }
    Outcome { code: status.and_then(|status| status.code()), stdout: text("stdout"), stderr: text("stderr") }
}

/// Runs a program in a directory: what it printed, if it succeeded.
pub fn run(directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(directory).env("LC_ALL", "C").env("HOME", "/var/empty");
    let outcome = finish(&mut command, PATIENCE);
    assert_eq!(outcome.code, Some(0), "{words:?}: {}{}", outcome.stdout, outcome.stderr);
    outcome.stdout
}

/// Runs lines for the shell in a directory.
pub fn shell(directory: &Path, lines: &str) -> String {
    run(directory, &["sh", "-euc", lines])
}

/// The same as another user, of whom these are the further groups: `0` for none.
pub fn as_user(directory: &Path, user: u32, groups: &str, lines: &str) -> Outcome {
    let user = user.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    finish(command.args(["sh", "-euc", lines]).current_dir(directory).env("LC_ALL", "C"), PATIENCE)
}

fn wait(child: &mut Child, seconds: u64) -> Option<std::process::ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// The line of /proc/self/mountinfo for what is mounted there last.
pub fn mount_line(point: &Path) -> Option<String> {
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_here = |line: &&str| line.split(' ').nth(4) == point.to_str();
    all.lines().rfind(is_here).map(str::to_owned)
}

/// Bytes of anonymous memory that a process has resident; 0 if it has ended.
pub fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// A directory on a real file system with `source` and `mount` in it, where other users come as well.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let directory = TempDir::new_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["source", "mount"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn source(&self) -> PathBuf {
        self.path().join("source")
    }

    pub fn point(&self) -> PathBuf {
        self.path().join("mount")
    }

    /// The socket of a mount with this name.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path().join("ramfold").join(format!("{name}.ctl"))
    }

    /// `ramfold` with these arguments, with sockets in this place.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path());
        command
    }

    /// Runs it to its end.
    pub fn ramfold(&self, arguments: &[&str]) -> Outcome {
        finish(&mut self.command(arguments), 30)
    }

    /// What `ramfold ctl` prints.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let outcome = self.ramfold(&[&["ctl"], arguments].concat());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "ctl {arguments:?}");
        outcome.stdout
    }

    /// `source` at `mount`, within so many MiB.
    pub fn mount(&self, mib: u64, options: &[&str]) -> Mounted<'_> {
        self.mount_at(&self.source(), &self.point(), mib, options)
    }

    pub fn mount_at(&self, source: &Path, point: &Path, mib: u64, options: &[&str]) -> Mounted<'_> {
        Mounted::start(self, source, point, mib, options)
    }
}

/// Takes away what is still mounted inside.
impl Drop for Place {
    fn drop(&mut self) {
        let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = all.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
        let inside: Vec<&Path> = points.filter(|point| point.starts_with(self.path())).collect();
        inside.iter().rev().for_each(|point| unmount(point));
    }
}

/// What the watching thread and the test share.
#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    limit: AtomicU64,
    lowered: Mutex<Option<Instant>>,
    most: AtomicU64,
    /// Memory and what was allowed, where the former was more.
    exceeded: Mutex<Option<(u64, u64)>>,
    overdue: AtomicBool,
}

impl Shared {
    fn watch(&self, pid: u32, point: &Path) {
        let started = Instant::now();
        let own = std::env::current_exe().unwrap();
        // A child may for a moment still have the memory of who started it.
        let is_other = || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program != own);
        while !self.ended.load(Ordering::Relaxed) && !is_other() {
            std::thread::sleep(Duration::from_millis(1));
        }
        while !self.ended.load(Ordering::Relaxed) {
            let settles = self.lowered.lock().unwrap().is_some_and(|then| then.elapsed() < SETTLING);
            let allowed = bound(self.limit.load(Ordering::Relaxed));
            let now = anonymous(pid);
            self.most.fetch_max(now, Ordering::Relaxed);
            if now > allowed && !settles && self.exceeded.lock().unwrap().is_none() {
                eprintln!(
                    "after {} ms, the largest of its memory:\n{}",
                    started.elapsed().as_millis(),
                    largest(pid)
                );
                *self.exceeded.lock().unwrap() = Some((now, allowed));
            }
            let patience = PATIENCE + 2 * seconds();
            if started.elapsed() > Duration::from_secs(patience)
                && !self.overdue.swap(true, Ordering::Relaxed)
            {
                eprintln!("not done after {patience} s; the server's threads:\n{}", threads(pid));
                end(pid, point);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The mappings that have the most anonymous memory.
fn largest(pid: u32) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut name, mut found) = ("", vec![]);
    for line in maps.lines() {
        match line.strip_prefix("Anonymous:").and_then(|size| size.trim().strip_suffix(" kB")?.parse().ok()) {
            Some(size) => found.push((size, name)),
            None if line.split(' ').next().is_some_and(|word| word.contains('-')) => name = line,
            None => {}
        }
    }
    found.sort_by_key(|(size, _): &(u64, &str)| std::cmp::Reverse(*size));
    let sum: u64 = found.iter().map(|(size, _)| size).sum();
    let lines = found.iter().take(8).map(|(size, name)| format!("{size} KiB of {sum}: {name}\n"));
    lines.collect()
}

/// What each thread of a process is called and waits for.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let told = tasks.map(|task| {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{} in {} ({})\n", part("comm").trim(), part("wchan"), part("syscall").trim())
    });
    told.collect()
}

/// Ends a server that does not listen, and every request that waits for it.
fn end(pid: u32, point: &Path) {
    let point = std::ffi::CString::new(point.to_str().unwrap()).unwrap();
    // SAFETY: plain integers, of a child that is not waited for yet; a string that ends with a zero.
    unsafe {
        libc::kill(pid.cast_signed(), libc::SIGKILL);
        libc::umount2(point.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH);
    }
}

/// A mount that is served, until it is dropped.
pub struct Mounted<'place> {
    place: &'place Place,
    process: Option<Child>,
    source: PathBuf,
    point: PathBuf,
    told: PathBuf,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl<'place> Mounted<'place> {
    fn start(place: &'place Place, source: &Path, point: &Path, mib: u64, options: &[&str]) -> Self {
        let before = mount_line(point);
        let told =
            tempfile::Builder::new().prefix("told.").tempfile_in(place.path()).unwrap().keep().unwrap();
        let mut command = place.command(&["mount"]);
        command.arg(source).arg(point).args(["-m", &format!("{mib}M")]).args(options);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(told.0).spawn().unwrap();
        let shared = Arc::new(Shared::default());
        shared.limit.store(mib * MIB, Ordering::Relaxed);
        let watcher = {
            let (shared, pid, point) = (Arc::clone(&shared), process.id(), point.to_owned());
            std::thread::spawn(move || shared.watch(pid, &point))
        };
        let (source, point, told) = (source.to_owned(), point.to_owned(), told.1);
        let process = Some(process);
        let mut mounted = Self { place, process, source, point, told, shared, watcher: Some(watcher) };
        mounted.wait_until_mounted(before.as_ref());
        mounted
    }

    fn wait_until_mounted(&mut self, before: Option<&String>) {
        let started = Instant::now();
        loop {
            // Who was there before may be dead, and is replaced: the line of the new one may be the same. Asked in this
            // order, what answers is not the place without either.
            let answers = rustix::fs::statvfs(&self.point).is_ok();
            let line = mount_line(&self.point);
            if line.is_some() && (line.as_ref() != before || answers) && fs::metadata(&self.point).is_ok() {
                return;
            }
            if let Some(status) = self.process.as_mut().unwrap().try_wait().unwrap() {
                panic!("ramfold mount ended with {status}: {}", self.told());
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "not mounted after a minute: {}",
                self.told()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn point(&self) -> &Path {
        &self.point
    }

    pub fn source(&self) -> &Path {
        &self.source
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// What it has said on its standard error.
    pub fn told(&self) -> String {
        fs::read_to_string(&self.told).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain integers; the child is not waited for yet.
        unsafe { libc::kill(self.pid().cast_signed(), signal) };
    }

    /// Stops it: when this returns, no thread of it takes a request any more.
    pub fn stand_still(&self) {
        self.signal(libc::SIGSTOP);
        wait_for("the server stands still", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            let mut stats = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
            stats.all(|stat| stat.contains(") T "))
        });
    }

    /// How many descriptors the server has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Changes the limit by `ramfold ctl`.
    pub fn memlimit(&self, name: &str, mib: u64) {
        let (old, new) = (self.shared.limit.load(Ordering::Relaxed), mib * MIB);
        // While it is changed, the higher one counts.
        self.shared.limit.store(old.max(new), Ordering::Relaxed);
        assert_eq!(self.place.ctl(&[name, "memlimit", &format!("{mib}M")]), "");
        *self.shared.lowered.lock().unwrap() = Some(Instant::now());
        self.shared.limit.store(new, Ordering::Relaxed);
    }

    /// The most anonymous memory that was seen.
    pub fn most(&self) -> u64 {
        self.shared.most.load(Ordering::Relaxed)
    }

    /// Waits for its end and insists that all was well.
    pub fn ended(&mut self) -> Option<i32> {
        // A mount namespace that another test has made meanwhile has the mount as well, as long as it lives.
        let status = wait(self.process.as_mut().unwrap(), PATIENCE);
        let status = status.unwrap_or_else(|| {
            let (told, threads) = (self.told(), threads(self.pid()));
            panic!("the server has not ended after {PATIENCE} s: {told}; its threads:\n{threads}")
        });
        self.process = None;
        self.stop_watching();
        if let Some((most, allowed)) = *self.shared.exceeded.lock().unwrap() {
            panic!("{} KiB of anonymous memory, of {} KiB that are allowed", most >> 10, allowed >> 10);
        }
        status.code()
    }

    /// Ends it as a user would.
    pub fn stop(mut self) {
        self.signal(libc::SIGTERM);
        let code = self.ended();
        assert_eq!(code, Some(0), "{}", self.told());
        assert_eq!(mount_line(&self.point), None, "it is still mounted");
    }

    /// As if there was a power failure of it alone; what is mounted stays, dead.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        self.ended();
    }

    fn stop_watching(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        let overdue = self.shared.overdue.load(Ordering::Relaxed);
        assert!(!overdue || std::thread::panicking(), "not done in time");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if std::thread::panicking() {
            eprintln!("the server said: {}", self.told());
        }
        // SAFETY: plain integers; the child is not waited for yet.
        unsafe { libc::kill(process.id().cast_signed(), libc::SIGTERM) };
        if wait(&mut process, 5).is_none() {
            end(process.id(), &self.point);
            let _ = process.wait();
        }
        unmount(&self.point);
        self.stop_watching();
    }
}

/// Takes away whatever is mounted there.
pub fn unmount(point: &Path) {
    let name = std::ffi::CString::new(point.to_str().unwrap()).unwrap();
    while mount_line(point).is_some() {
        // SAFETY: a string that ends with a zero.
        let failed = unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) } != 0;
        assert!(!failed || std::thread::panicking(), "{point:?}: {}", io::Error::last_os_error());
        if failed {
            return;
        }
    }
}

/// Runs a test in a plain directory first, which shows that the test is right, and then through a mount.
pub fn both(test: impl Fn(&Path)) {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let plain = place.path().join("plain");
    fs::create_dir(&plain).unwrap();
    eprintln!("in a plain directory");
    test(&plain);
    let mounted = place.mount(32, &[]);
    eprintln!("through the mount");
    test(mounted.point());
    mounted.stop();
}

/// So many bytes, compressible to about two fifths in part and not at all in another, the same for the same seed.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let noisy = (bytes.len() >> 12).is_multiple_of(5);
        bytes.extend_from_slice(&state.to_le_bytes());
        if !noisy {
            bytes.extend_from_slice(&[(state >> 61) as u8; 24]);
        }
    }
    bytes.truncate(len);
    bytes
}
