//! The pager's face: settings, the reserved range, and when management begins.
//!
//! The range is reserved once and never unmapped. That is what makes eviction safe: nobody else can put a
//! different mapping under an address between the look and the eviction.

use crate::dump::Dump;
use crate::engine::{Engine, Parts};
use crate::gate::Gate;
use crate::pages::Pages;
use crate::space::Space;
use crate::trace::Trace;
use crate::uffd::UffdError;
use crate::{activate, phase::Phase, sys, workers};
use ramfold_budget::extents;
use ramfold_budget::fds::{Identity, Room};
use ramfold_budget::segment::{Segment, SlotId};
pub use ramfold_budget::settings::Mode;
use ramfold_budget::usage::{Account, Usage};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Smallest address range that is of use.
const MIN_RANGE: usize = 1 << 30;
/// Writable bytes up to which a process takes no turn.
const NEWCOMER: usize = 1 << 20;
/// Alignment of the range: that of a group's pages.
const ALIGN: usize = 4 << 20;

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

    /// Called in the first of the pager's threads, which starts the others: gives them descriptors and a directory of their
    /// own, where what the program closes, or changes its root to, means nothing. `kept` are the descriptors that they use.
    fn leave_program(&self, _kept: &[RawFd]) {}

    /// Says now and then whether there is room for what the program has freed: then its allocator may keep that for a while.
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

/// The pager of this process, or of one [`crate::Region`].
#[allow(missing_debug_implementations, reason = "its parts are threads' business")]
pub struct Pager {
    pub(crate) host: &'static dyn Host,
    reserved: Arc<Reservation>,
    pub(crate) gate: Arc<Gate>,
    space: Arc<Mutex<Space>>,
    pub(crate) engine: OnceLock<Arc<Engine>>,
    config: Mutex<Option<Config>>,
    segment: Arc<Segment>,
    /// Writable bytes beyond which management is due.
    threshold: usize,
    pub(crate) phase: Phase,
    newcomer: Newcomer,
    /// The slot of the child that is about to be made.
    pub(crate) child: Mutex<Option<std::io::Result<SlotId>>>,
}

/// The reserved address range.
#[derive(Debug)]
pub(crate) struct Reservation(Range<usize>);

impl Pager {
    /// Reserves the range. No threads and no userfaultfd before the memory handed out passes the threshold: who maps or
    /// protects asks [`Pager::is_due`] afterwards, and calls [`Pager::begin`].
    ///
    /// # Errors
    /// [`SetupError::System`] if not even a small address range is to be had.
    pub fn new(config: Config, host: &'static dyn Host) -> Result<Self, SetupError> {
        let reserved = Arc::new(Reservation::new(config.range)?);
        Ok(Self {
            host,
            gate: Arc::default(),
            space: Arc::new(Mutex::new(Space::new(reserved.0.clone()))),
            reserved,
            engine: OnceLock::new(),
            segment: Arc::clone(&config.segment),
            threshold: config.threshold,
            phase: Phase::default(),
            newcomer: Newcomer::default(),
            config: Mutex::new(Some(config)),
            child: Mutex::new(None),
        })
    }

    /// The managed address range; never unmapped.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.reserved.0.clone()
    }

    /// Bytes of the range that the program has mapped and can use.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        let _inside = self.gate.enter();
        // Before memory is managed there is little of malloc's.
        let pages =
            |range: Range<usize>| self.engine().map_or(range.len(), |engine| engine.pages.bytes_in(range));
        self.space().bytes_in_use(pages)
    }

    /// Bytes that the run may use.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.segment.limit()
    }

    /// Before the process ends: enters the counters into the segment, and lets the next one begin.
    pub fn publish(&self) {
        if let Some(engine) = self.engine() {
            let _inside = self.gate.enter();
            engine.refresh_usage();
            engine.member.publish_books();
            if let Some(trace) = &engine.trace {
                trace.flush();
            }
        }
        if self.newcomer.end() {
            self.segment.return_turn(self.newcomer.count.load(Ordering::Relaxed));
        }
    }

    /// In a forked child: if it begins with much, as its parent has it, the turn is its parent's.
    pub(crate) fn exempt(&self) {
        self.newcomer.end();
    }

    /// The store's counters; all zero before management begins.
    #[must_use]
    pub fn store_stats(&self) -> ramfold::Stats {
        let Some(engine) = self.engine() else { return ramfold::Stats::default() };
        let _inside = self.gate.enter();
        engine.store().stats()
    }

    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.engine.get().map(Arc::as_ref)
    }

    pub(crate) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the program has more memory than a newcomer, or than the threshold.
    pub(crate) fn look_at_size(&self, space: &Space) {
        let writable = space.writable_bytes();
        if writable > NEWCOMER {
            self.newcomer.grow();
        }
        if writable > self.threshold {
            self.phase.set_due();
        }
    }

    /// True when the program has more memory than the threshold and nothing is managed yet, or more than a newcomer and has
    /// not had its turn.
    #[must_use]
    #[inline]
    pub fn is_due(&self) -> bool {
        self.phase.is_due() || self.newcomer.is_due()
    }

    /// To be called before [`Pager::begin`]: where the processes of the run crowd each other out, one that begins waits here
    /// for its turn, once. Holds nothing meanwhile, and signals may arrive.
    pub fn await_turn(&self) {
        if self.newcomer.begin() {
            self.newcomer.count.store(self.segment.await_turn(), Ordering::Relaxed);
        }
    }

    /// Begins management if it is due. Starts threads, for which libc takes the dynamic linker's locks: the caller
    /// holds none that a thread with those could wait for, an allocator's least of all.
    ///
    /// # Errors
    /// [`SetupError`]: from now on nothing holds the program's memory, so it has to end.
    pub fn begin(&self) -> Result<(), SetupError> {
        if self.phase.begin() {
            self.activate()?;
            self.phase.finish();
        }
        Ok(())
    }

    fn activate(&self) -> Result<(), SetupError> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut config = config.expect("management begins once");
        config.store.shrink_inline = false;
        let range = self.range();
        let _room = Room::make_if_full();
        let slot = config.segment.attach(&|_| {})?;
        let account = Arc::new(Account::new(config.segment, slot));
        let mut files = Vec::new();
        if let Some(segment) = account.segment.raw_fd() {
            self.host.protect_fd(segment);
            files.push((segment, Identity::at(segment)?));
        }
        if let Some(trace) = &config.trace {
            files.push((trace.as_raw_fd(), Identity::of(trace)?));
        }
        let dump = Dump::new(config.swap.as_ref());
        let parts = Parts {
            store: config.store,
            mode: config.mode,
            tier: extents::open_tier(config.swap, &account, self.host, &mut files)?,
            reserved: Arc::clone(&self.reserved),
            pages: Pages::new(range.start, range.len())?,
            space: Arc::clone(&self.space),
            gate: Arc::clone(&self.gate),
            trace: config.trace.map(|file| Trace::new(file, &account)),
            dump,
            usage: Usage::new(account, config.whole_process, self.host)?,
            files,
        };
        let engine = Arc::new(Engine::new(parts, self.host)?);
        // All that the program has so far.
        engine.refresh_usage();
        // Before the first page is watched: a thread that the start waits for may wait for a page.
        workers::start(&engine)?;
        let _inside = self.gate.enter();
        let space = self.space();
        sys::exclude_from_dumps(range.start, range.len())?;
        activate::register(&engine, &space, range.clone())?;
        activate::find_resident(&engine, &space, &range)?;
        engine.refresh_usage();
        let _ = self.engine.set(engine);
        Ok(())
    }
}

/// Whether a process has had its turn.
#[derive(Debug, Default)]
struct Newcomer {
    state: AtomicU8,
    /// Which count the turn is of.
    count: AtomicU32,
}

impl Newcomer {
    const SMALL: u8 = 0;
    const DUE: u8 = 1;
    const BEGUN: u8 = 2;
    /// It takes none, or has returned it.
    const EXEMPT: u8 = 3;

    fn grow(&self) {
        if self.state.load(Ordering::Relaxed) == Self::SMALL {
            let _ = self.state.compare_exchange(Self::SMALL, Self::DUE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn is_due(&self) -> bool {
        self.state.load(Ordering::Relaxed) == Self::DUE
    }

    /// True for the one caller that is to take the turn.
    fn begin(&self) -> bool {
        self.state.compare_exchange(Self::DUE, Self::BEGUN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// True if there is a turn to return.
    fn end(&self) -> bool {
        self.state.compare_exchange(Self::BEGUN, Self::EXEMPT, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        if let Some(engine) = self.engine() {
            engine.stop();
        }
    }
}

impl Reservation {
    /// As much as is asked for, or the half of it, and so on.
    fn new(wanted: usize) -> Result<Self, Errno> {
        let mut len = wanted.next_multiple_of(ALIGN);
        loop {
            match sys::reserve(len + ALIGN) {
                Ok(addr) => {
                    let start = addr.next_multiple_of(ALIGN);
                    sys::unmap_own(addr, start - addr);
                    sys::unmap_own(start + len, addr + ALIGN - start);
                    return Ok(Self(start..start + len));
                }
                Err(_) if len / 2 >= MIN_RANGE => len = (len / 2).next_multiple_of(ALIGN),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        sys::unmap_own(self.0.start, self.0.len());
    }
}
