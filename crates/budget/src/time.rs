//! Clocks, in nanoseconds, and sleep. By raw system calls: also where the program has replaced libc's functions.

use rustix::thread::nanosleep;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// Time that only goes forward.
#[must_use]
pub fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// The same, some milliseconds old at most, for a load of memory: for who asks at each page.
#[must_use]
pub fn coarse_ns() -> u64 {
    clock_ns(ClockId::MonotonicCoarse)
}

/// How long the calling thread has been running on a processor.
#[must_use]
pub fn thread_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// For a thread of the program's: it is not cancelled here, as libc's function of this name would allow. A signal may
/// end it early.
pub fn sleep(time: Duration) {
    if let Ok(time) = Timespec::try_from(time) {
        let _ = nanosleep(&time);
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
