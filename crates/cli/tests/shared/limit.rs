//! One limit that several commands share: who has a part of it, and whether it holds, seen from outside.

#![allow(dead_code)] // each test binary uses its part

use crate::command::{PATH, ramfold};
use crate::common::memory::{self, Sampler};
use crate::common::{need, scratch};
use crate::growing::{Run, segment_of};
use ramfold_budget::segment::{Gauge, Segment};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
pub const LIMIT: u64 = 64 * MIB;

/// A command that runs, until it is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn start(arguments: &[&str], input: Stdio, output: Stdio) -> Self {
        let mut command = Command::new(PATH);
        Self(command.args(arguments).stdin(input).stdout(output).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.pid().cast_signed(), signal) };
    }

    pub fn stop(mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.0.wait().unwrap().code()
    }

    /// Its part of the account: bytes of its pool.
    pub fn pool(&self) -> u64 {
        let segment = segment_of(self.pid());
        let own = segment.processes().into_iter().find(|process| process.pid == self.pid());
        own.map_or(0, |process| segment.gauge(process.slot, Gauge::Pool))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A place, with a program that shares its limit there.
pub struct Shared {
    place: TempDir,
    pub run: Run,
}

impl Shared {
    pub fn start() -> Self {
        let place = scratch();
        let path = place.path().join("budget");
        let limit = LIMIT.to_string();
        let run = Run::start(&["-m", &limit, "--swap-size", "2G", "--share", path.to_str().unwrap()]);
        Self { place, run }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub fn pid(&self) -> u32 {
        self.run.pid()
    }

    pub fn grow(&mut self, mib: u64) {
        self.run.grow(mib);
    }

    /// Another such program, within the limit.
    pub fn join(&self) -> Run {
        Run::start(&["--budget", self.path("budget").to_str().unwrap()])
    }
}

/// Every 10 ms: the anonymous memory of these and their children together, and what the account says. Gives the most.
pub fn watch_beside(run: u32, beside: u32, segment: Segment) -> impl FnOnce() -> (u64, u64) {
    let real = Sampler::of(move || memory::with_beside(run, || memory::of_unrelated(beside), LIMIT));
    let account = Sampler::of(move || segment.in_use());
    || (real.stop(), account.stop())
}

/// The limit holds in what is seen from outside, but for the memory of `ramfold run` itself, and in the account.
pub fn assert_within((real, account): (u64, u64)) {
    println!("at most {} KiB real, {} KiB in the account, of {} KiB", real >> 10, account >> 10, LIMIT >> 10);
    assert!(real <= LIMIT + 4 * MIB, "{} KiB of {}", real >> 10, LIMIT >> 10);
    assert!(account <= LIMIT + MIB, "{} KiB of {}", account >> 10, LIMIT >> 10);
}

pub fn can_run() -> bool {
    need::userfaultfd() && need::programs(&["python3"])
}

/// What `ramfold top` shows once.
pub fn top(pid: u32) -> serde_json::Value {
    let pid = pid.to_string();
    let top = ["top", &pid, "--count", "1", "--interval", "0.1", "--json"];
    serde_json::from_str(&ramfold(&top).stdout).unwrap()
}

/// The processes that it shows.
pub fn members(pid: u32) -> Vec<u64> {
    top(pid)["living"].as_array().unwrap().iter().filter_map(|one| one["pid"].as_u64()).collect()
}
