//! What the kernel of the mount has of files: it is used for as long as it is right, and no longer.

use crate::mounted::{Mounted, Place, can_mount, content};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Bytes of the file that is read.
const LEN: usize = 1 << 20;

/// A count that `ctl NAME stat` tells.
fn count(place: &Place, what: &str) -> u64 {
    let told = place.ctl(&["kernel", "stat"]);
    let line = told.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {what}: {told}")).parse().unwrap()
}

/// Pages that the kernel has asked for.
fn asked(place: &Place) -> u64 {
    count(place, "hits") + count(place, "misses")
}

fn with_mount(options: &[&str], test: impl Fn(&Place, &Mounted)) {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(32, &[&["--name", "kernel"], options].concat());
    test(&place, &mounted);
    mounted.stop();
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn its_pages_survive_writes_through_the_mount() {
    with_mount(&[], |place, mounted| {
        let (behind, through) = (place.source().join("file"), mounted.point().join("file"));
        let mut expected = content(0, LEN);
        fs::write(&behind, &expected).unwrap();
        let file = File::options().read(true).write(true).open(&through).unwrap();
        let change = |turn: u64, file: &File, expected: &mut Vec<u8>| {
            let at = usize::try_from(turn * 7919).unwrap() % (LEN - 5000);
            expected[at..at + 5000].copy_from_slice(&content(turn, 5000));
            file.write_all_at(&content(turn, 5000), at as u64).unwrap();
        };
        assert!(read(&file) == expected);
        // The first of them may make a version of what nobody had settled.
        change(1, &file, &mut expected);
        assert!(read(&file) == expected);
        let before = asked(place);
        for turn in 2..100 {
            change(turn, &file, &mut expected);
            assert!(read(&file) == expected, "{turn}");
        }
        let more = asked(place) - before;
        assert!(more < 256, "{more} pages were asked for again");
        // Nobody else is told the old time for that.
        for turn in 100..150 {
            change(turn, &file, &mut expected);
            assert!(read(&file) == expected, "{turn}");
            let modified = fs::metadata(&behind).unwrap().modified().unwrap();
            assert_eq!(file.metadata().unwrap().modified().unwrap(), modified, "{turn}");
            assert_eq!(fs::metadata(&through).unwrap().modified().unwrap(), modified, "{turn}");
        }
        // What others change meanwhile is seen.
        let of_source = File::options().write(true).open(&behind).unwrap();
        for turn in 150..200 {
            change(turn, &of_source, &mut expected);
            change(turn + 1000, &file, &mut expected);
            let begun = Instant::now();
            while read(&file) != expected {
                assert!(begun.elapsed() < Duration::from_secs(1), "{turn}: not seen within a second");
            }
        }
        assert!(fs::read(&behind).unwrap() == expected);
    });
}
