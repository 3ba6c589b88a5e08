//! What a debugger, and whoever reads /proc/PID/mem, finds of a process of which most is away.

mod command;
mod common;

use command::{one_line, ramfold};
use common::memory::{children, only_child};
use common::{Program, Ramfold, Running, binary, compiled, need};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
    directory: tempfile::TempDir,
}

impl Seen {
    fn start(options: &[&str]) -> Self {
        let directory = common::scratch();
        let program = compiled("seen", directory.path());
        let program = Program::new("seen", &[program.to_str().unwrap()]);
        let mut command = program.command(Some(&Ramfold::new(LIMIT, options)));
        let told = File::create(directory.path().join("told")).unwrap();
        let mut run = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(told));
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
        let pid = only_child(run.child.id());
        Self { run, output, pid, addresses, directory }
    }

    /// Its memory, by a name at which nobody has a lease, so that nothing comes back for it.
    fn as_it_is(&self) -> File {
        File::open(format!("/proc/{0}/task/{0}/mem", self.pid)).unwrap()
    }

    /// Its memory, by the name that everybody takes.
    fn memory(&self) -> File {
        File::open(format!("/proc/{}/mem", self.pid)).unwrap()
    }

    /// How many of its texts are found from outside; the others must be EIO, never something else.
    fn found(&self, memory: &File) -> usize {
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

    /// What `ramfold run` has said.
    fn told(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("told")).unwrap()
    }

    fn anonymous(&self) -> u64 {
        ramfold_budget::process::anonymous(self.pid)
    }

    fn is_within(&self) -> bool {
        self.anonymous() < LIMIT + LIMIT / 20 + 4 * MIB
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

fn send(child: &Child, number: i32) {
    signal(child.id(), number);
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a plain system call; the process has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), number) };
}

#[test]
fn all_memory_is_there_while_it_is_held_and_leaves_afterwards() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    for mode in common::MODES {
        let seen = Seen::start(mode);
        assert!(seen.found(&seen.as_it_is()) < 800, "nothing is away");
        for killed in [false, true] {
            let mut held = Running::start(seen.debug(&[]).stderr(Stdio::piped()));
            let mut line = String::new();
            BufReader::new(held.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("all of its memory is in place"), "{line}");
            assert_eq!(seen.found(&seen.as_it_is()), 800);
            assert!(seen.anonymous() > LIMIT * 3 / 2, "{}", seen.anonymous());
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(seen.found(&seen.as_it_is()), 800, "it did not stay");
            if killed {
                send(&held.child, libc::SIGKILL);
            } else {
                send(&held.child, libc::SIGINT);
                assert!(held.child.wait().unwrap().success());
            }
            within_a_minute("the limit holds again", || seen.is_within());
        }
        seen.end();
    }
}

#[test]
fn who_opens_the_memory_waits_for_what_is_away() {
    if !need::userfaultfd() {
        return;
    }
    for mode in common::MODES {
        let seen = Seen::start(mode);
        let memory = seen.memory();
        assert_eq!(seen.found(&memory), 800);
        let line = format!("process {}: its memory is being read", seen.pid);
        within_a_minute("a line says so", || seen.told().contains(&line));
        // Longer than a hold lasts without a beat.
        std::thread::sleep(Duration::from_secs(8));
        assert_eq!(seen.found(&memory), 800, "it did not stay");
        drop(memory);
        within_a_minute("the limit holds again", || seen.is_within());
        assert!(seen.found(&seen.as_it_is()) < 800);
        for _ in 0..20 {
            assert_eq!(seen.found(&seen.memory()), 800, "for the next who opens it");
        }
        seen.end();
    }
}

/// Nobody is there to bring it, or the reader does not wait for it: what is away is EIO, as `found` insists.
#[test]
fn who_is_not_waited_for_sees_what_is_there() {
    if !need::userfaultfd() {
        return;
    }
    let mut seen = Seen::start(&[]);
    let path = format!("/proc/{}/mem", seen.pid);
    let refused = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EWOULDBLOCK));
    // What that asked for leaves again.
    within_a_minute("the limit holds", || seen.is_within() && seen.found(&seen.as_it_is()) < 800);
    seen.run.child.kill().unwrap();
    seen.run.child.wait().unwrap();
    assert!(seen.found(&seen.memory()) < 800);
}

#[test]
fn inspect_leaves_what_is_away_where_it_is() {
    if !need::userfaultfd() {
        return;
    }
    let seen = Seen::start(&[]);
    let outcome = ramfold(&["inspect", &seen.pid.to_string()]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(seen.found(&seen.as_it_is()) < 800 && seen.is_within(), "{}", seen.anonymous());
    seen.end();
}

#[test]
fn nobody_waits_for_the_memory_of_a_process_that_is_stopped() {
    if !need::userfaultfd() {
        return;
    }
    let seen = Seen::start(&[]);
    signal(seen.pid, libc::SIGSTOP);
    let opened = Instant::now();
    let found = seen.found(&seen.memory());
    // The kernel would let it in by itself after 45 s.
    assert!(found < 800 && opened.elapsed() < Duration::from_secs(30), "{found}, {:?}", opened.elapsed());
    signal(seen.pid, libc::SIGCONT);
    seen.end();
}

#[test]
fn nobody_waits_for_a_run_that_job_control_has_stopped() {
    if !need::userfaultfd() {
        return;
    }
    let seen = Seen::start(&[]);
    signal(seen.pid, libc::SIGTSTP);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", seen.run.child.id())).unwrap();
    within_a_minute("the run stops", || state().contains(") T "));
    let opened = Instant::now();
    assert!(seen.found(&seen.memory()) < 800);
    assert!(opened.elapsed() < Duration::from_secs(30), "{:?}", opened.elapsed());
    send(&seen.run.child, libc::SIGCONT);
    within_a_minute("all is found again", || seen.found(&seen.memory()) == 800);
    seen.end();
}

#[test]
fn a_process_with_its_own_memory_open_is_held_by_the_limit() {
    if !(need::userfaultfd() && need::programs(&["python3"])) {
        return;
    }
    // One finds its own texts; one has the file open before and while it grows to twice the limit.
    let program = "
import ctypes, os, sys
open_before = sys.argv[1] == 'before' and os.open('/proc/self/mem', os.O_RDWR)
blocks = [ctypes.create_string_buffer(b'%d' % n + os.urandom(30000), 60000) for n in range(800)]
memory = os.open('/proc/self/mem', os.O_RDONLY)
if not open_before:
    read = [os.pread(memory, 3, ctypes.addressof(block)) for block in blocks]
    print(sum(text == block.raw[:3] for text, block in zip(read, blocks)), flush=True)
print('full', flush=True)
sys.stdin.readline()
print(all(int(block.raw[:1]) > -1 for block in blocks))
";
    for (how, first) in [("before", "full\n"), ("then", "800\n")] {
        let mut command =
            Program::new("own", &["python3", "-c", program, how]).command(Some(&Ramfold::new(LIMIT, &[])));
        let mut run = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut output = BufReader::new(run.child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, first);
        let pid = only_child(run.child.id());
        let anonymous = || ramfold_budget::process::anonymous(pid);
        within_a_minute("the limit holds", || anonymous() < LIMIT + LIMIT / 20 + 8 * MIB);
        std::thread::sleep(Duration::from_secs(2));
        assert!(anonymous() < LIMIT + LIMIT / 20 + 8 * MIB, "{how}: {}", anonymous());
        drop(run.child.stdin.take());
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("True\n"), "{how}: {rest}");
        assert!(run.child.wait().unwrap().success());
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

/// It stops ramfold's threads with the program's, so what it reads must be there.
#[test]
fn strace_attaches_to_all_threads() {
    if !(need::userfaultfd() && need::programs(&["cc", "strace"])) {
        return;
    }
    let (seen, directory) = (Seen::start(&[]), common::scratch());
    let (pid, told) = (seen.pid.to_string(), directory.path().join("told"));
    let strace = ["strace", "-q", "-f", "-p", &pid, "-o", told.to_str().unwrap()];
    let mut strace = Running::start(&mut seen.debug(&strace));
    let text = || std::fs::read_to_string(&told).unwrap_or_default();
    within_a_minute("the program's calls are seen", || text().contains("poll("));
    seen.end();
    assert!(strace.child.wait().unwrap().success());
    assert!(text().contains(r#"write(1, "0 wrong\n""#), "{}", text());
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
    let pid = only_child(run.child.id());
    let mut held = Command::new(binary());
    let mut held = Running::start(held.args(["debug", &pid.to_string()]).stderr(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(held.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("in place"), "{said}");
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert_eq!(line(), "written\n");
    let child = only_child(pid);
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
    let mut pid = 0;
    within_a_minute("it has begun", || {
        pid = children(run.child.id()).first().copied().unwrap_or(0);
        let is_it = |text: String| text.starts_with("sleep");
        pid != 0 && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(is_it)
    });
    let outcome = ramfold(&["debug", &pid.to_string()]);
    assert!(one_line(&outcome.stderr).contains("nothing of its memory is away"), "{}", outcome.stderr);
    let outcome = ramfold(&["debug", &run.child.id().to_string()]);
    assert!(one_line(&outcome.stderr).contains("ramfold run itself"), "{}", outcome.stderr);
}
