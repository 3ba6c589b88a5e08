//! Signals and ends: what reaches the program, what its parent is told, and what is left behind.

mod command;
mod common;

use command::{PATH, command, finish, ramfold};
use common::memory::only_child;
use common::patience::wait_for;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

const LIMIT: &[&str] = &["run", "-m", "64M", "--"];

/// A program that says `ready`, and each signal that it gets; it ends at TERM with status 3.
const LISTENER: &str = r#"for s in HUP INT USR1 USR2 WINCH; do trap "echo $s" $s; done
    trap 'echo TERM; exit 3' TERM; echo ready; while :; do sleep 0.05; done"#;

struct Listener {
    ramfold: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Listener {
    fn start(script: &str) -> Self {
        let mut command = command(LIMIT);
        command.args(["sh", "-c", script]).stdout(Stdio::piped()).process_group(0);
        // SAFETY: signal() may be called between fork and exec.
        unsafe {
            // A shell cannot trap what was ignored when it began, as under nohup.
            command.pre_exec(|| {
                [libc::SIGHUP, libc::SIGINT]
                    .iter()
                    .for_each(|&signal| _ = libc::signal(signal, libc::SIG_DFL));
                Ok(())
            });
        }
        let mut ramfold = command.spawn().unwrap();
        let mut lines = BufReader::new(ramfold.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Self { ramfold, lines }
    }

    fn send(&self, signal: i32) {
        kill(self.ramfold.id(), signal);
    }

    fn next(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn program(&self) -> u32 {
        only_child(self.ramfold.id())
    }
}

fn kill(process: u32, signal: i32) {
    // SAFETY: a plain system call on a process that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(process.cast_signed(), signal) }, 0);
}

fn state(process: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn signals_sent_to_ramfold_reach_the_program() {
    let mut listener = Listener::start(LISTENER);
    for (signal, name) in [
        (libc::SIGHUP, "HUP"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGINT, "INT"),
        (libc::SIGWINCH, "WINCH"),
        (libc::SIGTERM, "TERM"),
    ] {
        listener.send(signal);
        assert_eq!(listener.next(), name);
    }
    assert!(listener.lines.next().is_none());
    assert_eq!(listener.ramfold.wait().unwrap().code(), Some(3));
}

#[test]
fn a_script_that_signals_its_group_is_not_told_twice() {
    let script = r#"trap 'n=$((n+1))' USR1; echo ready; read x; kill -USR1 0; sleep 0.3; echo "got $n""#;
    let mut ramfold = command(LIMIT)
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    ramfold.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut said = String::new();
    ramfold.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "ready\ngot 1\n");
    assert!(ramfold.wait().unwrap().success());
}

#[test]
fn job_control_stops_and_continues_both() {
    let mut listener = Listener::start(LISTENER);
    let (ramfold, program) = (listener.ramfold.id(), listener.program());
    kill(program, libc::SIGTSTP);
    wait_for("both stop", || state(ramfold) == 'T' && state(program) == 'T');
    listener.send(libc::SIGCONT);
    wait_for("both go on", || state(ramfold) != 'T' && state(program) != 'T');
    listener.send(libc::SIGTERM);
    assert_eq!(listener.next(), "TERM");
    assert_eq!(listener.ramfold.wait().unwrap().code(), Some(3));
}

#[test]
fn ignored_signals_stay_ignored() {
    let script = r#"trap '' HUP; exec "$0" run -m 64M -- sh -c 'kill -HUP $$; echo lived'"#;
    let outcome = finish(Command::new("sh").args(["-c", script, PATH]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "lived\n"));
}

/// Ignored and blocked signals, the group and the session: as without ramfold.
#[test]
fn the_program_inherits_what_it_would_without() {
    let script = r#"grep -E '^Sig(Ign|Blk)' /proc/self/status; cut -d' ' -f5,6 /proc/self/stat"#;
    let seen = |before: &[&str], ignored: &'static [i32]| {
        let words = [before, &["sh", "-c", script]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).process_group(0);
        // SAFETY: these calls may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                ignored.iter().for_each(|&signal| _ = libc::signal(signal, libc::SIG_IGN));
                let mut blocked = std::mem::zeroed();
                libc::sigemptyset(&raw mut blocked);
                libc::sigaddset(&raw mut blocked, libc::SIGUSR2);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut());
                Ok(())
            });
        }
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let leader = child.id().to_string();
        let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(told.lines().count(), 3, "{told}");
        told.replace(&leader, "LEADER")
    };
    for ignored in [&[][..], &[libc::SIGPIPE, libc::SIGUSR1]] {
        assert_eq!(seen(&[&[PATH], LIMIT].concat(), ignored), seen(&[], ignored), "{ignored:?}");
    }
}

#[test]
fn a_status_arrives_also_when_sigchld_is_ignored() {
    let mut command = command(LIMIT);
    command.args(["sh", "-c", "exit 9"]);
    // SAFETY: signal is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    assert_eq!(command.status().unwrap().code(), Some(9));
}

/// The run ends with its program. What descendants start later is not held, and its loader says so.
#[test]
fn descendants_go_on_after_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"(sleep 0.5; /bin/true 2>told; mv told said) >log 2>&1 &"#;
    let mut command = command(LIMIT);
    let outcome = finish(command.args(["sh", "-c", script]).current_dir(&directory));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let said = directory.path().join("said");
    wait_for("the descendant has gone on", || said.exists());
    assert!(fs::read_to_string(said).unwrap().contains("cannot be preloaded"));
}

#[test]
fn nothing_is_left_behind_however_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let left = || fs::read_dir(directory.path()).unwrap().count();
    let shared = || fs::read_dir("/dev/shm").unwrap().count();
    let (swap, before) = (directory.path().to_str().unwrap(), shared());
    assert_eq!(ramfold(&["run", "-m", "64M", "--swap", swap, "--", "true"]).code, Some(0));
    assert_eq!((left(), shared()), (0, before));

    let mut killed = command(&["run", "-m", "64M", "--swap", swap, "--"])
        .args(["sh", "-c", "echo ready; exec sleep 30"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    killed.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let program = only_child(killed.id());
    killed.kill().unwrap();
    assert_eq!(killed.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert_ne!(state(program), 'Z', "the program goes on without ramfold");
    assert_eq!((left(), shared()), (0, before));
    kill(program, libc::SIGKILL);
}
