//! A program under `ramfold run` that takes memory as it is told to, line by line, and goes over all that it has.

#![allow(dead_code)] // each test binary uses its part

use crate::common::{Running, memory};
use ramfold_budget::segment::Segment;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Takes so many MiB for each line that it reads, and says when it has gone over all that it has, twice.
const PROGRAM: &str = "
import os, sys
data = []
for line in sys.stdin:
    data += [bytearray(os.urandom(1536) + bytes(2560)) for _ in range(int(line) * 256)]
    for _ in range(2):
        for block in data: block[7] = 1
    print(len(data), flush=True)
";

/// The program under `ramfold run`.
pub struct Run {
    running: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Run {
    /// Starts it with these options, and has it take the first MiB.
    pub fn start(options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold"));
        command.arg("run").args(options).args(["--", "python3", "-c", PROGRAM]);
        let mut running = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (input, output) = (running.child.stdin.take().unwrap(), running.child.stdout.take().unwrap());
        let mut started = Self { running, input, output: BufReader::new(output) };
        started.grow(1);
        started
    }

    /// The process of `ramfold run`.
    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    pub fn grow(&mut self, mib: u64) {
        writeln!(self.input, "{mib}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.trim().parse::<u64>().is_ok_and(|count| count > 0), "{line}");
    }

    /// Bytes that the program has of the limit.
    pub fn charged(&self) -> u64 {
        let (program, segment) = (memory::only_child(self.pid()), segment_of(self.pid()));
        let own = segment.processes().into_iter().find(|process| process.pid == program);
        own.map_or(0, |process| segment.charged(process.slot))
    }

    /// The status of `ramfold run`, once the program has come to the end of its input.
    pub fn end(self) -> Option<i32> {
        let Self { mut running, input, .. } = self;
        drop(input);
        running.child.wait().unwrap().code()
    }
}

/// The account of the limit that this process has a part of.
pub fn segment_of(pid: u32) -> Segment {
    let held = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().map(|entry| entry.path());
    let is_segment =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("ramfold-segment"));
    Segment::open(held.into_iter().find(is_segment).unwrap().to_str().unwrap()).unwrap()
}
