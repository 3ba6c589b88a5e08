//! Changes in the source behind the mount, of which nothing but the source can tell: seen within a bound.

use crate::mounted::{Mounted, Place, binary, can_mount, content, finish, shell};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A test of a mount, with its source and where it is.
pub fn with_mount(test: impl Fn(&Mounted, &Path, &Path)) {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(32, &[]);
    test(&mounted, mounted.source(), mounted.point());
    mounted.stop();
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// All that a descriptor gives, and what the size is said to be.
pub fn all(file: &File) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; 1 << 20];
    let mut filled = 0;
    loop {
        match file.read_at(&mut bytes[filled..], filled as u64).unwrap() {
            0 => break,
            len => filled += len,
        }
    }
    bytes.truncate(filled);
    (bytes, file.metadata().unwrap().len())
}

/// How late a change may be seen, and how late at the very latest.
pub const BOUND: Duration = Duration::from_millis(100);
pub const LATEST: Duration = Duration::from_secs(1);

/// Waits until it is so, at most so long: when the last look began at which it was not.
pub fn within(bound: Duration, what: &str, is_so: impl Fn() -> bool) -> Duration {
    let (begun, mut late) = (Instant::now(), Duration::ZERO);
    loop {
        let now = begun.elapsed();
        if is_so() {
            return late;
        }
        late = now;
        assert!(late < bound, "{what}: not after {bound:?}");
    }
}

/// How many changes were seen later than they should have been.
#[derive(Default)]
struct Slow(Cell<usize>);

impl Slow {
    fn seen(&self, what: &str, is_so: impl Fn() -> bool) {
        let late = within(LATEST, what, is_so);
        self.0.set(self.0.get() + usize::from(late > BOUND));
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || self.0.get() <= 2, "{} changes were seen late", self.0.get());
    }
}

/// Whether it is `expected` by name, by a new descriptor, by this one, and by its size.
fn is(slow: &Slow, path: &Path, file: &File, expected: &[u8], what: &str) {
    let size = expected.len() as u64;
    slow.seen(&format!("{what}: the size by name"), || fs::metadata(path).unwrap().len() == size);
    slow.seen(&format!("{what}: what an open file gives"), || {
        let (bytes, told) = all(file);
        told == size && bytes == expected
    });
    slow.seen(&format!("{what}: the content"), || fs::read(path).unwrap() == expected);
}

#[test]
fn of_a_file_that_was_just_made() {
    with_mount(|_, source, point| {
        let slow = Slow::default();
        for turn in 0..200_u32 {
            let name = format!("file-{turn}");
            let (behind, through) = (source.join(&name), point.join(&name));
            let mut expected = content(u64::from(turn), 1000 + turn as usize * 100);
            let file = File::options().read(true).write(true).create_new(true).open(&through).unwrap();
            file.write_all_at(&expected, 0).unwrap();
            append(&behind, b"and more");
            expected.extend_from_slice(b"and more");
            is(&slow, &through, &file, &expected, &format!("{turn}: appended"));
            let of_source = File::options().write(true).open(&behind).unwrap();
            of_source.write_all_at(b"changed", 500).unwrap();
            expected[500..507].copy_from_slice(b"changed");
            is(&slow, &through, &file, &expected, &format!("{turn}: changed"));
            of_source.set_len(700).unwrap();
            expected.truncate(700);
            is(&slow, &through, &file, &expected, &format!("{turn}: cut off"));
        }
    });
}

#[test]
fn of_a_file_that_is_open_and_read() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        let mut expected = content(1, 300_000);
        fs::write(&behind, &expected).unwrap();
        let file = File::options().read(true).write(true).open(&through).unwrap();
        let mut of_source = File::options().read(true).write(true).open(&behind).unwrap();
        let slow = Slow::default();
        for turn in 0..400_usize {
            is(&slow, &through, &file, &expected, &format!("{turn}: before"));
            let at = turn * 7919 % expected.len();
            match turn % 5 {
                0 | 1 => {
                    let new = content(turn as u64, 5000.min(expected.len() - at));
                    of_source.write_all_at(&new, at as u64).unwrap();
                    expected[at..at + new.len()].copy_from_slice(&new);
                }
                2 => {
                    of_source.seek(SeekFrom::End(0)).unwrap();
                    of_source.write_all(&content(turn as u64, 3000)).unwrap();
                    expected.extend_from_slice(&content(turn as u64, 3000));
                }
                3 => {
                    let len = (expected.len() - 2000).max(10_000);
                    of_source.set_len(len as u64).unwrap();
                    expected.truncate(len);
                }
                _ => {
                    // Through the mount between two changes behind it.
                    file.write_all_at(b"through", at as u64).unwrap();
                    expected.resize(expected.len().max(at + 7), 0);
                    expected[at..at + 7].copy_from_slice(b"through");
                }
            }
            is(&slow, &through, &file, &expected, &format!("{turn}: after"));
        }
        assert!(fs::read(&behind).unwrap() == expected);
    });
}

/// Who has a file open, or mapped, and looks for nothing by name.
#[test]
fn of_a_file_that_is_open_and_believed() {
    with_mount(|_, source, point| {
        let told = Duration::from_millis(100);
        let (behind, through) = (source.join("file"), point.join("file"));
        fs::write(&behind, content(0, 20_000)).unwrap();
        let file = File::open(&through).unwrap();
        let mapping = Mapped::new(&file, 4096);
        let of_source = File::options().write(true).open(&behind).unwrap();
        let byte = |at: u64| {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            byte[0]
        };
        let mut slow = 0;
        for turn in 1..=200_u64 {
            // It is believed now.
            assert_eq!(all(&file).1, all(&file).0.len() as u64);
            let (at, new) = (turn * 17 % 4096, (turn % 251) as u8);
            let old = fs::metadata(&behind).unwrap();
            of_source.write_all_at(&[new], at).unwrap();
            if turn % 4 == 0 {
                let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
                let times = Timestamps {
                    last_access: time(old.atime(), old.atime_nsec()),
                    last_modification: time(old.mtime(), old.mtime_nsec()),
                };
                utimensat(CWD, &behind, &times, AtFlags::empty()).unwrap();
            }
            let late = within(told * 10, "a byte", || byte(at) == new);
            let mapped = within(told * 10, "a byte of a mapping", || {
                mapping.byte(usize::try_from(at).unwrap()) == new
            });
            let len = 20_000 + turn * 7 % 1000;
            of_source.set_len(len).unwrap();
            let size = within(told * 10, "a length", || all(&file).0.len() as u64 == len);
            slow += usize::from(late.max(mapped).max(size) > told);
        }
        assert!(slow <= 2, "{slow} of 200 changes were seen later than {told:?}");
    });
}

/// Of what is stored through a mapping of the source the kernel tells nobody.
#[test]
fn by_a_mapping_of_the_source() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        fs::write(&behind, content(0, 20_000)).unwrap();
        let file = File::open(&through).unwrap();
        let of_source = File::options().read(true).write(true).open(&behind).unwrap();
        let mapping = Mapped::new(&of_source, 4096);
        for turn in 1..=3_u8 {
            assert_eq!(all(&file).1, 20_000);
            // Written back, the page has to be made writable again, which sets the time.
            of_source.sync_all().unwrap();
            mapping.set(5, turn);
            within(Duration::from_millis(1500), "a byte", || all(&file).0[5] == turn);
        }
    });
}

/// A mount of a mount: the kernel tells nothing of what changes behind the first one.
#[test]
fn where_the_kernel_does_not_tell() {
    with_mount(|_, source, point| {
        let place = Place::new();
        fs::write(source.join("file"), "0").unwrap();
        for (timeout, least) in [("0", Duration::ZERO), ("2", Duration::from_secs(1))] {
            let outer = place.mount_at(point, &place.point(), 32, &["--attr-timeout", timeout]);
            let file = File::open(outer.point().join("file")).unwrap();
            for turn in 1..=2 {
                // What is believed is as young as can be.
                std::thread::sleep(least * 2 + Duration::from_millis(100));
                all(&file);
                let new = format!("{timeout} {turn}").into_bytes();
                fs::write(source.join("file"), &new).unwrap();
                let late = within(least * 2 + Duration::from_secs(2), "a change", || all(&file).0 == new);
                assert!(late >= least, "--attr-timeout {timeout}: seen after {late:?}");
            }
            drop(file);
            outer.stop();
        }
    });
}

/// A shared mapping of the first bytes of a file.
pub struct Mapped(*mut u8, usize);

impl Mapped {
    pub fn new(file: &File, len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let writes = rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::RDWR);
        let rights = if writes { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, at an address that nobody has.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) };
        Self(at.unwrap().cast(), len)
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: it lies in the mapping, and the file has that page all the time.
        unsafe { self.0.add(at).read_volatile() }
    }

    pub fn set(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: as above; the mapping was made to be written.
        unsafe { self.0.add(at).write_volatile(byte) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
    }
}

#[test]
fn of_a_file_that_another_takes_the_place_of() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        fs::write(&behind, content(0, 50_000)).unwrap();
        let slow = Slow::default();
        for turn in 1..200_u64 {
            let old = File::open(&through).unwrap();
            assert!(all(&old).0 == content(turn - 1, 50_000), "{turn}: before");
            match turn % 3 {
                0 => fs::remove_file(&behind).unwrap(),
                1 => fs::rename(&behind, source.join("away")).unwrap(),
                _ => {}
            }
            if turn % 3 != 2 {
                slow.seen(&format!("{turn}: it is not there"), || File::open(&through).is_err());
            }
            fs::write(source.join("new"), content(turn, 50_000)).unwrap();
            fs::rename(source.join("new"), &behind).unwrap();
            slow.seen(&format!("{turn}: after"), || {
                fs::read(&through).is_ok_and(|bytes| bytes == content(turn, 50_000))
            });
            assert!(all(&old).0 == content(turn - 1, 50_000), "{turn}: who has the old one open");
        }
    });
}

#[test]
fn that_hide_behind_size_and_time() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        fs::write(&behind, content(0, 20_000)).unwrap();
        let slow = Slow::default();
        for turn in 1..100_u64 {
            let file = File::open(&through).unwrap();
            is(&slow, &through, &file, &content(turn - 1, 20_000), &format!("{turn}: before"));
            let old = fs::metadata(&behind).unwrap();
            let of_source = File::options().write(true).open(&behind).unwrap();
            of_source.write_all_at(&content(turn, 20_000), 0).unwrap();
            let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
            let times = Timestamps {
                last_access: time(old.atime(), old.atime_nsec()),
                last_modification: time(old.mtime(), old.mtime_nsec()),
            };
            utimensat(CWD, &behind, &times, AtFlags::empty()).unwrap();
            // The kernel goes by size and time until the file is opened again.
            drop(file);
            let file = File::open(&through).unwrap();
            is(&slow, &through, &file, &content(turn, 20_000), &format!("{turn}: after"));
        }
    });
}

#[test]
fn of_names() {
    with_mount(|_, source, point| {
        let slow = Slow::default();
        let reads = |path: &Path, text: &str| fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes());
        for turn in 0..100 {
            let name = format!("name-{turn}");
            let (behind, through) = (source.join(&name), point.join(&name));
            assert!(!through.exists());
            fs::create_dir(&behind).unwrap();
            fs::write(behind.join("file"), &name).unwrap();
            slow.seen("a file in a new directory", || reads(&through.join("file"), &name));
            slow.seen("a directory that is listed", || fs::read_dir(point).unwrap().count() == turn + 1);
            assert!(!through.join("other").exists());
            fs::rename(behind.join("file"), behind.join("other")).unwrap();
            slow.seen("an old name", || !through.join("file").exists());
            slow.seen("a new name", || reads(&through.join("other"), &name));
        }
        fs::remove_dir_all(source.join("name-7")).unwrap();
        slow.seen("a directory that has gone", || !point.join("name-7/other").exists());
        slow.seen("what is listed", || fs::read_dir(point).unwrap().count() == 99);
    });
}

/// A directory that has settled, so that the kernel may keep what it lists.
#[test]
fn of_names_in_a_directory_that_was_listed() {
    with_mount(|_, source, point| {
        let slow = Slow::default();
        (0..500).for_each(|number| fs::write(source.join(format!("{number}")), "").unwrap());
        std::thread::sleep(Duration::from_millis(5200));
        let count = || fs::read_dir(point).unwrap().count();
        assert_eq!([count(), count(), count()], [500; 3]);
        fs::write(source.join("new"), "").unwrap();
        slow.seen("a new name", || count() == 501);
        fs::rename(source.join("new"), source.join("newer")).unwrap();
        let has = |name: &str| fs::read_dir(point).unwrap().any(|entry| entry.unwrap().file_name() == name);
        slow.seen("a name that has changed", || has("newer") && !has("new"));
        fs::remove_file(source.join("newer")).unwrap();
        slow.seen("a name that has gone", || count() == 500);
    });
}

/// Of a file that was only looked up, and of a directory.
#[test]
fn of_what_is_never_opened() {
    with_mount(|_, source, point| {
        let slow = Slow::default();
        fs::create_dir(source.join("directory")).unwrap();
        fs::write(source.join("directory/file"), "0").unwrap();
        fs::hard_link(source.join("directory/file"), source.join("other")).unwrap();
        let told = |name: &str| fs::metadata(point.join(name)).unwrap();
        for turn in 1..100_u32 {
            told("directory/file");
            let by = if turn % 2 == 0 { "directory/file" } else { "other" };
            append(&source.join(by), b"0");
            slow.seen("a length", || told("directory/file").len() == u64::from(turn) + 1);
            for (name, mode) in [("directory", 0o700), ("directory/file", 0o600)] {
                let mode = mode + turn % 8;
                fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
                slow.seen("a mode", || told(name).mode() & 0o7777 == mode);
            }
        }
    });
}

/// A server that ends with the test.
struct Server(i32);

impl Server {
    fn signal(&self, signal: i32) {
        // SAFETY: plain integers, of a process that only the first of all waits for, once it has ended.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        self.signal(libc::SIGTERM);
    }
}

/// A mount of another user than root, of whom the kernel keeps only so many changes that have not been read.
#[test]
fn of_names_that_were_too_many_to_be_told() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (source, point) = (place.source(), place.point());
    for path in [place.path(), &source, &point] {
        chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    fs::write(source.join("goes"), "").unwrap();
    // In a namespace where everybody may use FUSE.
    let lines = "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse
        setpriv --reuid=65534 --regid=65534 --clear-groups -- \"$0\" mount source mount -m 32M 2>told & echo $! >pid
        while ! grep -q ' is at ' told; do sleep 0.01; done";
    let mut start = Command::new("unshare");
    start.args(["--mount", "sh", "-euc", lines]).arg(binary());
    start.current_dir(place.path()).env("XDG_RUNTIME_DIR", place.path());
    assert_eq!(finish(&mut start, 30).code, Some(0));
    let pid = fs::read_to_string(place.path().join("pid")).unwrap().trim().to_owned();
    let server = Server(pid.parse().unwrap());
    let is = |lines: &str| {
        let mut command = Command::new("nsenter");
        command.args([
            "--mount",
            "--target",
            &pid,
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
        finish(command.args(["sh", "-euc", lines]).env("AT", &point), 30).code == Some(0)
    };
    assert!(is("test -e $AT/goes -a ! -e $AT/comes"));
    // The server may not open such a file a second time.
    assert!(is("umask 333; { sleep 0.3; echo more; } >$AT/read-only; grep -q more $AT/read-only"));
    let most = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap();
    let most: u32 = most.trim().parse().unwrap();
    server.signal(libc::SIGSTOP);
    // More names than are kept, and no two alike.
    (0..most).for_each(|number| drop(File::create(source.join(number.to_string())).unwrap()));
    fs::remove_file(source.join("goes")).unwrap();
    fs::write(source.join("comes"), "").unwrap();
    server.signal(libc::SIGCONT);
    within(LATEST, "what was not told", || is("test ! -e $AT/goes -a -e $AT/comes"));
}

/// What the source's directories do not tell of.
#[test]
fn of_what_is_mounted_there() {
    with_mount(|_, source, point| {
        let (slow, within) = (Slow::default(), source.join("a place"));
        fs::create_dir(&within).unwrap();
        fs::write(within.join("below"), "").unwrap();
        let has = |name: &str| point.join("a place").join(name).exists();
        for turn in 0..5 {
            assert!(has("below") && !has("above"), "{turn}");
            shell(source, "mount -t tmpfs ramfold-test 'a place' && : >'a place/above'");
            slow.seen("what is mounted", || has("above") && !has("below"));
            // Those who look hold it.
            shell(source, "umount -l 'a place'");
            slow.seen("what was below", || has("below") && !has("above"));
        }
    });
}

#[test]
fn through_the_mount_are_in_the_source_at_once() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        let file = File::create(&through).unwrap();
        let mut expected = vec![];
        for turn in 0..100_u64 {
            (&file).write_all(&content(turn, 5000)).unwrap();
            expected.extend_from_slice(&content(turn, 5000));
            assert!(fs::read(&behind).unwrap() == expected, "{turn}");
        }
        file.set_len(1234).unwrap();
        assert!(fs::read(&behind).unwrap() == expected[..1234]);
    });
}
