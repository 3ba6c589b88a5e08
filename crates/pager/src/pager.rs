//! The pager: when management begins.
//!
//! The range is reserved once and never unmapped. That is what makes eviction safe: nobody else can put a
//! different mapping under an address between the look and the eviction.

use crate::core_file::Dump;
use crate::engine::{Engine, Parts};
use crate::face::{Config, Host, SetupError};
use crate::gate::Gate;
use crate::pages::Pages;
use crate::reservation::Reservation;
use crate::shared_table::{Numbers, SharedTable};
use crate::space::Space;
use crate::trace::Trace;
use crate::{activate, phase::Phase, sys, uffd, workers};
use ramfold_budget::extents;
use ramfold_budget::fds::{Identity, Kept, Proc, Room};
use ramfold_budget::process;
use ramfold_budget::segment::{Gauge, Segment, SlotId};
use ramfold_budget::usage::{Account, Usage};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Writable bytes up to which a process takes no turn.
const NEWCOMER: usize = 1 << 20;

/// The pager of this process, or of one [`crate::Region`].
#[allow(missing_debug_implementations, reason = "its parts are threads' business")]
pub struct Pager {
    pub(crate) host: &'static dyn Host,
    reserved: Arc<Reservation>,
    pub(crate) gate: Arc<Gate>,
    space: Arc<Mutex<Space>>,
    pub(crate) engine: OnceLock<Arc<Engine>>,
    config: Mutex<Option<Config>>,
    /// Until management begins.
    device: Mutex<Option<Kept>>,
    /// The /proc from before the program changed its root.
    proc: OnceLock<Arc<Proc>>,
    pub(crate) segment: Arc<Segment>,
    /// Writable bytes beyond which management is due.
    threshold: usize,
    /// Writable bytes that the program has got beside the range so far.
    beside: AtomicUsize,
    pub(crate) phase: Phase,
    newcomer: Newcomer,
    pub(crate) child: Mutex<Option<std::io::Result<Child>>>,
    pub(crate) shared_table: SharedTable,
}

/// What is prepared for a child that is about to be made.
pub(crate) struct Child {
    pub(crate) slot: SlotId,
    /// Where it has its parent's table of descriptors.
    pub(crate) numbers: Option<Numbers>,
}

impl Pager {
    /// Reserves the range. No threads and no userfaultfd before the memory handed out passes the threshold: who maps or
    /// protects asks [`Pager::is_due`] afterwards, and calls [`Pager::begin`].
    ///
    /// # Errors
    /// [`SetupError::System`] if not even a small address range is to be had.
    pub fn new(mut config: Config, host: &'static dyn Host) -> Result<Self, SetupError> {
        let reserved = Arc::new(Reservation::new(config.range)?);
        let device = config.device.take();
        Ok(Self {
            host,
            gate: Arc::default(),
            space: Arc::new(Mutex::new(Space::new(reserved.0.clone()))),
            reserved,
            engine: OnceLock::new(),
            segment: Arc::clone(&config.segment),
            threshold: config.threshold,
            beside: AtomicUsize::new(0),
            phase: Phase::default(),
            newcomer: Newcomer::default(),
            config: Mutex::new(Some(config)),
            device: Mutex::new(uffd::keep_device(host, device)),
            proc: OnceLock::new(),
            child: Mutex::new(None),
            shared_table: SharedTable::default(),
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

    /// Bytes of anonymous memory that the process has in memory and that are not managed.
    #[must_use]
    pub fn unmanaged(&self) -> u64 {
        let Some(engine) = self.engine() else { return process::anonymous(std::process::id()) };
        let _inside = self.gate.enter();
        engine.refresh_usage();
        engine.member.segment().gauge(engine.member.slot(), Gauge::Own)
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
        if writable > self.threshold || self.beside.load(Ordering::Relaxed) > self.threshold {
            self.phase.set_due();
        }
    }

    /// Notes that the program has got so many writable bytes that are not managed: they count once management has
    /// begun.
    pub fn note_beside(&self, len: usize) {
        let before = self.beside.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > self.threshold {
            self.phase.set_due();
        }
    }

    /// True when the program has more memory than the threshold and nothing is managed yet, or more than a newcomer
    /// and has not had its turn.
    #[must_use]
    #[inline]
    pub fn is_due(&self) -> bool {
        self.phase.is_due() || self.newcomer.is_due()
    }

    /// To be called before [`Pager::begin`]: where the processes of the run crowd each other out, one that begins
    /// waits here for its turn, once. Holds nothing meanwhile, and signals may arrive.
    pub fn await_turn(&self) {
        if self.newcomer.begin() {
            self.newcomer.count.store(self.segment.await_turn(), Ordering::Relaxed);
        }
    }

    /// Begins management if it is due. Starts threads, for which libc takes the dynamic linker's locks: the caller
    /// holds none that a thread with those could wait for, an allocator's least of all.
    ///
    /// # Errors
    /// [`SetupError`]: from now on nothing holds the program's memory, so it has to end. After
    /// [`SetupError::NoProc`] it may go on: its memory is the kernel's, for good.
    pub fn begin(&self) -> Result<(), SetupError> {
        if !self.phase.begin() {
            return Ok(());
        }
        let begun = self.proc().and_then(|proc| self.activate(proc));
        if matches!(begun, Ok(()) | Err(SetupError::NoProc)) {
            self.phase.finish();
        }
        begun
    }

    /// To be called before the program changes its root: where there is no /proc, management does not begin.
    pub fn keep_proc(&self) {
        if self.engine.get().is_none()
            && self.proc.get().is_none()
            && let Ok(proc) = Proc::new(self.host)
        {
            let _ = self.proc.set(Arc::new(proc));
        }
    }

    fn proc(&self) -> Result<Arc<Proc>, SetupError> {
        let kept = self.proc.get().filter(|proc| proc.0.is_open()).cloned();
        let proc = kept.map_or_else(|| Proc::new(self.host).map(Arc::new), Ok);
        proc.ok().filter(|proc| proc.open_own("statm").is_ok()).ok_or(SetupError::NoProc)
    }

    fn activate(&self, proc: Arc<Proc>) -> Result<(), SetupError> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut config = config.expect("management begins once");
        config.store.shrink_inline = false;
        let range = self.range();
        let _room = Room::make_if_full();
        config.segment.find_in(&proc);
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
            device: self.device.lock().unwrap_or_else(PoisonError::into_inner).take(),
            usage: Usage::seen_through(proc, account, config.whole_process, self.host)?,
            files,
        };
        let engine = Arc::new(Engine::new(parts, self.host)?);
        engine.listen_to_pools();
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
