//! One limit for several doors that are started one by one: `--share` and `--budget`.

#[path = "shared/client.rs"]
mod client;
mod common;

use client::Client;
use common::patience::wait_for;
use common::{memory, need};
use ramfold::PAGE_SIZE;
use ramfold_budget::segment::{Gauge, Segment};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;
/// Pages that a request of the tests' client has.
const PIECE: u64 = 32;

/// Takes so many MiB for each line that it reads, and says when it has gone over all that it has, twice.
const PROGRAM: &str = "
import os, sys
data = []
for line in sys.stdin:
    data += [bytearray(os.urandom(1536) + bytes(2560)) for _ in range(int(line) * 256)]
    for _ in range(2):
        for block in data: block[7] = 1
    print(len(data), flush=True)
";

/// A command that runs, until it is dropped.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str], input: Stdio, output: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold"));
        Self(command.args(arguments).stdin(input).stdout(output).stderr(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.pid().cast_signed(), signal) };
    }

    fn stop(mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.0.wait().unwrap().code()
    }

    /// Its part of the account: bytes of its pool.
    fn pool(&self) -> u64 {
        let segment = segment_of(self.pid());
        let own = segment.processes().into_iter().find(|process| process.pid == self.pid());
        own.map_or(0, |process| segment.gauge(process.slot, Gauge::Pool))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program under `ramfold run`.
struct Run {
    run: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Run {
    fn start(options: &[&str]) -> Self {
        let program = ["--", "python3", "-c", PROGRAM];
        let arguments = [&["run"], options, &program].concat();
        let mut run = Running::start(&arguments, Stdio::piped(), Stdio::piped());
        let (input, output) = (run.0.stdin.take().unwrap(), run.0.stdout.take().unwrap());
        let mut started = Self { run, input, output: BufReader::new(output) };
        started.grow(1);
        started
    }

    fn grow(&mut self, mib: u64) {
        writeln!(self.input, "{mib}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.trim().parse::<u64>().is_ok_and(|count| count > 0), "{line}");
    }

    /// Bytes that the program has of the limit.
    fn charged(&self) -> u64 {
        let (program, segment) = (memory::only_child(self.run.pid()), segment_of(self.run.pid()));
        let own = segment.processes().into_iter().find(|process| process.pid == program);
        own.map_or(0, |process| segment.charged(process.slot))
    }

    /// The status of `ramfold run`, once the program has come to the end of its input.
    fn end(self) -> Option<i32> {
        let Self { mut run, input, .. } = self;
        drop(input);
        run.0.wait().unwrap().code()
    }
}

/// A place, with a program that shares its limit there.
struct Shared {
    place: TempDir,
    run: Run,
}

impl Shared {
    fn start() -> Self {
        let place = common::scratch();
        let path = place.path().join("budget");
        let limit = LIMIT.to_string();
        let run = Run::start(&["-m", &limit, "--swap-size", "2G", "--share", path.to_str().unwrap()]);
        Self { place, run }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn pid(&self) -> u32 {
        self.run.run.pid()
    }

    fn grow(&mut self, mib: u64) {
        self.run.grow(mib);
    }

    /// Another such program, within the limit.
    fn join(&self) -> Run {
        Run::start(&["--budget", self.path("budget").to_str().unwrap()])
    }

    fn disk(&self, name: &str, more: &[&str]) -> (Running, Client) {
        let (budget, socket) = (self.path("budget"), self.path(name));
        let options = ["disk", "--size", "256M", "--budget", budget.to_str().unwrap()];
        start_disk(&[&options[..], more].concat(), &socket)
    }
}

fn start_disk(options: &[&str], socket: &Path) -> (Running, Client) {
    let options = [options, &["--unix", socket.to_str().unwrap()]].concat();
    let mut disk = Running::start(&options, Stdio::null(), Stdio::piped());
    let mut uri = String::new();
    BufReader::new(disk.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();
    assert!(uri.starts_with("nbd+unix"), "{uri}");
    (disk, Client::connect(socket))
}

fn segment_of(pid: u32) -> Segment {
    let held = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().map(|entry| entry.path());
    let is_segment =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("ramfold-segment"));
    Segment::open(held.into_iter().find(is_segment).unwrap().to_str().unwrap()).unwrap()
}

/// Bytes that compress to about two fifths.
fn piece(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(PIECE).unwrap() * PAGE_SIZE];
    let mut random = (number << 8 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for page in bytes.chunks_mut(PAGE_SIZE) {
        for word in page[..1600].as_chunks_mut::<8>().0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *word = random.to_le_bytes();
        }
    }
    bytes
}

const PIECE_BYTES: u64 = PIECE * PAGE_SIZE as u64;

fn fill(client: &mut Client, mib: u64, version: u64) {
    for number in 0..mib * MIB / PIECE_BYTES {
        assert_eq!(client.write(number * PIECE_BYTES, &piece(number, version)), 0, "piece {number}");
    }
}

fn check(client: &mut Client, mib: u64, version: u64) {
    for number in 0..mib * MIB / PIECE_BYTES {
        let read = client.read(number * PIECE_BYTES, usize::try_from(PIECE_BYTES).unwrap());
        assert!(read == piece(number, version), "piece {number}");
    }
}

/// Every 10 ms: the anonymous memory of these and their children together, and what the account says. Gives the most.
fn watch(pids: [u32; 2]) -> impl FnOnce() -> (u64, u64) {
    watch_beside(pids[0], pids[1], segment_of(pids[1]))
}

fn watch_beside(run: u32, beside: u32, segment: Segment) -> impl FnOnce() -> (u64, u64) {
    let ended = Arc::new(AtomicBool::new(false));
    let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let (seen, peaks) = (Arc::clone(&ended), Arc::clone(&most));
    let thread = std::thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            let door = || memory::of_unrelated(beside);
            peaks[0].fetch_max(memory::with_beside(run, door, LIMIT), Ordering::Relaxed);
            peaks[1].fetch_max(segment.in_use(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    move || {
        ended.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        (most[0].load(Ordering::Relaxed), most[1].load(Ordering::Relaxed))
    }
}

/// The limit holds in what is seen from outside, but for the memory of `ramfold run` itself, and in the account.
fn assert_within((real, account): (u64, u64)) {
    println!("at most {} KiB real, {} KiB in the account, of {} KiB", real >> 10, account >> 10, LIMIT >> 10);
    assert!(real <= LIMIT + 4 * MIB, "{} KiB of {}", real >> 10, LIMIT >> 10);
    assert!(account <= LIMIT + MIB, "{} KiB of {}", account >> 10, LIMIT >> 10);
}

fn can_run() -> bool {
    need::userfaultfd() && need::programs(&["python3"])
}

#[test]
fn a_disk_and_a_run_share_one_limit() {
    if !can_run() {
        return;
    }
    let mut shared = Shared::start();
    let (disk, mut client) = shared.disk("disk.sock", &[]);
    let stop = watch([shared.pid(), disk.pid()]);
    fill(&mut client, 200, 1);
    let busy = disk.pool();
    assert!(busy > LIMIT / 2, "the disk has most of the memory: {} MiB", busy / MIB);
    shared.grow(128);
    wait_for("memory goes from the idle disk to the run", || {
        shared.grow(1);
        disk.pool() < busy / 2
    });
    check(&mut client, 200, 1);
    let mut version = 1;
    wait_for("memory comes back to the disk that works", || {
        version += 1;
        fill(&mut client, 200, version);
        disk.pool() > busy / 2
    });
    check(&mut client, 200, version);
    shared.grow(1);
    assert_within(stop());
    assert_eq!(disk.stop(), Some(0));
    wait_for("the disk gives its place back", || segment_of(shared.pid()).living() == 1);
}

#[test]
fn a_mount_and_a_run_share_one_limit() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(can_run() && need::root() && (fuse || need::skip("there is no /dev/fuse"))) {
        return;
    }
    let mut shared = Shared::start();
    let (source, at) = (shared.path("source"), shared.path("at"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&at).unwrap();
    let file =
        |name: u64| (0..64 * MIB / PIECE_BYTES).flat_map(|number| piece(number, name)).collect::<Vec<u8>>();
    (0..4).for_each(|name| fs::write(source.join(name.to_string()), file(name)).unwrap());
    // What was written just now is not kept.
    std::thread::sleep(Duration::from_secs(6));
    let budget = shared.path("budget");
    let paths = [&source, &at, &budget].map(|path| path.to_str().unwrap());
    let mount = ["mount", paths[0], paths[1], "--budget", paths[2]];
    let mount = Running::start(&mount, Stdio::null(), Stdio::null());
    wait_for("it is mounted", || at.join("0").exists());
    let stop = watch([shared.pid(), mount.pid()]);
    let read = |names: std::ops::Range<u64>| {
        for name in names {
            assert!(fs::read(at.join(name.to_string())).unwrap() == file(name), "file {name}");
        }
    };
    read(0..2);
    let busy = mount.pool();
    assert!(busy > LIMIT / 4, "the mount keeps what it reads: {} MiB", busy / MIB);
    shared.grow(128);
    wait_for("memory goes from the idle mount to the run", || {
        shared.grow(1);
        mount.pool() < busy / 2
    });
    wait_for("memory comes back to the mount that works", || {
        // What the kernel has of it is not asked for again.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        read(2..4);
        mount.pool() > busy / 2
    });
    assert_within(stop());
    assert_eq!(mount.stop(), Some(0));
    wait_for("the mount gives its place back", || segment_of(shared.pid()).living() == 1);
}

/// Memory goes to the run that works, and back; the first ends, in order or not, and the other goes on.
#[test]
fn two_runs_share_one_limit() {
    if !can_run() {
        return;
    }
    for signal in [None, Some(libc::SIGKILL)] {
        let mut shared = Shared::start();
        let mut joined = shared.join();
        let segment = segment_of(joined.run.pid());
        assert_eq!((segment.living(), segment.limit()), (2, LIMIT));
        let programs = [shared.pid(), joined.run.pid()].map(memory::only_child);
        let stop = watch_beside(programs[0], programs[1], segment_of(shared.pid()));
        shared.grow(100);
        let busy = shared.run.charged();
        assert!(busy > LIMIT / 2, "the first has most of the memory: {} MiB", busy / MIB);
        joined.grow(100);
        wait_for("memory goes to the run that joined", || {
            joined.grow(1);
            joined.charged() > LIMIT / 2
        });
        wait_for("memory comes back", || {
            shared.grow(1);
            shared.run.charged() > LIMIT / 2
        });
        assert_within(stop());
        assert_eq!(members(joined.run.pid()).len(), 2);
        if let Some(signal) = signal {
            let program = memory::only_child(shared.pid());
            shared.run.run.signal(signal);
            // SAFETY: a plain system call.
            unsafe { libc::kill(program.cast_signed(), signal) };
            drop(shared);
        } else {
            assert_eq!(shared.run.end(), Some(0));
        }
        wait_for("what the first had is taken back", || segment.living() == 1);
        joined.grow(30);
        assert!(joined.charged() > LIMIT * 3 / 4, "{} MiB", joined.charged() / MIB);
        assert!(segment.in_use() <= LIMIT + MIB);
        assert_eq!(joined.end(), Some(0));
        assert_eq!(segment.living(), 0);
    }
}

/// A run joins the limit of a disk, with its swap file.
#[test]
fn a_run_joins_a_disk() {
    if !can_run() {
        return;
    }
    let place = common::scratch();
    let budget = place.path().join("budget");
    let budget = budget.to_str().unwrap();
    let disk =
        ["disk", "--size", "256M", "--mem-limit", "64M", "--backing-dev", "/var/tmp", "--share", budget];
    let (disk, mut client) = start_disk(&disk, &place.path().join("disk.sock"));
    fill(&mut client, 200, 1);
    let mut joined = Run::start(&["--budget", budget]);
    let program = memory::only_child(joined.run.pid());
    let stop = watch_beside(disk.pid(), program, segment_of(disk.pid()));
    joined.grow(128);
    wait_for("memory goes from the idle disk to the run", || {
        joined.grow(1);
        joined.charged() > LIMIT * 3 / 4
    });
    check(&mut client, 200, 1);
    wait_for("memory comes back to the disk that works", || {
        fill(&mut client, 200, 2);
        disk.pool() > LIMIT / 2
    });
    check(&mut client, 200, 2);
    joined.grow(1);
    assert_within(stop());
    assert_eq!(joined.end(), Some(0));
    wait_for("the run gives its place back", || segment_of(disk.pid()).living() == 1);
    assert_eq!(disk.stop(), Some(0));
}

/// What a run that joined has past the pager counts, and counts no longer once it is killed. It ends as its program.
#[test]
fn a_run_that_joined_answers_for_its_processes() {
    if !can_run() {
        return;
    }
    let shared = Shared::start();
    let (budget, segment) = (shared.path("budget"), segment_of(shared.pid()));
    let budget = budget.to_str().unwrap();
    wait_for("the program alone is there", || segment.unmanaged() == 0);
    let small = ["run", "--budget", budget, "--", "sleep", "1000"];
    let small = Running::start(&small, Stdio::null(), Stdio::null());
    wait_for("a process that is not managed counts", || segment.unmanaged() > 0);
    let sleeps = memory::only_child(small.pid());
    drop(small);
    wait_for("it does not any more", || segment.unmanaged() == 0);
    // SAFETY: a plain system call.
    unsafe { libc::kill(sleeps.cast_signed(), libc::SIGKILL) };
    let told = Command::new(env!("CARGO_BIN_EXE_ramfold"))
        .args(["run", "--budget", budget, "--stats", "-", "--", "sh", "-c", "exit 3"])
        .output()
        .unwrap();
    let stats = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(3), "{stats}");
    assert!(stats.contains("at most, of 64.0 MiB"), "{stats}");
    assert_eq!(segment.living(), 1);
}

/// Without a swap file a run that joined ends as out of memory where the budget is full, with a line of its own.
#[test]
fn a_run_that_joined_is_killed_where_nothing_can_leave() {
    if !can_run() {
        return;
    }
    let place = common::scratch();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let share = ["run", "-m", "32M", "--swap", "none", "--share", &path("budget"), "--", "sleep", "1000"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold"));
    let mut first = Running(command.args(share).stderr(Stdio::piped()).spawn().unwrap());
    let mut others = first.0.stderr.take().unwrap();
    wait_for("it is shared", || Path::new(&path("budget")).exists());
    // Mapped at once: an allocation would fail while memory is short.
    let program = "
import mmap, random
memory, page = mmap.mmap(-1, 80 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), random.randbytes(4096)
for at in range(0, 80 << 20, 4096):
    memory[at:at + 4096] = page
    memory[at:at + 8] = at.to_bytes(8, 'little')
print('all')
";
    let second = Command::new(env!("CARGO_BIN_EXE_ramfold"))
        .args(["run", "--budget", &path("budget"), "--", "python3", "-c", program])
        .output()
        .unwrap();
    let line = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(137), "{line}");
    assert!(line.lines().count() == 1 && line.starts_with("ramfold: out of memory"), "{line}");
    first.signal(libc::SIGTERM);
    first.0.wait().unwrap();
    let mut told = String::new();
    others.read_to_string(&mut told).unwrap();
    assert_eq!(told, "", "the first tells nothing of it");
}

/// What `ramfold top` shows once.
fn top(pid: u32) -> serde_json::Value {
    let pid = pid.to_string();
    let top = ["top", &pid, "--count", "1", "--interval", "0.1", "--json"];
    let told = Command::new(env!("CARGO_BIN_EXE_ramfold")).args(top).output().unwrap();
    serde_json::from_slice(&told.stdout).unwrap()
}

/// The processes that it shows.
fn members(pid: u32) -> Vec<u64> {
    top(pid)["living"].as_array().unwrap().iter().filter_map(|one| one["pid"].as_u64()).collect()
}

#[test]
fn all_members_are_shown() {
    if !can_run() {
        return;
    }
    let shared = Shared::start();
    let stats = shared.path("stats");
    let (disk, mut client) = shared.disk("disk.sock", &["--stats", stats.to_str().unwrap()]);
    fill(&mut client, 4, 1);
    let run = shared.pid();
    for pid in [run, disk.pid()] {
        let (told, members) = (top(pid), members(pid));
        assert!(members.len() == 2 && members.contains(&disk.pid().into()), "{members:?}");
        assert_eq!(told["limit"], LIMIT);
    }
    assert_eq!(disk.stop(), Some(0));
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    assert_eq!(told["limit"], LIMIT);
    assert!(told["processes"] == 2, "{told}");
}

/// A disk shares its limit, a second has joined; the first ends in order, or is killed.
#[test]
fn the_limit_outlives_who_shares_it() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        outlives(signal);
    }
}

fn outlives(signal: i32) {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let budget = budget.to_str().unwrap();
    let limit =
        ["disk", "--size", "256M", "--mem-limit", "32M", "--backing-dev", "/var/tmp", "--share", budget];
    let (mut first, mut client) = start_disk(&limit, &path("1.sock"));
    fill(&mut client, 4, 1);
    let mode = fs::symlink_metadata(budget).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let join = ["disk", "--size", "256M", "--budget", budget];
    let [second, third] = ["2.sock", "3.sock"].map(|name| start_disk(&join, &path(name)));
    let (second, mut client) = second;
    let segment = segment_of(second.pid());
    assert_eq!((segment.living(), segment.limit()), (3, 32 * MIB));
    first.signal(signal);
    first.0.wait().unwrap();
    third.0.signal(libc::SIGKILL);
    drop((first, third));
    wait_for("what the dead had is taken back", || segment.living() == 1);
    fill(&mut client, 200, 2);
    check(&mut client, 200, 2);
    assert!(segment.in_use() <= 33 * MIB && memory::anonymous(second.pid()) <= 33 * MIB);
    assert_eq!(members(second.pid()), [u64::from(second.pid())]);
    let told =
        Command::new(env!("CARGO_BIN_EXE_ramfold")).args(join).arg("--unix").arg(path("4.sock")).output();
    let told = told.unwrap();
    assert_eq!(told.status.code(), Some(125), "nobody can join any more");
    assert!(String::from_utf8_lossy(&told.stderr).contains("nobody shares a budget there"), "{told:?}");
    let left = fs::symlink_metadata(budget).is_ok_and(|at| at.file_type().is_socket());
    assert_eq!(left, signal == libc::SIGKILL, "left by who was killed, and by nobody else");
    let (again, _) = start_disk(&limit, &path("1.sock"));
    assert_eq!(again.stop(), Some(0));
    assert!(!Path::new(budget).exists(), "nothing is left behind");
    assert_eq!(second.stop(), Some(0));
}

/// A mount shares its limit, which stays as it is while each changes what it may have within it.
#[test]
fn members_change_what_they_may_have() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(need::root() && (fuse || need::skip("there is no /dev/fuse"))) {
        return;
    }
    let place = common::scratch();
    let [source, at, budget] = ["source", "at", "budget"].map(|name| place.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&at).unwrap();
    fs::write(source.join("file"), "here").unwrap();
    let names = ["mount", "disk"].map(|door| format!("{door}-{}", std::process::id()));
    let paths = [&source, &at, &budget].map(|path| path.to_str().unwrap());
    let mount = ["mount", paths[0], paths[1], "-m", "64M", "--share", paths[2], "--name", &names[0]];
    let mount = Running::start(&mount, Stdio::null(), Stdio::null());
    wait_for("it is mounted", || at.join("file").exists());
    let disk =
        ["disk", "--size", "256M", "--backing-dev", "/var/tmp", "--budget", paths[2], "--name", &names[1]];
    let (disk, mut client) = start_disk(&disk, &place.path().join("disk.sock"));
    let ctl = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_ramfold")).arg("ctl").args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    };
    fill(&mut client, 200, 1);
    assert!(disk.pool() > LIMIT / 2, "{} MiB", disk.pool() / MIB);
    ctl(&[&names[0], "memlimit", "16M"]);
    assert!(disk.pool() > LIMIT / 2, "the mount's is not the disk's: {} MiB", disk.pool() / MIB);
    ctl(&[&names[1], "mem_limit", "16M"]);
    wait_for("the disk gives back what is over its limit", || disk.pool() <= 17 * MIB);
    fill(&mut client, 200, 2);
    assert!(disk.pool() <= 17 * MIB, "{} MiB", disk.pool() / MIB);
    ctl(&[&names[1], "mem_limit", "0"]);
    fill(&mut client, 200, 3);
    assert!(disk.pool() > LIMIT / 2, "{} MiB", disk.pool() / MIB);
    check(&mut client, 200, 3);
    let segment = segment_of(disk.pid());
    assert_eq!(segment.limit(), LIMIT);
    assert_eq!((mount.stop(), disk.stop()), (Some(0), Some(0)));
}

#[test]
fn a_disk_without_backing_is_full_when_the_budget_is() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let budget = budget.to_str().unwrap();
    let limit = ["disk", "--size", "256M", "--mem-limit", "32M", "--share", budget];
    let (first, mut client) = start_disk(&limit, &path("1.sock"));
    let (second, mut other) = start_disk(&["disk", "--size", "256M", "--budget", budget], &path("2.sock"));
    fill(&mut client, 16, 1);
    let mut written = 0;
    while other.write(written * PIECE_BYTES, &piece(written, 2)) == 0 {
        written += 1;
        assert!(written < 256 * MIB / PIECE_BYTES);
    }
    assert!(segment_of(first.pid()).in_use() <= 33 * MIB);
    check(&mut client, 16, 1);
    for number in 0..written {
        let read = other.read(number * PIECE_BYTES, usize::try_from(PIECE_BYTES).unwrap());
        assert!(read == piece(number, 2), "piece {number}");
    }
    drop((first, second));
}

#[test]
fn hostile_clients_delay_nobody() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let options = ["disk", "--size", "16M", "--mem-limit", "32M", "--share", budget.to_str().unwrap()];
    let (first, _client) = start_disk(&options, &path("1.sock"));
    let mut clients: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&budget).unwrap()).collect();
    clients.iter_mut().for_each(|client| drop(client.write_all(&[0xff; 64])));
    let begun = Instant::now();
    let (second, _other) =
        start_disk(&["disk", "--size", "16M", "--budget", budget.to_str().unwrap()], &path("2.sock"));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!((second.stop(), first.stop()), (Some(0), Some(0)));
    assert!(!budget.exists());
    drop(clients);
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (file, budget, socket, none) = (path("file"), path("budget"), path("socket"), path("none"));
    fs::write(&file, "mine").unwrap();
    let told = |arguments: &[&str], code: i32, part: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_ramfold")).args(arguments).output().unwrap();
        let line = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {line}");
        assert!(line.lines().count() == 1 && line.contains(part), "{arguments:?}: {line}");
    };
    let disk = ["disk", "--size", "16M", "--unix", &socket];
    let with = |more: &[&'static str], path: &str| {
        disk.iter()
            .copied()
            .chain(more.iter().copied())
            .map(str::to_owned)
            .chain([path.to_owned()])
            .collect::<Vec<_>>()
    };
    let told_of = |more: &[&'static str], path: &str, code: i32, part: &str| {
        let words = with(more, path);
        told(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, part);
    };
    told_of(&["--share"], &budget, 2, "--mem-limit");
    told_of(&["--mem-limit", "1M", "--share"], &budget, 2, "too small");
    told_of(&["--mem-limit", "32M", "--share"], &file, 125, "no socket");
    told_of(&["--mem-limit", "32M", "--share"], &path("file/x"), 125, "--share");
    told_of(
        &["--budget", &*Box::leak(budget.clone().into_boxed_str()), "--share"],
        &budget,
        2,
        "cannot be used with",
    );
    told_of(&["--budget"], &none, 125, "nobody shares a budget there");
    told_of(&["--budget"], &file, 125, "nobody shares a budget there");
    assert!(!Path::new(&socket).exists() && !Path::new(&budget).exists());
    let listener = UnixListener::bind(path("wrong")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"NBDMAGICIHAVEOPT").unwrap());
        told_of(&["--budget"], &path("wrong"), 125, "shares no budget");
    });
    told_of(&["--mem-limit", "32M", "--share"], &path("wrong"), 125, "somebody serves there");
    told(&["mount", place.path().to_str().unwrap(), &none, "--budget", &none], 125, "nobody shares");
    told(&["mount", place.path().to_str().unwrap(), &none], 2, "--memory");
    told(&["run", "-m", "64M", "--share", &file, "--", "true"], 125, "no socket");
    told(&["run", "--budget", &none, "--", "true"], 125, "nobody shares a budget there");
    told(&["run", "--budget", &none, "-m", "64M", "--", "true"], 2, "cannot be used with");
    told(&["run", "--budget", &none, "--swap", "none", "--", "true"], 2, "cannot be used with");
    told(&["run", "--", "true"], 2, "--memory");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}
