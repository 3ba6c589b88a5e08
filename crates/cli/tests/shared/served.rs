//! One disk that is served, and the clients that people use.

#![allow(dead_code)] // each test binary uses its part

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A disk that is served, until it is dropped.
pub struct Disk {
    pub process: Child,
    pub uri: String,
}

impl Disk {
    pub fn start(options: &[&str]) -> Self {
        Self::start_telling(options, Stdio::null())
    }

    /// What it tells goes there.
    pub fn start_telling(options: &[&str], stderr: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ramfold"));
        command.arg("disk").args(options).stdout(Stdio::piped()).stderr(stderr);
        let mut process = command.spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        Self { process, uri: uri.trim().to_owned() }
    }

    /// Ends it as a user would.
    pub fn stop(mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.process.wait().unwrap().code()
    }

    /// Its status, if it ends within a minute.
    pub fn wait(mut self) -> Option<i32> {
        let begun = std::time::Instant::now();
        while begun.elapsed().as_secs() < 60 {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        None
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.process.id().cast_signed(), signal) };
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a client: what it printed, if it succeeded.
pub fn client(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(done.stdout).unwrap()
}
