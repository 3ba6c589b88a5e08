//! Changes in the source behind the mount, of which nothing but the source can tell: seen at once by name, and within a
//! bound by who has the file open.

use crate::mounted::{Mounted, Place, can_mount, content};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

fn with_mount(test: impl Fn(&Mounted, &Path, &Path)) {
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
fn all(file: &File) -> (Vec<u8>, u64) {
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

/// Whether it is `expected` by name, by a new descriptor, by this one, and by its size.
fn is(path: &Path, file: &File, expected: &[u8], what: &str) {
    assert_eq!(fs::metadata(path).unwrap().len(), expected.len() as u64, "{what}: the size by name");
    let (bytes, size) = all(file);
    assert_eq!(size, expected.len() as u64, "{what}: the size of an open file");
    assert_eq!(bytes.len(), expected.len(), "{what}: the bytes that an open file gives");
    assert!(bytes == expected, "{what}: the content of an open file");
    assert!(fs::read(path).unwrap() == expected, "{what}: the content");
}

#[test]
fn of_a_file_that_was_just_made() {
    with_mount(|_, source, point| {
        for turn in 0..200_u32 {
            let name = format!("file-{turn}");
            let (behind, through) = (source.join(&name), point.join(&name));
            let mut expected = content(u64::from(turn), 1000 + turn as usize * 100);
            let file = File::options().read(true).write(true).create_new(true).open(&through).unwrap();
            file.write_all_at(&expected, 0).unwrap();
            append(&behind, b"and more");
            expected.extend_from_slice(b"and more");
            is(&through, &file, &expected, &format!("{turn}: appended"));
            let of_source = File::options().write(true).open(&behind).unwrap();
            of_source.write_all_at(b"changed", 500).unwrap();
            expected[500..507].copy_from_slice(b"changed");
            is(&through, &file, &expected, &format!("{turn}: changed"));
            of_source.set_len(700).unwrap();
            expected.truncate(700);
            is(&through, &file, &expected, &format!("{turn}: cut off"));
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
        for turn in 0..400_usize {
            is(&through, &file, &expected, &format!("{turn}: before"));
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
            is(&through, &file, &expected, &format!("{turn}: after"));
        }
        assert!(fs::read(&behind).unwrap() == expected);
    });
}

/// Waits until it is so, at most so long: when the last look began at which it was not.
fn within(bound: Duration, what: &str, is_so: impl Fn() -> bool) -> Duration {
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
        for turn in 1..200_u64 {
            let old = File::open(&through).unwrap();
            assert!(all(&old).0 == content(turn - 1, 50_000), "{turn}: before");
            match turn % 3 {
                0 => fs::remove_file(&behind).unwrap(),
                1 => fs::rename(&behind, source.join("away")).unwrap(),
                _ => {}
            }
            if turn % 3 != 2 {
                assert!(File::open(&through).is_err(), "{turn}: it is not there");
            }
            fs::write(source.join("new"), content(turn, 50_000)).unwrap();
            fs::rename(source.join("new"), &behind).unwrap();
            assert!(fs::read(&through).unwrap() == content(turn, 50_000), "{turn}: after");
            assert!(all(&old).0 == content(turn - 1, 50_000), "{turn}: who has the old one open");
        }
    });
}

#[test]
fn that_hide_behind_size_and_time() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("file"), point.join("file"));
        fs::write(&behind, content(0, 20_000)).unwrap();
        for turn in 1..100_u64 {
            let file = File::open(&through).unwrap();
            is(&through, &file, &content(turn - 1, 20_000), &format!("{turn}: before"));
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
            is(&through, &file, &content(turn, 20_000), &format!("{turn}: after"));
        }
    });
}

#[test]
fn of_names() {
    with_mount(|_, source, point| {
        for turn in 0..100 {
            let name = format!("name-{turn}");
            assert!(!point.join(&name).exists());
            fs::create_dir(source.join(&name)).unwrap();
            fs::write(source.join(&name).join("file"), &name).unwrap();
            assert_eq!(fs::read(point.join(&name).join("file")).unwrap(), name.as_bytes());
            assert_eq!(fs::read_dir(point).unwrap().count(), turn + 1);
            fs::rename(source.join(&name).join("file"), source.join(&name).join("other")).unwrap();
            assert!(!point.join(&name).join("file").exists());
            assert_eq!(fs::read(point.join(&name).join("other")).unwrap(), name.as_bytes());
        }
        fs::remove_dir_all(source.join("name-7")).unwrap();
        assert!(!point.join("name-7/other").exists());
        assert_eq!(fs::read_dir(point).unwrap().count(), 99);
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
