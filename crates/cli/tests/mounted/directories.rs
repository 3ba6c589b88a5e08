//! Directories of a mount that have a limit of their own: what counts there, what is over it, and how it changes.

use super::limits::{kept, settle};
use super::mounted::{MIB, Mounted, Place, can_mount, content, wait_for};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const LEN: usize = 6 << 20;

/// It holds for a second of which directory a file is.
fn turn() {
    std::thread::sleep(Duration::from_millis(1300));
}

/// Reads a file through the mount, which asks the server for all of it, twice.
fn read(mounted: &Mounted, name: &str, seed: u64) {
    let path = mounted.point().join(name);
    for _ in 0..2 {
        fadvise(File::open(&path).unwrap(), 0, None, Advice::DontNeed).unwrap();
        assert!(fs::read(&path).unwrap() == content(seed, LEN), "{name}");
    }
}

/// What the pages of a directory take, of which limit.
fn of(place: &Place, directory: &str) -> Option<(u64, u64)> {
    let told: serde_json::Value =
        serde_json::from_str(&place.ctl(&["parts", "directories", "--json"])).unwrap();
    let all = told["directories"].as_array().unwrap();
    let found = all.iter().find(|it| it["directory"] == directory)?;
    Some((found["bytes"].as_u64().unwrap(), found["memlimit"].as_u64().unwrap()))
}

/// They are most of the limit, and no more than that and what 16 threads store at once.
fn insist_on(place: &Place, directory: &str, limit: u64) {
    let (bytes, told) = of(place, directory).unwrap_or_else(|| panic!("{directory} has no limit"));
    assert_eq!(told, limit, "{directory}");
    assert!(bytes <= limit + (64 << 10), "{directory}: {bytes} bytes of {limit}");
    assert!(bytes >= limit / 2, "{directory} keeps next to nothing: {bytes} bytes of {limit}");
}

fn files(place: &Place, names: &[(&str, u64)]) {
    for (name, seed) in names {
        let path = place.source().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(*seed, LEN)).unwrap();
    }
    settle();
}

#[test]
fn a_directory_has_a_limit_of_its_own() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let all = [("a/file", 1), ("a/inner/deep/file", 2), ("b b/file", 3), ("file", 4)];
    files(&place, &all);
    let limits = ["--name", "parts", "--memlimit", "a=1M", "--memlimit", "./a/inner=512K"];
    let mounted = place.mount(64, &limits);
    let read_all = || all.iter().for_each(|(name, seed)| read(&mounted, name, *seed));
    read_all();
    insist_on(&place, "a", MIB);
    insist_on(&place, "a/inner", MIB / 2);
    assert_eq!(of(&place, "b b"), None);
    // Two files whole, but for pages that do not compress.
    let whole = 2 * LEN as u64 / 4096 / 5 * 4;
    assert!(kept(&place, "parts") > whole, "{} pages", kept(&place, "parts"));
    // One that comes while the mount runs; its name has a blank, and it may be given as a path of the source.
    place.ctl(&["parts", "memlimit", place.source().join("b b").to_str().unwrap(), "768K"]);
    turn();
    read_all();
    insist_on(&place, "b b", 768 << 10);
    // Less: what is over it is gone at once. More: there is room.
    place.ctl(&["parts", "memlimit", "a", "256K"]);
    insist_on(&place, "a", 256 << 10);
    place.ctl(&["parts", "memlimit", "a", "2M"]);
    read_all();
    insist_on(&place, "a", 2 * MIB);
    insist_on(&place, "a/inner", MIB / 2);
    // Nothing at all.
    place.ctl(&["parts", "memlimit", "a", "0"]);
    read_all();
    assert_eq!(of(&place, "a"), Some((0, 0)));
    // None of its own: it is of the directory above.
    place.ctl(&["parts", "memlimit", "a", "1M"]);
    place.ctl(&["parts", "memlimit", "a/inner", "none"]);
    assert_eq!(of(&place, "a/inner"), None);
    read(&mounted, "a/inner/deep/file", 2);
    insist_on(&place, "a", MIB);
    mounted.stop();
}

#[test]
fn a_limit_is_of_a_path_whatever_comes_and_goes() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    files(&place, &[("a/file", 1), ("b/file", 2), ("c/file", 3)]);
    let limits = ["a=1M", "b=1M", "c=1M"].map(|limit| ["--memlimit", limit]);
    let mounted = place.mount(64, &[&["--name", "parts"], &limits.concat()[..]].concat());
    let point = mounted.point();
    for (name, seed) in [("a/file", 1), ("b/file", 2), ("c/file", 3)] {
        read(&mounted, name, seed);
    }
    let bytes = |directory| of(&place, directory).unwrap().0;
    // A file that leaves, through the mount and behind it; one that has another name elsewhere stays.
    fs::rename(point.join("a/file"), point.join("file")).unwrap();
    fs::rename(mounted.source().join("b/file"), mounted.source().join("other")).unwrap();
    fs::hard_link(point.join("c/file"), point.join("a/link")).unwrap();
    // Each of these is another version of the file.
    settle();
    for (name, seed) in [("file", 1), ("other", 2), ("a/link", 3)] {
        read(&mounted, name, seed);
    }
    assert_eq!((bytes("a"), bytes("b")), (0, 0));
    insist_on(&place, "c", MIB);
    // A directory that leaves, and one that comes in its place.
    fs::rename(point.join("c"), point.join("d")).unwrap();
    fs::create_dir(point.join("c")).unwrap();
    fs::rename(point.join("file"), point.join("c/file")).unwrap();
    settle();
    read(&mounted, "d/file", 3);
    assert_eq!(bytes("c"), 0);
    read(&mounted, "c/file", 1);
    insist_on(&place, "c", MIB);
    // One that is removed has its limit when it is there again.
    fs::remove_file(point.join("a/link")).unwrap();
    fs::remove_dir(point.join("a")).unwrap();
    assert_eq!(of(&place, "a"), Some((0, MIB)));
    fs::create_dir(point.join("a")).unwrap();
    fs::rename(point.join("other"), point.join("a/other")).unwrap();
    settle();
    read(&mounted, "a/other", 2);
    insist_on(&place, "a", MIB);
    fs::remove_dir_all(point.join("c")).unwrap();
    assert_eq!(place.ctl(&["parts", "memlimit", "c", "none"]), "");
    assert_eq!(of(&place, "c"), None);
    mounted.stop();
}

#[test]
fn what_cannot_have_a_limit_is_told_in_one_line() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.source().join("a")).unwrap();
    fs::write(place.source().join("file"), "no directory").unwrap();
    std::os::unix::fs::symlink("/var", place.source().join("out")).unwrap();
    std::os::unix::fs::symlink("a", place.source().join("in")).unwrap();
    let mounted = place.mount(32, &["--name", "parts"]);
    let fails = |words: &[&str], code: i32| {
        let outcome = place.ramfold(&[&["ctl", "parts", "memlimit"], words].concat());
        assert_eq!(outcome.code, Some(code), "{words:?}: {outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    };
    for directory in ["nowhere", "file", "out", "..", ".", "/etc", place.source().to_str().unwrap()] {
        fails(&[directory, "1M"], 125);
        fails(&[directory, "none"], 125);
    }
    fails(&["a", "lots"], 2);
    fails(&["a"], 2);
    assert_eq!(place.ctl(&["parts", "directories"]), "");
    place.ctl(&["parts", "memlimit", "in", "1M"]);
    assert_eq!(place.ctl(&["parts", "directories"]), "1048576 0 a\n", "a link stands for its directory");
    for number in 0..127 {
        let name = format!("more-{number}");
        fs::create_dir(place.source().join(&name)).unwrap();
        place.ctl(&["parts", "memlimit", &name, "1M"]);
    }
    fails(&[Path::new("more-0").join("..").to_str().unwrap(), "1M"], 125);
    fs::create_dir(place.source().join("last")).unwrap();
    fails(&["last", "1M"], 125);
    place.ctl(&["parts", "memlimit", "more-0", "none"]);
    place.ctl(&["parts", "memlimit", "last", "1M"]);
    mounted.stop();
}

/// By whoever looks at the run from outside.
#[test]
fn what_directories_take_is_seen_by_top_and_metrics() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    files(&place, &[("a \"a\"/file", 1), ("b/file", 2)]);
    let socket = place.path().join("metrics");
    let metrics = format!("unix:{}", socket.display());
    let limits = ["--name", "parts", "--memlimit", "a \"a\"=1M", "--memlimit", "b=2M", "--metrics", &metrics];
    let mounted = place.mount(32, &limits);
    let top = |options: &[&str]| {
        let pid = mounted.pid().to_string();
        let outcome = place.ramfold(&[&["top", &pid, "--count", "1", "--interval", "0.1"], options].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    let shown = || {
        let told: serde_json::Value = serde_json::from_str(&top(&["--json"])).unwrap();
        let each = told["living"][0]["directories"].as_array().cloned().unwrap_or_default();
        let number = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap();
        let each =
            each.iter().map(|it| (it["directory"].clone(), number(it, "memlimit"), number(it, "bytes")));
        each.collect::<Vec<_>>()
    };
    assert_eq!(shown(), [("a \"a\"".into(), MIB, 0), ("b".into(), 2 * MIB, 0)]);
    read(&mounted, "a \"a\"/file", 1);
    let bytes = || of(&place, "a \"a\"").unwrap().0;
    assert!(bytes() > 0);
    wait_for("what top shows", || shown()[0].2 == bytes());
    assert!(top(&[]).contains("of 2.0 MiB for b\n"), "{}", top(&[]));
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut told = String::new();
    client.read_to_string(&mut told).unwrap();
    for (name, of, value) in [("bytes", r#"a \"a\""#, bytes()), ("limit_bytes", "b", 2 * MIB)] {
        let is_it = |line: &&str| line.starts_with(&format!("ramfold_directory_{name}{{"));
        let wanted = format!(r#",directory="{of}"}} {value}"#);
        assert!(
            told.lines().filter(is_it).any(|line| line.ends_with(&wanted)),
            "no {name} {wanted} in {told}"
        );
    }
    place.ctl(&["parts", "memlimit", "b", "none"]);
    assert_eq!(shown().len(), 1);
    mounted.stop();
}
