//! What a mount keeps and how much: its limit, which changes while it runs, and what is not kept at all.

use super::mounted::{self, MIB, Place, bound, can_mount, content, run, shell, wait_for};
use std::fs;
use std::path::Path;

/// What is younger than five seconds is not kept.
pub fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(5200));
}

/// Pages that are kept of files, compressed or not, as `ctl NAME stat` tells.
pub fn kept(place: &Place, name: &str) -> u64 {
    let all: serde_json::Value = serde_json::from_str(&place.ctl(&[name, "stat", "--json"])).unwrap();
    let stored = all["stored_pages"].as_u64().unwrap_or_else(|| panic!("stat has no stored_pages: {all}"));
    let resident = all["resident_pages"].as_u64().or(all["resident_bytes"].as_u64().map(|bytes| bytes >> 12));
    stored + resident.unwrap_or(0)
}

#[test]
fn what_is_excluded_is_not_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.source().join("sub")).unwrap();
    for name in ["a.iso", "sub/b.iso", "c.txt"] {
        fs::write(place.source().join(name), content(1, 1 << 20)).unwrap();
    }
    settle();
    let mounted = place.mount(32, &["--exclude", "*.iso", "--name", "some"]);
    let read = |name: &str| {
        for _ in 0..3 {
            assert!(fs::read(mounted.point().join(name)).unwrap() == content(1, 1 << 20), "{name}");
        }
    };
    let before = kept(&place, "some");
    read("a.iso");
    read("sub/b.iso");
    assert!(kept(&place, "some") < before + 32, "{} pages are kept", kept(&place, "some"));
    read("c.txt");
    assert!(kept(&place, "some") >= before + 200, "{} pages are kept", kept(&place, "some"));
    // They are written and changed as others are.
    fs::write(mounted.point().join("a.iso"), "through").unwrap();
    fs::write(place.source().join("sub/b.iso"), "behind").unwrap();
    assert_eq!(fs::read(place.source().join("a.iso")).unwrap(), b"through");
    assert_eq!(fs::read(mounted.point().join("sub/b.iso")).unwrap(), b"behind");
    mounted.stop();
}

/// Beside others that do, so many, and no more than a part of the pool; alone none, and none where the user says which
/// are too poor.
#[test]
fn a_few_pages_that_do_not_compress_are_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    shell(
        &place.source(),
        "for name in alone few; do head -c 1M /dev/urandom >$name; done
         head -c 96M /dev/urandom >many; seq 1500000 >others",
    );
    settle();
    for (options, few) in [(&[][..], 256), (&["--max-compression-ratio", "50"], 0)] {
        let mounted = place.mount(32, &[&["--name", "poor"], options].concat());
        let count = |name: &str| {
            let told = place.ctl(&["poor", "stat"]);
            let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{told}")).parse::<u64>().unwrap()
        };
        let read = |name: &str| {
            let before = count("kept");
            shell(mounted.point(), &format!("cat {name} >/dev/null; sleep 0.1"));
            count("kept") - before
        };
        assert_eq!(read("alone"), 0, "{options:?}");
        assert!(read("others") > 2500, "{options:?}");
        assert_eq!(read("few"), few, "{options:?}");
        // An eighth of the pool, and what comes between two looks of the keeper.
        let many = read("many");
        assert!(many < 12 * MIB / 4096, "{options:?}: {many} pages");
        mounted.stop();
    }
}

#[test]
fn the_limit_holds_under_a_big_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for number in 0..4 {
        fs::write(place.source().join(format!("file-{number}")), content(number, 48 << 20)).unwrap();
    }
    // Nothing but what cannot be compressed, and nothing but zeros.
    shell(&place.source(), "head -c 64M /dev/urandom >random; truncate -s 256M zeros");
    settle();
    let mounted = place.mount(32, &[]);
    let sums = |at: &Path| shell(at, "cat file-* random zeros | cksum; cksum random file-* zeros");
    let expected = sums(&place.source());
    for _ in 0..2 {
        assert_eq!(sums(mounted.point()), expected);
    }
    std::thread::scope(|scope| {
        for number in 0..4 {
            let point = mounted.point();
            scope.spawn(move || {
                run(point, &["cmp", &format!("file-{number}"), &format!("../source/file-{number}")])
            });
        }
    });
    assert!(mounted.most() > 8 * MIB, "it keeps next to nothing: {} KiB", mounted.most() >> 10);
    mounted.stop();
}

#[test]
fn the_limit_changes_while_it_runs() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for number in 0..2 {
        fs::write(place.source().join(format!("file-{number}")), content(number, 40 << 20)).unwrap();
    }
    settle();
    let mounted = place.mount(64, &["--name", "live"]);
    let read = || {
        for number in 0..2 {
            let name = format!("file-{number}");
            assert!(fs::read(mounted.point().join(&name)).unwrap() == content(number, 40 << 20), "{name}");
        }
    };
    read();
    assert_eq!(place.ctl(&["live", "memlimit"]).trim(), (64 * MIB).to_string());
    let had = mounted::anonymous(mounted.pid());
    assert!(had > 24 * MIB, "{} KiB", had >> 10);
    mounted.memlimit("live", 16);
    assert_eq!(place.ctl(&["live", "memlimit"]).trim(), (16 * MIB).to_string());
    wait_for("it is within the new limit", || mounted::anonymous(mounted.pid()) <= bound(16 * MIB));
    read();
    mounted.memlimit("live", 48);
    read();
    for compressor in ["zstd:1", "lz4"] {
        place.ctl(&["live", "compressor", compressor]);
        assert!(place.ctl(&["live", "compressor"]).contains(compressor));
        read();
    }
    place.ctl(&["live", "max_compression_ratio", "50"]);
    assert_eq!(place.ctl(&["live", "max_compression_ratio"]).trim(), "50");
    read();
    assert_eq!(place.ctl(&["live", "shrinker_enabled"]).trim(), "1");
    place.ctl(&["live", "shrinker_enabled", "0"]);
    assert_eq!(place.ctl(&["live", "shrinker_enabled"]).trim(), "0");
    place.ctl(&["live", "compact", "1"]);
    read();
    for (attribute, value) in [
        ("memlimit", "4K"),
        ("memlimit", "lots"),
        ("shrinker_enabled", "on"),
        ("compressor", "zip"),
        ("colour", "1"),
    ] {
        let outcome = place.ramfold(&["ctl", "live", attribute, value]);
        assert!(outcome.code == Some(2) || outcome.code == Some(125), "{attribute} {value}: {outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
    read();
    mounted.stop();
}
