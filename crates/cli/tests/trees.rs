//! Many processes under one limit: it holds for their sum, and memory goes to those who use it.

mod common;

use common::progress::{Progress, all_of};
use common::{Program, Ramfold, Running, binary, compiled, need, run, within_limit};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn can_run() -> bool {
    need::userfaultfd() && need::programs(&["cc", "bash"])
}

fn worker(directory: &Path) -> String {
    compiled("worker", directory).to_str().unwrap().to_owned()
}

/// 450 MiB in 50 processes of 1 to 17 MiB that start at once, some asleep and some at work, come and go.
#[test]
fn the_limit_holds_for_fifty_processes() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let worker = worker(scratch.path());
    let script = format!(
        "for i in $(seq 50); do {worker} $((1 + i * 7 % 17)) $((i % 4)) $i < /dev/null & children+=($!); done
         for child in ${{children[@]}}; do wait $child || exit 1; done"
    );
    let program = Program::new("fifty processes", &["bash", "-c", &script]);
    for mode in ["move", "wp"] {
        let ramfold = Ramfold::new(160 * MIB, &["--evict-mode", mode]);
        let ended = run(&program, Some(&ramfold), &scratch.path().join(mode));
        assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
        within_limit(mode, &ramfold, &ended);
    }
}

/// Many more than there are processors begin at once, each with a second of work, where memory holds a few: some wait.
/// (How many are there at a time depends on how often `ramfold run` gets a processor.)
#[test]
fn newcomers_wait_where_memory_is_short() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let worker = worker(scratch.path());
    let count = 4 * (std::thread::available_parallelism().map_or(1, |count| count.get()) + 2);
    let stats = scratch.path().join("stats");
    let ramfold = Ramfold::new(128 * MIB, &["--stats", stats.to_str().unwrap()]);
    let script = format!(
        "for i in $(seq {count}); do {worker} 24 1 $i & children+=($!); done
         for child in ${{children[@]}}; do wait $child || exit 1; done"
    );
    let mut command = Program::new("a crowd", &["bash", "-c", &script]).command(Some(&ramfold));
    assert!(Running::start(&mut command).child.wait().unwrap().success());
    let stats: Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
    assert!(stats["waits"].as_u64() > Some(0), "{stats}");
}

/// A run as it is now.
fn look_at(run: u32) -> Option<Value> {
    let shown = Command::new(binary())
        .args(["top", &run.to_string(), "--json", "--count", "1", "--interval", "0.1"])
        .output()
        .unwrap();
    serde_json::from_slice(&shown.stdout).ok()
}

/// What each worker has resident, the largest first.
fn resident(run: u32) -> Vec<u64> {
    let Some(look) = look_at(run) else { return Vec::new() };
    let workers = look["living"].as_array().unwrap().iter().filter(|process| process["command"] == "worker");
    workers.map(|process| process["resident_bytes"].as_u64().unwrap()).collect()
}

/// One that sleeps has most of the limit; another one comes that needs most of it, and gets it.
#[test]
fn memory_goes_from_those_who_sleep_to_those_who_work() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let worker = worker(scratch.path());
    let ramfold = Ramfold::new(96 * MIB, &[]);
    let script = format!("{worker} 80 0 1 <&0 & sleep 1; {worker} 64 60 2");
    let mut command = Program::new("two", &["bash", "-c", &script]).command(Some(&ramfold));
    let running = Running::start(command.stdin(Stdio::piped()));
    let started = Instant::now();
    loop {
        // The largest first: the one at work has nearly all of its memory.
        let resident = resident(running.child.id());
        if matches!(resident[..], [busy, idle] if busy > 60 * MIB && idle < 32 * MIB) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(50), "resident after 50 s: {resident:?}");
    }
}

/// A stopped process keeps what it has; the others get along with the rest.
#[test]
fn a_stopped_process_is_not_waited_for() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let worker = worker(scratch.path());
    let script = format!(
        "{worker} 40 1 1 & stopped=$!; sleep 0.5; kill -STOP $stopped; {worker} 64 1 2 || exit 1
         kill -CONT $stopped; wait $stopped"
    );
    let ramfold = Ramfold::new(64 * MIB, &[]);
    let ended = run(
        &Program::new("one stopped", &["bash", "-c", &script]),
        Some(&ramfold),
        &scratch.path().join("run"),
    );
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    within_limit("one stopped", &ramfold, &ended);
}

/// A program that cannot be held has its memory, and who is held has the rest of the limit.
#[test]
fn who_is_held_makes_room_for_who_is_not() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let worker = worker(scratch.path());
    let unheld = common::compiled_with("unmanaged", scratch.path(), &["-static"]);
    let script = format!("{} 24 alone & exec {worker} 44 100 1", unheld.display());
    let mut command =
        Program::new("one unheld", &["bash", "-c", &script]).command(Some(&Ramfold::new(56 * MIB, &[])));
    let running = Running::start(&mut command);
    common::patience::wait_for("it has what the other leaves", || {
        let look = look_at(running.child.id());
        let in_use = look.as_ref().and_then(|look| look["unmanaged_bytes"].as_u64());
        in_use >= Some(24 * MIB) && matches!(resident(running.child.id())[..], [held] if held < 32 * MIB)
    });
}

/// Of several that have more than can be given up, the one with most of it is ended.
#[test]
fn who_has_most_of_what_cannot_leave_is_ended() {
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let binary = compiled("unmanaged", scratch.path());
    let binary = binary.display();
    let script = format!(
        "{binary} 24 sleeps & small=$!; {binary} 40 sleeps; ended=$?
         kill $small && wait $small; echo $ended $?"
    );
    let ramfold = Ramfold::new(48 * MIB, &[]);
    let ended =
        run(&Program::new("two", &["bash", "-c", &script]), Some(&ramfold), &scratch.path().join("run"));
    assert_eq!(ended.stdout(), "137 143\n", "{}", ended.stderr);
    assert!(ended.stderr.contains("out of memory: the limit of 48 MiB"), "{}", ended.stderr);
}

/// A parent rewrites its static data, and what its two children have of the old is in common to each of them: it counts
/// all the same.
#[test]
fn what_only_children_have_counts() {
    const DATA: u64 = 12 * MIB;
    const MANAGED: u64 = 8 * MIB;
    if !can_run() {
        return;
    }
    let scratch = common::scratch();
    let binary = compiled("rewritten", scratch.path());
    let managed = (MANAGED / MIB).to_string();
    let program = Program::new("rewritten", &[binary.to_str().unwrap(), &managed]);
    for mode in ["move", "wp"] {
        let mut command = program.command(Some(&Ramfold::new(64 * MIB, &["--evict-mode", mode])));
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let started = Instant::now();
        loop {
            let look = look_at(running.child.id());
            let in_use = look.as_ref().and_then(|look| look["in_use_bytes"].as_u64());
            if in_use >= Some(2 * DATA + MANAGED) {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(50), "{mode}: {look:?}");
        }
        drop(running.child.stdin.take());
        assert!(running.child.wait().unwrap().success(), "{mode}");
    }
}

/// The watch that ends a hanging test: who sleeps is told, and who spins, but not who works.
#[test]
fn who_makes_no_progress_is_told() {
    let patience = Duration::from_secs(1);
    let told_after = |script: &str| {
        let running = Running::start(Command::new("sh").args(["-c", script]));
        let mut progress = Progress::new(running.child.id(), patience);
        let started = Instant::now();
        common::patience::wait_for(script, || progress.hangs().is_some());
        started.elapsed()
    };
    assert!(told_after("sleep 100") >= patience);
    assert!(told_after("while :; do :; done") > all_of(patience));
}
