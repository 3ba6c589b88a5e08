//! What the server of a block device of its own machine needs: it is a part of the way on which memory is made free.
//!
//! Where memory is short the kernel writes a file system's pages to such a device, and waits for it. So the server's
//! memory is locked, its threads do not wait for I/O when they take more (`PR_SET_IO_FLUSHER`), and the OOM killer
//! leaves it alone: its end would be that of the disk. It is not enough for swap, where all that is left to make free
//! are pages for which the server itself needs memory (docs/disk.md).

use crate::failure::say;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;
use std::fs;

/// Prepares this process and this thread, and all threads that it starts from now on. What the system refuses is told.
pub fn hold() {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        say(&format!("disk: {what}: {error} (short of memory, the machine may stand still: leave it some)"));
    };
    // All that there is now is brought in, the program's own text too; of what comes later, what is touched.
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(all)) {
        refused("memory cannot be locked", &error);
    }
    if let Err(error) = configure_io_flusher_behavior(true) {
        refused("the kernel does not take it for a part of its I/O", &error);
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        refused("the OOM killer may choose it", &error);
    }
}
