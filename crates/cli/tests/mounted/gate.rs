//! Who is slow, as long as a test wants: a source that does not answer the server, and programs that keep a directory
//! of the mount locked.
//!
//! The kernel asks this process before it lets the server read a file or list a directory of the source (fanotify's
//! permission events). Whoever lists a directory of the mount into a page of a file that is not read yet has it locked
//! meanwhile.

use crate::mounted::wait_for;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

const PAGE: usize = 4096;

/// Lets the server read one file or directory so many times, and once more when it is opened.
pub struct Gate {
    /// Until it is kept.
    queue: Mutex<Option<OwnedFd>>,
    free: usize,
    /// How long each that is let pass waits.
    wait: Duration,
    asked: AtomicUsize,
    is_open: AtomicBool,
    has_ended: AtomicBool,
}

impl Gate {
    /// In front of a file or directory that the server has not opened yet.
    pub fn new(path: &Path, free: usize) -> Self {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC;
        // SAFETY: plain integers; a new descriptor, if it is one.
        let queue = unsafe {
            let raw =
                libc::fanotify_init(flags, libc::O_RDONLY.cast_unsigned() | libc::O_CLOEXEC.cast_unsigned());
            assert!(raw >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(raw)
        };
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        let mask = libc::FAN_ACCESS_PERM | libc::FAN_ONDIR;
        // SAFETY: a string that ends with a zero.
        let marked = unsafe {
            libc::fanotify_mark(queue.as_raw_fd(), libc::FAN_MARK_ADD, mask, libc::AT_FDCWD, path.as_ptr())
        };
        assert_eq!(marked, 0, "{}", std::io::Error::last_os_error());
        let [is_open, has_ended] = [false; 2].map(AtomicBool::new);
        let (queue, wait) = (Mutex::new(Some(queue)), Duration::ZERO);
        Self { queue, free, wait, asked: AtomicUsize::new(0), is_open, has_ended }
    }

    /// The same, which lets all pass, each after so long: a slow disk.
    pub fn slow(path: &Path, wait: Duration) -> Self {
        Self { wait, ..Self::new(path, usize::MAX) }
    }

    /// How often the server has read.
    pub fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// Returns when somebody waits at it.
    pub fn reached(&self) {
        wait_for("somebody comes to the gate", || self.asked.load(SeqCst) > self.free);
    }

    pub fn open(&self) {
        self.is_open.store(true, SeqCst);
    }

    /// Answers each question in turn, until the test has ended. From then on nobody is asked.
    fn keep(&self) {
        let queue = self.queue.lock().unwrap().take().unwrap();
        while let Some(asked) = self.next(&queue) {
            let number = self.asked.fetch_add(1, SeqCst) + 1;
            let lets_pass = || number <= self.free || self.is_open.load(SeqCst);
            while !lets_pass() && !self.has_ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(self.wait);
            // struct fanotify_response
            let answer = [asked.as_raw_fd().to_ne_bytes(), libc::FAN_ALLOW.to_ne_bytes()];
            assert_eq!(rustix::io::write(&queue, answer.as_flattened()), Ok(8));
        }
    }

    /// The file or directory, as the one that is asked for has it open.
    fn next(&self, queue: &OwnedFd) -> Option<OwnedFd> {
        let mut event = [0; size_of::<libc::fanotify_event_metadata>()];
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        while !self.has_ended.load(SeqCst) {
            let mut sources = [rustix::event::PollFd::new(queue, rustix::event::PollFlags::IN)];
            if rustix::event::poll(&mut sources, Some(&wait)) == Ok(1) {
                assert_eq!(rustix::io::read(queue, &mut event), Ok(event.len()));
                let raw = i32::from_ne_bytes(event[16..20].try_into().unwrap());
                // SAFETY: the event's own descriptor.
                return Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        None
    }
}

/// Does a test while these gates are kept, which are open when it is over, however it ends.
pub fn keep<'env>(
    gates: &'env [Gate],
    test: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) + Send + 'env,
) {
    std::thread::scope(|scope| {
        gates.iter().for_each(|gate| drop(scope.spawn(|| gate.keep())));
        let done = scope.spawn(move || test(scope)).join();
        gates.iter().for_each(|gate| gate.has_ended.store(true, SeqCst));
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Does this in a thread, and returns when that waits in this system call.
pub fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: libc::c_long,
    work: impl FnOnce() + Send + 'scope,
) -> ScopedJoinHandle<'scope, ()> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = scope.spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        work();
    });
    let number = told.recv().unwrap();
    wait_for("a system call that is under way", || {
        let now = fs::read_to_string(format!("/proc/self/task/{number}/syscall")).unwrap();
        now.starts_with(&format!("{call} "))
    });
    thread
}

/// Keeps a directory of the mount locked until the first page of this file, which has one, can be read.
pub fn hold<'scope>(scope: &'scope Scope<'scope, '_>, directory: &Path, page: &Path) {
    let (directory, page) = (File::open(directory).unwrap(), File::open(page).unwrap());
    begin(scope, libc::SYS_getdents64, move || {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that nobody has, which the kernel alone writes to and nobody reads.
        unsafe {
            let at = mmap(std::ptr::null_mut(), PAGE, rights, flags, &page, 0).unwrap();
            let listed = libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), at, PAGE);
            assert!(listed > 0, "{}", std::io::Error::last_os_error());
            munmap(at, PAGE).unwrap();
        }
    });
}
