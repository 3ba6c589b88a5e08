//! Memory that stays, for servers that others wait for while memory is short.
//!
//! `--lock-memory` is for a disk whose pages must not go to the machine's own swap, as those of zram never do. The
//! server of a block device of its own machine needs more: it is a part of the way on which memory is made free.
//! Where memory is short the kernel writes a file system's pages to such a device, and waits for it. So its threads
//! do not wait for I/O when they take more (`PR_SET_IO_FLUSHER`), and the OOM killer leaves it alone: its end would
//! be that of the disk. It is not enough for swap, where all that is left to make free are pages for which the server
//! itself needs memory (docs/disk.md).

use crate::failure::{Failure, say};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;

/// Locks the memory of this process, what it takes from now on with it. A bound on what it may lock would end it, or
/// have it refuse writes, some time later; so there must be none.
pub fn lock() -> Result<(), Failure> {
    let is_bound = getrlimit(Resource::Memlock).current.is_some()
        && !capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    let why = if is_bound {
        "the limit RLIMIT_MEMLOCK holds for this process".to_owned()
    } else {
        let Err(error) = lock_all() else { return Ok(()) };
        error.to_string()
    };
    let what = "ulimit -l unlimited, LimitMEMLOCK=infinity, or be root";
    Err(Failure::failed(format!("--lock-memory: memory cannot be locked: {why} ({what})")))
}

/// Prepares the server of a device: this process and this thread, and all threads that it starts from now on. What the
/// system refuses is told.
pub fn hold() {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        say(&format!("disk: {what}: {error} (short of memory, the machine may stand still: leave it some)"));
    };
    if let Err(error) = lock_all() {
        refused("memory cannot be locked", &error);
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        refused("the kernel does not take it for a part of its I/O", &error);
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        refused("the OOM killer may choose it", &error);
    }
}

/// All that there is now is brought in, the program's own text too; of what comes later, what is touched.
fn lock_all() -> rustix::io::Result<()> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(all))
}
