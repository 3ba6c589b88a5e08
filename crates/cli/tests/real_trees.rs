//! Programs of many processes: in a half and a quarter of the memory that they want together they give the same, byte
//! for byte; and when one of them is killed, or ramfold itself, the rest goes on.

mod common;

use common::cgroup::Cgroup;
use common::memory::{self, Sampler};
use common::patience::{wait_for, wait_for_some};
use common::{
    MODES, Program, Ramfold, Running, compiled, heavy, need, run, same_in_shares, scratch, test_file,
    within_limit,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn bash(name: &str, script: &str) -> Program {
    Program::new(name, &["bash", "-c", script])
}

#[test]
fn multiprocessing_by_fork_and_by_spawn() {
    multiprocessing(&[2]);
}

#[test]
fn a_parallel_build() {
    build(&[2]);
}

#[test]
#[ignore = "minutes"]
fn multiprocessing_in_a_quarter() {
    multiprocessing(&[4]);
}

#[test]
#[ignore = "minutes"]
fn a_parallel_build_in_a_quarter() {
    build(&[4]);
}

fn multiprocessing(shares: &[u64]) {
    if need::userfaultfd() && need::programs(&["python3"]) {
        for method in ["fork", "spawn"] {
            let words = ["python3", &test_file("programs/pool.py"), method, "40000"];
            let program = Program::new(method, &words).patience(1200);
            same_in_shares(&program, shares, MODES);
        }
    }
}

fn build(shares: &[u64]) {
    if !(need::userfaultfd() && need::programs(&["make", "g++"])) {
        return;
    }
    let scratch = scratch();
    let sources = scratch.path().display();
    let mut build = Program::new("make", &["make", "-s", "-j4", "-f", &format!("{sources}/Makefile")]);
    let mut makefile = String::from("all: 1.o 2.o 3.o 4.o 5.o 6.o\n");
    for part in 1..=6 {
        fs::write(scratch.path().join(format!("{part}.cpp")), heavy::source(part)).unwrap();
        makefile += &format!("{part}.o:\n\tcd {sources} && g++ -O1 -c {part}.cpp -o $(CURDIR)/{part}.o\n");
        build = build.output(&format!("{part}.o"));
    }
    fs::write(scratch.path().join("Makefile"), makefile).unwrap();
    same_in_shares(&build, shares, MODES);
}

#[test]
fn a_pipeline_of_sort_and_gzip() {
    if need::userfaultfd() && need::programs(&["bash", "sort", "gzip", "rev", "seq"]) {
        let script = "seq 700000 | rev | LC_ALL=C sort --buffer-size=300M --parallel=2 | gzip -n > sorted.gz";
        same_in_shares(&bash("pipeline", script).output("sorted.gz"), &[2, 4], MODES);
    }
}

#[test]
fn a_shell_with_much_memory_and_subshells() {
    if need::userfaultfd() && need::programs(&["bash"]) {
        let script = "declare -A table; for ((i = 0; i < 150000; i++)); do table[$i]=$((i * i)); done
            for part in 1 2 3; do
                (sum=0; for key in ${!table[@]}; do ((sum += table[$key] % part + key)); table[$key]=$sum; done
                 echo $part $sum ${#table[@]} > sum.$part) &
            done; wait; cat sum.1 sum.2 sum.3; echo ${table[77777]}";
        same_in_shares(&bash("bash", script), &[2, 4], MODES);
    }
}

#[test]
fn the_garbage_collection_of_git() {
    if !(need::userfaultfd() && need::programs(&["bash", "git"])) {
        return;
    }
    let scratch = scratch();
    let make = "git init -q repository && cd repository && git config user.name x && git config user.email x@x
        export GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'
        for i in $(seq 12); do seq $i $((i % 3 + 1)) $((i * 1000 + 500000)) > file$((i % 4)); git add .; git commit -q -m $i; done";
    let made = Command::new("bash").args(["-ec", make]).current_dir(scratch.path()).status();
    assert!(made.unwrap().success());
    let script = format!(
        "set -e; cp -r {}/repository .; cd repository; git -c pack.threads=1 -c gc.autoDetach=false gc --quiet --aggressive
         git fsck --full --strict; git rev-list --objects --all | sort | git cat-file --batch | sha256sum
         cat .git/objects/pack/*.pack | sha256sum",
        scratch.path().display()
    );
    same_in_shares(&bash("git gc", &script), &[2, 4], MODES);
}

// ---- a pre-forking server ----

/// Every answer, and the most memory that the server had. Its workers write what they inherit.
fn served(ramfold: Option<&Ramfold>) -> (BTreeMap<u32, String>, u64) {
    let scratch = scratch();
    let socket = scratch.path().join("socket");
    let bind = format!("unix:{}", socket.display());
    let programs = test_file("programs");
    let words = [
        "gunicorn",
        "--preload",
        "--workers=3",
        "--log-level=error",
        "--bind",
        &bind,
        "--chdir",
        &programs,
        "served:app",
    ];
    let group = Cgroup::new().map(Arc::new);
    let mut command = Program::new("gunicorn", &words).command(ramfold);
    let mut server = Running::start_in(group.as_deref(), &mut command);
    let sampler = Sampler::start(server.child.id(), group.clone(), ramfold.map_or(u64::MAX, Ramfold::bound));
    wait_for("gunicorn listens", || {
        assert!(server.child.try_wait().unwrap().is_none(), "gunicorn ended");
        UnixStream::connect(&socket).is_ok()
    });
    let parts = |first: u32| (first..30).step_by(3).map(|part| (part, answer(&socket, part)));
    let answers = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..3).map(|first| scope.spawn(move || parts(first).collect::<Vec<_>>())).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let peak = sampler.stop();
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(i32::try_from(server.child.id()).unwrap(), libc::SIGTERM) };
    let status = server.child.wait().unwrap();
    assert!(status.success(), "gunicorn: {status}");
    (answers, peak)
}

fn answer(socket: &Path, part: u32) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    write!(stream, "GET /{part} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("part {part}: {text:?}"));
    assert!(head.contains("200 OK") && body.len() == 64, "part {part}: {text}");
    body.to_owned()
}

#[test]
fn a_server_that_forks_its_workers() {
    if !(need::userfaultfd() && need::programs(&["gunicorn"])) {
        return;
    }
    let (expected, plain_peak) = served(None);
    eprintln!("gunicorn, plain: peak {} MiB", plain_peak / MIB);
    for share in [2, 4] {
        for options in MODES {
            let ramfold = Ramfold::new(plain_peak / share, options);
            let (answers, peak) = served(Some(&ramfold));
            eprintln!(
                "gunicorn, 1/{share} {options:?} ({} MiB): peak {} MiB",
                ramfold.limit / MIB,
                peak / MIB
            );
            assert_eq!(answers, expected);
            assert!(peak <= ramfold.bound(), "gunicorn: {} MiB resident", peak / MIB);
        }
    }
}

// ---- who is killed ----

/// What one of the tree had is there for the others once it is killed.
#[test]
fn a_killed_process_leaves_its_memory_to_the_others() {
    if !(need::userfaultfd() && need::programs(&["cc", "bash"])) {
        return;
    }
    let scratch = scratch();
    let worker = compiled("worker", scratch.path());
    let worker = worker.display();
    let script = format!(
        "for round in 1 2 3; do {worker} 40 60 $round & victim=$!; sleep 0.7; kill -9 $victim
             wait $victim; echo $?; {worker} 40 1 $round || exit 1; done 2> /dev/null"
    );
    for options in MODES {
        let ramfold = Ramfold::new(32 * MIB, options);
        let ended = run(&bash("victims", &script), Some(&ramfold), &scratch.path().join(options[1]));
        assert!(ended.status.success(), "{options:?}: {} {}", ended.status, ended.stderr);
        assert_eq!(ended.stdout(), "137\n137\n137\n");
        within_limit("victims", &ramfold, &ended);
    }
}

/// The program ends as it would have, and nothing stays behind: neither when ramfold is killed nor when the directory
/// of the swap file goes away.
#[test]
fn the_tree_outlives_ramfold_and_the_directory_of_the_swap_file() {
    if !(need::userfaultfd() && need::programs(&["cc", "bash"])) {
        return;
    }
    let scratch = scratch();
    let worker = compiled("worker", scratch.path());
    let left = || ["/dev/shm", "/run", "/var/tmp"].map(|place| ramfolds_files(Path::new(place)));
    let before = left();
    for options in MODES {
        let (swap, done) = (scratch.path().join("swap"), scratch.path().join("done"));
        fs::create_dir(&swap).unwrap();
        let script = format!(
            "{0} 24 3 1 & {0} 24 3 2 || exit 1; wait $! || exit 1; {0} 32 1 3; echo $? > {1}",
            worker.display(),
            done.display()
        );
        let ramfold = Ramfold::new(20 * MIB, &[options, &["--swap", swap.to_str().unwrap()][..]].concat());
        let mut running = Running::start(&mut bash("orphans", &script).command(Some(&ramfold)));
        std::thread::sleep(Duration::from_secs(1));
        fs::remove_dir_all(&swap).unwrap();
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        wait_for("the tree has ended", || fs::read_to_string(&done).is_ok_and(|text| !text.is_empty()));
        assert_eq!(fs::read_to_string(&done).unwrap(), "0\n", "{options:?}");
        fs::remove_file(&done).unwrap();
    }
    assert_eq!(left(), before);
}

/// Memory of processes that were killed is there for the others, also if ramfold was killed before them.
#[test]
fn the_dead_leave_their_memory_to_the_others_without_ramfold() {
    if !(need::userfaultfd() && need::programs(&["cc", "bash"])) {
        return;
    }
    let scratch = scratch();
    let worker = compiled("worker", scratch.path());
    for options in MODES {
        let done = scratch.path().join("done");
        let (worker, result) = (worker.display(), done.display());
        let script = format!("{worker} 24 600 1 & {worker} 24 600 2 & {worker} 24 0 3; echo $? > {result}");
        let ramfold = Ramfold::new(20 * MIB, options);
        let mut command = bash("orphans", &script).command(Some(&ramfold));
        let mut running = Running::start(command.stdin(Stdio::piped()));
        let shell = wait_for_some("the shell", || memory::children(running.child.id()).first().copied());
        let workers =
            wait_for_some("the workers", || Some(memory::children(shell)).filter(|all| all.len() == 3));
        // All are filled, and the two that touch what they have took it from the one that sleeps.
        std::thread::sleep(Duration::from_secs(2));
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        for pid in &workers[..2] {
            // SAFETY: plain integers; the shell has not waited for its children yet.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
        drop(running.child.stdin.take());
        let mut peak = 0;
        wait_for_some("the end", || {
            peak = peak.max(memory::anonymous(workers[2]));
            fs::read_to_string(&done).is_ok_and(|text| text == "0\n").then_some(())
        });
        assert!(peak > ramfold.limit / 2, "{options:?}: the last one never had more than {} MiB", peak / MIB);
        fs::remove_file(&done).unwrap();
    }
}

/// Names with `ramfold` in them.
fn ramfolds_files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains("ramfold"));
    names.sort();
    names
}
