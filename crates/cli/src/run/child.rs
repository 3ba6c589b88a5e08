//! The program as a direct child, and signals: it gets each one that it would get without ramfold.
//!
//! A terminal's signals (Ctrl-C, Ctrl-Z, hang-up) go from the kernel to the whole foreground process group, so the
//! program has them already and ramfold only notes them. What another process sends to ramfold alone is
//! passed on. What somebody sends to the group by `kill -PGID` cannot be told from that and may reach the
//! program twice. When job control stops the program, ramfold stops too, and the shell sees the job stopped;
//! when ramfold is continued, it continues the program.
//!
//! If ramfold itself is killed, the program goes on: its memory and its share of the swap file are its own.

use crate::failure::Failure;
use ramfold_budget::process::Stat;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often the parent looks after the run while no signal arrives.
static TICK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Whether who started this process has it ignore SIGPIPE. Rust's runtime does that in any case, before `main`, so the
/// loader asks.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static ASK: extern "C" fn() = ask_for_pipe;

/// Signals that tell of a fault of ramfold's own; they are not forwarded.
const OWN: &[i32] =
    &[libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// The signals of this process are blocked from here on: to be passed on, and so that a file that may not grow
/// (`ulimit -f`) gives an error instead of SIGXFSZ.
#[derive(Debug)]
pub struct Signals {
    waited: libc::sigset_t,
    inherited: libc::sigset_t,
}

impl Signals {
    /// Blocks all but [`OWN`].
    pub fn block() -> Self {
        let mut waited = MaybeUninit::uninit();
        let mut inherited = MaybeUninit::uninit();
        // SAFETY: sigfillset writes the set that the following calls read; sigprocmask writes the old one.
        unsafe {
            libc::sigfillset(waited.as_mut_ptr());
            for signal in OWN {
                libc::sigdelset(waited.as_mut_ptr(), *signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, waited.as_ptr(), inherited.as_mut_ptr());
            Self { waited: waited.assume_init(), inherited: inherited.assume_init() }
        }
    }
}

/// What comes after a call of the parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Another one.
    GoesOn,
    /// Nothing, until somebody continues the parent.
    Stops,
}

/// The running program.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    /// Signals that this process waits for instead of dying of them.
    waited: libc::sigset_t,
}

impl Child {
    /// Starts `command` with `environment` added. It inherits the signal mask and ignored signals of whoever
    /// started ramfold.
    pub fn spawn(
        command: &[OsString],
        environment: &[(&str, OsString)],
        signals: &Signals,
    ) -> Result<Self, Failure> {
        let Signals { waited, inherited } = *signals;
        let (ignored_child, ignores_pipe) = (reap_children(), IGNORES_PIPE.load(Ordering::Relaxed));
        let mut program = Command::new(&command[0]);
        program.args(&command[1..]).envs(environment.iter().map(|(name, value)| (name, value)));
        let restore = move || {
            if ignored_child {
                // SAFETY: a plain system call, allowed between fork and exec.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            }
            if ignores_pipe {
                // SAFETY: as above. The standard library has put the default.
                unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            }
            set_mask(&inherited);
            Ok(())
        };
        // SAFETY: `restore` makes system calls only.
        unsafe { program.pre_exec(restore) };
        let child = program
            .spawn()
            .map_err(|error| not_started(&format!("{}: {error}", command[0].display()), &error))?;
        Ok(Self { pid: child.id().cast_signed(), waited })
    }

    /// The program's process.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Passes signals on until the program ends, with a call of `tick` fifty times a second, with each signal, before
    /// this process stops, and at the end, while the program is still a zombie. Returns what the shell would call its
    /// exit status.
    pub fn wait(&mut self, tick: &mut dyn FnMut(Tick)) -> u8 {
        loop {
            if let Some(signal) = self.next_signal() {
                self.forward(&signal);
            }
            tick(Tick::GoesOn);
            self.reap_orphans();
            match self.poll() {
                Some(status) if status.stopped_signal().is_some_and(is_job_control) => {
                    tick(Tick::Stops);
                    self.stop_together();
                }
                Some(status) if status.stopped_signal().is_none() => return exit_status(status),
                _ => {}
            }
        }
    }

    fn next_signal(&self) -> Option<libc::siginfo_t> {
        let mut info = MaybeUninit::uninit();
        // SAFETY: the set and the time are valid, and `info` has room for what is written.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.waited, info.as_mut_ptr(), &raw const TICK) };
        // SAFETY: a positive answer means that `info` was written.
        (signal > 0).then(|| unsafe { info.assume_init() })
    }

    /// Passes on what a process sent, unless the program or a descendant of it did (`kill 0` in a script).
    fn forward(&self, signal: &libc::siginfo_t) {
        // SAFETY: for signals from processes (code 0 or below) the field holds the sender.
        let sender = unsafe { signal.si_pid() };
        let from_process = signal.si_code <= 0;
        if signal.si_signo != libc::SIGCHLD && from_process && !descends(sender, self.pid) {
            send(self.pid, signal.si_signo);
        }
    }

    fn poll(&self) -> Option<ExitStatus> {
        let mut status = 0;
        // SAFETY: `status` is valid; the child is ours and not yet waited for.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        (pid == self.pid).then(|| ExitStatus::from_raw(status))
    }

    /// The first process of a container gets all children whose parents have ended.
    fn reap_orphans(&self) {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            // SAFETY: `info` has room for what is written; of zeros it is a value too.
            let ended = unsafe {
                let found = libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) == 0;
                if found { info.assume_init().si_pid() } else { 0 }
            };
            if ended == 0 || ended == self.pid {
                return;
            }
            // SAFETY: it has ended, and nobody else waits for it; its status is not asked for.
            unsafe { libc::waitpid(ended, ptr::null_mut(), libc::WNOHANG) };
        }
    }

    fn stop_together(&self) {
        send(std::process::id().cast_signed(), libc::SIGSTOP);
        send(self.pid, libc::SIGCONT);
    }
}

extern "C" fn ask_for_pipe() {
    let mut action = MaybeUninit::uninit();
    // SAFETY: nothing is changed, and `action` has room for what is written.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it was written.
    let is_ignored = asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN;
    IGNORES_PIPE.store(is_ignored, Ordering::Relaxed);
}

fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// A program could not be started, for this reason.
pub fn not_started(message: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::not_found(format!("{message} (give a program that is in PATH, or its path)"))
        }
        _ if is_shortage(error) => Failure::failed(format!("{message} (have fewer processes or files open)")),
        io::ErrorKind::PermissionDenied => {
            Failure::cannot_execute(format!("{message} (give a file that may be executed)"))
        }
        _ => Failure::cannot_execute(format!("{message} (give a program of this machine's kind)")),
    }
}

/// No fault of the program's: it could not be forked.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE))
}

/// What a shell would call it.
pub fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call. A child that has just ended is not waited for yet, so the number is its own.
    unsafe { libc::kill(pid, signal) };
}

/// Whether `process` is `ancestor` or a descendant of it.
fn descends(process: i32, ancestor: i32) -> bool {
    let (mut process, ancestor) = (process.unsigned_abs(), ancestor.unsigned_abs());
    while process > 1 && process != ancestor {
        process = Stat::of(process).map_or(0, |stat| stat.parent);
    }
    process == ancestor
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is valid; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// Children of a process that ignores SIGCHLD leave no status: stops ignoring it, and says whether it did.
pub fn reap_children() -> bool {
    // SAFETY: the default action is no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN }
}
