//! `ramfold mount`, seen from outside: how it comes and goes, what it refuses, what survives its death. Its limits, and
//! what programs and single calls find in it, are in `mounted/`.

#[path = "mounted/appends.rs"]
mod appends;
#[path = "mounted/behind.rs"]
mod behind;
#[path = "mounted/below.rs"]
mod below;
#[path = "mounted/calls.rs"]
mod calls;
#[path = "mounted/directories.rs"]
mod directories;
#[path = "mounted/gate.rs"]
mod gate;
#[path = "mounted/images.rs"]
mod images;
#[path = "mounted/kernel.rs"]
mod kernel;
#[path = "mounted/leases.rs"]
mod leases;
#[path = "mounted/limits.rs"]
mod limits;
#[path = "mounted/made.rs"]
mod made;
#[allow(dead_code)] // it is only read here
#[path = "coherent/mapping.rs"]
mod mapping;
mod mounted;
#[path = "mounted/opens.rs"]
mod opens;
#[path = "mounted/owners.rs"]
mod owners;
#[path = "mounted/programs.rs"]
mod programs;
#[path = "mounted/rights.rs"]
mod rights;
#[path = "mounted/under_way.rs"]
mod under_way;

use limits::{kept, settle};
use mounted::{Place, can_mount, content, finish, mount_line, run, shell, unmount, wait_for};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[test]
fn it_ends_in_three_ways_and_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("file"), "here").unwrap();
    for way in [Some(libc::SIGTERM), Some(libc::SIGINT), None] {
        let device = fs::metadata(place.point()).unwrap().dev();
        let mut mounted = place.mount(32, &[]);
        assert_ne!(fs::metadata(place.point()).unwrap().dev(), device);
        assert!(mount_line(&place.point()).unwrap().contains(" - fuse"));
        assert_eq!(fs::read(place.point().join("file")).unwrap(), b"here");
        wait_for("it says where it is", || mounted.told().lines().count() == 1);
        let told = mounted.told();
        assert!(told.starts_with("ramfold: ") && told.contains(place.point().to_str().unwrap()), "{told}");
        assert!(place.socket("mount0").exists());
        match way {
            Some(signal) => mounted.signal(signal),
            None => drop(run(place.path(), &["fusermount3", "-u", place.point().to_str().unwrap()])),
        }
        assert_eq!(mounted.ended(), Some(0), "{way:?}: {}", mounted.told());
        assert_eq!(mount_line(&place.point()), None);
        assert!(!place.socket("mount0").exists(), "the socket goes with the server");
        assert_eq!(fs::read_dir(place.point()).unwrap().count(), 0);
    }
}

#[test]
fn it_ends_though_files_are_open() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("file"), "here").unwrap();
    let mut mounted = place.mount(32, &[]);
    let file = File::options().append(true).open(place.point().join("file")).unwrap();
    (&file).write_all(b" and there").unwrap();
    mounted.signal(libc::SIGTERM);
    wait_for("the name is free", || mount_line(&place.point()).is_none());
    // The server may serve who has a file open to his end; what it takes is not lost.
    let expected = match (&file).write_all(b", late") {
        Ok(()) => "here and there, late",
        Err(_) => "here and there",
    };
    drop(file);
    assert_eq!(mounted.ended(), Some(0));
    assert_eq!(fs::read_to_string(place.source().join("file")).unwrap(), expected);
}

#[test]
fn it_may_be_mounted_over_its_source() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("file"), "here").unwrap();
    let mounted = place.mount_at(&place.source(), &place.source(), 32, &[]);
    assert!(mount_line(&place.source()).unwrap().contains(" - fuse"));
    assert_eq!(fs::read(place.source().join("file")).unwrap(), b"here");
    fs::write(place.source().join("new"), content(1, 100_000)).unwrap();
    mounted.stop();
    assert!(fs::read(place.source().join("new")).unwrap() == content(1, 100_000));
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for name in ["full", "source/inside"] {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    fs::write(place.path().join("full/mine"), "mine").unwrap();
    fs::write(place.path().join("file"), "mine").unwrap();
    let mounts = || {
        fs::read_to_string("/proc/self/mountinfo").unwrap().matches(place.path().to_str().unwrap()).count()
    };
    let count = mounts();
    let fails = |source: &str, point: &str, options: &[&str]| {
        let (source, point) = (path(source), path(point));
        let outcome = place.ramfold(&[&["mount", &source, &point], options].concat());
        assert_eq!(outcome.code, Some(2), "{source} {point} {options:?}: {}", outcome.stderr);
        let lines = outcome.stderr.trim_end().lines().count();
        assert!(lines == 1 && outcome.stderr.starts_with("ramfold: "), "{}", outcome.stderr);
        outcome.stderr
    };
    let enough = &["-m", "32M"][..];
    fails("nowhere", "mount", enough);
    fails("file", "mount", enough);
    fails("source", "nowhere", enough);
    fails("source", "file", enough);
    fails("source", "full", enough);
    fails("source", "source/inside", enough);
    fails("source", "mount", &["-m", "4K"]);
    for seconds in ["long", "-1", "3601", "NaN"] {
        fails("source", "mount", &["-m", "32M", &format!("--attr-timeout={seconds}")]);
    }
    fails("source", "mount", &["-m", "lots"]);
    fails("source", "mount", &["-m", "32M", "--compressor", "zip"]);
    fails("source", "mount", &["-m", "32M", "--zpool", "zip"]);
    fails("source", "mount", &["-m", "32M", "--exclude", "[a"]);
    fails("source", "mount", &["-m", "32M", "--name", "../x"]);
    for limit in ["nowhere=1M", ".=1M", "../full=1M", "inside", "inside=lots"] {
        fails("source", "mount", &["-m", "32M", "--memlimit", limit]);
    }
    assert_eq!(mounts(), count, "nothing is mounted");
    assert_eq!(fs::read_dir(place.point()).unwrap().count(), 0);
    assert!(!place.socket("mount0").exists());
    let mounted = place.mount(32, &[]);
    fails("source", "mount", enough);
    assert_eq!(fs::read_dir(mounted.point()).unwrap().count(), 1, "who is there is not disturbed");
    mounted.stop();
}

#[test]
fn read_only_is_read_only() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.source().join("directory")).unwrap();
    fs::write(place.source().join("file"), "here").unwrap();
    let mounted = place.mount(32, &["--read-only"]);
    let point = mounted.point();
    assert_eq!(fs::read(point.join("file")).unwrap(), b"here");
    let refused = |what: &str, result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS), "{what}");
    };
    let file = point.join("file");
    refused("open to write", File::options().write(true).open(&file).map(drop));
    refused("open to cut off", File::options().write(true).truncate(true).open(&file).map(drop));
    refused("create", File::create_new(point.join("new")).map(drop));
    refused("mkdir", fs::create_dir(point.join("new")));
    refused("unlink", fs::remove_file(&file));
    refused("rmdir", fs::remove_dir(point.join("directory")));
    refused("rename", fs::rename(&file, point.join("new")));
    refused("link", fs::hard_link(&file, point.join("new")));
    refused("symlink", std::os::unix::fs::symlink("file", point.join("new")));
    refused("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)));
    refused("chown", std::os::unix::fs::chown(&file, Some(1), None));
    let flags = rustix::fs::XattrFlags::empty();
    refused("xattr", rustix::fs::setxattr(&file, "user.a", b"", flags).map_err(Into::into));
    refused("times", File::open(&file).unwrap().set_modified(std::time::SystemTime::now()));
    assert!(mount_line(point).unwrap().split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"));
    // What changes behind it is seen all the same.
    fs::write(place.source().join("file"), "changed").unwrap();
    wait_for("the change", || fs::read(&file).unwrap() == b"changed");
    mounted.stop();
}

#[test]
fn mounts_have_names_and_tell_of_themselves() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path().join("second")).unwrap();
    fs::write(place.source().join("file"), content(3, 4 << 20)).unwrap();
    settle();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let stats = place.path().join("stats");
    let first = place.mount(32, &["--stats", stats.to_str().unwrap(), "--metrics", &address]);
    let second = place.mount_at(&place.source(), &place.path().join("second"), 32, &[]);
    assert!(place.socket("mount0").exists() && place.socket("mount1").exists());
    let outcome = place.ramfold(&[
        "mount",
        place.source().to_str().unwrap(),
        place.path().to_str().unwrap(),
        "-m",
        "32M",
        "--name",
        "mount0",
    ]);
    assert_eq!(outcome.stderr.lines().count(), 1, "a name that is taken: {}", outcome.stderr);
    assert_ne!(outcome.code, Some(0));
    for (at, name) in [(&first, "mount0"), (&second, "mount1")] {
        for _ in 0..3 {
            assert!(fs::read(at.point().join("file")).unwrap() == content(3, 4 << 20));
        }
        assert!(kept(&place, name) > 500, "{name}: {}", kept(&place, name));
        assert!(!place.ctl(&[name, "stat"]).is_empty());
    }
    let mut client = TcpStream::connect(&address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1") && answer.contains("ramfold_"), "{answer}");
    first.stop();
    second.stop();
    let told: serde_json::Value = serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    assert!(told.as_object().is_some_and(|fields| fields.len() > 5), "{told}");
}

#[test]
fn what_was_synced_survives_a_kill() {
    if !can_mount() {
        return;
    }
    for round in 0..5_u64 {
        let place = Place::new();
        let mounted = place.mount(16, &[]);
        let point = mounted.point().to_owned();
        let begun = Arc::new(AtomicUsize::new(0));
        // Each tells how many of its pieces are synced.
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let (path, begun) = (point.join(format!("writer-{writer}")), Arc::clone(&begun));
                std::thread::spawn(move || {
                    let Ok(file) = File::create(path) else { return 0 };
                    for piece in 0_u64.. {
                        let bytes = content(writer << 32 | piece, 50_000);
                        if file.write_all_at(&bytes, piece * 50_000).is_err() || file.sync_data().is_err() {
                            return piece;
                        }
                        begun.fetch_add(usize::from(piece == 0), SeqCst);
                    }
                    unreachable!()
                })
            })
            .collect();
        wait_for("each writer's first piece", || begun.load(SeqCst) == writers.len());
        std::thread::sleep(std::time::Duration::from_millis(300 + round * 50));
        mounted.kill();
        for (writer, thread) in (0..).zip(writers) {
            let pieces = thread.join().unwrap();
            assert!(pieces > 0, "writer {writer} has not got to its first piece");
            let found = fs::read(place.source().join(format!("writer-{writer}"))).unwrap();
            for piece in 0..pieces {
                let at = usize::try_from(piece * 50_000).unwrap();
                let expected = content(writer << 32 | piece, 50_000);
                assert!(found.get(at..at + 50_000) == Some(&expected[..]), "writer {writer}, piece {piece}");
            }
        }
    }
}

#[test]
fn a_dead_mount_is_replaced_when_asked() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("file"), "here").unwrap();
    place.mount(32, &[]).kill();
    let dead = File::open(place.point()).unwrap_err().raw_os_error();
    assert_eq!(dead, Some(libc::ENOTCONN));
    let (source, point) = (place.source(), place.point());
    let plain = ["mount", source.to_str().unwrap(), point.to_str().unwrap(), "-m", "32M"];
    let outcome = place.ramfold(&plain);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome.stderr.lines().count() == 1 && outcome.stderr.contains("--replace"),
        "{}",
        outcome.stderr
    );
    let mounted = place.mount(32, &["--replace"]);
    assert_eq!(fs::read(place.point().join("file")).unwrap(), b"here");
    mounted.stop();
    assert_eq!(mount_line(&place.point()), None, "what was dead is gone too");
    // Where nothing is mounted it does no harm, nor to who lives.
    let mounted = place.mount(32, &["--replace"]);
    let outcome = place.ramfold(&[&plain[..], &["--replace"]].concat());
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert_eq!(fs::read(place.point().join("file")).unwrap(), b"here");
    mounted.stop();
}

#[test]
fn flags_of_the_source_s_mount_carry_over() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let source = place.source();
    let options = |flags: &str| {
        let words = ["mount", "-t", "tmpfs", "-o", flags, "tmpfs", source.to_str().unwrap()];
        run(place.path(), &words);
        shell(&source, "printf '#!/bin/sh\necho ran\n' >script; chmod 755 script; mknod -m 666 null c 1 3");
    };
    let has = |flag: &str| {
        let line = mount_line(&place.point()).unwrap();
        line.split(' ').nth(5).unwrap().split(',').any(|option| option == flag)
    };
    for flag in ["nosuid", "nodev", "noexec"] {
        options(&format!("{flag},size=16M"));
        let mounted = place.mount(32, &[]);
        assert!(has(flag), "{flag}: {:?}", mount_line(&place.point()));
        let ran = Command::new(place.point().join("script")).output().is_ok();
        assert_eq!(ran, flag != "noexec", "{flag}");
        assert_eq!(File::open(place.point().join("null")).is_ok(), flag != "nodev", "{flag}");
        mounted.stop();
        unmount(&source);
    }
    options("size=16M");
    run(place.path(), &["mount", "-o", "remount,ro", source.to_str().unwrap()]);
    let mounted = place.mount(32, &[]);
    let failed = File::create(place.point().join("new")).unwrap_err().raw_os_error();
    assert_eq!(failed, Some(libc::EROFS));
    mounted.stop();
    // A source without any has none.
    unmount(&source);
    let mounted = place.mount(32, &[]);
    assert!(!has("nosuid") && !has("nodev") && !has("noexec"), "{:?}", mount_line(&place.point()));
    mounted.stop();
}

#[test]
fn descriptors_are_given_back() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(32, &[]);
    fs::write(mounted.point().join("first"), "x").unwrap();
    let before = mounted.descriptors();
    for number in 0..3000 {
        let path = mounted.point().join(format!("file-{number}"));
        fs::write(&path, content(number, 5000)).unwrap();
        assert!(fs::read(&path).unwrap() == content(number, 5000));
    }
    eprintln!("{before} descriptors, {} with 3000 files", mounted.descriptors());
    shell(mounted.point(), "rm file-*");
    wait_for("descriptors of what is gone are closed", || mounted.descriptors() < before + 64);
    mounted.stop();
}

#[test]
fn help_tells_of_it() {
    let outcome = finish(Command::new(mounted::binary()).args(["mount", "--help"]), 10);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for part in ["SOURCE", "MOUNTPOINT", "--exclude", "--read-only", "--replace", "ramfold mount"] {
        assert!(outcome.stdout.contains(part), "{part}: {}", outcome.stdout);
    }
}
