//! Leases: who is alive, told by the kernel.
//!
//! Each slot has a byte of the segment's file, and who has the slot holds a lock on it, through an open file
//! description of its own that nothing but a mapping keeps open. So the lock belongs to the address space: it goes
//! when that does, at exit, exec or SIGKILL, and not before, whatever becomes of descriptors. It knows nothing of
//! process numbers, start times and namespaces. A forked child gets the lease that its parent made for it as an
//! inherited mapping, before its first instruction, and nothing of the parent's own; the parent then lets go of the
//! child's. A child that was killed at once, or never came to be, so has left its slot to be reaped.
//!
//! The lock also decides who may change whose a slot is: only who holds its byte. Price: a mapping of a page for each
//! process, and six system calls for each fork.

use super::{MAX_PROCESSES, OpenError, Segment, SlotId};
use crate::fds::{self, Identity, Proc};
use ramfold::PAGE_SIZE as PAGE;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

/// The byte of the segment's file that is locked by who looks after the segment.
pub const KEEPER: usize = MAX_PROCESSES;
/// That of the run that looks at the processes of all runs. Not the next: the kernel would tell of one lock on both.
pub(super) const LOOKOUT: usize = MAX_PROCESSES + 2;

/// An open file description of the segment that nobody else has: what it locks, it locks against all others.
#[derive(Debug)]
pub(super) struct Description(OwnedFd);

impl Description {
    /// A new one of this thread's descriptor, found in /proc: the thread's, which may have a table of its own. A tracer
    /// that translates paths (proot) knows only the process's. The caller looks at what was found.
    fn open(number: RawFd, proc: Option<&Arc<Proc>>) -> Result<Self, Errno> {
        let name = format!("fd/{number}");
        let open = |path: &str| match proc {
            Some(proc) => proc.open_as(path, OFlags::RDWR),
            None => rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()),
        };
        let (own, process) = match proc {
            Some(proc) => (proc.own(&name), format!("self/{name}")),
            None => (fds::own_path(&name), format!("/proc/self/{name}")),
        };
        match own.and_then(|path| open(&path)) {
            Err(Errno::NOENT) => open(&process),
            opened => opened,
        }
        .map(Self)
    }

    /// Locks a byte; false if somebody else has it.
    pub(super) fn try_lock(&self, byte: usize) -> bool {
        lock(&self.0, byte, libc::F_WRLCK).is_ok()
    }

    pub(super) fn unlock(&self, byte: usize) {
        let _ = lock(&self.0, byte, libc::F_UNLCK);
    }
}

/// Locks a byte for the open file description of `fd`, or unlocks it.
pub(super) fn lock(fd: impl AsFd, byte: usize, kind: libc::c_int) -> Result<(), Errno> {
    let range = libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: libc::off_t::try_from(byte).unwrap_or_default(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: reads the struct.
    let done = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// What keeps a description open: a page of it that nobody may touch. Dropped, it lets the lock go, unless the
/// mapping was inherited.
#[derive(Debug)]
pub(super) struct Lease(NonNull<u8>);

impl Lease {
    pub(super) fn new(description: &Description) -> io::Result<Self> {
        let (none, shared) = (ProtFlags::empty(), MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, none, shared, &description.0, 0)? };
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    /// From now on it is this process's: no forked child inherits it.
    pub(super) fn keep(self) -> usize {
        // SAFETY: the mapping is this lease's own.
        let kept = unsafe { rustix::mm::madvise(self.0.as_ptr().cast(), PAGE, Advice::LinuxDontFork) };
        debug_assert!(kept.is_ok());
        self.into_address()
    }

    /// For a field that is no lock: see [`Lease::from_address`].
    pub(super) fn into_address(self) -> usize {
        let at = self.0.as_ptr().expose_provenance();
        std::mem::forget(self);
        at
    }

    /// What [`Lease::into_address`] gave, once; `None` of 0.
    pub(super) fn from_address(at: usize) -> Option<Self> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(at)).map(Self)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: the mapping is this lease's own.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The segment's file, as descriptions are made of it.
#[derive(Debug)]
pub(super) struct File {
    pub(super) fd: OwnedFd,
    /// The program may have closed the descriptor, and opened something else under its number.
    identity: Identity,
    /// A number that is given up for a moment where no other is free; -1 for none.
    spare: AtomicI32,
    /// The /proc in which the descriptor is found, if it need not be the present one.
    proc: OnceLock<Arc<Proc>>,
}

impl File {
    pub(super) fn new(fd: OwnedFd) -> Result<Self, OpenError> {
        let identity = Identity::of(&fd)?;
        let file = Self { fd, identity, spare: AtomicI32::new(-1), proc: OnceLock::new() };
        file.take_spare();
        Ok(file)
    }

    fn take_spare(&self) {
        if self.spare.load(Ordering::Relaxed) == -1
            && let Ok(spare) = self.fd.try_clone().map_err(|_| Errno::MFILE).and_then(fds::raise)
        {
            self.spare.store(spare.into_raw_fd(), Ordering::Relaxed);
        }
    }

    fn give_spare(&self) {
        let spare = self.spare.swap(-1, Ordering::Relaxed);
        // The program may have closed it, and something else be there.
        if self.identity.is_at(spare) {
            // SAFETY: what is the segment's under this number is this file's to close.
            drop(unsafe { OwnedFd::from_raw_fd(spare) });
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.give_spare();
    }
}

impl Segment {
    /// The descriptor that the program must not close.
    #[must_use]
    pub fn raw_fd(&self) -> Option<RawFd> {
        self.file.as_ref().map(|file| file.fd.as_raw_fd())
    }

    /// The segment's file, opened anew: for another process, which has no part in what this one has locked.
    ///
    /// # Errors
    /// What the system answers.
    pub fn open_again(&self) -> io::Result<OwnedFd> {
        self.description().map(|description| description.0)
    }

    /// From now on the segment's file is found in this /proc, also where the process sees another, or none.
    pub fn find_in(&self, proc: &Arc<Proc>) {
        self.file.iter().for_each(|file| drop(file.proc.set(Arc::clone(proc))));
    }

    /// Whether the process of this slot lives, or another that has it since. True where that cannot be told.
    #[must_use]
    pub fn lives(&self, slot: SlotId) -> bool {
        // Unlocked when the description is closed.
        !self.description().is_ok_and(|probe| probe.try_lock(slot.0))
    }

    /// After a description was closed: what it may have taken up is there again.
    pub(super) fn restore_spare(&self) {
        self.file.iter().for_each(File::take_spare);
    }

    /// For a lease of its own, or to look for those that nobody has any more.
    pub(super) fn description(&self) -> io::Result<Description> {
        let lost = || io::Error::other("the descriptor of the run's shared memory was closed");
        let file = self.file.as_ref().ok_or_else(lost)?;
        let open = || Description::open(file.fd.as_raw_fd(), file.proc.get());
        let own = match open() {
            Err(Errno::MFILE) => {
                let _room = fds::Room::make();
                open().or_else(|_| {
                    file.give_spare();
                    open()
                })?
            }
            opened => opened?,
        };
        if Identity::of(&own.0)? == file.identity { Ok(own) } else { Err(lost()) }
    }
}
