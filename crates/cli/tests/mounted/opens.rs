//! Opens that nobody asks ramfold for: nothing is lost of what an open is for.

use crate::behind::with_mount;
use crate::mounted::{as_user, both, content, run, shell, wait_for};
use rustix::fs::{Advice, AtFlags, CWD, Timespec, Timestamps, fadvise, utimensat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PAGE: usize = 4096;
/// Longer than the source's files stay open that nobody reads or writes.
const IDLE: Duration = Duration::from_millis(250);

/// All of a file, none of which the kernel has in memory.
fn anew(file: &File) -> Vec<u8> {
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let len = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

/// A path with the modification time that it has now, to be set again.
fn set_back(path: &Path, change: impl FnOnce()) {
    let told = fs::metadata(path).unwrap();
    change();
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(told.atime(), told.atime_nsec()),
        last_modification: time(told.mtime(), told.mtime_nsec()),
    };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

fn names(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn what_is_known_is_opened_though_the_server_stands_still() {
    with_mount(|mounted, source, point| {
        shell(source, "mkdir d; for n in 1 2 3; do echo $n >d/$n; done");
        let look = "cat d/1 d/2 d/3; ls d | wc -l";
        // A directory's listing is kept once all that was made of it was told.
        wait_for("all is known", || {
            assert_eq!(shell(point, look), "1\n2\n3\n3\n");
            mounted.stand_still();
            let told = Command::new("timeout").args(["5", "sh", "-euc", look]).current_dir(point).output();
            mounted.signal(libc::SIGCONT);
            told.unwrap().stdout == b"1\n2\n3\n3\n"
        });
    });
}

#[test]
fn a_file_without_a_name_is_read_and_written_for_as_long_as_it_is_open() {
    both(|directory| {
        let path = directory.join("file");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&content(1, 3 * PAGE)).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        for turn in 0..2 {
            std::thread::sleep(IDLE);
            assert!(anew(&file) == content(1 + turn, 3 * PAGE));
            std::thread::sleep(IDLE);
            file.write_all_at(&content(2 + turn, 3 * PAGE), 0).unwrap();
        }
        file.sync_all().unwrap();
        fs::rename(directory.join("file"), directory.join("other")).unwrap();
        assert_eq!(fs::read(directory.join("other")).unwrap(), b"another");
        // Of one that another took the place of.
        let taken = File::open(directory.join("other")).unwrap();
        fs::write(directory.join("new"), "new").unwrap();
        fs::rename(directory.join("new"), directory.join("other")).unwrap();
        std::thread::sleep(IDLE);
        assert_eq!(anew(&taken), b"another");
        assert_eq!(fs::read(directory.join("other")).unwrap(), b"new");
    });
}

#[test]
fn a_file_that_goes_behind_the_mount_stays_open() {
    with_mount(|_, source, point| {
        fs::write(source.join("file"), content(1, 3 * PAGE)).unwrap();
        let open = || File::options().read(true).write(true).open(point.join("file")).unwrap();
        let replaced = open();
        shell(source, "echo new >new; mv new file");
        std::thread::sleep(IDLE);
        assert!(anew(&replaced) == content(1, 3 * PAGE));
        replaced.write_all_at(b"more", 0).unwrap();
        assert_eq!(anew(&replaced)[..4], *b"more");
        assert_eq!(fs::read(source.join("file")).unwrap(), b"new\n");
        assert_eq!(fs::read(point.join("file")).unwrap(), b"new\n");
        let deleted = open();
        fs::remove_file(source.join("file")).unwrap();
        std::thread::sleep(IDLE);
        assert_eq!(anew(&deleted), b"new\n");
    });
}

#[test]
fn rights_count_when_a_file_is_opened() {
    both(|directory| {
        // Nobody may write what is made here, but who made it.
        let path = directory.join("read-only");
        let mut made = File::options().write(true).create_new(true).mode(0o444).open(&path).unwrap();
        std::thread::sleep(IDLE);
        made.write_all(b"written").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"written");
        fs::write(directory.join("secret"), content(3, PAGE)).unwrap();
        run(directory, &["chmod", "0604", "secret"]);
        let lines =
            "exec 3<secret; echo opened; read go; cat <&3 | cksum; cat secret 2>/dev/null || echo refused";
        let mut reader = Command::new("timeout")
            .args([
                "20",
                "setpriv",
                "--reuid",
                "1234",
                "--regid",
                "1234",
                "--clear-groups",
                "sh",
                "-euc",
                lines,
            ])
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = reader.stdout.take().unwrap();
        let mut opened = [0; 7];
        told.read_exact(&mut opened).unwrap();
        run(directory, &["chmod", "0600", "secret"]);
        fadvise(File::open(directory.join("secret")).unwrap(), 0, None, Advice::DontNeed).unwrap();
        std::thread::sleep(IDLE);
        reader.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        reader.wait().unwrap();
        assert_eq!(rest, format!("{}refused\n", shell(directory, "cat secret | cksum")));
    });
}

#[test]
fn rights_that_are_taken_away_behind_the_mount() {
    with_mount(|_, source, point| {
        fs::write(source.join("file"), "secret").unwrap();
        let may = || as_user(point, 1234, "", "cat file").code == Some(0);
        let mode = |mode| {
            fs::set_permissions(source.join("file"), fs::Permissions::from_mode(mode)).unwrap();
        };
        for turn in 0..3 {
            mode(0o604);
            wait_for("it may be read", may);
            mode(0o600);
            std::thread::sleep(Duration::from_millis(100));
            assert!(!may(), "turn {turn}");
        }
    });
}

#[test]
fn what_a_mapping_changes_of_a_file_that_is_appended_to_stays_in_its_place() {
    both(|directory| {
        let path = directory.join("file");
        fs::write(&path, content(1, 2 * PAGE)).unwrap();
        let script = "import mmap, os\nfd = os.open('file', os.O_RDWR | os.O_APPEND)\n\
            m = mmap.mmap(fd, 0)\nm[5:9] = b'here'\nm.flush()\nos.write(fd, b'end')\n";
        run(directory, &["python3", "-c", script]);
        let mut expected = content(1, 2 * PAGE);
        expected[5..9].copy_from_slice(b"here");
        expected.extend_from_slice(b"end");
        assert!(fs::read(&path).unwrap() == expected);
    });
}

#[test]
fn a_program_is_busy_while_it_runs_or_is_written() {
    both(|directory| {
        let (path, again) = (directory.join("tool"), directory.join("again"));
        fs::copy("/bin/sleep", &path).unwrap();
        let mut running = Command::new(&path).arg("20").spawn().unwrap();
        let busy = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(Errno::TXTBSY.raw_os_error()));
        };
        busy(File::options().write(true).open(&path).map(drop));
        busy(File::create(&path).map(drop));
        running.kill().unwrap();
        running.wait().unwrap();
        fs::copy("/bin/true", &again).unwrap();
        let writer = File::options().write(true).open(&again).unwrap();
        busy(Command::new(&again).spawn().map(drop));
        drop(writer);
        assert!(Command::new(&again).status().unwrap().success());
    });
}

#[test]
fn what_was_written_can_be_run_behind_the_mount() {
    with_mount(|_, source, point| {
        fs::copy("/bin/true", point.join("tool")).unwrap();
        std::thread::sleep(IDLE);
        assert!(Command::new(source.join("tool")).status().unwrap().success());
    });
}

#[test]
fn what_is_opened_to_be_cut_is_cut() {
    both(|directory| {
        let path = directory.join("file");
        fs::write(&path, content(1, 5 * PAGE)).unwrap();
        let other = File::open(&path).unwrap();
        drop(File::options().write(true).truncate(true).open(&path).unwrap());
        assert!(anew(&other).is_empty());
        fs::write(&path, "new").unwrap();
        assert_eq!(anew(&other), b"new");
        let synced = File::options().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        synced.write_all_at(b"N", 0).unwrap();
        assert_eq!(anew(&other), b"New");
    });
}

#[test]
fn a_listing_behind_a_time_that_was_set_back() {
    with_mount(|_, source, point| {
        let (behind, through) = (source.join("d"), point.join("d"));
        fs::create_dir(&behind).unwrap();
        for turn in 0..20 {
            wait_for("what came is listed", || names(&through) == turn);
            assert_eq!(names(&through), turn, "what the kernel kept");
            set_back(&behind, || fs::write(behind.join(turn.to_string()), "").unwrap());
        }
    });
}

#[test]
fn behind_a_time_that_was_set_back_where_nobody_tells() {
    with_mount(|_, source, point| {
        let below = source.join("below");
        fs::create_dir(&below).unwrap();
        shell(source, "mount -t tmpfs ramfold-test below");
        fs::write(below.join("file"), "old").unwrap();
        let through = point.join("below");
        wait_for("what is mounted there", || through.join("file").exists());
        // The version has settled.
        std::thread::sleep(Duration::from_secs(6));
        for _ in 0..2 {
            assert_eq!((fs::read(through.join("file")).unwrap(), names(&through)), (b"old".to_vec(), 1));
        }
        set_back(&below.join("file"), || fs::write(below.join("file"), "new").unwrap());
        set_back(&below, || fs::write(below.join("more"), "").unwrap());
        std::thread::sleep(Duration::from_secs(1));
        drop(File::open(through.join("file")).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let found = (fs::read(through.join("file")).unwrap(), names(&through));
        drop(fs::remove_dir(through.join("more")));
        shell(source, "umount -l below");
        assert_eq!(found, (b"new".to_vec(), 2));
    });
}
