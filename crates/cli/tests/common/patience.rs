//! Waiting for what others do: a minute at most, so that a test that hopes in vain fails.

#![allow(dead_code)] // each test binary uses its part

use std::time::{Duration, Instant};

/// Asks every 2 ms until there is an answer.
pub fn wait_for_some<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asks every 2 ms until it is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for_some(what, || is_so().then_some(()));
}
