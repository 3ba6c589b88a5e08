//! Directories that others are in the middle of: who waits long between two calls, and answers that are under way while
//! what they tell changes behind the mount.
//!
//! The kernel asks this process before it lets the server list a directory of the source (fanotify's permission
//! events). So an answer is held when its entries have been read, until they are old.

use crate::mounted::{Mounted, Place, can_mount, wait_for};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::Scope;
use std::time::Duration;

/// Longer than the server gives answers to arrive.
const LONG: Duration = Duration::from_millis(1500);

/// Lets the server read one directory so many times, and once more when it is opened.
struct Gate {
    queue: OwnedFd,
    free: usize,
    asked: AtomicUsize,
    is_open: AtomicBool,
}

impl Gate {
    /// The directory has not been listed yet.
    fn new(directory: &Path, free: usize) -> Self {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC;
        // SAFETY: plain integers; a new descriptor, if it is one.
        let queue = unsafe {
            let raw =
                libc::fanotify_init(flags, libc::O_RDONLY.cast_unsigned() | libc::O_CLOEXEC.cast_unsigned());
            assert!(raw >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(raw)
        };
        let path = std::ffi::CString::new(directory.as_os_str().as_bytes()).unwrap();
        let mask = libc::FAN_ACCESS_PERM | libc::FAN_ONDIR;
        // SAFETY: a string that ends with a zero.
        let marked = unsafe {
            libc::fanotify_mark(queue.as_raw_fd(), libc::FAN_MARK_ADD, mask, libc::AT_FDCWD, path.as_ptr())
        };
        assert_eq!(marked, 0, "{}", std::io::Error::last_os_error());
        Self { queue, free, asked: AtomicUsize::new(0), is_open: AtomicBool::new(false) }
    }

    /// Somebody waits at it.
    fn is_reached(&self) -> bool {
        self.asked.load(SeqCst) > self.free
    }

    fn open(&self) {
        self.is_open.store(true, SeqCst);
    }

    /// Answers each question in turn, until the test has ended.
    fn keep(&self, ended: &AtomicBool) {
        while let Some(asked) = self.next(ended) {
            let number = self.asked.fetch_add(1, SeqCst) + 1;
            while number > self.free && !self.is_open.load(SeqCst) && !ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // struct fanotify_response
            let answer = [asked.as_raw_fd().to_ne_bytes(), libc::FAN_ALLOW.to_ne_bytes()];
            assert_eq!(rustix::io::write(&self.queue, answer.as_flattened()), Ok(8));
        }
    }

    /// The directory, as the one that is asked for has it open.
    fn next(&self, ended: &AtomicBool) -> Option<OwnedFd> {
        let mut event = [0; size_of::<libc::fanotify_event_metadata>()];
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        while !ended.load(SeqCst) {
            let mut sources = [rustix::event::PollFd::new(&self.queue, rustix::event::PollFlags::IN)];
            if rustix::event::poll(&mut sources, Some(&wait)) == Ok(1) {
                assert_eq!(rustix::io::read(&self.queue, &mut event), Ok(event.len()));
                let raw = i32::from_ne_bytes(event[16..20].try_into().unwrap());
                // SAFETY: the event's own descriptor.
                return Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        None
    }
}

fn names(directory: &Path) -> HashSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Lists a directory in a thread of its own, and returns when that waits in the kernel.
fn list<'scope>(scope: &'scope Scope<'scope, '_>, directory: &'scope Path) {
    let (tell, told) = std::sync::mpsc::channel();
    scope.spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        names(directory);
    });
    let thread = told.recv().unwrap();
    wait_for("a listing that is under way", || {
        let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
        call.starts_with(&format!("{} ", libc::SYS_getdents64))
    });
}

/// The thread that has names forgotten waits for whoever asks.
fn waits(mounted: &Mounted) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", mounted.pid())).unwrap();
    let told = |task: &Path, name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let mut tasks = tasks.map(|task| task.unwrap().path());
    tasks.any(|task| told(&task, "comm").trim() == "ramfold-names" && told(&task, "stat").contains(") D "))
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

/// The kernel believes it to be what it was before, when another renames it through the mount.
#[test]
fn what_is_renamed_before_its_change_is_told_is_what_it_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(32, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    for name in ["slow", "directory"] {
        fs::create_dir(source.join(name)).unwrap();
    }
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let (old, new) = (point.join("directory/old"), point.join("directory/new"));
    fs::write(source.join("directory/old"), "as it was").unwrap();
    assert_eq!(read(&old), "as it was");
    let (slow, gate) = (point.join("slow"), Gate::new(&source.join("slow"), 0));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| gate.keep(&ended));
        let done = scope.spawn(|| {
            std::thread::scope(|scope| {
                // Who is to have names forgotten waits for another directory.
                list(scope, &slow);
                wait_for("the slow directory", || gate.is_reached());
                File::create(source.join("slow/new")).unwrap();
                wait_for("a name of the slow directory is forgotten", || waits(&mounted));
                fs::write(source.join("beside"), "as it is").unwrap();
                fs::rename(source.join("beside"), source.join("directory/old")).unwrap();
                fs::rename(&old, &new).unwrap();
                gate.open();
            });
            wait_for("what was renamed", || read(&new) == "as it is");
        });
        let done = done.join();
        gate.open();
        ended.store(true, SeqCst);
        done.unwrap();
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
    let mounted = place.mount(32, &[]);
    let (source, point) = (mounted.source(), mounted.point());
    for name in ["slow", "directory"] {
        fs::create_dir(source.join(name)).unwrap();
        File::create(source.join(name).join("old")).unwrap();
    }
    let (slow, directory) = (point.join("slow"), point.join("directory"));
    // Of the directory the entries are read, and not the end.
    let gates = [Gate::new(&source.join("slow"), 0), Gate::new(&source.join("directory"), 1)];
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        gates.iter().for_each(|gate| drop(scope.spawn(|| gate.keep(&ended))));
        let done = scope.spawn(|| {
            std::thread::scope(|scope| {
                // Who is to have names forgotten waits for another directory.
                list(scope, &slow);
                wait_for("the slow directory", || gates[0].is_reached());
                File::create(source.join("slow/new")).unwrap();
                wait_for("a name of the slow directory is forgotten", || waits(&mounted));
                list(scope, &directory);
                wait_for("the directory", || gates[1].is_reached());
                File::create(source.join("directory/new")).unwrap();
                let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
                let now = time(&source.join("directory"));
                wait_for("the directory's time", || time(&directory) == now);
                // Whoever begins now would take what is kept to be of this time.
                list(scope, &directory);
                gates[0].open();
                std::thread::sleep(LONG);
                gates[1].open();
            });
            wait_for("the name that came is listed", || names(&directory).contains("new"));
        });
        let done = done.join();
        gates.iter().for_each(Gate::open);
        ended.store(true, SeqCst);
        done.unwrap();
    });
    mounted.stop();
}
