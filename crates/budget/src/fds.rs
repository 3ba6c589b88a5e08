//! Descriptors that the pager keeps open inside a program that does not know of them.
//!
//! Their numbers are high where the limit on open files allows, and may change: a forked child closes its parent's
//! before it opens its own, so that it needs no number more than its parent had. The pager's threads have a table of
//! their own (the pager gives them one), with the same files under the same numbers: what the program closes past
//! libc stays open for them. Where a thread of the program finds such a number closed, the program ends.

use crate::Host;
use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, Errno};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// Lowest number that the pager's descriptors get: programs count on getting 3 for their first.
const LOWEST: RawFd = 900;
/// How far below the limit on open files they begin where that is lower.
const BELOW_LIMIT: u64 = 24;
/// Free numbers that the beginning of management may take.
const ENOUGH: usize = 12;

/// Moves a descriptor out of the range that programs use, where the limit on open files allows.
pub fn raise(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = limit.saturating_sub(BELOW_LIMIT).try_into().map_or(LOWEST, |most| LOWEST.min(most));
    match rustix::io::fcntl_dupfd_cloexec(&fd, lowest) {
        Ok(raised) => Ok(raised),
        Err(Errno::INVAL | Errno::MFILE) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Which file a descriptor leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// That of an open descriptor.
    ///
    /// # Errors
    /// What the system answers.
    pub fn of(fd: impl AsFd) -> Result<Self, Errno> {
        rustix::fs::fstat(fd).map(|stat| Self(stat.st_dev, stat.st_ino))
    }

    /// That of a number that is open.
    ///
    /// # Errors
    /// What the system answers.
    pub fn at(number: RawFd) -> Result<Self, Errno> {
        // SAFETY: fstat tells of any number that is not negative, and keeps none.
        Self::of(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Whether this number leads to it.
    pub fn is_at(self, number: RawFd) -> bool {
        number >= 0 && Self::at(number) == Ok(self)
    }
}

/// A descriptor that the program cannot close through libc. Its number changes only while nobody else uses it.
pub struct Kept {
    number: AtomicI32,
    identity: Mutex<Option<Identity>>,
    /// The number that it is to have, which is taken already; -1 for any.
    place: AtomicI32,
    host: &'static dyn Host,
}

impl Kept {
    /// Takes a descriptor, which gets another number.
    ///
    /// # Errors
    /// What the system answers.
    pub fn new(fd: OwnedFd, host: &'static dyn Host) -> Result<Self, Errno> {
        let (number, place) = (AtomicI32::new(-1), AtomicI32::new(-1));
        let kept = Self { number, identity: Mutex::new(None), place, host };
        kept.set(fd)?;
        Ok(kept)
    }

    fn set(&self, fd: OwnedFd) -> Result<(), Errno> {
        let fd = match self.place.load(Ordering::Relaxed) {
            -1 => {
                let fd = raise(fd)?;
                self.host.protect_fd(fd.as_raw_fd());
                fd
            }
            place => {
                // SAFETY: the number was taken for this descriptor, and what lies there is replaced in one step.
                let mut there = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(place) });
                rustix::io::dup3(&fd, &mut there, DupFlags::CLOEXEC)?;
                ManuallyDrop::into_inner(there)
            }
        };
        *self.identity() = Some(Identity::of(&fd)?);
        self.number.store(fd.into_raw_fd(), Ordering::Release);
        Ok(())
    }

    /// Leaves what it has to another process, which has this table of descriptors too. From now on it has this number,
    /// which is taken for it.
    pub fn leave_for(&self, place: RawFd) {
        self.place.store(place, Ordering::Relaxed);
        self.number.store(-1, Ordering::Release);
        *self.identity() = None;
    }

    /// Closes it, for [`Kept::renew`] to open it anew. What the program has put under its number stays.
    pub fn close(&self) {
        if self.is_open() {
            // SAFETY: the number is this descriptor's, and forgotten here.
            drop(unsafe { OwnedFd::from_raw_fd(self.number.swap(-1, Ordering::AcqRel)) });
        }
        self.place.store(-1, Ordering::Relaxed);
        *self.identity() = None;
    }

    /// Opens another in its place, which may get another number.
    pub fn renew<E: From<Errno>>(&self, open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<(), E> {
        if self.place.load(Ordering::Relaxed) == -1 {
            self.close();
        }
        Ok(self.set(open()?)?)
    }

    /// Whether it still means what the pager opened.
    pub fn is_open(&self) -> bool {
        self.identity().is_some_and(|identity| identity.is_at(self.raw_fd()))
    }

    /// Its number now; -1 while it is closed.
    pub fn raw_fd(&self) -> RawFd {
        self.number.load(Ordering::Acquire)
    }

    /// Ends the program, which has closed it, in a way that nobody can see.
    pub fn lost(&self) -> ! {
        self.host.die(
            "a file descriptor that ramfold needs was closed (the program closes descriptors by system calls of its own)",
            false,
        )
    }

    fn identity(&self) -> std::sync::MutexGuard<'_, Option<Identity>> {
        self.identity.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.raw_fd() {
            -1 => self.lost(),
            // SAFETY: open as long as `self` is; if the program closed it all the same, calls fail.
            number => unsafe { BorrowedFd::borrow_raw(number) },
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({})", self.raw_fd())
    }
}

/// The /proc of when it was opened: found also after a chroot, and in another mount namespace.
#[derive(Debug)]
pub struct Proc(pub Kept);

impl Proc {
    /// The present one.
    ///
    /// # Errors
    /// What the system answers.
    pub fn new(host: &'static dyn Host) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Kept::new(rustix::fs::open("/proc", flags, Mode::empty())?, host).map(Self)
    }

    /// The path of a file of the calling thread's, below this.
    pub fn own(&self, file: &str) -> Result<String, Errno> {
        own(&self.0, "thread-self", file)
    }

    /// Opens a file of the calling thread's, to be read.
    pub fn open_own(&self, file: &str) -> Result<OwnedFd, Errno> {
        self.open(&self.own(file)?)
    }

    /// Opens a file of it, to be read.
    pub fn open(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_as(path, OFlags::RDONLY)
    }

    /// Opens a file of it.
    pub fn open_as(&self, path: &str, how: OFlags) -> Result<OwnedFd, Errno> {
        let open = || rustix::fs::openat(&self.0, path, how | OFlags::CLOEXEC, Mode::empty());
        match open() {
            // A process that has changed its user is not dumpable, and such files are root's then.
            Err(Errno::ACCESS) => {
                use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
                let before = dumpable_behavior()?;
                set_dumpable_behavior(DumpableBehavior::Dumpable)?;
                let opened = open();
                set_dumpable_behavior(before)?;
                opened
            }
            opened => opened,
        }
    }
}

/// The path of a file of the calling thread's in the present /proc.
pub fn own_path(file: &str) -> Result<String, Errno> {
    Ok(format!("/proc/{}", own(rustix::fs::CWD, "/proc/thread-self", file)?))
}

/// `PID/task/TID/FILE`. The link is read, and nothing is opened through it: a tracer that translates paths (proot)
/// follows it by itself, and comes to its own thread.
fn own(directory: impl AsFd, link: &str, file: &str) -> Result<String, Errno> {
    let thread = rustix::fs::readlinkat(directory, link, Vec::new())?;
    Ok(format!("{}/{file}", thread.to_string_lossy()))
}

/// While it lives, a process may open as many files as its hard limit says.
#[derive(Debug)]
pub struct Room {
    before: Option<(Rlimit, Rlimit)>,
}

impl Room {
    /// For a process with one thread.
    pub fn make() -> Self {
        let before = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: before.maximum, maximum: before.maximum };
        let made = raised != before && setrlimit(Resource::Nofile, raised).is_ok();
        Self { before: made.then_some((before, raised)) }
    }

    /// Only where there are not enough free numbers: other threads might see it.
    pub fn make_if_full() -> Self {
        let open = || rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let opened: Vec<_> = (0..ENOUGH).map_while(|_| open().ok()).collect();
        if opened.len() < ENOUGH { Self::make() } else { Self { before: None } }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((before, raised)) = self.before.take()
            && getrlimit(Resource::Nofile) == raised
        {
            let _ = setrlimit(Resource::Nofile, before);
        }
    }
}
