//! A server of several disks, and the directory that it works in.

use crate::client::Client;
use crate::command::{self, Outcome, command, finish, one_line};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A directory for sockets, images and names that no other test knows.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of disks, in which `@` stands for this directory.
    pub fn config(&self, text: &str) -> String {
        let path = self.path("disks.toml");
        fs::write(&path, self.here(text)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn here(&self, text: &str) -> String {
        text.replace('@', self.0.path().to_str().unwrap())
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        // A server that should not have begun is no reason to wait for ever.
        let mut command = Command::new("timeout");
        command.args(["30", command::PATH]).args(arguments).stdin(Stdio::null());
        finish(command.env("XDG_RUNTIME_DIR", self.0.path()))
    }

    /// What `ctl` prints.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let outcome = self.run(&[&["ctl"], arguments].concat());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        outcome.stdout
    }

    pub fn fails(&self, arguments: &[&str], code: i32, part: &str) {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {}", outcome.stderr);
        let line = one_line(&outcome.stderr);
        assert!(line.starts_with("ramfold: ") && line.contains(part), "{arguments:?}: {line}");
    }

    pub fn names(&self) -> Vec<String> {
        let found = fs::read_dir(self.path("ramfold")).unwrap();
        let mut names: Vec<String> = found.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn client(&self, socket: &str) -> Client {
        Client::connect(&self.path(socket))
    }
}

/// A server of disks, until it is dropped.
pub struct Server {
    pub process: Child,
    uris: BufReader<ChildStdout>,
}

impl Server {
    pub fn start(place: &Place, options: &[&str], disks: usize) -> Self {
        let mut command = command(&[&["disk"], options].concat());
        command.env("XDG_RUNTIME_DIR", place.0.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut uris = BufReader::new(process.stdout.take().unwrap());
        for _ in 0..disks {
            let mut line = String::new();
            uris.read_line(&mut line).unwrap();
            assert!(line.starts_with("nbd"), "{line}");
        }
        Self { process, uris }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self) {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.pid().cast_signed(), libc::SIGTERM) };
    }

    /// Ends it as a user would.
    pub fn stop(mut self) -> Option<i32> {
        self.signal();
        let mut rest = String::new();
        self.uris.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "a line for each disk of the file, and no more");
        self.process.wait().unwrap().code()
    }

    /// Bytes of anonymous memory.
    pub fn anonymous(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// What `top` shows of it.
    pub fn top(&self, place: &Place) -> serde_json::Value {
        let pid = self.pid().to_string();
        let told = place.run(&["top", &pid, "--interval", "0.1", "--count", "1", "--json"]);
        serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error}: {told:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
