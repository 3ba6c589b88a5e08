//! Files and directories that others are in the middle of: who waits long between two calls, answers that are under way
//! while what they tell changes behind the mount, and what else changes meanwhile.

use crate::gate::{Gate, begin, hold, keep};
use crate::mapping::Mapping;
use crate::mounted::{Mounted, Place, can_mount, shell, wait_for};
use rustix::fs::{Advice, fadvise};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Longer than the server gives answers to arrive.
const LONG: Duration = Duration::from_millis(1500);
/// The least that a mount may have, in MiB, and how many threads it has for what waits.
const LEAST: u64 = 8;
const WORKERS: usize = 4;

fn names(directory: &Path) -> HashSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Lists a directory in a thread, and returns when that waits in the kernel.
fn list<'scope>(scope: &'scope Scope<'scope, '_>, directory: &'scope Path) -> ScopedJoinHandle<'scope, ()> {
    begin(scope, libc::SYS_getdents64, || drop(names(directory)))
}

/// Returns when so many threads of the server wait for answers to others.
fn workers_wait(mounted: &Mounted, count: usize) {
    let told = |task: &Path, name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let waits =
        |task: &Path| told(task, "comm").trim() == "ramfold-tell" && told(task, "stat").contains(") D ");
    wait_for("workers wait", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", mounted.pid())).unwrap();
        tasks.filter(|task| waits(&task.as_ref().unwrap().path())).count() == count
    });
}

/// Directories that keep all workers waiting, from [`keep_all_waiting`] on, until this gate is open.
fn prepare(source: &Path) -> Gate {
    fs::write(source.join("page"), [0; 4096]).unwrap();
    for number in 0..WORKERS {
        fs::create_dir_all(source.join(format!("locked/{number}"))).unwrap();
    }
    Gate::new(&source.join("page"), 0)
}

fn keep_all_waiting<'scope>(scope: &'scope Scope<'scope, '_>, mounted: &Mounted) {
    for number in 0..WORKERS {
        let name = format!("locked/{number}");
        // The server is told of a directory that something was looked up in.
        assert!(!mounted.point().join(&name).join("new").exists());
        hold(scope, &mounted.point().join(&name), &mounted.point().join("page"));
        File::create(mounted.source().join(name).join("new")).unwrap();
    }
    workers_wait(mounted, WORKERS);
}

/// Who comes to the end when the server has closed the directory that he began with, leaves it whole for others.
#[test]
fn a_directory_of_which_the_end_alone_is_read_is_listed_whole() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(32, &[]);
    let source = mounted.source().join("directory");
    let point = mounted.point().join("directory");
    fs::create_dir(&source).unwrap();
    File::create(source.join("old")).unwrap();
    let open = || {
        let all = fs::read_dir(format!("/proc/{}/fd", mounted.pid())).unwrap();
        all.filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to == source)).count()
    };
    fs::metadata(&point).unwrap();
    let known = open();
    for turn in 0..5 {
        let mut slow = fs::read_dir(&point).unwrap();
        assert!(slow.next().is_some());
        // What the kernel has kept of it is of no use then.
        let name = turn.to_string();
        File::create(source.join(&name)).unwrap();
        wait_for("the server closes the directory", || open() == known);
        slow.for_each(drop);
        wait_for("what came is listed", || {
            let seen = names(&point);
            assert!(seen.contains("old"), "{turn}: listed are {seen:?}");
            seen.contains(&name)
        });
    }
    mounted.stop();
}

/// What waits for the answers of one directory keeps neither names nor listings of another.
#[test]
fn a_slow_directory_delays_no_other() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(LEAST, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    for name in ["slow", "directory"] {
        fs::create_dir(source.join(name)).unwrap();
        File::create(source.join(name).join("old")).unwrap();
    }
    let (slow, directory) = (point.join("slow"), point.join("directory"));
    let comes = |name: &str| {
        let (new, listed) = (directory.join(name), names(&directory));
        assert!(!new.exists() && !listed.contains(name));
        File::create(source.join("directory").join(name)).unwrap();
        wait_for("a name of another directory", || new.exists());
        wait_for("what another directory lists", || names(&directory).contains(name));
    };
    let gates = [Gate::new(&source.join("slow"), 0)];
    let gate = &gates[0];
    keep(&gates, |scope| {
        let listing = list(scope, &slow);
        gate.reached();
        comes("before");
        for number in 0..9 {
            File::create(source.join("slow").join(number.to_string())).unwrap();
        }
        workers_wait(&mounted, 1);
        comes("meanwhile");
        fs::remove_file(source.join("directory/old")).unwrap();
        wait_for("a name that goes", || !directory.join("old").exists());
        assert!(!listing.is_finished(), "the directory was not slow");
        gate.open();
        listing.join().unwrap();
        wait_for("the names of the slow directory", || names(&slow).len() == 10 && slow.join("8").exists());
    });
    mounted.stop();
}

/// What waits for a read of one file keeps no pages of another.
#[test]
fn a_slow_file_delays_no_other() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(LEAST, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    for name in ["slow", "file"] {
        fs::write(source.join(name), [b'a'; 4096]).unwrap();
    }
    let change = |name: &str| {
        File::options().write(true).open(source.join(name)).unwrap().write_all_at(b"b", 0).unwrap();
    };
    let gates = [Gate::new(&source.join("slow"), 0)];
    let gate = &gates[0];
    keep(&gates, |scope| {
        let mapping = Mapping::new(&File::open(point.join("file")).unwrap(), 4096, false).unwrap();
        assert_eq!(mapping.read(0, 1).unwrap(), b"a");
        let slow = File::open(point.join("slow")).unwrap();
        let reading = begin(scope, libc::SYS_pread64, move || {
            slow.read_exact_at(&mut [0], 0).unwrap();
        });
        gate.reached();
        change("slow");
        workers_wait(&mounted, 1);
        change("file");
        wait_for("what is mapped of another file", || mapping.read(0, 1).unwrap() == b"b");
        assert!(!reading.is_finished(), "the file was not slow");
        gate.open();
        reading.join().unwrap();
    });
    mounted.stop();
}

/// The kernel believes it to be what it was before, when another renames it through the mount.
#[test]
fn what_is_renamed_before_its_change_is_told_is_what_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(LEAST, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    fs::create_dir(source.join("directory")).unwrap();
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let (old, new) = (point.join("directory/old"), point.join("directory/new"));
    fs::write(source.join("directory/old"), "as it was").unwrap();
    assert_eq!(read(&old), "as it was");
    let gates = [prepare(source)];
    let gate = &gates[0];
    keep(&gates, |scope| {
        keep_all_waiting(scope, &mounted);
        fs::write(source.join("beside"), "as it is").unwrap();
        fs::rename(source.join("beside"), source.join("directory/old")).unwrap();
        fs::rename(&old, &new).unwrap();
        gate.open();
        wait_for("what was renamed", || read(&new) == "as it is");
    });
    mounted.stop();
}

/// What was listed before a name came is not kept, however late the answer is.
#[test]
fn a_listing_that_is_under_way_when_a_name_comes_is_not_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(LEAST, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    fs::create_dir(source.join("directory")).unwrap();
    File::create(source.join("directory/old")).unwrap();
    let directory = point.join("directory");
    // Of the directory the entries are read, and not the end.
    let gates = [prepare(source), Gate::new(&source.join("directory"), 1)];
    let [page, end] = &gates;
    keep(&gates, |scope| {
        keep_all_waiting(scope, &mounted);
        let first = list(scope, &directory);
        end.reached();
        File::create(source.join("directory/new")).unwrap();
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let now = time(&source.join("directory"));
        wait_for("the directory's time", || time(&directory) == now);
        // Whoever begins now would take what is kept to be of this time.
        let second = list(scope, &directory);
        page.open();
        std::thread::sleep(LONG);
        end.open();
        [first, second].into_iter().for_each(|listing| listing.join().unwrap());
        wait_for("the name that came is listed", || names(&directory).contains("new"));
    });
    mounted.stop();
}

/// A large read of a slow source, of which the kernel has some pages, asks the source for several holes at once.
#[test]
fn holes_of_a_large_read_are_read_together() {
    const PAGES: usize = 32;
    const PAGE: usize = 4096;
    if !can_mount() {
        return;
    }
    let place = Place::new();
    // The kernel alone keeps what does not compress.
    shell(&place.source(), "head -c 4M /dev/urandom >file");
    let expected = fs::read(place.source().join("file")).unwrap();
    let gates = [Gate::slow(&place.source().join("file"), Duration::from_millis(2))];
    let mounted = place.mount(32, &[]);
    keep(&gates, |_| {
        let file = File::open(mounted.point().join("file")).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let read = |first: usize, pages: usize| {
            let (at, len) = (first * PAGE, pages * PAGE);
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at as u64).unwrap();
            assert!(bytes == expected[at..][..len], "pages from {first}");
        };
        (0..16).for_each(|page| read(page * 2, 1));
        let (mut holes, mut asked) = (0, 0);
        for stretch in (PAGES..1024).step_by(PAGES) {
            (0..PAGES / 4).for_each(|page| read(stretch + page * 4, 1));
            let before = gates[0].asked();
            read(stretch, PAGES);
            (holes, asked) = (holes + PAGES / 4, asked + gates[0].asked() - before);
        }
        println!("{holes} holes, {asked} reads");
        assert!(asked < holes * 3 / 4, "{asked} reads of {holes} holes");
    });
    mounted.stop();
}
