//! Clocks, in nanoseconds. Read by raw system calls: also where the program has replaced libc's functions.

use rustix::time::{ClockId, clock_gettime};

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

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
