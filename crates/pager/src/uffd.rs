//! A thin layer over userfaultfd (`linux/userfaultfd.h`): one function an ioctl, errno as the error.
//!
//! Partial progress is part of the contract: COPY, ZEROPAGE and MOVE may be cut short by EAGAIN (the address space is
//! changing) and report how far they came in a field that holds bytes *or* a negative errno. The functions here
//! return [`Progress`] so that no caller mistakes the one for the other. EAGAIN lasts until the thread that reads
//! messages has read what the change is told by ([`crate::inbox`]): other threads wait here until then, the reader
//! itself is told.

use crate::face::{Host, UffdError};
use crate::sys::{self, PAGE};
use ramfold_budget::fds::Kept;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

const API: u64 = 0xAA;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const USERFAULTFD_IOC_NEW: u64 = 0xaa00;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MOVE: u64 = 1 << 16;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FAULT_WRITE: u64 = 1 << 0;
const FAULT_WP: u64 = 1 << 1;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;

const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;

/// A userfaultfd of this process, with the features that the pager needs.
#[derive(Debug)]
pub(crate) struct Uffd {
    fd: Kept,
    can_move: bool,
    /// The kernel tells what the program does to the range past the pager.
    tells_changes: bool,
    /// The thread that reads messages.
    reader: AtomicU32,
    /// Asks for no permission once it is open.
    device: Option<Kept>,
}

/// One page fault that waits to be resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// The faulting address, not rounded.
    pub(crate) addr: usize,
    /// The thread that waits.
    pub(crate) tid: u32,
    /// It wants to write.
    pub(crate) write: bool,
    /// The page is there, but write-protected.
    pub(crate) write_protected: bool,
}

/// What a system call of the program's has done, or is about to do, to the registered range; addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Contents are dropped (madvise).
    Removed(Range<usize>),
    /// Nothing is mapped there any more, unless something else is by now.
    Unmapped(Range<usize>),
    /// A mapping and its contents lie elsewhere, and are still registered.
    Moved {
        /// Where it was.
        from: usize,
        /// Where it is.
        to: usize,
        /// Bytes.
        len: usize,
    },
}

/// What a message tells.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// A thread waits for a page.
    Fault(Fault),
    /// The thread that makes the change goes on as soon as the message has been read.
    Change(Change),
}

/// How far a COPY, ZEROPAGE or MOVE came, and what stopped it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Bytes done from the start of the range.
    pub(crate) bytes: usize,
    /// Why the rest was not done; `None` when all was.
    pub(crate) stopped: Option<Errno>,
}

#[repr(C)]
#[derive(Default)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

/// The shape of UFFDIO_COPY's and UFFDIO_MOVE's argument.
#[repr(C)]
#[derive(Default)]
struct TransferArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Default)]
struct ZeropageArg {
    range: RangeArg,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Default)]
struct WriteProtectArg {
    range: RangeArg,
    mode: u64,
}

/// `struct uffd_msg`: of a page fault (flags, address, thread), a removal (start, end) or a move (from, to, length).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Message {
    event: u8,
    reserved: [u8; 7],
    arguments: [u64; 3],
}

/// Whether pages can leave programs here by UFFDIO_MOVE (6.8); else they are copied.
///
/// # Errors
/// [`UffdError`] if userfaultfd cannot be used at all.
pub fn kernel_can_move() -> Result<bool, UffdError> {
    with_features(open_fd).map(|(_, can_move)| can_move)
}

impl Uffd {
    /// Opens a userfaultfd that also serves faults of system calls, where need be from the device, which stays for
    /// those of forked children.
    pub(crate) fn open(host: &'static dyn Host, device: Option<Kept>) -> Result<Self, UffdError> {
        let device = device.filter(Kept::is_open);
        let from_device = |error| device.as_ref().map_or(Err(error), |device| new_from(device.as_fd()));
        let (fd, can_move) = with_features(|| open_fd().or_else(from_device))?;
        let (tells_changes, reader) = (sys::can_discard_unseen(), AtomicU32::new(0));
        Ok(Self { fd: Kept::new(fd, host)?, can_move, tells_changes, reader, device })
    }

    /// Opens another in its place, in a forked child: allowed also when the process has given up what allowed the
    /// first.
    pub(crate) fn renew(&self) -> Result<(), UffdError> {
        let from_device = |error| match &self.device {
            Some(device) if device.is_open() => new_from(device.as_fd()),
            _ => Err(error),
        };
        self.fd.renew(|| with_features(|| open_fd().or_else(from_device)).map(|(fd, _)| fd))
    }

    /// The kernel has UFFDIO_MOVE (6.8).
    pub(crate) fn can_move(&self) -> bool {
        self.can_move
    }

    pub(crate) fn descriptor(&self) -> &Kept {
        &self.fd
    }

    pub(crate) fn device(&self) -> Option<&Kept> {
        self.device.as_ref()
    }

    /// From now on a touch of a missing page (or a write to a protected one) of the range waits for us.
    pub(crate) fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg =
            RegisterArg { range: range(start, len), mode: REGISTER_MISSING | REGISTER_WP, ioctls: 0 };
        self.ioctl(linux_raw_sys::ioctl::UFFDIO_REGISTER.into(), &mut arg)
    }

    /// From now on the range is as any other memory; nothing is told of what happens to it.
    pub(crate) fn unregister(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut range(start, len))
    }

    /// The kernel tells what the program does to the range past the pager ([`Change`]).
    pub(crate) fn tells_changes(&self) -> bool {
        self.tells_changes
    }

    /// The calling thread reads messages from now on; no other does.
    pub(crate) fn become_reader(&self) {
        self.reader.store(own_tid(), Ordering::Relaxed);
    }

    /// Whether it is the calling thread that reads messages.
    pub(crate) fn is_reader(&self) -> bool {
        self.reader.load(Ordering::Relaxed) == own_tid()
    }

    /// As [`Uffd::read`], but does not wait: EAGAIN if there is nothing. For the reader.
    pub(crate) fn try_read(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        match self.read_now(messages) {
            Err(Errno::OPNOTSUPP) => self.read_by_flag(messages),
            read => read,
        }
    }

    /// EOPNOTSUPP before Linux 6.10.
    fn read_now(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        let place = libc::iovec { iov_base: messages.as_mut_ptr().cast(), iov_len: size_of_val(messages) };
        // SAFETY: the pointer and the length are those of a slice of plain integers, valid for any bytes.
        let got = unsafe { libc::preadv2(self.fd.raw_fd(), &raw const place, 1, -1, libc::RWF_NOWAIT) };
        count_read(got)
    }

    fn read_by_flag(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let flags = fcntl_getfl(&self.fd)?;
        fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?;
        let read = self.read(messages);
        fcntl_setfl(&self.fd, flags)?;
        read
    }

    /// Waits for messages; as many as are there and fit.
    pub(crate) fn read(&self, messages: &mut [Message]) -> Result<usize, Errno> {
        // SAFETY: the pointer and the length are those of a slice of plain integers, valid for any bytes.
        let got =
            unsafe { libc::read(self.fd.raw_fd(), messages.as_mut_ptr().cast(), size_of_val(messages)) };
        count_read(got)
    }

    /// Fills missing pages with a copy of `src` and wakes who waits for them.
    pub(crate) fn copy(&self, dst: usize, src: usize, len: usize) -> Progress {
        let arg = TransferArg { dst: dst as u64, src: src as u64, len: len as u64, mode: 0, done: 0 };
        self.transfer(linux_raw_sys::ioctl::UFFDIO_COPY.into(), arg)
    }

    /// Moves pages, holes included, out of `src` into missing pages of `dst`. Nobody else may fill those.
    ///
    /// Linux 6.18 does not always tell what it has moved: when something changes a page's table entry at the wrong
    /// moment (the processor notes a write, DAMON clears a referenced bit), it tries again, succeeds, forgets to go
    /// on, and then finds what it has moved in its own way (EEXIST; `move_pages` in `mm/userfaultfd.c` keeps the
    /// EAGAIN in `err`). What is present there and no longer here has been moved.
    pub(crate) fn move_pages(&self, dst: usize, src: usize, len: usize) -> Progress {
        let mut bytes = 0;
        loop {
            let (to, from, rest) = (dst + bytes, src + bytes, len - bytes);
            let arg = TransferArg {
                dst: to as u64,
                src: from as u64,
                len: rest as u64,
                mode: MOVE_MODE_ALLOW_SRC_HOLES,
                done: 0,
            };
            let Progress { bytes: told, stopped } = self.transfer(UFFDIO_MOVE, arg);
            bytes += told;
            let untold = match stopped {
                Some(Errno::EXIST) => moved_untold(to + told, from + told, rest - told),
                _ => 0,
            };
            bytes += untold;
            match stopped {
                _ if bytes == len => return Progress { bytes, stopped: None },
                Some(Errno::EXIST) if untold > 0 => {}
                _ => return Progress { bytes, stopped },
            }
        }
    }

    /// Whether an operation that was answered by EAGAIN is to be tried again here; waits a little if so. The reader
    /// gives up: it may be its own next message that the kernel waits for.
    fn tries_again(&self, tries: &mut u32) -> bool {
        const OF_READER: u32 = 16;
        const AT_ONCE: u32 = 64;
        *tries += 1;
        if *tries > OF_READER && self.is_reader() {
            return false;
        }
        if *tries > AT_ONCE {
            std::thread::yield_now();
        }
        true
    }

    fn transfer(&self, request: u64, mut arg: TransferArg) -> Progress {
        let (mut bytes, mut tries) = (0, 0);
        loop {
            arg.done = 0;
            let stopped = self.ioctl(request, &mut arg).err();
            let done = u64::try_from(arg.done).unwrap_or(0);
            (arg.dst, arg.src, arg.len) = (arg.dst + done, arg.src + done, arg.len - done);
            bytes += usize::try_from(done).unwrap_or(0);
            match stopped {
                Some(Errno::AGAIN) if arg.len > 0 && self.tries_again(&mut tries) => {}
                _ => return Progress { bytes, stopped },
            }
        }
    }

    /// Maps the zero page into missing pages and wakes who waits for them.
    pub(crate) fn zeropage(&self, start: usize, len: usize) -> Progress {
        let (mut bytes, mut tries) = (0, 0);
        loop {
            let mut arg = ZeropageArg { range: range(start + bytes, len - bytes), mode: 0, done: 0 };
            let stopped = self.ioctl(linux_raw_sys::ioctl::UFFDIO_ZEROPAGE.into(), &mut arg).err();
            bytes += usize::try_from(arg.done).unwrap_or(0);
            match stopped {
                Some(Errno::AGAIN) if bytes < len && self.tries_again(&mut tries) => {}
                _ => return Progress { bytes, stopped },
            }
        }
    }

    /// Makes writes to the range wait for us (or lets them through again, and wakes).
    pub(crate) fn write_protect(&self, start: usize, len: usize, protect: bool) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            let mut arg = WriteProtectArg { range: range(start, len), mode: protect.into() };
            match self.ioctl(linux_raw_sys::ioctl::UFFDIO_WRITEPROTECT.into(), &mut arg) {
                Err(Errno::AGAIN) if self.tries_again(&mut tries) => {}
                other => return other,
            }
        }
    }

    /// Wakes who waits for the range; they look again.
    pub(crate) fn wake(&self, start: usize, len: usize) {
        let mut arg = range(start, len);
        // A range that is no longer mapped has nobody waiting.
        let _ = self.ioctl(linux_raw_sys::ioctl::UFFDIO_WAKE.into(), &mut arg);
    }

    fn ioctl<T>(&self, request: u64, arg: &mut T) -> Result<(), Errno> {
        match ioctl(self.fd.raw_fd(), request, arg) {
            Err(Errno::BADF | Errno::NOTTY) => self.fd.lost(),
            result => result,
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Message {
    /// What the message tells, if it is known here.
    pub(crate) fn told(&self) -> Option<Told> {
        let number = |at: usize| usize::try_from(self.arguments[at]).ok();
        let (first, second, third) = (number(0)?, number(1)?, number(2)?);
        Some(match self.event {
            EVENT_PAGEFAULT => Told::Fault(self.fault(second)),
            EVENT_REMOVE => Told::Change(Change::Removed(first..second)),
            EVENT_UNMAP => Told::Change(Change::Unmapped(first..second)),
            EVENT_REMAP => Told::Change(Change::Moved { from: first, to: second, len: third }),
            _ => return None,
        })
    }

    /// A message, for tests.
    #[cfg(test)]
    pub(crate) fn of(event: u8, arguments: [u64; 3]) -> Self {
        Self { event, reserved: [0; 7], arguments }
    }

    fn fault(&self, addr: usize) -> Fault {
        let [flags, _, thread] = self.arguments;
        #[allow(clippy::cast_possible_truncation, reason = "the id is the lower half")]
        let tid = thread as u32;
        let write = flags & (FAULT_WRITE | FAULT_WP) != 0;
        Fault { addr, tid, write, write_protected: flags & FAULT_WP != 0 }
    }
}

/// The id of the calling thread.
pub(crate) fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Bytes of pages, from the first on, that are present at `dst` and not at `src`.
fn moved_untold(dst: usize, src: usize, len: usize) -> usize {
    let is = |addr| sys::is_present(addr).unwrap_or(false);
    (0..len).step_by(PAGE).take_while(|at| is(dst + at) && !is(src + at)).count() * PAGE
}

fn range(start: usize, len: usize) -> RangeArg {
    RangeArg { start: start as u64, len: len as u64 }
}

fn open_fd() -> Result<OwnedFd, UffdError> {
    // SAFETY: the system call takes flags and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if let Ok(fd @ 0..) = RawFd::try_from(fd) {
        // SAFETY: the descriptor is new, and ours.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    match last_errno() {
        Errno::PERM | Errno::ACCESS => new_from(open_device()?.as_fd()),
        errno => Err(errno.into()),
    }
}

/// A new userfaultfd with the features that are needed, and whether it can move pages.
fn with_features(open_fd: impl Fn() -> Result<OwnedFd, UffdError>) -> Result<(OwnedFd, bool), UffdError> {
    const LEAST: u64 = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_THREAD_ID;
    const EVENTS: u64 = FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
    // What the pager itself drops must not be told: it would wait for itself.
    let least = if sys::can_discard_unseen() { LEAST | EVENTS } else { LEAST };
    for features in [least | FEATURE_MOVE, least] {
        let fd = open_fd()?;
        let mut arg = ApiArg { api: API, features, ..ApiArg::default() };
        match ioctl(fd.as_raw_fd(), linux_raw_sys::ioctl::UFFDIO_API.into(), &mut arg) {
            Ok(()) => return Ok((fd, features & FEATURE_MOVE != 0)),
            Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::INVAL.into())
}

/// The device, which asks for no permission once it is open: a process may give up the user that may open it before
/// it needs a userfaultfd. The one `given` where this user may not open it, or there is none.
pub(crate) fn keep_device(host: &'static dyn Host, given: Option<File>) -> Option<Kept> {
    Kept::new(open_device().ok().or(given.map(OwnedFd::from))?, host).ok()
}

/// /dev/userfaultfd (6.1): permission by file mode.
fn open_device() -> Result<OwnedFd, UffdError> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    device.map_err(|_| UffdError::NotPermitted)
}

fn new_from(device: BorrowedFd<'_>) -> Result<OwnedFd, UffdError> {
    // SAFETY: the request takes flags by value and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(UffdError::NotPermitted);
    }
    // SAFETY: the descriptor is new, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ioctl<T>(fd: RawFd, request: u64, arg: &mut T) -> Result<(), Errno> {
    // SAFETY: every request of this file takes a pointer to the struct that its function passes; the kernel
    // reads and writes only that struct. What the request does to memory is its caller's contract.
    match unsafe { libc::ioctl(fd, request, std::ptr::from_mut(arg)) } {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    // SAFETY: errno of this thread; set by the call before.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// How many messages were read, of what a system call for reading returned.
fn count_read(got: isize) -> Result<usize, Errno> {
    usize::try_from(got).map(|bytes| bytes / size_of::<Message>()).map_err(|_| last_errno())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const PAGES: usize = 16;

    /// A page of the range, as an atomic word.
    fn word(base: usize, page: usize) -> &'static AtomicU64 {
        // SAFETY: the mapping stays until the test ends; every access to it is through such words.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(base + page * PAGE) }
    }

    #[test]
    fn what_is_moved_is_told_also_when_it_changes_meanwhile() {
        let uffd = match Uffd::open(&crate::region::Threads, None) {
            Ok(uffd) if uffd.can_move() => uffd,
            other => return eprintln!("skipped: needs UFFDIO_MOVE ({other:?})"),
        };
        let [here, there] = [(); 2].map(|()| sys::map_own(PAGES * PAGE).unwrap().addr().get());
        for base in [here, there] {
            uffd.register(base, PAGES * PAGE).unwrap();
        }
        let source = vec![7u8; PAGES * PAGE];
        assert_eq!(uffd.copy(here, source.as_ptr().addr(), source.len()).stopped, None);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Waits whenever its page is away, and has its table entry change all the time.
            let writer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    sys::make_cold(here, PAGE).unwrap();
                    word(here, 0).fetch_add(1, Ordering::Relaxed);
                }
            });
            let both_ways = [(there, here), (here, there)];
            let wrong = (0..50_000).flat_map(|_| both_ways).enumerate().find_map(|(round, (to, from))| {
                let moved = uffd.move_pages(to, from, PAGES * PAGE);
                (moved.bytes != PAGES * PAGE || moved.stopped.is_some()).then_some((round, moved))
            });
            done.store(true, Ordering::Relaxed);
            // The page may be lost, and the writer must not wait for it.
            uffd.zeropage(here, PAGE);
            assert!(wrong.is_none(), "{wrong:?}");
            writer.join().unwrap();
        });
        // Nobody would read that they are unmapped.
        drop(uffd);
        [here, there].iter().for_each(|base| sys::unmap_own(*base, PAGES * PAGE));
    }
}
