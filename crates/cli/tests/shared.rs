//! One limit for several doors that are started one by one: `--share` and `--budget` of disks and mounts, with each
//! other and with a run. Runs among themselves are in `shared_runs.rs`.

#[path = "shared/client.rs"]
mod client;
mod command;
mod common;
#[path = "shared/growing.rs"]
mod growing;
#[path = "shared/limit.rs"]
mod limit;

use client::Client;
use command::{Outcome, command, finish, ramfold};
use common::patience::wait_for;
use common::{memory, need};
use growing::{Run, segment_of};
use limit::{LIMIT, MIB, Running, Shared, assert_within, can_run, members, top, watch_beside};
use ramfold::PAGE_SIZE;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Pages that a request of the tests' client has.
const PIECE: u64 = 32;

impl Shared {
    fn disk(&self, name: &str, more: &[&str]) -> (Running, Client) {
        let (budget, socket) = (self.path("budget"), self.path(name));
        let options = ["disk", "--size", "256M", "--budget", budget.to_str().unwrap()];
        start_disk(&[&options[..], more].concat(), &socket)
    }
}

fn start_disk(options: &[&str], socket: &Path) -> (Running, Client) {
    let options = [options, &["--unix", socket.to_str().unwrap()]].concat();
    let mut disk = Running::start(&options, Stdio::null(), Stdio::piped());
    let mut uri = String::new();
    BufReader::new(disk.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();
    assert!(uri.starts_with("nbd+unix"), "{uri}");
    (disk, Client::connect(socket))
}

/// Bytes that compress to about two fifths.
fn piece(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(PIECE).unwrap() * PAGE_SIZE];
    let mut random = (number << 8 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for page in bytes.chunks_mut(PAGE_SIZE) {
        for word in page[..1600].as_chunks_mut::<8>().0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *word = random.to_le_bytes();
        }
    }
    bytes
}

const PIECE_BYTES: u64 = PIECE * PAGE_SIZE as u64;

fn fill(client: &mut Client, mib: u64, version: u64) {
    for number in 0..mib * MIB / PIECE_BYTES {
        assert_eq!(client.write(number * PIECE_BYTES, &piece(number, version)), 0, "piece {number}");
    }
}

fn check(client: &mut Client, mib: u64, version: u64) {
    for number in 0..mib * MIB / PIECE_BYTES {
        let read = client.read(number * PIECE_BYTES, usize::try_from(PIECE_BYTES).unwrap());
        assert!(read == piece(number, version), "piece {number}");
    }
}

/// See [`watch_beside`].
fn watch(pids: [u32; 2]) -> impl FnOnce() -> (u64, u64) {
    watch_beside(pids[0], pids[1], segment_of(pids[1]))
}

#[test]
fn a_disk_and_a_run_share_one_limit() {
    if !can_run() {
        return;
    }
    let mut shared = Shared::start();
    let (disk, mut client) = shared.disk("disk.sock", &[]);
    let stop = watch([shared.pid(), disk.pid()]);
    fill(&mut client, 200, 1);
    let busy = disk.pool();
    assert!(busy > LIMIT / 2, "the disk has most of the memory: {} MiB", busy / MIB);
    shared.grow(128);
    wait_for("memory goes from the idle disk to the run", || {
        shared.grow(1);
        disk.pool() < busy / 2
    });
    check(&mut client, 200, 1);
    let mut version = 1;
    wait_for("memory comes back to the disk that works", || {
        version += 1;
        fill(&mut client, 200, version);
        disk.pool() > busy / 2
    });
    check(&mut client, 200, version);
    shared.grow(1);
    assert_within(stop());
    assert_eq!(disk.stop(), Some(0));
    wait_for("the disk gives its place back", || segment_of(shared.pid()).living() == 1);
}

#[test]
fn a_mount_and_a_run_share_one_limit() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(can_run() && need::root() && (fuse || need::skip("there is no /dev/fuse"))) {
        return;
    }
    let mut shared = Shared::start();
    let (source, at) = (shared.path("source"), shared.path("at"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&at).unwrap();
    let file =
        |name: u64| (0..64 * MIB / PIECE_BYTES).flat_map(|number| piece(number, name)).collect::<Vec<u8>>();
    (0..4).for_each(|name| fs::write(source.join(name.to_string()), file(name)).unwrap());
    // What was written just now is not kept.
    std::thread::sleep(Duration::from_secs(6));
    let budget = shared.path("budget");
    let paths = [&source, &at, &budget].map(|path| path.to_str().unwrap());
    let mount = ["mount", paths[0], paths[1], "--budget", paths[2]];
    let mount = Running::start(&mount, Stdio::null(), Stdio::null());
    wait_for("it is mounted", || at.join("0").exists());
    let stop = watch([shared.pid(), mount.pid()]);
    let read = |names: std::ops::Range<u64>| {
        for name in names {
            assert!(fs::read(at.join(name.to_string())).unwrap() == file(name), "file {name}");
        }
    };
    read(0..2);
    let busy = mount.pool();
    assert!(busy > LIMIT / 4, "the mount keeps what it reads: {} MiB", busy / MIB);
    shared.grow(128);
    wait_for("memory goes from the idle mount to the run", || {
        shared.grow(1);
        mount.pool() < busy / 2
    });
    wait_for("memory comes back to the mount that works", || {
        // What the kernel has of it is not asked for again.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        read(2..4);
        mount.pool() > busy / 2
    });
    assert_within(stop());
    assert_eq!(mount.stop(), Some(0));
    wait_for("the mount gives its place back", || segment_of(shared.pid()).living() == 1);
}

/// A run joins the limit of a disk, with its swap file.
#[test]
fn a_run_joins_a_disk() {
    if !can_run() {
        return;
    }
    let place = common::scratch();
    let budget = place.path().join("budget");
    let budget = budget.to_str().unwrap();
    let disk =
        ["disk", "--size", "256M", "--mem-limit", "64M", "--backing-dev", "/var/tmp", "--share", budget];
    let (disk, mut client) = start_disk(&disk, &place.path().join("disk.sock"));
    fill(&mut client, 200, 1);
    let mut joined = Run::start(&["--budget", budget]);
    let program = memory::only_child(joined.pid());
    let stop = watch_beside(disk.pid(), program, segment_of(disk.pid()));
    joined.grow(128);
    wait_for("memory goes from the idle disk to the run", || {
        joined.grow(1);
        joined.charged() > LIMIT * 3 / 4
    });
    check(&mut client, 200, 1);
    wait_for("memory comes back to the disk that works", || {
        fill(&mut client, 200, 2);
        disk.pool() > LIMIT / 2
    });
    check(&mut client, 200, 2);
    joined.grow(1);
    assert_within(stop());
    assert_eq!(joined.end(), Some(0));
    wait_for("the run gives its place back", || segment_of(disk.pid()).living() == 1);
    assert_eq!(disk.stop(), Some(0));
}

#[test]
fn all_members_are_shown() {
    if !can_run() {
        return;
    }
    let shared = Shared::start();
    let stats = shared.path("stats");
    let (disk, mut client) = shared.disk("disk.sock", &["--stats", stats.to_str().unwrap()]);
    fill(&mut client, 4, 1);
    let run = shared.pid();
    for pid in [run, disk.pid()] {
        let (told, members) = (top(pid), members(pid));
        assert!(members.len() == 2 && members.contains(&disk.pid().into()), "{members:?}");
        assert_eq!(told["limit"], LIMIT);
    }
    assert_eq!(disk.stop(), Some(0));
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    assert_eq!(told["limit"], LIMIT);
    assert!(told["processes"] == 2, "{told}");
}

/// A disk shares its limit, a second has joined; the first ends in order, or is killed.
#[test]
fn the_limit_outlives_who_shares_it() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        outlives(signal);
    }
}

fn outlives(signal: i32) {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let budget = budget.to_str().unwrap();
    let limit =
        ["disk", "--size", "256M", "--mem-limit", "32M", "--backing-dev", "/var/tmp", "--share", budget];
    let (mut first, mut client) = start_disk(&limit, &path("1.sock"));
    fill(&mut client, 4, 1);
    let mode = fs::symlink_metadata(budget).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let join = ["disk", "--size", "256M", "--budget", budget];
    let [second, third] = ["2.sock", "3.sock"].map(|name| start_disk(&join, &path(name)));
    let (second, mut client) = second;
    let segment = segment_of(second.pid());
    assert_eq!((segment.living(), segment.limit()), (3, 32 * MIB));
    first.signal(signal);
    first.0.wait().unwrap();
    third.0.signal(libc::SIGKILL);
    drop((first, third));
    wait_for("what the dead had is taken back", || segment.living() == 1);
    fill(&mut client, 200, 2);
    check(&mut client, 200, 2);
    assert!(segment.in_use() <= 33 * MIB && memory::anonymous(second.pid()) <= 33 * MIB);
    assert_eq!(members(second.pid()), [u64::from(second.pid())]);
    let told = finish(command(&join).arg("--unix").arg(path("4.sock")));
    assert_eq!(told.code, Some(125), "nobody can join any more");
    assert!(told.stderr.contains("nobody shares a budget there"), "{told:?}");
    let left = fs::symlink_metadata(budget).is_ok_and(|at| at.file_type().is_socket());
    assert_eq!(left, signal == libc::SIGKILL, "left by who was killed, and by nobody else");
    let (again, _) = start_disk(&limit, &path("1.sock"));
    assert_eq!(again.stop(), Some(0));
    assert!(!Path::new(budget).exists(), "nothing is left behind");
    assert_eq!(second.stop(), Some(0));
}

/// A mount shares its limit, which stays as it is while each changes what it may have within it.
#[test]
fn members_change_what_they_may_have() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(need::root() && (fuse || need::skip("there is no /dev/fuse"))) {
        return;
    }
    let place = common::scratch();
    let [source, at, budget] = ["source", "at", "budget"].map(|name| place.path().join(name));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&at).unwrap();
    fs::write(source.join("file"), "here").unwrap();
    let names = ["mount", "disk"].map(|door| format!("{door}-{}", std::process::id()));
    let paths = [&source, &at, &budget].map(|path| path.to_str().unwrap());
    let mount = ["mount", paths[0], paths[1], "-m", "64M", "--share", paths[2], "--name", &names[0]];
    let mount = Running::start(&mount, Stdio::null(), Stdio::null());
    wait_for("it is mounted", || at.join("file").exists());
    let disk =
        ["disk", "--size", "256M", "--backing-dev", "/var/tmp", "--budget", paths[2], "--name", &names[1]];
    let (disk, mut client) = start_disk(&disk, &place.path().join("disk.sock"));
    let ctl = |arguments: &[&str]| {
        let done = finish(command(&["ctl"]).args(arguments));
        assert_eq!(done.code, Some(0), "{arguments:?}: {done:?}");
    };
    fill(&mut client, 200, 1);
    assert!(disk.pool() > LIMIT / 2, "{} MiB", disk.pool() / MIB);
    ctl(&[&names[0], "memlimit", "16M"]);
    assert!(disk.pool() > LIMIT / 2, "the mount's is not the disk's: {} MiB", disk.pool() / MIB);
    ctl(&[&names[1], "mem_limit", "16M"]);
    wait_for("the disk gives back what is over its limit", || disk.pool() <= 17 * MIB);
    fill(&mut client, 200, 2);
    assert!(disk.pool() <= 17 * MIB, "{} MiB", disk.pool() / MIB);
    ctl(&[&names[1], "mem_limit", "0"]);
    fill(&mut client, 200, 3);
    assert!(disk.pool() > LIMIT / 2, "{} MiB", disk.pool() / MIB);
    check(&mut client, 200, 3);
    let segment = segment_of(disk.pid());
    assert_eq!(segment.limit(), LIMIT);
    assert_eq!((mount.stop(), disk.stop()), (Some(0), Some(0)));
}

#[test]
fn a_disk_without_backing_is_full_when_the_budget_is() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let budget = budget.to_str().unwrap();
    let limit = ["disk", "--size", "256M", "--mem-limit", "32M", "--share", budget];
    let (first, mut client) = start_disk(&limit, &path("1.sock"));
    let (second, mut other) = start_disk(&["disk", "--size", "256M", "--budget", budget], &path("2.sock"));
    fill(&mut client, 16, 1);
    let mut written = 0;
    while other.write(written * PIECE_BYTES, &piece(written, 2)) == 0 {
        written += 1;
        assert!(written < 256 * MIB / PIECE_BYTES);
    }
    assert!(segment_of(first.pid()).in_use() <= 33 * MIB);
    check(&mut client, 16, 1);
    for number in 0..written {
        let read = other.read(number * PIECE_BYTES, usize::try_from(PIECE_BYTES).unwrap());
        assert!(read == piece(number, 2), "piece {number}");
    }
    drop((first, second));
}

#[test]
fn hostile_clients_delay_nobody() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name);
    let budget = path("budget");
    let options = ["disk", "--size", "16M", "--mem-limit", "32M", "--share", budget.to_str().unwrap()];
    let (first, _client) = start_disk(&options, &path("1.sock"));
    let mut clients: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&budget).unwrap()).collect();
    clients.iter_mut().for_each(|client| drop(client.write_all(&[0xff; 64])));
    let begun = Instant::now();
    let (second, _other) =
        start_disk(&["disk", "--size", "16M", "--budget", budget.to_str().unwrap()], &path("2.sock"));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!((second.stop(), first.stop()), (Some(0), Some(0)));
    assert!(!budget.exists());
    drop(clients);
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let place = common::scratch();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (file, budget, socket, none) = (path("file"), path("budget"), path("socket"), path("none"));
    fs::write(&file, "mine").unwrap();
    let told = |arguments: &[&str], code: i32, part: &str| {
        let Outcome { code: status, stderr: line, .. } = ramfold(arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {line}");
        assert!(line.lines().count() == 1 && line.contains(part), "{arguments:?}: {line}");
    };
    let disk = ["disk", "--size", "16M", "--unix", &socket];
    let with = |more: &[&'static str], path: &str| {
        disk.iter()
            .copied()
            .chain(more.iter().copied())
            .map(str::to_owned)
            .chain([path.to_owned()])
            .collect::<Vec<_>>()
    };
    let told_of = |more: &[&'static str], path: &str, code: i32, part: &str| {
        let words = with(more, path);
        told(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, part);
    };
    told_of(&["--share"], &budget, 2, "--mem-limit");
    told_of(&["--mem-limit", "1M", "--share"], &budget, 2, "too small");
    told_of(&["--mem-limit", "32M", "--share"], &file, 125, "no socket");
    told_of(&["--mem-limit", "32M", "--share"], &path("file/x"), 125, "--share");
    told_of(
        &["--budget", &*Box::leak(budget.clone().into_boxed_str()), "--share"],
        &budget,
        2,
        "cannot be used with",
    );
    told_of(&["--budget"], &none, 125, "nobody shares a budget there");
    told_of(&["--budget"], &file, 125, "nobody shares a budget there");
    assert!(!Path::new(&socket).exists() && !Path::new(&budget).exists());
    let listener = UnixListener::bind(path("wrong")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"NBDMAGICIHAVEOPT").unwrap());
        told_of(&["--budget"], &path("wrong"), 125, "shares no budget");
    });
    told_of(&["--mem-limit", "32M", "--share"], &path("wrong"), 125, "somebody serves there");
    told(&["mount", place.path().to_str().unwrap(), &none, "--budget", &none], 125, "nobody shares");
    told(&["mount", place.path().to_str().unwrap(), &none], 2, "--memory");
    told(&["run", "-m", "64M", "--share", &file, "--", "true"], 125, "no socket");
    told(&["run", "--budget", &none, "--", "true"], 125, "nobody shares a budget there");
    told(&["run", "--budget", &none, "-m", "64M", "--", "true"], 2, "cannot be used with");
    told(&["run", "--budget", &none, "--swap", "none", "--", "true"], 2, "cannot be used with");
    told(&["run", "--", "true"], 2, "--memory");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}
