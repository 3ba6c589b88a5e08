//! What the kernel of the mount has of files: it is used for as long as it is right, and no longer.

use crate::behind::Mapped;
use crate::mounted::{Mounted, Place, can_mount, content, need, seconds};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

#[test]
fn its_pages_survive_the_first_write() {
    with_mount(&[], |place, mounted| {
        let through = mounted.point().join("file");
        let mut expected = content(0, LEN);
        fs::write(place.source().join("file"), &expected).unwrap();
        // It is told the time before anything is read of this version.
        fs::metadata(&through).unwrap();
        let file = open(&through);
        assert!(read(&file) == expected);
        let before = asked(place);
        expected[5000] ^= 1;
        file.write_all_at(&expected[5000..5001], 5000).unwrap();
        assert!(read(&file) == expected);
        assert_eq!(asked(place), before, "pages were asked for again");
    });
}

/// With a file `a.iso`, which is excluded, where the kernel reads such files itself.
fn with_excluded(test: impl Fn(&Place, &Path)) {
    with_mount(&["--exclude", "*.iso"], |place, mounted| {
        fs::write(place.source().join("a.iso"), content(0, LEN)).unwrap();
        fs::write(mounted.point().join("other.iso"), "passed").unwrap();
        if count(place, "passthrough_opens") == 0 {
            let _ = need::skip("FUSE passthrough (Linux 6.9 and CAP_SYS_ADMIN)");
            return;
        }
        test(place, mounted.point());
    });
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// What one writes the other reads, and the source has.
fn are_one(source: &Path, one: &File, other: &File, seed: u64) {
    for (from, to, at) in [(one, other, 100), (other, one, 5000)] {
        from.write_all_at(&content(seed + at, 3000), at).unwrap();
        let mut bytes = vec![0; 3000];
        to.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes == content(seed + at, 3000), "{seed}: what the other reads");
        let source = fs::read(source).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(source[at..at + 3000] == bytes, "{seed}: what the source has");
    }
}

#[test]
fn what_is_excluded_it_reads_itself() {
    with_excluded(|place, point| {
        let excluded = &point.join("a.iso");
        let (opens, before) = (count(place, "passthrough_opens"), asked(place));
        let behind = place.source().join("a.iso");
        let file = open(excluded);
        assert!(read(&file) == content(0, LEN));
        are_one(&behind, &file, &open(excluded), 1);
        // Behind the mount, at once and with the old time.
        let of_source = open(&behind);
        let modified = of_source.metadata().unwrap().modified().unwrap();
        of_source.write_all_at(&content(5, 9000), 20_000).unwrap();
        of_source.set_modified(modified).unwrap();
        let mut bytes = vec![0; 9000];
        file.read_exact_at(&mut bytes, 20_000).unwrap();
        assert!(bytes == content(5, 9000));
        // Mappings, direct I/O, appending, cutting.
        let mapping = Mapped::new(&file, 4096);
        mapping.set(77, 99);
        assert_eq!((read(&file)[77], fs::read(&behind).unwrap()[77]), (99, 99));
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(excluded).unwrap();
        let mut bytes = vec![0; 3 * 4096];
        let start = bytes.as_ptr().align_offset(4096);
        direct.read_exact_at(&mut bytes[start..start + 4096], 0).unwrap();
        assert_eq!(bytes[start + 77], 99);
        std::io::Write::write_all(&mut File::options().append(true).open(excluded).unwrap(), b"end").unwrap();
        assert_eq!(fs::read(&behind).unwrap().len(), LEN + 3);
        assert_eq!(file.metadata().unwrap().len(), LEN as u64 + 3);
        file.set_len(10_000).unwrap();
        assert!(fs::read(excluded).unwrap() == fs::read(&behind).unwrap());
        assert_eq!(
            fs::metadata(excluded).unwrap().modified().unwrap(),
            fs::metadata(&behind).unwrap().modified().unwrap()
        );
        // Of a version that has settled as well.
        drop(file);
        std::thread::sleep(Duration::from_millis(5200));
        for _ in 0..50 {
            assert!(fs::read(excluded).unwrap() == fs::read(&behind).unwrap());
        }
        assert_eq!(asked(place), before, "nothing was asked for");
        assert!(count(place, "passthrough_opens") >= opens + 4);
    });
}

#[test]
fn a_file_is_open_one_way_at_a_time() {
    with_excluded(|place, point| {
        let (source, kept, excluded) = (place.source().join("c.iso"), point.join("b"), point.join("c.iso"));
        fs::write(place.source().join("b"), content(0, LEN)).unwrap();
        let opens = || count(place, "passthrough_opens");
        let before = opens();
        // The way of who came first is everybody's.
        let first = open(&kept);
        assert!(read(&first) == content(0, LEN));
        fs::rename(&kept, &excluded).unwrap();
        let second = open(&excluded);
        are_one(&source, &first, &second, 10);
        assert_eq!(opens(), before);
        drop((first, second));
        // A close is told after it has returned.
        let begun = Instant::now();
        let file = loop {
            let file = open(&excluded);
            if opens() > before {
                break file;
            }
            drop(file);
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not passed");
        };
        // By another name, and by a mapping that is all that is left.
        fs::hard_link(&excluded, &kept).unwrap();
        let other = open(&kept);
        are_one(&source, &file, &other, 20);
        let mapping = Mapped::new(&other, 4096);
        drop((file, other));
        fs::rename(&excluded, point.join("text")).unwrap();
        fs::remove_file(&kept).unwrap();
        let file = open(&point.join("text"));
        for byte in 1..50 {
            mapping.set(9, byte);
            assert_eq!(read(&file)[9], byte);
            file.write_all_at(&[byte + 50], 9).unwrap();
            assert_eq!(mapping.byte(9), byte + 50);
        }
        are_one(&place.source().join("text"), &file, &open(&point.join("text")), 30);
    });
}

/// Opens it by two names, one of which may be excluded, writes a part that nobody else writes and reads it again.
fn open_and_check(names: [&Path; 2], thread: u64, ended: &AtomicBool) {
    let (at, mut turn) = (thread * 8192 + 50_000, 0);
    while !ended.load(Relaxed) {
        turn += 1;
        // Pauses in which nobody may have it open.
        std::thread::sleep(Duration::from_micros(turn * 37 % 500));
        let file = open(names[usize::from((turn + thread).is_multiple_of(2))]);
        file.write_all_at(&content(thread + turn, 5000), at).unwrap();
        let again = open(names[usize::from((turn / 3).is_multiple_of(2))]);
        let mut bytes = vec![0; 5000];
        again.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes == content(thread + turn, 5000), "thread {thread}, turn {turn}");
    }
}

#[test]
fn many_open_files_that_become_excluded() {
    with_excluded(|place, point| {
        let begun = Instant::now();
        for number in 0.. {
            let [before, after, link] =
                ["b", "b.iso", "link"].map(|name| point.join(format!("{number}{name}")));
            fs::write(place.source().join(format!("{number}b")), content(0, LEN)).unwrap();
            fs::hard_link(&before, &link).unwrap();
            let other = point.join(format!("{number}other"));
            fs::hard_link(&before, &other).unwrap();
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let (names, ended) = ([&*link, &*other], &ended);
                    scope.spawn(move || open_and_check(names, thread, ended));
                }
                std::thread::sleep(Duration::from_millis(30));
                // The server knows it by its first name.
                fs::rename(&before, &after).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                ended.store(true, Relaxed);
            });
            assert!(read(&open(&after)) == fs::read(place.source().join(format!("{number}link"))).unwrap());
            if begun.elapsed() > Duration::from_secs(seconds().min(4)) {
                break;
            }
        }
        assert!(count(place, "passthrough_opens") > 20, "{}", count(place, "passthrough_opens"));
    });
}
