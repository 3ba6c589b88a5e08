//! What file systems do, in a plain directory and through the mount: content and its places.

use crate::mounted::{MIB, both, content, run};
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, copy_file_range, fallocate, seek, statvfs};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const PAGE: usize = 4096;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

/// Where a file has data, as `(from, to)`.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (vec![], 0);
    while let Ok(from) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(from)).unwrap();
        found.push((from, at));
    }
    found
}

#[test]
fn holes_are_where_they_were_left() {
    both(|directory| {
        let file = create(&directory.join("holes"));
        file.set_len(8 * MIB).unwrap();
        for at in [MIB, 5 * MIB] {
            file.write_all_at(&content(at, 2 * PAGE), at).unwrap();
        }
        file.sync_all().unwrap();
        let page = PAGE as u64;
        assert_eq!(data(&file), [(MIB, MIB + 2 * page), (5 * MIB, 5 * MIB + 2 * page)]);
        assert!(file.metadata().unwrap().blocks() * 512 < MIB);
        let mut expected = vec![0; 8 << 20];
        expected[1 << 20..][..2 * PAGE].copy_from_slice(&content(MIB, 2 * PAGE));
        expected[5 << 20..][..2 * PAGE].copy_from_slice(&content(5 * MIB, 2 * PAGE));
        assert!(fs::read(directory.join("holes")).unwrap() == expected);
        assert_eq!(seek(&file, SeekFrom::Data(8 * MIB)).unwrap_err(), Errno::NXIO);
        // What copies sparsely keeps them.
        run(directory, &["cp", "--sparse=auto", "holes", "copy"]);
        assert!(fs::read(directory.join("copy")).unwrap() == expected);
        assert!(fs::metadata(directory.join("copy")).unwrap().blocks() * 512 < MIB);
    });
}

#[test]
fn fallocate_in_all_its_ways() {
    both(|directory| {
        let file = create(&directory.join("file"));
        let mut expected = content(7, 64 * PAGE);
        file.write_all_at(&expected, 0).unwrap();
        let check = |expected: &[u8]| assert!(fs::read(directory.join("file")).unwrap() == expected);
        check(&expected);
        fallocate(&file, FallocateFlags::empty(), 0, 100 * PAGE as u64).unwrap();
        expected.resize(100 * PAGE, 0);
        check(&expected);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 200 * PAGE as u64).unwrap();
        check(&expected);
        assert!(file.metadata().unwrap().blocks() * 512 >= 200 * PAGE as u64);
        for (flags, at, len) in [
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5 * PAGE, 3 * PAGE),
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 20 * PAGE + 100, 2 * PAGE),
            (FallocateFlags::ZERO_RANGE, 30 * PAGE + 7, PAGE),
        ] {
            fallocate(&file, flags, at as u64, len as u64).unwrap();
            expected[at..at + len].fill(0);
            check(&expected);
        }
        let wrong = fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 4096).unwrap_err();
        assert_eq!(wrong, Errno::OPNOTSUPP);
        let to_read = File::open(directory.join("file")).unwrap();
        assert_eq!(fallocate(&to_read, FallocateFlags::empty(), 0, 1).unwrap_err(), Errno::BADF);
    });
}

#[test]
fn copy_file_range_copies_what_is_there_now() {
    both(|directory| {
        let (from, to) = (create(&directory.join("from")), create(&directory.join("to")));
        from.write_all_at(&content(1, 1 << 20), 0).unwrap();
        let mut expected = content(2, 1 << 20);
        to.write_all_at(&expected, 0).unwrap();
        // Both are known to whoever keeps pages.
        for name in ["from", "to"] {
            fs::read(directory.join(name)).unwrap();
        }
        let (mut at, mut into, mut left) = (1000, 3333, 700_000);
        while left > 0 {
            left -= copy_file_range(&from, Some(&mut at), &to, Some(&mut into), left).unwrap();
        }
        expected[3333..703_333].copy_from_slice(&content(1, 1 << 20)[1000..701_000]);
        assert!(fs::read(directory.join("to")).unwrap() == expected);
        // What is written and not yet synced is copied too; here over the end.
        from.write_all_at(b"new", 1000).unwrap();
        let copied = copy_file_range(&from, Some(&mut 1000), &to, Some(&mut (1 << 20)), 3).unwrap();
        expected.extend_from_slice(&b"new"[..copied]);
        assert_eq!(copied, 3);
        assert!(fs::read(directory.join("to")).unwrap() == expected);
    });
}

#[test]
fn appends_go_to_the_end() {
    both(|directory| {
        let path = directory.join("log");
        let appender = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let (mut one, mut two) = (appender(), appender());
        let mut expected = vec![];
        for turn in 0..200_u32 {
            let line = content(u64::from(turn), 100 + turn as usize * 7);
            if turn % 2 == 0 { &mut one } else { &mut two }.write_all(&line).unwrap();
            expected.extend_from_slice(&line);
            if turn % 10 == 0 {
                assert!(fs::read(&path).unwrap() == expected);
            }
        }
        assert!(fs::read(&path).unwrap() == expected);
    });
}

#[test]
fn what_has_no_name_yet_gets_one() {
    both(|directory| {
        let opened = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(directory);
        let mut file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return eprintln!("O_TMPFILE: {error}");
            }
            opened => opened.unwrap(),
        };
        file.write_all(b"nameless").unwrap();
        assert_eq!((file.metadata().unwrap().nlink(), fs::read_dir(directory).unwrap().count()), (0, 0));
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (at, flags) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
        rustix::fs::linkat(at, &*own, at, directory.join("named"), flags).unwrap();
        assert_eq!(fs::read(directory.join("named")).unwrap(), b"nameless");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
    });
}

#[repr(align(4096))]
struct Aligned([u8; 16 * PAGE]);

#[test]
fn direct_and_buffered_see_each_other() {
    both(|directory| {
        let path = directory.join("file");
        let buffered = create(&path);
        let flags = libc::O_DIRECT;
        let direct = File::options().read(true).write(true).custom_flags(flags).open(&path).unwrap();
        let mut page = Box::new(Aligned([0; 16 * PAGE]));
        for turn in 0..20_u64 {
            let at = turn % 3 * 8 * PAGE as u64;
            let (mine, other) = (content(turn, 16 * PAGE), content(turn + 100, 16 * PAGE));
            buffered.write_all_at(&mine, at).unwrap();
            direct.read_exact_at(&mut page.0, at).unwrap();
            assert!(page.0[..] == mine, "{turn}: what was buffered is not read directly");
            page.0.copy_from_slice(&other);
            direct.write_all_at(&page.0, at).unwrap();
            let mut seen = vec![0; 16 * PAGE];
            buffered.read_exact_at(&mut seen, at).unwrap();
            assert!(seen == other, "{turn}: what was written directly is not read");
        }
    });
}

/// A mapping of a whole file.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn new(file: &File, len: usize, flags: rustix::mm::MapFlags) -> Self {
        let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that nobody has.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, flags, file, 0) };
        Self(at.unwrap().cast(), len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long and lives as long as `self`, and so is the file that it is of.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    fn sync(&self) {
        // SAFETY: the mapping is this long.
        unsafe { rustix::mm::msync(self.0.cast(), self.1, rustix::mm::MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        unsafe { rustix::mm::munmap(self.0.cast(), self.1) }.unwrap();
    }
}

#[test]
fn mappings_are_the_file() {
    use rustix::mm::MapFlags;
    both(|directory| {
        let path = directory.join("file");
        let len = 256 * PAGE;
        let mut expected = content(3, len);
        fs::write(&path, &expected).unwrap();
        let file = open(&path);
        let mut private = Mapping::new(&file, len, MapFlags::PRIVATE);
        let mut shared = Mapping::new(&file, len, MapFlags::SHARED);
        let mut second = Mapping::new(&open(&path), len, MapFlags::SHARED);
        assert!(private.bytes() == expected && shared.bytes() == expected);
        private.bytes()[0] ^= 0xff;
        assert!(fs::read(&path).unwrap() == expected, "what is private is not written");
        for at in (100..len).step_by(7 * PAGE + 1) {
            shared.bytes()[at] = 0xa5;
            expected[at] = 0xa5;
        }
        assert!(second.bytes() == expected, "one mapping shows what the other has written");
        shared.sync();
        assert!(fs::read(&path).unwrap() == expected);
        let told = run(directory, &["cksum", "file"]);
        fs::write(directory.join("same"), &expected).unwrap();
        assert_eq!(told.replace("file", "same"), run(directory, &["cksum", "same"]));
        // What is written by a call is seen in the mapping.
        file.write_all_at(b"by a call", 50_000).unwrap();
        assert_eq!(&second.bytes()[50_000..50_009], b"by a call");
        drop((private, shared, second, file));
        assert_eq!(&fs::read(&path).unwrap()[50_000..50_009], b"by a call");
    });
}

#[test]
fn programs_run_from_it() {
    both(|directory| {
        fs::copy("/bin/cat", directory.join("tool")).unwrap();
        fs::write(directory.join("text"), "hello").unwrap();
        assert_eq!(run(directory, &["./tool", "text"]), "hello");
        fs::write(directory.join("script"), "#!/bin/sh\necho from a script\n").unwrap();
        fs::set_permissions(directory.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(run(directory, &["./script"]), "from a script\n");
    });
}

#[test]
fn deleted_files_live_while_they_are_open() {
    both(|directory| {
        let path = directory.join("file");
        let file = create(&path);
        file.write_all_at(&content(4, 40 * PAGE), 0).unwrap();
        let to_read = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "no other name stands for it");
        fs::write(&path, "another").unwrap();
        file.write_all_at(b"more", 40 * PAGE as u64).unwrap();
        let mut all = vec![];
        (&to_read).read_to_end(&mut all).unwrap();
        assert!(all == [&content(4, 40 * PAGE)[..], b"more"].concat());
        file.set_len(10).unwrap();
        let now = to_read.metadata().unwrap();
        assert_eq!((now.len(), now.nlink()), (10, 0));
        drop((file, to_read));
        assert_eq!(fs::read(&path).unwrap(), b"another");
    });
}

#[test]
fn sizes_change_as_told() {
    both(|directory| {
        let path = directory.join("file");
        let file = create(&path);
        let mut expected = content(5, 100_000);
        file.write_all_at(&expected, 0).unwrap();
        // What is cut off comes back as zeros, also within a page that was read before.
        for (shorter, longer) in [(90_000, 95_000), (50_001, 200_000), (1, 4096), (0, 1 << 20)] {
            fs::read(&path).unwrap();
            file.set_len(shorter as u64).unwrap();
            expected.truncate(shorter);
            assert!(fs::read(&path).unwrap() == expected);
            file.set_len(longer as u64).unwrap();
            expected.resize(longer, 0);
            assert!(fs::read(&path).unwrap() == expected, "{shorter}, {longer}");
        }
        drop(File::options().write(true).truncate(true).open(&path).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 0);
    });
}

#[test]
fn statfs_is_the_source_s() {
    if !crate::mounted::can_mount() {
        return;
    }
    let place = crate::mounted::Place::new();
    let mounted = place.mount(32, &[]);
    let (source, mount) = (statvfs(mounted.source()).unwrap(), statvfs(mounted.point()).unwrap());
    let told = |of: &rustix::fs::StatVfs| (of.f_bsize, of.f_frsize, of.f_blocks, of.f_files, of.f_namemax);
    assert_eq!(told(&source), told(&mount));
    assert!(source.f_bavail.abs_diff(mount.f_bavail) < source.f_blocks / 10);
    mounted.stop();
}

#[test]
fn a_large_directory_is_listed_whole() {
    if !crate::mounted::can_mount() {
        return;
    }
    const COUNT: usize = 100_000;
    let place = crate::mounted::Place::new();
    let large = place.source().join("large");
    fs::create_dir(&large).unwrap();
    for number in 0..COUNT {
        File::create(large.join(format!("entry-{number:06}"))).unwrap();
    }
    let mounted = place.mount(32, &[]);
    let large = mounted.point().join("large");
    for _ in 0..2 {
        let mut names = HashSet::new();
        for entry in fs::read_dir(&large).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(names.insert(name.clone()), "{name} is listed twice");
        }
        assert_eq!(names.len(), COUNT);
        assert!((0..COUNT).all(|number| names.contains(&format!("entry-{number:06}"))));
    }
    assert_eq!(run(&large, &["sh", "-c", "find . -type f | sort -u | wc -l"]).trim(), "100000");
    // Each is looked at, and stays known for a while.
    assert_eq!(run(&large, &["sh", "-c", "find . -type f -size 0 -printf x | wc -c"]).trim(), "100000");
    // It is emptied while it is listed.
    run(mounted.point(), &["rm", "-r", "large"]);
    assert!(!place.source().join("large").exists());
    mounted.stop();
}

#[test]
fn bytes_come_from_pipes_and_memory() {
    both(|directory| {
        let memory = File::from(rustix::fs::memfd_create("from", MemfdFlags::CLOEXEC).unwrap());
        memory.write_all_at(&content(9, 300_000), 0).unwrap();
        let file = create(&directory.join("file"));
        let mut sent = 0;
        while sent < 300_000 {
            let left = 300_000 - usize::try_from(sent).unwrap();
            rustix::fs::sendfile(&file, &memory, Some(&mut sent), left).unwrap();
        }
        assert!(fs::read(directory.join("file")).unwrap() == content(9, 300_000));
        run(directory, &["sh", "-c", "cat file | tee copy | cmp - file"]);
        assert!(fs::read(directory.join("copy")).unwrap() == content(9, 300_000));
    });
}
