//! A run seen from outside: `ramfold top` and `--metrics`.

mod command;
mod common;

use command::{one_line, ramfold};
use common::patience::wait_for;
use common::{Program, Ramfold, Running, binary, need};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Twice what it may have, many words of it, then one now and then, so that there are faults; until its standard
/// input ends.
const BUSY: &str = "
import os, random, select, sys
data = [bytearray(os.urandom(2048) + bytes(2048)) for _ in range(16384)]
for _ in range(16384):
    random.choice(data)[9] = 1
open('ready', 'w').close()
while not select.select([sys.stdin], [], [], 0.001)[0]:
    random.choice(data)[9] = 1
";

fn start(directory: &Path, options: &[&str]) -> Running {
    let ramfold = Ramfold::new(32 * MIB, options);
    let mut command = Program::new("busy", &["python3", "-c", BUSY]).command(Some(&ramfold));
    let running = Running::start(command.current_dir(directory).stdin(Stdio::piped()));
    wait_for("the program is ready", || directory.join("ready").exists());
    running
}

fn top(arguments: &[&str]) -> Output {
    Command::new(binary()).arg("top").args(arguments).output().unwrap()
}

fn can_run() -> bool {
    need::userfaultfd() && need::programs(&["python3"])
}

#[test]
fn top_shows_what_a_process_has_and_does() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let running = start(directory.path(), &[]);
    let run = running.child.id().to_string();

    let shown = top(&[&run, "--json", "--count", "2", "--interval", "0.5"]);
    assert!(shown.status.success(), "{shown:?}");
    let looks: Vec<Value> = String::from_utf8(shown.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 2);
    let look = &looks[1];
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!((number(&look["limit"]), look["run"].to_string()), (32 * MIB, run.clone()));
    let largest = &look["living"][0];
    assert!(largest["command"].as_str().unwrap().starts_with("python"), "{largest}");
    assert!(number(&largest["stored_pages"]) + number(&largest["tier_pages"]) > 4096, "{largest}");
    assert!(number(&largest["resident_bytes"]) > 4 * MIB, "{largest}");
    assert!(largest["faults_per_s"].as_f64().unwrap() > 1.0, "{largest}");
    assert!(number(&largest["fault_ns"]["p99"]) >= number(&largest["fault_ns"]["p50"]), "{largest}");

    // Any process of the run will do, and a table is for people.
    let table = top(&[&largest["pid"].to_string(), "--count", "1", "--interval", "0.2"]);
    let table = String::from_utf8(table.stdout).unwrap();
    // Where there is one run, it need not be named; other tests have theirs, and then all are told, and nothing but
    // runs.
    let unnamed = top(&["--count", "1", "--interval", "0.2"]);
    let told = [unnamed.stdout, unnamed.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains(&run) && !told.contains(&format!("; {} ", largest["pid"])), "{told}");
    assert!(table.starts_with(&format!("run {run}: python3 -c")), "{table}");
    assert!(table.contains("RESIDENT") && table.lines().last().unwrap().contains("python"), "{table}");
}

#[test]
fn top_ends_with_the_run() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut running = start(directory.path(), &[]);
    let run = running.child.id().to_string();
    let mut watching = Command::new(binary());
    watching.args(["top", &run, "--interval", "0.1"]).stdout(Stdio::null());
    let mut watching = Running::start(&mut watching);
    std::thread::sleep(Duration::from_millis(300));
    assert!(watching.child.try_wait().unwrap().is_none(), "it goes on while the run does");
    drop(running.child.stdin.take());
    assert!(running.child.wait().unwrap().success());
    wait_for("top ends", || watching.child.try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
fn top_says_which_process_is_none_of_a_run() {
    for (pid, why) in [("1", "is in no run"), ("4194305", "no such process")] {
        let outcome = ramfold(&["top", pid]);
        let line = one_line(&outcome.stderr);
        assert_eq!(outcome.code, Some(125), "{line}");
        assert!(line.starts_with(&format!("ramfold: top: {pid}: ")) && line.contains(why), "{line}");
    }
}

fn get(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Any user can hold a file of that name, which says what it likes and becomes shorter meanwhile.
#[test]
fn top_of_a_forged_segment_shows_nonsense_or_says_one_line() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    if !can_run() {
        return;
    }
    let running = start(directory.path(), &[]);
    let held = std::fs::read_dir(format!("/proc/{}/fd", running.child.id())).unwrap();
    let mut held = held.flatten().map(|entry| entry.path());
    let is_segment = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("ramfold-segment"))
    };
    let true_one = held.find(|path| is_segment(path)).unwrap();
    let mut front = vec![0; 1 << 20];
    std::fs::File::open(&true_one).unwrap().read_exact(&mut front).unwrap();
    let length = std::fs::metadata(&true_one).unwrap().len();
    let forged = rustix::fs::memfd_create("ramfold-segment", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut forged = std::fs::File::from(forged);
    let me = std::process::id().to_string();
    forged.set_len(length).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&forged, &front, 0).unwrap();
    let shown = top(&[&me, "--count", "1", "--interval", "0.1"]);
    assert!(shown.status.success(), "a true copy is shown: {shown:?}");
    for at in (0..512).step_by(8) {
        let mut nonsense = front.clone();
        nonsense[at..at + 8].fill(0xff);
        forged.set_len(length).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&forged, &nonsense, 0).unwrap();
        let shown = top(&[&me, "--count", "1", "--interval", "0.1"]);
        let messages = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(
            matches!(shown.status.code(), Some(0 | 125)) && messages.lines().count() < 2,
            "{at}: {messages}"
        );
    }
    forged.set_len(5).unwrap();
    assert_eq!(top(&[&me, "--count", "1"]).status.code(), Some(125));
    forged.flush().unwrap();
}

#[test]
fn clients_that_read_nothing_keep_no_run_from_ending() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("socket");
    let mut running = start(directory.path(), &["--metrics", &format!("unix:{}", socket.display())]);
    let silent: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() {}
    assert!(get(&socket, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
    drop(running.child.stdin.take());
    wait_for("the run ends", || running.child.try_wait().unwrap().is_some_and(|status| status.success()));
    drop((silent, deaf));
}

#[test]
fn metrics_are_served_while_the_run_lasts_and_leave_nothing() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("socket");
    // A socket that a run left which was killed is no obstacle.
    drop(UnixListener::bind(&socket).unwrap());
    let mut running = start(directory.path(), &["--metrics", &format!("unix:{}", socket.display())]);

    let answer = get(&socket, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let value = |name: &str| {
        let line = answer.lines().find(|line| line.split([' ', '{']).next() == Some(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!((value("ramfold_limit_bytes") - (32 * MIB) as f64).abs() < 1.0, "{answer}");
    assert!(value("ramfold_evicted_pages_total") > 4096.0 && value("ramfold_fault_seconds_count") > 4096.0);
    assert!(answer.contains("# TYPE ramfold_fault_seconds summary\n"), "{answer}");
    assert!(get(&socket, "/").starts_with("HTTP/1.1 404 "));

    drop(running.child.stdin.take());
    assert!(running.child.wait().unwrap().success());
    assert!(!socket.exists(), "the socket was left behind");
}

#[test]
fn an_address_that_is_taken_is_one_line() {
    if !need::userfaultfd() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    let address = format!("unix:{}", socket.display());
    let outcome = ramfold(&["run", "-m", "64M", "--metrics", &address, "--", "true"]);
    let line = one_line(&outcome.stderr);
    assert_eq!(outcome.code, Some(125), "{line}");
    assert!(line.contains("in use") && socket.exists(), "{line}");
}
