//! `ramfold ctl` beside a disk, as its users see it, and as those see it who mean no good.

mod command;
#[path = "common/patience.rs"]
mod patience;

use command::{Outcome, command, finish, one_line};
use patience::wait_for;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A directory for sockets that no other test knows.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.path().join("ramfold").join(format!("{name}.ctl"))
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        finish(command(arguments).env("XDG_RUNTIME_DIR", self.path()))
    }

    /// What `ctl` prints.
    fn ctl(&self, arguments: &[&str]) -> String {
        let outcome = self.run(&[&["ctl"], arguments].concat());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        outcome.stdout
    }

    fn fails(&self, arguments: &[&str], code: i32, part: &str) {
        let outcome = self.run(&[&["ctl"], arguments].concat());
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(code), ""),
            "{arguments:?}: {}",
            outcome.stderr
        );
        let line = one_line(&outcome.stderr);
        assert!(line.starts_with("ramfold: ctl ") && line.contains(part), "{arguments:?}: {line}");
    }
}

/// A disk of 16 MiB that is served, until it is dropped.
struct Disk {
    process: Child,
    told: BufReader<std::process::ChildStderr>,
    nbd: PathBuf,
}

impl Disk {
    fn start(place: &Place, number: u32, options: &[&str]) -> Self {
        let nbd = place.path().join(format!("nbd{number}"));
        let mut command = command(&["disk", "--size", "16M", "--unix", nbd.to_str().unwrap()]);
        command.args(options).env("XDG_RUNTIME_DIR", place.path());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let told = BufReader::new(process.stderr.take().unwrap());
        Self { process, told, nbd }
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        line
    }

    /// Ends it as a user would.
    fn stop(mut self) -> Option<i32> {
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::kill(self.process.id().cast_signed(), libc::SIGTERM) };
        self.process.wait().unwrap().code()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn attributes_are_read_and_written() {
    let place = Place::new();
    let mut disk =
        Disk::start(&place, 0, &["--name", "scratch", "--backing-dev", "/var/tmp", "--mem-limit", "4M"]);
    let line = disk.first_line();
    assert!(
        line.contains("scratch, 16.0 MiB in memory") && line.contains("ends with this process"),
        "{line}"
    );
    assert_eq!(place.ctl(&["scratch", "disksize"]), "16777216\n");
    assert_eq!(place.ctl(&["scratch", "mem_limit"]), "4194304\n");
    assert_eq!(place.ctl(&["scratch", "comp_algorithm"]), "[lz4] lz4hc zstd deflate lzo lzo-rle\n");
    assert_eq!(place.ctl(&["scratch", "recomp_algorithm"]), "#1: lz4 lz4hc [zstd:1] deflate lzo lzo-rle\n");
    assert!(place.ctl(&["scratch", "backing_dev"]).starts_with("/var/tmp/"));
    assert_eq!(place.ctl(&["scratch", "mm_stat"]).split_whitespace().count(), 9);
    assert_eq!(place.ctl(&["scratch", "mem_limit", "8M"]), "");
    let json: serde_json::Value =
        serde_json::from_str(&place.ctl(&["scratch", "mm_stat", "--json"])).unwrap();
    assert_eq!((&json["mem_limit"], &json["orig_data_size"]), (&(8 << 20).into(), &0.into()));
    assert_eq!(place.ctl(&["scratch", "fresh_enabled"]), "1\n");
    let json: serde_json::Value =
        serde_json::from_str(&place.ctl(&["scratch", "fresh_stat", "--json"])).unwrap();
    assert_eq!(json["fresh_bytes"], 0);
    let without = Disk::start(&place, 1, &["--name", "plain", "--no-fresh"]);
    assert_eq!(place.ctl(&["plain", "fresh_enabled"]), "0\n");
    assert_eq!(without.stop(), Some(0));
    place.ctl(&["scratch", "algorithm_params", "priority=1", "level=9", "dict=auto"]);
    assert_eq!(
        place.ctl(&["scratch", "algorithm_params"]),
        "priority=0 algo=lz4 level=1\npriority=1 algo=zstd level=9 dict=auto dict_bytes=0 dict_made=0\n"
    );
    place.ctl(&["scratch", "comp_algorithm", "zstd:3"]);
    place.ctl(&["scratch", "recompress", "type=idle", "threshold=2000"]);
    place.ctl(&["scratch", "idle", "all"]);
    place.ctl(&["scratch", "writeback", "type=idle"]);
    let socket = place.socket("scratch");
    assert_eq!(
        place.ctl(&[socket.to_str().unwrap(), "comp_algorithm"]),
        "lz4 lz4hc [zstd:3] deflate lzo lzo-rle\n"
    );
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(disk.stop(), Some(0));
    assert!(!socket.exists(), "the socket goes with the server");
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let place = Place::new();
    let _disk = Disk::start(&place, 0, &[]);
    for (arguments, code, part) in [
        (&["disk0", "colour"][..], 2, "no attribute"),
        (&["disk0", "mm_stat", "1"], 2, "only be read"),
        (&["disk0", "reset"], 2, "only be written"),
        (&["disk0", "mem_limit", "lots"], 2, "512M"),
        (&["disk0", "mem_limit", "-1"], 2, "512M"),
        (&["disk0", "idle\nreset", "1"], 2, "one line"),
        (&["disk0", "mem_limit", "4K"], 125, "too little"),
        (&["disk0", "comp_algorithm", "zip"], 125, "zip"),
        (
            &["disk0", "algorithm_params", "priority=1", "dict=/no/such/file"],
            125,
            "dictionary /no/such/file: No such",
        ),
        (&["disk0", "algorithm_params", "dict=auto"], 125, "only zstd has dictionaries"),
        (&["disk0", "writeback", "type=idle"], 125, "--backing-dev"),
        (&["disk0", "disksize", "1G"], 125, "reset it first"),
        (&["disk7", "mm_stat"], 125, "nothing runs under the name disk7"),
        (&["../disk0", "mm_stat"], 125, "No such file"),
        (&[".", "mm_stat"], 125, "is no name"),
    ] {
        place.fails(arguments, code, part);
    }
    let long = "x".repeat(5000);
    place.fails(&["disk0", "comp_algorithm", &long], 2, "longer than 4096 bytes");
    assert_eq!(place.run(&["ctl", "disk0"]).code, Some(2));
    let nowhere = finish(command(&["ctl", "disk0", "mm_stat"]).env("XDG_RUNTIME_DIR", "/no/such/place"));
    assert_eq!(nowhere.code, Some(125), "{}", nowhere.stderr);
}

#[test]
fn disks_have_names_and_the_dead_leave_none() {
    let place = Place::new();
    let (first, second) = (Disk::start(&place, 0, &[]), Disk::start(&place, 1, &[]));
    assert_eq!(place.ctl(&["disk0", "initstate"]), "1\n");
    assert_eq!(place.ctl(&["disk1", "initstate"]), "1\n");
    let taken = |name: &str| {
        let nbd = place.path().join("other");
        place.run(&["disk", "--size", "16M", "--unix", nbd.to_str().unwrap(), "--name", name])
    };
    let outcome = taken("disk1");
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("the name disk1 is taken"), "{}", outcome.stderr);
    let outcome = taken("../x");
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    // Killed: its socket stays until somebody asks, or the next one comes.
    drop(first);
    assert!(place.socket("disk0").exists());
    place.fails(&["disk0", "initstate"], 125, "nothing runs under the name disk0");
    assert!(!place.socket("disk0").exists());
    drop(second);
    let third = Disk::start(&place, 2, &[]);
    assert!(place.socket("disk0").exists() && !place.socket("disk1").exists());
    assert_eq!(third.stop(), Some(0));
}

#[test]
fn a_disk_in_use_is_not_reset() {
    let place = Place::new();
    let disk = Disk::start(&place, 0, &[]);
    let client = UnixStream::connect(&disk.nbd).unwrap();
    negotiate(&client);
    place.fails(&["disk0", "reset", "1"], 125, "has clients");
    drop(client);
    wait_for("the client is gone", || place.run(&["ctl", "disk0", "reset", "1"]).code == Some(0));
    assert_eq!(place.ctl(&["disk0", "initstate"]), "0\n");
    place.ctl(&["disk0", "disksize", "8M"]);
    assert_eq!(place.ctl(&["disk0", "disksize"]), "8388608\n");
}

/// As far as a client is one: fixed newstyle, NBD_OPT_EXPORT_NAME of the empty name.
fn negotiate(mut client: &UnixStream) {
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(&3_u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
}

#[test]
fn hostile_clients_disturb_nobody() {
    let place = Place::new();
    let disk = Disk::start(&place, 0, &[]);
    let socket = place.socket("disk0");
    let connect = || UnixStream::connect(&socket).unwrap();
    // Nonsense, too much of it, half a line, a line of which nobody reads the answer.
    for bytes in [&[0xff; 100][..], &[b'a'; 100_000], b"mm_stat", b"block_state\n", b"\n\n\n\n", b"\0"] {
        let mut client = connect();
        let _ = client.write_all(bytes);
        drop(client);
    }
    let mut answer = String::new();
    let mut client = connect();
    client.write_all(b"mm_stat\ngarbage that follows\n").unwrap();
    let _ = client.read_to_string(&mut answer);
    assert!(answer.starts_with("ok\n"), "{answer}");
    // Some that never say a word, and more than there is room for.
    let silent: Vec<UnixStream> = (0..30).map(|_| connect()).collect();
    assert!(silent.iter().any(|mut client| {
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.read(&mut [0]).is_ok_and(|len| len == 0)
    }));
    wait_for("those who say nothing are hung up on", || {
        place.run(&["ctl", "disk0", "initstate"]).stdout == "1\n"
    });
    drop(silent);
    assert_eq!(disk.stop(), Some(0));
}
