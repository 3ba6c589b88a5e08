//! Real programs in a half and a quarter of the memory that they want give the same output, byte for byte, and stay
//! within the limit. The ordinary tests are small and quick; `cargo test -- --ignored` runs the large ones.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::cgroup::Cgroup;
use common::memory::Sampler;
use common::{
    MODES, Program, Ramfold, Running, heavy, need, run, same_in_shares, scratch, test_file, within_limit,
};

const MIB: u64 = 1 << 20;
/// Minutes enough for a program that works in a quarter of its memory.
const HOUR: u64 = 3600;

// ---- quick ----

#[test]
fn python_objects() {
    if need::userfaultfd() && need::programs(&["python3"]) {
        same_in_shares(&objects(40_000), &[2], MODES);
    }
}

#[test]
fn python_arrays() {
    if need::userfaultfd() && need::programs(&["python3"]) && need::python_module("numpy") {
        same_in_shares(&arrays(1_000_000, 300), &[2], MODES);
    }
}

#[test]
fn sort_in_half() {
    if need::userfaultfd() && need::programs(&["sort"]) {
        let scratch = scratch();
        same_in_shares(&sort(&scratch.path().join("lines"), 24 * MIB), &[2], MODES);
    }
}

#[test]
fn sqlite_index() {
    if need::userfaultfd() && need::programs(&["sqlite3"]) {
        let scratch = scratch();
        same_in_shares(&sqlite(scratch.path(), 200_000), &[2], MODES);
    }
}

#[test]
fn compiler() {
    if need::userfaultfd() && need::programs(&["g++"]) {
        let scratch = scratch();
        same_in_shares(&gpp(scratch.path(), 4), &[2], MODES);
    }
}

/// Its malloc is its own.
#[test]
fn rust_compiler() {
    if need::userfaultfd() && need::programs(&["rustc"]) {
        let scratch = scratch();
        same_in_shares(&rustc(scratch.path(), 400), &[2], MODES);
    }
}

/// A tracer that translates paths: what ramfold opens by `/proc/thread-self` would be the tracer's.
#[test]
fn proot() {
    if need::userfaultfd() && need::programs(&["proot"]) {
        same_in_shares(&objects(20_000).behind("proot", &["proot", "-R", "/"]), &[2], MODES);
    }
}

#[test]
fn gdb() {
    if need::userfaultfd() && need::programs(&["gdb"]) {
        // It says which thread is which by numbers.
        let script = "gdb -q -batch -ex 'run > digest' --args \"$@\" > /dev/null 2>&1; cat digest";
        same_in_shares(&objects(30_000).behind("gdb", &["sh", "-c", script, "gdb"]), &[3], MODES);
    }
}

/// The emulator is managed, and what it emulates is told nothing of it.
#[test]
fn qemu_user() {
    let emulator = format!("qemu-{}", std::env::consts::ARCH);
    if need::userfaultfd() && need::programs(&[&emulator]) {
        same_in_shares(&objects(10_000).behind("qemu", &[&emulator, "-U", "LD_PRELOAD"]), &[2], MODES);
    }
}

#[test]
fn node() {
    if need::userfaultfd() && need::programs(&["node"]) {
        same_in_shares(&javascript(100_000), &[2], MODES);
    }
}

#[test]
fn java() {
    if need::userfaultfd() && need::programs(&["java", "javac"]) {
        let scratch = scratch();
        same_in_shares(&jvm(scratch.path(), 100_000), &[2], MODES);
    }
}

#[test]
fn redis() {
    if need::userfaultfd() && need::programs(&["redis-server", "redis-cli"]) {
        redis_in_shares(120_000, &[2], MODES);
    }
}

/// Killed by the kernel without ramfold, right with it.
#[test]
fn cgroup_without_swap() {
    if !(need::userfaultfd() && need::root() && need::programs(&["python3"])) {
        return;
    }
    let Some(group) = Cgroup::without_swap(256 * MIB).map(Arc::new) else {
        return;
    };
    let script = format!("{}/../bench/scripts/dictionary.py", env!("CARGO_MANIFEST_DIR"));
    let program = Program::new("dictionary", &[&python(), &script, "2000000", "20000"]);
    let scratch = scratch();
    let contained = |ramfold: Option<&Ramfold>| {
        common::run_in(Some(Arc::clone(&group)), &program, ramfold, &scratch.path().join("contained"))
    };
    let killed = contained(None);
    assert!(!killed.status.success(), "256 MiB were enough without ramfold");
    let ramfold = Ramfold::new(200 * MIB, &[]);
    let finished = contained(Some(&ramfold));
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    within_limit("dictionary", &ramfold, &finished);
    let unlimited = run(&program, None, &scratch.path().join("unlimited"));
    assert_eq!(checksum(&finished.stdout()), checksum(&unlimited.stdout()));
}

// ---- slow ----

#[test]
#[ignore = "minutes"]
fn python_objects_large() {
    if need::userfaultfd() && need::programs(&["python3"]) {
        same_in_shares(&objects(600_000), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn python_arrays_large() {
    if need::userfaultfd() && need::programs(&["python3"]) && need::python_module("numpy") {
        same_in_shares(&arrays(20_000_000, 2_000), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn sort_large() {
    if need::userfaultfd() && need::programs(&["sort"]) {
        let scratch = scratch();
        same_in_shares(&sort(&scratch.path().join("lines"), 1024 * MIB), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn sqlite_index_large() {
    if need::userfaultfd() && need::programs(&["sqlite3"]) {
        let scratch = scratch();
        same_in_shares(&sqlite(scratch.path(), 1_500_000), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn compiler_large() {
    if need::userfaultfd() && need::programs(&["g++"]) {
        let scratch = scratch();
        same_in_shares(&gpp(scratch.path(), 80), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn node_large() {
    if need::userfaultfd() && need::programs(&["node"]) {
        same_in_shares(&javascript(1_500_000), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn java_large() {
    if need::userfaultfd() && need::programs(&["java", "javac"]) {
        let scratch = scratch();
        same_in_shares(&jvm(scratch.path(), 1_500_000), &[2, 4], MODES);
    }
}

#[test]
#[ignore = "minutes"]
fn redis_large() {
    if need::userfaultfd() && need::programs(&["redis-server", "redis-cli"]) {
        redis_in_shares(1_000_000, &[2, 4], MODES);
    }
}

// ---- the programs ----

/// The interpreter itself: what is found first may be a script that starts it.
fn python() -> String {
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
}

fn objects(count: u32) -> Program {
    let words = [python(), test_file("programs/objects.py"), count.to_string()];
    Program::new("python objects", &words).variable("PYTHONHASHSEED", "0").patience(HOUR)
}

fn arrays(count: u32, side: u32) -> Program {
    let words = [python(), test_file("programs/arrays.py"), count.to_string(), side.to_string()];
    Program::new("numpy", &words).variable("OPENBLAS_NUM_THREADS", "1").patience(HOUR)
}

/// All lines in memory at once: the buffer is larger than what `sort` needs for them.
fn sort(lines: &Path, bytes: u64) -> Program {
    common::lines::write(lines, bytes);
    let buffer = format!("--buffer-size={}", bytes * 4);
    let words = ["sort", &buffer, "--parallel=2", lines.to_str().unwrap()];
    Program::new("sort", &words).variable("LC_ALL", "C").patience(HOUR)
}

fn sqlite(directory: &Path, rows: u32) -> Program {
    let script = fs::read_to_string(test_file("programs/index.sql")).unwrap();
    let path = directory.join("index.sql");
    fs::write(&path, script.replace("ROWS", &rows.to_string())).unwrap();
    Program::new("sqlite", &["sqlite3", ":memory:", &format!(".read {}", path.display())]).patience(HOUR)
}

fn gpp(directory: &Path, kinds: u32) -> Program {
    let path = directory.join("heavy.cpp");
    fs::write(&path, heavy::source(kinds)).unwrap();
    let words = ["g++", "-std=c++17", "-O1", "-c", path.to_str().unwrap(), "-o", "heavy.o"];
    Program::new("g++", &words).output("heavy.o").patience(HOUR)
}

/// The compiler itself, not rustup's stand-in for it.
fn rustc(directory: &Path, functions: u32) -> Program {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let rustc = Path::new(String::from_utf8(asked.stdout).unwrap().trim()).join("bin/rustc");
    let path = directory.join("heavy.rs");
    let function = |i| {
        format!(
            "pub fn f{i}(words: &[String]) -> std::collections::BTreeMap<String, usize> {{ let mut map = \
             std::collections::BTreeMap::new(); for word in words {{ *map.entry(format!(\"{{word}}{i}\")).or_default() \
             += word.len() + {i}; }} map }}\n"
        )
    };
    fs::write(&path, (0..functions).map(function).collect::<String>()).unwrap();
    let path = path.to_str().unwrap();
    let words = [rustc.to_str().unwrap(), "-O", "--crate-type=lib", "--emit=obj", "-Ccodegen-units=1", path];
    Program::new("rustc", &[&words[..], &["-o", "heavy.o"]].concat()).output("heavy.o").patience(HOUR)
}

fn javascript(count: u32) -> Program {
    let words = ["node", "--max-old-space-size=8192", &test_file("programs/allocate.js"), &count.to_string()];
    Program::new("node", &words).patience(HOUR)
}

fn jvm(directory: &Path, count: u32) -> Program {
    let compiled =
        Command::new("javac").arg("-d").arg(directory).arg(test_file("programs/Allocate.java")).status();
    assert!(compiled.unwrap().success());
    let classes = directory.to_str().unwrap();
    let words = ["java", "-XX:+UseSerialGC", "-Xmx2g", "-cp", classes, "Allocate", &count.to_string()];
    Program::new("java", &words).patience(HOUR)
}

fn checksum(output: &str) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(output.trim()).unwrap()["checksum"].clone()
}

// ---- redis: a server, asked from outside ----

struct Redis {
    server: Running,
    group: Option<Arc<Cgroup>>,
    socket: PathBuf,
}

impl Redis {
    fn start(directory: &Path, ramfold: Option<&Ramfold>) -> Self {
        let socket = directory.join("socket");
        let (socket_name, directory) = (socket.to_str().unwrap(), directory.to_str().unwrap());
        let mut words = vec!["redis-server", "--port", "0", "--unixsocket", socket_name, "--dir", directory];
        words.extend([
            "--save",
            "",
            "--appendonly",
            "no",
            "--logfile",
            "log",
            "--enable-debug-command",
            "yes",
        ]);
        let group = Cgroup::new().map(Arc::new);
        let mut command = Program::new("redis", &words).command(ramfold);
        let mut redis = Self { server: Running::start_in(group.as_deref(), &mut command), group, socket };
        redis.wait_until(|redis| redis.ask(&["PING"]) == "PONG");
        redis
    }

    fn ask(&self, words: &[&str]) -> String {
        let answer = Command::new("redis-cli").arg("-s").arg(&self.socket).args(words).output().unwrap();
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    }

    fn wait_until(&mut self, ready: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !ready(self) {
            let ended = self.server.child.try_wait().unwrap();
            assert!(ended.is_none(), "redis-server ended: {ended:?}");
            assert!(started.elapsed() < Duration::from_secs(600), "redis-server hangs");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Through a child that shares the server's memory, while a client writes to every third of so many keys, once at
    /// least. Returns how often it wrote to some while the child was at work.
    fn save_in_background(&mut self, keys: u32) -> u32 {
        const WRITE: &str =
            "for i = ARGV[1], ARGV[2], 3 do redis.call('SET', 'key:' .. i, string.rep(i, 30)) end";
        const PART: u32 = 9_999;
        let started = self.ask(&["BGSAVE"]);
        assert!(started.contains("started"), "BGSAVE: {started}");
        let (mut meanwhile, mut at_work) = (0, true);
        while at_work {
            for first in (0..keys).step_by(PART as usize) {
                let last = (first + PART).min(keys) - 1;
                self.ask(&["EVAL", WRITE, "0", &first.to_string(), &last.to_string()]);
                at_work &= self.ask(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:1");
                meanwhile += u32::from(at_work);
            }
        }
        assert!(self.ask(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
        meanwhile
    }

    fn sample(&self, ramfold: Option<&Ramfold>) -> Sampler {
        let bound = ramfold.map_or(u64::MAX, Ramfold::bound);
        Sampler::start(self.server.child.id(), self.group.clone(), bound)
    }

    fn shut_down(mut self) {
        self.ask(&["SHUTDOWN", "NOSAVE"]);
        let status = self.server.child.wait().unwrap();
        assert!(status.success(), "redis-server ended with {status}");
    }
}

/// The digests of a data set, before it is saved and after it was written to meanwhile, and the server's peak before
/// that. What was saved is loaded by a server without ramfold, and is what was there when saving began.
fn redis_digests(keys: u32, ramfold: Option<&Ramfold>) -> ([String; 2], u64) {
    const CHANGE: &str = "for i = 0, ARGV[1] - 1, 7 do redis.call('SET', 'key:' .. i, string.rep(i, 20)) end";
    let scratch = scratch();
    let mut redis = Redis::start(scratch.path(), ramfold);
    let sampler = redis.sample(ramfold);
    let count = keys.to_string();
    assert_eq!(redis.ask(&["DEBUG", "POPULATE", &count, "key", "200"]), "OK");
    redis.ask(&["EVAL", CHANGE, "0", &count]);
    let digest = redis.ask(&["DEBUG", "DIGEST"]);
    assert_eq!(digest.len(), 40, "DEBUG DIGEST: {digest}");
    let peak = sampler.stop();
    let meanwhile = redis.save_in_background(keys);
    assert!(meanwhile > 0, "nothing was written while the child was at work");
    let written = redis.ask(&["DEBUG", "DIGEST"]);
    assert!(written.len() == 40 && written != digest, "DEBUG DIGEST: {written}");
    redis.shut_down();
    let loaded = Redis::start(scratch.path(), None);
    assert_eq!(loaded.ask(&["DEBUG", "DIGEST"]), digest, "what the child saved differs");
    loaded.shut_down();
    ([digest, written], peak)
}

fn redis_in_shares(keys: u32, shares: &[u64], option_sets: &[&[&str]]) {
    let (expected, plain_peak) = redis_digests(keys, None);
    eprintln!("redis, plain: peak {} MiB", plain_peak / MIB);
    for share in shares {
        for options in option_sets {
            let ramfold = Ramfold::new(plain_peak / share, options);
            let (digests, peak) = redis_digests(keys, Some(&ramfold));
            eprintln!("redis, 1/{share} {options:?}: peak {} MiB", peak / MIB);
            assert_eq!(digests, expected);
            assert!(peak <= ramfold.bound(), "redis: {} MiB resident", peak / MIB);
        }
    }
}
