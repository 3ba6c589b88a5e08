//! `ramfold disk` as a service: the unit of systemd that the package has, and memory that is locked.

#[path = "shared/client.rs"]
mod client;
mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;
#[path = "common/patience.rs"]
mod patience;
#[path = "shared/served.rs"]
mod served;

use client::Client;
use command::{PATH, finish, one_line};
use patience::wait_for;
use served::Disk;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const UNIT: &str = include_str!("../../../packaging/systemd/ramfold-disk@.service");

/// What is kept locked of a process, and what it has, in bytes.
fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    value.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() << 10
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    if !need::programs(&["systemd-analyze"]) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("ramfold-disk@scratch.service");
    fs::write(&path, UNIT.replace("/usr/bin/ramfold", PATH)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let done = finish(verify.args(["verify", "--man=no"]).arg(&path));
    // It complains of units of the machine too; an unknown line of this one is no failure to it.
    let ours: Vec<&str> = done.stderr.lines().filter(|line| line.contains("ramfold-disk@")).collect();
    assert_eq!((done.code, ours), (Some(0), vec![]), "{}", done.stderr);
}

/// The service manager starts what the unit says, waits until it is told that the disks are there, and stops it.
#[test]
fn the_units_command_serves_and_tells_when() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let here = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let disk = format!("[[disk]]\nname = \"scratch\"\nsize = \"16M\"\nunix = \"{}\"\n", here("socket"));
    fs::write(here("scratch.toml"), disk).unwrap();
    let line = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/ramfold ")).unwrap();
    let line =
        line.replace("/etc/ramfold/%i", &here("%i")).replace("%i", "scratch").replace("$OPTIONS", "-m 64M");
    let manager = UnixDatagram::bind(here("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let told = || {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let mut service = Command::new(PATH);
    service
        .args(line.split(' '))
        .env("NOTIFY_SOCKET", here("notify"))
        .env("XDG_RUNTIME_DIR", directory.path());
    let mut service = service.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(told().trim(), "READY=1");
    let mut client = Client::connect(Path::new(&here("socket")));
    assert_eq!(client.write(0, &[7; 4096]), 0);
    let mut ctl = command::command(&["ctl", "disks-scratch", "disks"]);
    assert!(finish(ctl.env("XDG_RUNTIME_DIR", directory.path())).stdout.starts_with("scratch 16777216 "));
    // SAFETY: a plain system call; the child is not waited for yet.
    unsafe { libc::kill(service.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(told().trim(), "STOPPING=1");
    assert_eq!(service.wait().unwrap().code(), Some(0));
}

#[test]
fn locked_memory_is_given_back_all_the_same() {
    // SAFETY: plain integers.
    let can = unsafe { libc::prctl(libc::PR_CAPBSET_READ, 14) } == 1;
    if !need::root() || !(can || need::skip("CAP_IPC_LOCK is not to be had")) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("socket");
    let disk = Disk::start(&["--size", "64M", "--lock-memory", "--unix", socket.to_str().unwrap()]);
    let pid = disk.process.id();
    let mut client = Client::connect(&socket);
    let before = status(pid, "RssAnon");
    let mut state = 1_u64;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()[7]
    });
    let bytes: Vec<u8> = random.take(16 << 20).collect();
    assert_eq!(client.write(0, &bytes), 0);
    let full = status(pid, "RssAnon");
    assert!(full > before + (14 << 20), "{before} {full}");
    assert!(status(pid, "VmLck") > full);
    // What is discarded goes back to the system though it was locked.
    assert_eq!(client.trim(0, 16 << 20), 0);
    wait_for("memory is given back", || status(pid, "RssAnon") < full - (12 << 20));
    assert_eq!(disk.stop(), Some(0));
}

#[test]
fn memory_that_may_not_be_locked_is_told_in_one_line() {
    if !need::root() || !need::programs(&["setpriv", "prlimit"]) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("socket");
    let mut command = Command::new("timeout");
    command.args(["30", "setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536", PATH, "disk"]);
    let done = finish(command.args(["--size", "1M", "--lock-memory", "--unix"]).arg(&socket));
    assert_eq!(done.code, Some(125), "{}", done.stderr);
    let line = one_line(&done.stderr);
    assert!(line.contains("--lock-memory") && line.contains("LimitMEMLOCK"), "{line}");
    assert!(!socket.exists());
}
