//! What the pager is told and what it answers: settings, errors, and what it asks of the program that it runs in.

use ramfold_budget::segment::Segment;
pub use ramfold_budget::settings::Mode;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;

/// What may be done with mapped memory: the bits of `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prot(pub i32);

impl Prot {
    /// Readable and writable.
    pub const READ_WRITE: Self = Self(libc::PROT_READ | libc::PROT_WRITE);

    /// Whether the program may write.
    #[must_use]
    pub fn writable(self) -> bool {
        self.0 & libc::PROT_WRITE != 0
    }
}

/// Why memory was not mapped; `errno` gives the number for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapError {
    /// The limit, the pool and the swap file are full, or the range is, or part of it is not mapped.
    NoMemory,
    /// Addresses or lengths are not aligned, or outside the range.
    Invalid,
    /// The kernel refused with this errno.
    Kernel(i32),
}

impl MapError {
    /// The errno that the system call would have set.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NoMemory => libc::ENOMEM,
            Self::Invalid => libc::EINVAL,
            Self::Kernel(errno) => errno,
        }
    }
}

impl From<Errno> for MapError {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno.raw_os_error())
    }
}

/// What the pager needs from the program that it runs in.
pub trait Host: ramfold_budget::Host {
    /// Starts a thread that blocks all signals and never uses managed memory, not even for its stack or
    /// its thread-local storage.
    ///
    /// # Errors
    /// What the system answers.
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()>;

    /// Called in the first of the pager's threads, which starts the others: gives them descriptors and a directory of
    /// their own, where what the program closes, or changes its root to, means nothing. `kept` are the descriptors
    /// that they use.
    fn leave_program(&self, _kept: &[RawFd]) {}

    /// Says now and then whether there is room for what the program has freed: then its allocator may keep that for a
    /// while.
    fn note_room(&self, _plenty: bool) {}

    /// The processor on which a thread of the program ran last, if that can be told at next to no cost.
    fn cpu_of(&self, _tid: u32) -> Option<usize> {
        None
    }
}

/// Settings.
#[derive(Debug)]
pub struct Config {
    /// The run's shared budget; [`Segment::create`] makes one for a single process.
    pub segment: Arc<Segment>,
    /// The store's settings. `shrink_inline` is off whatever it says: the pager has a thread for that.
    pub store: ramfold::Config,
    /// The swap file, if there is to be one. Its extents are those of the segment.
    pub swap: Option<File>,
    /// Where to record what the program does to its pages, open for appending.
    pub trace: Option<File>,
    /// A device of userfaultfds, for a process that may find none where it is.
    pub device: Option<File>,
    /// How pages leave.
    pub mode: Mode,
    /// Writable bytes up to which nothing is managed.
    pub threshold: usize,
    /// Bytes of address space to reserve at most.
    pub range: usize,
    /// All anonymous memory of the process counts against the limit, not only what is managed.
    pub whole_process: bool,
}

/// Why memory cannot be managed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// userfaultfd is not permitted
    #[error(
        "userfaultfd is not permitted (run as root or with CAP_SYS_PTRACE, set vm.unprivileged_userfaultfd=1, \
         or give access to /dev/userfaultfd)"
    )]
    NotPermitted,
    /// there is no /proc where the process is
    #[error("there is no /proc where the process is")]
    NoProc,
    /// this kernel has no userfaultfd that serves system calls
    #[error("this kernel has no userfaultfd with write-protection: {0} (5.7 is needed)")]
    Unsupported(Errno),
    /// this kernel has no UFFDIO_MOVE
    #[error("this kernel has no UFFDIO_MOVE (6.8 is needed; leave the mode to auto)")]
    NoMove,
    /// a setting of the store is wrong
    #[error("{0}")]
    Store(#[from] ramfold::ConfigError),
    /// a system call failed
    #[error("a system call failed: {0}")]
    System(#[from] Errno),
    /// what a child is not to have cannot be taken from it
    #[error("what a child is not to have cannot be taken from it: {}", Errno::from_raw_os_error(.0.errno()))]
    Inherit(MapError),
    /// the run's shared memory has no place for this process
    #[error("the run's shared memory has no place for this process: {0}")]
    Segment(#[from] std::io::Error),
}

/// Why userfaultfd cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UffdError {
    /// Neither capability, nor sysctl, nor /dev/userfaultfd allows it.
    NotPermitted,
    /// The kernel lacks it, or a feature that the pager needs.
    Unsupported(i32),
}

impl From<Errno> for UffdError {
    fn from(errno: Errno) -> Self {
        Self::Unsupported(errno.raw_os_error())
    }
}

impl From<UffdError> for SetupError {
    fn from(error: UffdError) -> Self {
        match error {
            UffdError::NotPermitted => Self::NotPermitted,
            UffdError::Unsupported(errno @ (libc::ENOSYS | libc::EINVAL)) => {
                Self::Unsupported(Errno::from_raw_os_error(errno))
            }
            UffdError::Unsupported(errno) => Self::System(Errno::from_raw_os_error(errno)),
        }
    }
}
