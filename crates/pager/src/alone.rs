//! What the kernel lets no process do that has several threads: entering a user namespace, by unshare or setns.
//!
//! Where the program has one thread, those of the pager end for the time of such a call, and are started anew. Nobody
//! brings pages back meanwhile, so the call has its arguments by value and its caller touches no managed memory.
//! Price: a millisecond or two, and stacks that stay as they are in a fork's child. Where threads could not be
//! started again (children of this process would be in another PID or time namespace than itself), the call is not
//! made.

use crate::engine::Engine;
use crate::face::SetupError;
use crate::pager::Pager;
use crate::workers;
use ramfold_budget::time::now_ns;
use rustix::fs::readlinkat;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the threads may take to begin, or to end.
const PATIENCE_NS: u64 = 60_000_000_000;

impl Pager {
    /// Calls `call` while the pager has no threads. None if it has none at all, or cannot do without them. The caller
    /// is the only thread of the program, and blocks signals.
    ///
    /// # Errors
    /// [`SetupError`]: the threads could not be started again, so the program has to end.
    pub fn without_threads<R>(&self, call: impl FnOnce() -> R) -> Result<Option<R>, SetupError> {
        let Some(engine) = self.engine.get().filter(|engine| can_start_threads(engine)) else {
            return Ok(None);
        };
        end_threads(engine);
        let result = call();
        workers::start(engine)?;
        Ok(Some(result))
    }
}

/// Ends the pager's threads, each when its piece of work is done. They can be started again.
pub(crate) fn end_threads(engine: &Engine) {
    // One that has just been started may not have come to its first line.
    wait_until(engine, || engine.threads().len() == workers::THREADS);
    engine.stop();
    wait_until(engine, || !engine.threads().iter().any(|tid| is_alive(*tid)));
    engine.threads().clear();
    engine.stopping.store(false, Ordering::Release);
}

fn wait_until(engine: &Engine, is_so: impl Fn() -> bool) {
    let begun = now_ns();
    while !is_so() {
        if now_ns() - begun > PATIENCE_NS {
            engine.die("internal error: the pager's threads do not end (please report it)");
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Whether this thread of the process is still known to the kernel.
fn is_alive(tid: u32) -> bool {
    // SAFETY: signal 0 is not sent; it only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0 }
}

/// Whether threads of this process would be where it is itself: else the kernel starts none.
fn can_start_threads(engine: &Engine) -> bool {
    let proc = &engine.member.usage.proc;
    let link = |name: &str| readlinkat(&proc.0, proc.own(&format!("ns/{name}")).ok()?, Vec::new()).ok();
    [("pid", "pid_for_children"), ("time", "time_for_children")]
        .iter()
        .all(|(own, next)| link(own) == link(next))
}
