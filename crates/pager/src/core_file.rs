//! What a process keeps for its core dump ([`crate::dump`]): where it goes, and who waits until it is there.

use ramfold_budget::event::Event;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long the thread that dies waits without seeing that anything is done.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// What a process keeps for its core dump.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    /// Where the swap file is.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) asked: AtomicBool,
    /// Groups that were seen to.
    pub(crate) progress: AtomicU64,
    pub(crate) done: AtomicBool,
    pub(crate) waiter: Event,
}

impl Dump {
    pub(crate) fn new(swap: Option<&File>) -> Self {
        Self { directory: swap.and_then(directory), ..Self::default() }
    }

    pub(crate) fn wait(&self) {
        let (mut seen, mut idle) = (0, Duration::ZERO);
        while !self.done.load(Ordering::Acquire) && idle < PATIENCE {
            self.waiter.wait(LOOK);
            let now = self.progress.load(Ordering::Relaxed);
            idle = if now == seen { idle + LOOK } else { Duration::ZERO };
            seen = now;
        }
    }
}

fn directory(file: &File) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    path.parent().map(PathBuf::from)
}
