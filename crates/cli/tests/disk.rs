//! `ramfold disk` with the clients that people use.

mod command;
#[path = "common/need.rs"]
#[allow(dead_code)] // other test binaries use the rest
mod need;
#[path = "shared/served.rs"]
mod served;

use command::{one_line, ramfold};
use served::{Disk, client};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Real bytes, some of them such as do not compress, and a hole.
fn image(path: &Path) {
    let mut bytes = fs::read(env!("CARGO_BIN_EXE_ramfold")).unwrap();
    bytes.truncate(24 << 20);
    let mut state = 1_u64;
    bytes.extend(
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_le_bytes()[7]
        })
        .take(8 << 20),
    );
    bytes.resize(64 << 20, 0);
    fs::write(path, bytes).unwrap();
}

/// With memory for all, and for a part of it.
fn both_kinds(test: impl Fn(&Path, &Disk)) {
    for options in [&[][..], &["--mem-limit", "8M", "--backing-dev", "/var/tmp"]] {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let socket = directory.path().join("disk.sock");
        let disk = Disk::start(&[&["--size", "64M", "--unix", socket.to_str().unwrap()], options].concat());
        test(directory.path(), &disk);
        assert!(socket.exists());
        assert_eq!(disk.stop(), Some(0));
        assert!(!socket.exists(), "the socket goes with the server");
    }
}

#[test]
fn nbdcopy_brings_back_what_it_took_there() {
    if !need::programs(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    both_kinds(|directory, disk| {
        let (from, to) = (directory.join("from"), directory.join("to"));
        image(&from);
        client("nbdcopy", &[from.to_str().unwrap(), &disk.uri]);
        client("nbdcopy", &[&disk.uri, to.to_str().unwrap()]);
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        let info = client("nbdinfo", &[&disk.uri]);
        for line in [
            "export-size: 67108864",
            "can_multi_conn: true",
            "can_cache: true",
            "base:allocation",
            "using structured packets",
        ] {
            assert!(info.contains(line), "{info}");
        }
        let map = client("nbdinfo", &["--map", &disk.uri]);
        assert!(map.lines().last().unwrap().contains("hole,zero"), "{map}");
    });
}

#[test]
fn qemu_reads_what_it_has_written() {
    if !need::programs(&["qemu-io", "qemu-img"]) {
        return;
    }
    both_kinds(|_, disk| {
        let commands = [
            "write -P 0xab 1000 70000",
            "read -P 0xab 1000 70000",
            "write -P 0x11 1M 8M",
            "discard 2M 1M",
            "read -P 0 2M 1M",
            "write -z 1536k 300001",
            "read -P 0 1536k 300001",
            "read -P 0x11 1M 512k",
            "aio_write -P 0x22 20M 4M",
            "aio_write -P 0x33 30M 4M",
            "aio_flush",
            "read -P 0x22 20M 4M",
            "read -P 0x33 30M 4M",
            "flush",
        ];
        let arguments: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        let told = client("qemu-io", &[&["-f", "raw"], &arguments[..], &[disk.uri.as_str()]].concat());
        assert!(!told.contains("failed"), "{told}");
        let info = client("qemu-img", &["info", "--output=json", &disk.uri]);
        assert!(info.contains("\"virtual-size\": 67108864"), "{info}");
    });
}

#[test]
fn nbdsh_uses_each_request() {
    if !need::programs(&["nbdsh"]) {
        return;
    }
    both_kinds(|_, disk| {
        let script = "
assert h.can_cache() and h.can_trim() and h.can_zero() and h.can_fua() and h.can_flush() and h.can_multi_conn()
data = bytes(i * 7 % 251 for i in range(100000))
h.pwrite(data, 4000)
h.pwrite(data, 1 << 20, nbd.CMD_FLAG_FUA)
h.cache(200000, 0)
assert h.pread(100000, 4000) == data
h.trim(65536, 1 << 20)
h.zero(1000, (1 << 20) + 70000)
h.flush()
assert h.pread(65536, 1 << 20) == bytes(65536)
rest = data[65536:70000] + bytes(1000) + data[71000:]
assert h.pread(len(rest), (1 << 20) + 65536) == rest
pieces = []
h.block_status(1 << 20, 1 << 20, lambda context, offset, extents, error: pieces.extend(extents))
assert pieces[:2] == [65536, 3] and pieces[3] == 0, pieces
try:
    h.pread(2, h.get_size() - 1)
    assert False
except nbd.Error as error:
    assert error.errno == 'EINVAL', error
";
        // As nbdsh does, by the Python that its package is for.
        client(
            "/usr/bin/python3",
            &["-m", "nbd", "--base-allocation", "--uri", &disk.uri, "--command", script],
        );
    });
}

#[test]
fn fio_verifies_sixteen_writers() {
    if !need::programs(&["fio"]) {
        return;
    }
    both_kinds(|directory, disk| {
        let job = [
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bsrange=512-16k",
            "--size=3m",
            "--offset_increment=4m",
            "--numjobs=16",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--thread",
        ];
        let uri = format!("--uri={}", disk.uri);
        let place = format!("--aux-path={}", directory.display());
        client("fio", &[&job[..], &[&uri, &place]].concat());
    });
}

#[test]
fn clients_that_misbehave_disturb_nobody() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("disk.sock");
    let disk = Disk::start(&["--size", "16M", "--unix", socket.to_str().unwrap()]);
    // Some say nothing, some talk nonsense, one hundred and more come at a time.
    let mut clients: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for client in clients.iter_mut().step_by(2) {
        client.write_all(&[0xff; 64]).unwrap();
    }
    if need::programs(&["nbdinfo"]) {
        client("nbdinfo", &["--size", &disk.uri]);
    }
    assert_eq!(disk.stop(), Some(0), "it stops though they are there");
}

#[test]
fn a_signal_ends_it_whichever_of_its_threads_it_comes_to() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("disk.sock");
    let start = || Disk::start(&["--size", "16M", "--unix", socket.to_str().unwrap()]);
    for number in 0.. {
        let disk = start();
        let pid = disk.process.id();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let Some(thread) = threads.map(|entry| entry.unwrap().file_name()).nth(number) else {
            assert!(number > 2, "the main thread, and those of the sockets");
            break;
        };
        let thread: i64 = thread.to_str().unwrap().parse().unwrap();
        // So that it waits by then.
        std::thread::sleep(std::time::Duration::from_millis(100));
        // SAFETY: a plain system call; the child is not waited for yet.
        unsafe { libc::syscall(libc::SYS_tgkill, i64::from(pid), thread, i64::from(libc::SIGTERM)) };
        assert_eq!(disk.wait(), Some(0), "thread {number}");
    }
}

/// What a virtual machine does with it is tried by `.ci/guests`.
#[test]
fn a_socket_for_virtual_machines_is_its_owners_alone_and_goes_with_the_disk() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let [machines, clients] = ["vm", "nbd"].map(|name| directory.path().join(name));
    let [vm, nbd] = [&machines, &clients].map(|path| path.to_str().unwrap());
    let options = ["--size", "16M", "--vhost-user", vm, "--unix", nbd];
    let disk = Disk::start(&options);
    assert!(disk.uri.starts_with("nbd+unix:"), "{}", disk.uri);
    let begun = std::time::Instant::now();
    while !machines.exists() && begun.elapsed().as_secs() < 60 {}
    assert_eq!(fs::metadata(&machines).unwrap().permissions().mode() & 0o777, 0o600);
    // What is no front end is hung up on, and the disk goes on.
    let mut stranger = UnixStream::connect(&machines).unwrap();
    stranger.write_all(&[0xff; 64]).unwrap();
    assert_eq!(stranger.read(&mut [0; 64]).unwrap_or(0), 0);
    if need::programs(&["nbdinfo"]) {
        client("nbdinfo", &["--size", &disk.uri]);
    }
    let done = ramfold(&["disk", "--size", "16M", "--vhost-user", vm]);
    assert_eq!(done.code, Some(125));
    assert!(one_line(&done.stderr).contains("somebody serves there"), "{}", done.stderr);
    // A client that says nothing does not keep it from ending.
    let _silent = UnixStream::connect(&machines).unwrap();
    assert_eq!(disk.stop(), Some(0));
    assert!(!machines.exists() && !clients.exists());
    let disk = Disk::start(&options[..4]);
    assert_eq!(disk.uri, format!("vhost-user:{vm}"));
    disk.signal(libc::SIGKILL);
    drop(disk);
    assert_eq!(Disk::start(&options[..4]).stop(), Some(0), "what was left behind is taken over");
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (file, socket) = (directory.path().join("file"), directory.path().join("socket"));
    fs::write(&file, "mine").unwrap();
    let (file, socket) = (file.to_str().unwrap(), socket.to_str().unwrap());
    let told = |arguments: &[&str], code: i32, part: &str| {
        let done = ramfold(&[&["disk"], arguments].concat());
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert!(one_line(&done.stderr).contains(part), "{}", done.stderr);
    };
    told(&["--size", "1G"], 2, "--unix");
    told(&["--size", "1000", "--unix", socket], 2, "multiple of 4096");
    told(&["--size", "1G", "--unix", socket, "--mem-limit", "4K"], 2, "too small");
    told(&["--size", "1G", "--unix", file], 125, "no socket");
    let with = |recomp| ["--size", "1G", "--unix", socket, "--recomp-algorithm", recomp];
    told(&with("lz4hc,dict=auto"), 2, "lz4hc has no dictionaries");
    told(&with("zstd:3,dict="), 2, "which dictionary");
    told(&with("zstd:99,dict=auto"), 2, "no level");
    told(
        &with("zstd:3,dict=/no/such/file"),
        125,
        "--recomp-algorithm: dictionary /no/such/file: No such file",
    );
    told(&with(&format!("zstd:3,dict={file}")), 125, "a dictionary has 8 to 1048576 bytes, and this has 4");
    let with = |comp| ["--size", "1G", "--unix", socket, "--comp-algorithm", comp];
    told(&with("lz4,dict=auto"), 2, "lz4 has no dictionaries");
    told(&with("none"), 2, "none");
    told(&with("zstd:3,dict=/no/such/file"), 125, "--comp-algorithm: dictionary /no/such/file: No such file");
    told(&["--size", "1G", "--ublk=-1"], 2, "--ublk");
    if !Path::new("/dev/ublk-control").exists() {
        told(&["--size", "1G", "--ublk"], 125, "modprobe ublk_drv");
    }
    told(&["--size", "1G", "--tcp", "0.0.0.0:0"], 125, "others than this machine");
    told(&["--size", "1G", "--unix", socket, "--mem-limit", "1M", "--backing-dev", "/dev/shm"], 125, "tmpfs");
    assert_eq!(fs::read(file).unwrap(), b"mine");
    let disk = Disk::start(&["--size", "1M", "--unix", socket]);
    told(&["--size", "1G", "--unix", socket], 125, "somebody serves there");
    // What a server that was killed has left behind is taken over.
    disk.signal(libc::SIGKILL);
    drop(disk);
    assert!(fs::symlink_metadata(socket).unwrap().file_type().is_socket());
    assert_eq!(Disk::start(&["--size", "1M", "--unix", socket]).stop(), Some(0));
}
