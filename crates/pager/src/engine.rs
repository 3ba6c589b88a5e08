//! What the pager's threads share, once memory is managed.
//!
//! Three threads work on it: the *handler* resolves faults ([`crate::fault`]), the *evictor* takes cold blocks out
//! of the program and into the store ([`crate::evict`]) and in between has what stays there made denser ([`crate::thicken`]), the
//! *keeper* writes back from the store when its pool is full, and keeps the books. They start when the program's memory
//! passes the threshold, not before.
//!
//! Lock order: gate, space ([`crate::space`], by its owner), group ([`crate::pages`]), then the store's own. The
//! lock of the queue ([`crate::queue`]) is taken alone or under a group lock and holds nothing.

use crate::books::Books;
use crate::dump::Dump;
use crate::event::Event;
use crate::fds::{Identity, Kept};
use crate::fresh::{Density, Zeros};
use crate::gate::Gate;
use crate::inbox::Inbox;
use crate::pager::Reservation;
use crate::pages::{BLOCK_PAGES, Group, Pages, State};
use crate::queue::Queue;
use crate::segment::{Counter, Gauge, SlotId};
use crate::space::Space;
use crate::staging::Staging;
use crate::sys::PAGE;
use crate::trace::Trace;
use crate::uffd::Uffd;
use crate::usage::Usage;
use crate::{Host, SetupError};
use ramfold::tier::Tier;
use ramfold::tier::file::FileTier;
use ramfold::{Key, PoolId, PoolKind, Scratch, Store};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running pager.
pub(crate) struct Engine {
    pub(crate) host: &'static dyn Host,
    pub(crate) uffd: Uffd,
    pub(crate) inbox: Inbox,
    pub(crate) pages: Pages,
    store: Store,
    pub(crate) pool: PoolId,
    /// Bytes that all pools of the run together may have.
    max_pool: u64,
    pub(crate) usage: Usage,
    pub(crate) tier: Option<Arc<FileTier>>,
    pub(crate) trace: Option<Trace>,
    pub(crate) dump: Dump,
    /// The run's files: swap and trace.
    files: Vec<(RawFd, Identity)>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) staging: Staging,
    pub(crate) keeper: Event,
    pub(crate) space: Arc<Mutex<Space>>,
    /// The range stays reserved while a thread may touch it.
    _reserved: Arc<Reservation>,
    /// UFFDIO_MOVE is used; else write-protect and copy.
    pub(crate) moves: bool,
    /// /proc/self/mem, for pages that the program may not write or read.
    pub(crate) memory: Kept,
    /// /proc/self/pagemap.
    pub(crate) pagemap: Kept,
    pub(crate) stopping: AtomicBool,
    /// The program has changed managed memory past the pager ([`crate::changes`]).
    pub(crate) changed: AtomicBool,
    /// Somebody waits for the reader to hear the bell.
    pub(crate) ringing: AtomicBool,
    /// Threads beside the handler that have not ended.
    pub(crate) workers: AtomicUsize,
    /// Ids of the threads that were started.
    threads: Mutex<Vec<u32>>,
    /// Why the threads could not be started: an errno, or 0.
    pub(crate) failure: AtomicI32,
    /// [`crate::guard`] has write-protected what was inherited.
    pub(crate) guarded: AtomicBool,
    /// Nothing more can be evicted: pool and tier are full, or there is no tier.
    pub(crate) exhausted: AtomicBool,
    /// [`Engine::is_nearly_full`], as the keeper saw it last.
    pub(crate) nearly_full: AtomicBool,
    /// Pages evicted so far: the clock by which the age of an eviction is told.
    pub(crate) evictions: AtomicU64,
    /// Pages that have left so far: those that the store took.
    pub(crate) left: AtomicU64,
    /// Evictions in a tick of the clock: a sixteenth of the pages that the limit holds.
    tick: u64,
    queue: Queue,
    /// Noted by the evictors, for the handler.
    pub(crate) density: Density,
    pub(crate) zeros: Zeros,
    books: Mutex<Books>,
}

/// What an engine is made of.
pub(crate) struct Parts {
    pub(crate) store: ramfold::Config,
    pub(crate) mode: crate::Mode,
    pub(crate) tier: Option<Arc<FileTier>>,
    pub(crate) reserved: Arc<Reservation>,
    pub(crate) pages: Pages,
    pub(crate) space: Arc<Mutex<Space>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) trace: Option<Trace>,
    pub(crate) usage: Usage,
    pub(crate) dump: Dump,
    /// Descriptors of the run's files.
    pub(crate) files: Vec<(RawFd, Identity)>,
}

impl Engine {
    /// Everything but the threads.
    pub(crate) fn new(parts: Parts, host: &'static dyn Host) -> Result<Self, SetupError> {
        let uffd = Uffd::open(host)?;
        let moves = match parts.mode {
            crate::Mode::Auto => uffd.can_move(),
            crate::Mode::Move if !uffd.can_move() => return Err(SetupError::NoMove),
            crate::Mode::Move => true,
            crate::Mode::WriteProtect => false,
        };
        let tier: Option<Arc<dyn Tier>> = parts.tier.clone().map(|tier| tier as _);
        let store = Store::new(&parts.store, tier)?;
        let pool = store.create_pool(PoolKind::Persistent, None);
        let staging = Staging::new()?;
        staging.register(&uffd)?;
        let open = |path| Kept::new(parts.usage.proc.open(path)?, host);
        let (memory, pagemap) = (open("self/mem")?, open("self/pagemap")?);
        let tick = (parts.usage.segment().limit() / PAGE as u64 / 16).max(1);
        Ok(Self {
            host,
            uffd,
            inbox: Inbox::default(),
            pages: parts.pages,
            store,
            tier: parts.tier,
            trace: parts.trace,
            dump: parts.dump,
            files: parts.files,
            pool,
            max_pool: parts.store.max_pool_bytes,
            usage: parts.usage,
            gate: parts.gate,
            staging,
            keeper: Event::default(),
            space: parts.space,
            _reserved: parts.reserved,
            moves,
            memory,
            pagemap,
            stopping: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            ringing: AtomicBool::new(false),
            workers: AtomicUsize::new(0),
            threads: Mutex::default(),
            failure: AtomicI32::new(0),
            guarded: AtomicBool::new(false),
            exhausted: AtomicBool::new(false),
            nearly_full: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            left: AtomicU64::new(0),
            tick,
            queue: Queue::default(),
            density: Density::default(),
            zeros: Zeros::new()?,
            books: Mutex::default(),
        })
    }

    /// The numbers of all descriptors of the pager.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let kept =
            [&self.memory, &self.pagemap, self.uffd.descriptor(), &self.usage.proc.0, self.usage.statm()];
        let numbers = kept.into_iter().chain(self.uffd.device()).map(Kept::raw_fd);
        numbers.chain(self.files.iter().map(|(fd, _)| *fd)).collect()
    }

    /// In a forked child, before anything is opened: the parent's own descriptors make room. The others must still be there.
    pub(crate) fn close_parents(&self) {
        for parents in [&self.memory, &self.pagemap, self.uffd.descriptor(), self.usage.statm()] {
            parents.close();
        }
        let has_lost = |(fd, identity): &(RawFd, Identity)| !identity.is_at(*fd);
        if self.files.iter().any(has_lost) || !self.usage.proc.0.is_open() {
            self.usage.proc.0.lost();
        }
    }

    /// In a forked child: descriptors of its own, and nothing of the parent's threads.
    pub(crate) fn become_child(&self, slot: SlotId) -> Result<(), SetupError> {
        self.uffd.renew()?;
        self.memory.renew(|| self.usage.proc.open("self/mem"))?;
        self.pagemap.renew(|| self.usage.proc.open("self/pagemap"))?;
        self.usage.become_child(slot)?;
        if let Some(tier) = &self.tier {
            tier.become_child();
        }
        self.books().skip(&self.store().stats());
        if let Some(trace) = &self.trace {
            trace.begin(slot);
        }
        self.keeper.reset();
        self.inbox.reset();
        self.ringing.store(false, Ordering::Relaxed);
        self.guarded.store(false, Ordering::Relaxed);
        self.staging.register(&self.uffd)?;
        Ok(())
    }

    /// Ends the threads: the handler last, for the others may wait for it. Where there are no others yet, it ends with the next.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.evictor().call();
        self.keeper.call();
    }

    /// Who works here.
    pub(crate) fn threads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the store's counters into the segment.
    pub(crate) fn publish_books(&self) {
        self.books().publish(&self.usage.account, &self.store().stats());
        if let Some(tier) = &self.tier {
            self.usage.segment().publish(self.usage.slot(), Gauge::SwapBytes, tier.live_bytes());
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The compressed pages. Called inside the gate, as [`Engine::queue`] is: a fork would leave their locks locked otherwise.
    pub(crate) fn store(&self) -> &Store {
        debug_assert!(self.gate.is_in_use(), "the store is used outside of the gate");
        &self.store
    }

    /// The blocks that wait for eviction.
    pub(crate) fn queue(&self) -> &Queue {
        debug_assert!(self.gate.is_in_use(), "the queue is used outside of the gate");
        &self.queue
    }

    /// What a thread needs to store and to load.
    pub(crate) fn scratch(&self) -> Scratch {
        self.store.scratch()
    }

    /// The store's key of a page.
    pub(crate) fn key(&self, page: usize) -> Key {
        Key { pool: self.pool, object: 0, index: page as u64 }
    }

    /// The time, in ticks.
    pub(crate) fn clock(&self) -> u8 {
        (self.evictions.load(Ordering::Relaxed) / self.tick).to_le_bytes()[0]
    }

    /// Evictions since the clock told `time`; a very old time may look young (the clock goes round).
    pub(crate) fn evictions_since(&self, time: u8) -> u64 {
        u64::from(self.clock().wrapping_sub(time)) * self.tick
    }

    /// Takes a page as resident and sees to it that its block is queued for eviction.
    pub(crate) fn set_resident(&self, group: &Group<'_>, page: usize) {
        self.set_back(group, page, false);
    }

    /// The same of a page that came back; whether a sequence only passes over it decides where its block waits.
    pub(crate) fn set_back(&self, group: &Group<'_>, page: usize, passed: bool) {
        group.set(page, State::Resident);
        group.set_passed(page, passed);
        let block = page / BLOCK_PAGES;
        if !self.pages.block(block).mark_queued() {
            return;
        }
        if passed {
            self.queue().push_passed(block, self.usage.segment().clock());
        } else {
            self.enqueue(block);
        }
    }

    /// Puts a block that is marked as queued at the end of the queue.
    pub(crate) fn enqueue(&self, block: usize) {
        self.queue().push(block, self.usage.segment().clock());
    }

    /// Tells the other processes of the run how old the head of the queue is.
    pub(crate) fn publish_oldest(&self) {
        self.usage.segment().publish_oldest(self.usage.slot(), self.queue().oldest());
    }

    /// What the evictor waits for.
    pub(crate) fn evictor(&self) -> &Event<true> {
        self.usage.segment().evictor(self.usage.slot())
    }

    /// Bytes that other processes have asked this one to evict.
    pub(crate) fn asked(&self) -> u64 {
        self.usage.segment().asked(self.usage.slot())
    }

    /// So many pages were evicted, or None if no more can be.
    pub(crate) fn answer(&self, pages: Option<usize>) {
        self.usage.segment().answer(self.usage.slot(), pages.map(|pages| (pages * PAGE) as u64));
    }

    /// Asks a process of the run with older pages, if there is one, to make room; not while this one has pages that
    /// nobody waits for.
    pub(crate) fn ask_older(&self) -> bool {
        /// A sixteenth of what the limit holds.
        const MARGIN: u64 = 16;
        /// Bytes: enough for a while.
        const LEAST: u64 = 1 << 20;
        let (segment, bytes) = (self.usage.segment(), self.over_low().max(LEAST));
        !self.queue().has_passed()
            && segment.ask_older(self.usage.slot(), segment.limit() / PAGE as u64 / MARGIN, bytes)
    }

    /// Forgets a page's contents, wherever they are; the group is locked. The caller discards resident ones.
    pub(crate) fn forget(&self, group: &Group<'_>, page: usize) {
        if group.state(page) == State::Stored {
            self.store().invalidate(self.key(page));
        }
        group.set(page, State::None);
    }

    /// Enters what this process uses.
    pub(crate) fn refresh_usage(&self) {
        self.usage.refresh(self.resident_bytes(), self.store.pool_bytes());
    }

    /// Enters pages and pool that came since: seldom enough to do so after each fault.
    pub(crate) fn enter_usage(&self) {
        self.usage.enter(self.held_bytes());
    }

    /// Frames of managed pages, those included that lie in the staging window though their pages are in the store.
    fn resident_bytes(&self) -> u64 {
        (self.pages.resident() + self.staging.stored()) * PAGE as u64
    }

    /// Frames of managed pages, and the pool.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.resident_bytes() + self.store.pool_bytes()
    }

    /// Leaves to this process's pool what the pools of the run's other processes leave of the most that all may
    /// have, but never less than its part if all had the same, or a sixteenth.
    pub(crate) fn share_pool(&self) {
        let segment = self.usage.segment();
        let mine = segment.gauge(self.usage.slot(), Gauge::Pool);
        let others = segment.gauge_sum(Gauge::Pool).saturating_sub(mine);
        let equal = self.max_pool / (segment.living() as u64).max(16);
        let share = self.max_pool.saturating_sub(others).max(equal);
        self.store.set_max_pool_bytes(share);
    }

    /// What is left of the pool and the swap file might not hold what the program has been given and not touched yet:
    /// it gets no more. An allocation that fails can be answered, a touch that fails cannot.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let segment = self.usage.segment();
        let pool = self.max_pool.saturating_sub(segment.gauge_sum(Gauge::Pool));
        // Once it has been filled, the log takes all extents, but what is dead in them can be had again.
        let swap_used = segment.swap_used().min(segment.gauge_sum(Gauge::SwapBytes));
        let swap = segment.swap_limit().saturating_sub(swap_used);
        let limit = segment.limit();
        // The log of the swap file needs some room to be cleaned.
        let margin = self.max_pool / 8 + segment.swap_limit() / 16 + 2 * crate::segment::EXTENT_SIZE;
        pool + swap < margin && segment.in_use() > limit - limit / 16
    }

    /// Bytes that the evictor should free now.
    pub(crate) fn over_low(&self) -> u64 {
        self.usage.over_low(self.held_bytes())
    }

    /// Bytes by which one more page would break the limit.
    pub(crate) fn over_high(&self) -> u64 {
        self.usage.over_high(self.held_bytes())
    }

    /// Bytes that the run may use beyond what it uses now.
    pub(crate) fn left(&self) -> u64 {
        self.usage.left(self.held_bytes())
    }

    /// More than a quarter of the limit is left.
    pub(crate) fn has_plenty(&self) -> bool {
        self.left() > self.usage.segment().limit() / 4
    }

    /// Writes back until the store accepts pages again. False if that is not to be had.
    pub(crate) fn shrink(&self) -> bool {
        let before = self.store.pool_bytes();
        self.store().shrink();
        self.store.pool_bytes() < before || !self.store().needs_shrink()
    }

    /// Writes back a part of the pool, though it is within its bound: there is nothing else to give. False if that is not
    /// to be had.
    pub(crate) fn squeeze(&self) -> bool {
        let before = self.store.pool_bytes();
        self.store.set_max_pool_bytes(before - before / 8);
        self.store().shrink();
        self.store.pool_bytes() < before
    }

    /// Gives an extent of the swap file back if little lives in it and others may have none. Who is alone cleans when it writes.
    pub(crate) fn tidy_swap(&self) {
        let segment = self.usage.segment();
        if let Some(tier) = &self.tier
            && segment.is_swap_short()
            && segment.living() > 1
        {
            // Failed, nothing is lost; who has no room himself tells it.
            let _ = tier.tidy();
        }
    }

    /// Ends the program: it would see wrong contents otherwise, or pass its limit.
    pub(crate) fn die(&self, message: &str) -> ! {
        let reported = self.usage.segment().report_death(message);
        self.host.die(message, reported)
    }

    /// Ends the program as the system would when it is out of memory.
    pub(crate) fn out_of_memory(&self) -> ! {
        let segment = self.usage.segment();
        let mib = |gauge| segment.gauge_sum(gauge) >> 20;
        self.die(&format!(
            "out of memory: the limit of {} MiB and the swap file ({} of {} MiB) are full: {} MiB resident, {} MiB \
             compressed, {} MiB not managed (give a larger -m, --max-pool-percent or --swap-size)",
            segment.limit() >> 20,
            segment.swap_used() >> 20,
            segment.swap_limit() >> 20,
            mib(Gauge::Resident),
            mib(Gauge::Pool),
            mib(Gauge::Own),
        ))
    }

    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        self.usage.segment().add(counter, amount);
    }
}
