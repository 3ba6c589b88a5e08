//! A model of `crates/pager/src/futex.rs`: the kernel's look at the word and its going to sleep are one step.

pub use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use std::time::Duration;

pub const ALL: u32 = u32::MAX;

loom::lazy_static! {
    /// All sleepers, whatever their word: one that is woken for another looks again and goes on sleeping.
    static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// Sleeps while the word has this value, until it is woken: no timeout helps out.
pub fn wait<const SHARED: bool>(word: &AtomicU32, value: u32, _timeout: Option<Duration>) {
    let guard = SLEEPERS.0.lock().unwrap();
    // The kernel's look has the lock's order and no other.
    if word.load(Ordering::Relaxed) == value {
        drop(SLEEPERS.1.wait(guard).unwrap());
    }
}

/// Wakes all: to wake too many is always allowed.
pub fn wake<const SHARED: bool>(_word: &AtomicU32, _count: u32) {
    let _guard = SLEEPERS.0.lock().unwrap();
    SLEEPERS.1.notify_all();
}
