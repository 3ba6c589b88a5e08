//! Words at which threads wait: what the pager's gate, events and phases are made of.
//!
//! These three use nothing else to synchronise, so that `crates/races` can put a model of this file under them and
//! try every order of their steps.

use rustix::thread::{Timespec, futex};
pub use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// All waiters: the kernel takes the count as an int.
pub const ALL: u32 = i32::MAX.cast_unsigned();

/// Sleeps while the word has this value, and no longer than `timeout`. An early return (a signal) only means another
/// look. `SHARED`: with other processes.
pub fn wait<const SHARED: bool>(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let _ = futex::wait(word, flags::<SHARED>(), value, timeout.as_ref());
}

/// Wakes up to `count` of those that sleep at the word.
pub fn wake<const SHARED: bool>(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, flags::<SHARED>(), count);
}

fn flags<const SHARED: bool>() -> futex::Flags {
    if SHARED { futex::Flags::empty() } else { futex::Flags::PRIVATE }
}
