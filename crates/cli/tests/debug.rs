//! `ramfold debug`: what a debugger finds of a process of which most is away.

mod command;
mod common;

use command::{one_line, ramfold};
use common::{Program, Ramfold, Running, binary, compiled, need};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 24 * MIB;

/// `seen` under `ramfold run`, with twice the limit in blocks.
struct Seen {
    run: Running,
    output: BufReader<std::process::ChildStdout>,
    pid: u32,
    addresses: Vec<u64>,
    _directory: tempfile::TempDir,
}

impl Seen {
    fn start(options: &[&str]) -> Self {
        let directory = common::scratch();
        let program = compiled("seen", directory.path());
        let program = Program::new("seen", &[program.to_str().unwrap()]);
        let mut command = program.command(Some(&Ramfold::new(LIMIT, options)));
        let mut run = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut output = BufReader::new(run.child.stdout.take().unwrap());
        let mut addresses = Vec::new();
        loop {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            match line.trim().strip_prefix("0x") {
                Some(number) => addresses.push(u64::from_str_radix(number, 16).unwrap()),
                None => break,
            }
        }
        assert_eq!(addresses.len(), 800);
        let children = format!("/proc/{0}/task/{0}/children", run.child.id());
        let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Self { run, output, pid, addresses, _directory: directory }
    }

    /// How many of its texts are found from outside; the others must be EIO, never something else.
    fn found(&self) -> usize {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let is_there = |(number, address): (usize, &u64)| {
            let wanted = format!("seen {number}\0").into_bytes();
            let mut text = vec![0; wanted.len()];
            match memory.read_exact_at(&mut text, *address) {
                Ok(()) => assert_eq!(text, wanted),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
            }
            text == wanted
        };
        self.addresses.iter().enumerate().filter(|of| is_there(*of)).count()
    }

    fn anonymous(&self) -> u64 {
        ramfold_budget::process::anonymous(self.pid)
    }

    fn debug(&self, command: &[&str]) -> Command {
        let mut debug = Command::new(binary());
        debug.args(["debug", &self.pid.to_string()]);
        if !command.is_empty() {
            debug.arg("--").args(command);
        }
        debug
    }

    /// It sees all that it wrote, and ends well.
    fn end(mut self) {
        drop(self.run.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "0 wrong\n");
        assert!(self.run.child.wait().unwrap().success());
    }
}

fn within_a_minute(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: not after a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn send(child: &Child, signal: i32) {
    // SAFETY: a plain system call; the child has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
}

#[test]
fn all_memory_is_there_while_it_is_held_and_leaves_afterwards() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    for mode in common::MODES {
        let seen = Seen::start(mode);
        assert!(seen.found() < 800, "nothing is away");
        for killed in [false, true] {
            let mut held = Running::start(seen.debug(&[]).stderr(Stdio::piped()));
            let mut line = String::new();
            BufReader::new(held.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("all of its memory is in place"), "{line}");
            assert_eq!(seen.found(), 800);
            assert!(seen.anonymous() > LIMIT * 3 / 2, "{}", seen.anonymous());
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(seen.found(), 800, "it did not stay");
            if killed {
                send(&held.child, libc::SIGKILL);
            } else {
                send(&held.child, libc::SIGINT);
                assert!(held.child.wait().unwrap().success());
            }
            within_a_minute("the limit holds again", || seen.anonymous() < LIMIT + LIMIT / 20 + 4 * MIB);
        }
        seen.end();
    }
}

#[test]
fn a_debugger_reads_what_was_away() {
    if !(need::userfaultfd() && need::programs(&["cc", "gdb"])) {
        return;
    }
    let seen = Seen::start(&[]);
    let mut gdb = vec!["gdb".to_owned(), "-p".to_owned(), seen.pid.to_string(), "-batch".to_owned()];
    for (number, address) in seen.addresses.iter().enumerate().step_by(8) {
        gdb.extend(["-ex".to_owned(), format!("printf \"%d: %s\\n\", {number}, (char *){address:#x}")]);
    }
    // It goes on for a while between two looks, and is held all the same.
    gdb.extend(["-ex", "shell sleep 1", "-ex", "detach"].map(str::to_owned));
    let words: Vec<&str> = gdb.iter().map(String::as_str).collect();
    let told = seen.debug(&words).output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{text} {}", String::from_utf8_lossy(&told.stderr));
    for number in (0..800).step_by(8) {
        assert!(text.contains(&format!("{number}: seen {number}\n")), "{number}: {text}");
    }
    seen.end();
}

#[test]
fn a_child_of_a_held_process_is_not_held() {
    if !(need::userfaultfd() && need::programs(&["python3"])) {
        return;
    }
    // The parent holds 48 MiB and forks when told to; the child writes to all, and must stay within the limit.
    let program = "
import os, sys
data = [bytearray(os.urandom(2048) + bytes(2048)) for _ in range(12288)]
print('full', flush=True)
sys.stdin.readline()
if os.fork() == 0:
    for page in data:
        page[0] = 1
    print('written', flush=True)
    sys.stdin.readline()
    os._exit(0)
os.wait()
print(sum(page[9] for page in data) > 0)
";
    let ramfold = Ramfold::new(LIMIT, &[]);
    let mut command = Program::new("parent", &["python3", "-c", program]).command(Some(&ramfold));
    let mut run = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = BufReader::new(run.child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    };
    let mut input = run.child.stdin.take().unwrap();
    assert_eq!(line(), "full\n");
    let children = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let pid: u32 = children(run.child.id()).trim().parse().unwrap();
    let mut held = Command::new(binary());
    let mut held = Running::start(held.args(["debug", &pid.to_string()]).stderr(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(held.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("in place"), "{said}");
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert_eq!(line(), "written\n");
    let child: u32 = children(pid).trim().parse().unwrap();
    let private = || {
        let text = std::fs::read_to_string(format!("/proc/{child}/smaps_rollup")).unwrap();
        let size = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    within_a_minute("the child is within the limit", || private() < LIMIT + 8 * MIB);
    send(&held.child, libc::SIGTERM);
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert_eq!(line(), "True\n");
}

#[test]
fn what_cannot_be_held_is_told_in_one_line() {
    for (words, code, why) in [
        (&["debug", "1"][..], 125, "is in no run"),
        (&["debug", "4194305"], 125, "no such process"),
        (&["debug", "x"], 2, "invalid value"),
        (&["debug"], 2, "PID"),
    ] {
        let outcome = ramfold(words);
        let line = one_line(&outcome.stderr);
        assert_eq!(outcome.code, Some(code), "{line}");
        assert!(line.contains(why), "{line}");
    }
}

#[test]
fn a_small_process_and_the_run_itself_are_told() {
    if !need::userfaultfd() {
        return;
    }
    let mut command = Program::new("sleep", &["sleep", "100"]).command(Some(&Ramfold::new(LIMIT, &[])));
    let run = Running::start(&mut command);
    let children = format!("/proc/{0}/task/{0}/children", run.child.id());
    let mut pid = String::new();
    within_a_minute("it has begun", || {
        pid = std::fs::read_to_string(&children).unwrap().trim().to_owned();
        let is_it = |text: String| text.starts_with("sleep");
        !pid.is_empty() && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(is_it)
    });
    let outcome = ramfold(&["debug", &pid]);
    assert!(one_line(&outcome.stderr).contains("nothing of its memory is away"), "{}", outcome.stderr);
    let outcome = ramfold(&["debug", &run.child.id().to_string()]);
    assert!(one_line(&outcome.stderr).contains("ramfold run itself"), "{}", outcome.stderr);
}
