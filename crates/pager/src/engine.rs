//! What the pager's threads share, once memory is managed.
//!
//! Three threads work on it: the *handler* resolves faults ([`crate::fault`]), the *evictor* takes cold blocks out of
//! the program and into the store ([`crate::evict`]) and in between has what stays there made denser
//! ([`ramfold_budget::recompress`]), the *keeper* writes back from the store when its pool is full, and keeps the
//! books. They start when the program's memory passes the threshold, not before.
//!
//! Lock order: gate, space ([`crate::space`], by its owner), group ([`crate::pages`]), then the store's own. The
//! lock of the queue ([`crate::queue`]) is taken alone or under a group lock and holds nothing.

use crate::core_file::Dump;
use crate::density::{Density, Zeros};
use crate::face::{Host, Mode, SetupError};
use crate::gate::Gate;
use crate::inbox::Inbox;
use crate::pages::{BLOCK_PAGES, Group, Pages, State};
use crate::queue::Queue;
use crate::reservation::Reservation;
use crate::shared_table::{Numbers, OWN_DESCRIPTORS};
use crate::space::Space;
use crate::staging::Staging;
use crate::sys::{self, PAGE};
use crate::trace::Trace;
use crate::uffd::Uffd;
use ramfold::tier::file::FileTier;
use ramfold::{Key, PoolId, PoolKind, Scratch, Store};
use ramfold_budget::door::Door;
use ramfold_budget::event::Event;
use ramfold_budget::fds::{Identity, Kept, Proc};
use ramfold_budget::member::Member;
use ramfold_budget::segment::{Counter, SlotId};
use ramfold_budget::time::now_ns;
use ramfold_budget::usage::Usage;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running pager.
pub(crate) struct Engine {
    pub(crate) host: &'static dyn Host,
    pub(crate) uffd: Uffd,
    pub(crate) inbox: Inbox,
    pub(crate) pages: Pages,
    pub(crate) member: Member,
    pub(crate) pool: PoolId,
    pub(crate) trace: Option<Trace>,
    pub(crate) dump: Dump,
    /// The run's files: swap and trace.
    files: Vec<(RawFd, Identity)>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) staging: Staging,
    pub(crate) keeper: Event,
    pub(crate) space: Arc<Mutex<Space>>,
    /// That of the space.
    pub(crate) unlocked: Arc<AtomicBool>,
    /// The range stays reserved while a thread may touch it.
    _reserved: Arc<Reservation>,
    /// UFFDIO_MOVE is used; else write-protect and copy.
    pub(crate) moves: bool,
    /// The process's memory as a file, for pages that the program may not write or read.
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
    /// The id of the evictor's thread; 0 until it has begun.
    pub(crate) evictor_tid: AtomicU32,
    /// Ids of the threads that were started.
    threads: Mutex<Vec<u32>>,
    /// Why the threads could not be started: an errno, or 0.
    pub(crate) failure: AtomicI32,
    /// Nothing leaves ([`crate::hold`]).
    pub(crate) held: AtomicBool,
    /// [`crate::guard`] has write-protected what was inherited.
    pub(crate) guarded: AtomicBool,
    /// [`Member::is_nearly_full`], as the keeper saw it last.
    pub(crate) nearly_full: AtomicBool,
    /// Pages evicted so far: the clock by which the age of an eviction is told.
    pub(crate) evictions: AtomicU64,
    /// Evictions in a tick of the clock: a sixteenth of the pages that the limit holds.
    tick: u64,
    queue: Queue,
    /// Noted by the evictors, for the handler.
    pub(crate) density: Density,
    pub(crate) zeros: Zeros,
}

/// What an engine is made of.
pub(crate) struct Parts {
    pub(crate) store: ramfold::Config,
    pub(crate) mode: Mode,
    pub(crate) tier: Option<Arc<FileTier>>,
    pub(crate) reserved: Arc<Reservation>,
    pub(crate) pages: Pages,
    pub(crate) space: Arc<Mutex<Space>>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) trace: Option<Trace>,
    pub(crate) usage: Usage,
    pub(crate) dump: Dump,
    /// What userfaultfds can be had from.
    pub(crate) device: Option<Kept>,
    /// Descriptors of the run's files.
    pub(crate) files: Vec<(RawFd, Identity)>,
}

impl Engine {
    /// Everything but the threads.
    pub(crate) fn new(parts: Parts, host: &'static dyn Host) -> Result<Self, SetupError> {
        let uffd = Uffd::open(host, parts.device)?;
        let moves = match parts.mode {
            Mode::Auto => uffd.can_move(),
            Mode::Move if !uffd.can_move() => return Err(SetupError::NoMove),
            Mode::Move => true,
            Mode::WriteProtect => false,
        };
        let member = Member::new(&parts.store, parts.tier, parts.usage)?;
        let pool = member.store().create_pool(PoolKind::Persistent, None);
        let staging = Staging::new()?;
        staging.register(&uffd)?;
        let memory = Kept::new(open_memory(&member.usage.proc)?, host)?;
        let pagemap = Kept::new(member.usage.proc.open("self/pagemap")?, host)?;
        let unlocked = Arc::clone(&parts.space.lock().unwrap_or_else(PoisonError::into_inner).unlocked);
        let tick = (member.segment().limit() / PAGE as u64 / 16).max(1);
        Ok(Self {
            host,
            uffd,
            inbox: Inbox::default(),
            pages: parts.pages,
            member,
            trace: parts.trace,
            dump: parts.dump,
            files: parts.files,
            pool,
            gate: parts.gate,
            staging,
            keeper: Event::default(),
            space: parts.space,
            unlocked,
            _reserved: parts.reserved,
            moves,
            memory,
            pagemap,
            stopping: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            ringing: AtomicBool::new(false),
            workers: AtomicUsize::new(0),
            evictor_tid: AtomicU32::new(0),
            threads: Mutex::default(),
            failure: AtomicI32::new(0),
            held: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            nearly_full: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            tick,
            queue: Queue::default(),
            density: Density::default(),
            zeros: Zeros::new()?,
        })
    }

    /// The numbers of all descriptors of the pager.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let kept = self.own_descriptors().into_iter().chain([&self.member.usage.proc.0]);
        let numbers = kept.chain(self.uffd.device()).map(Kept::raw_fd);
        numbers.chain(self.files.iter().map(|(fd, _)| *fd)).collect()
    }

    /// Those that are of this process alone.
    fn own_descriptors(&self) -> [&Kept; OWN_DESCRIPTORS] {
        [&self.memory, &self.pagemap, self.uffd.descriptor(), self.member.usage.statm()]
    }

    /// In a forked child, before anything is opened: the parent's own descriptors make room, or stay, where the child
    /// has the parent's table and numbers that were taken for it. The others must still be there.
    pub(crate) fn close_parents(&self, taken: Option<Numbers>) {
        let own = self.own_descriptors();
        match taken {
            Some(numbers) => own.into_iter().zip(numbers).for_each(|(kept, number)| kept.leave_for(number)),
            None => own.into_iter().for_each(Kept::close),
        }
        let has_lost = |(fd, identity): &(RawFd, Identity)| !identity.is_at(*fd);
        if self.files.iter().any(has_lost) || !self.member.usage.proc.0.is_open() {
            self.member.usage.proc.0.lost();
        }
    }

    /// In a forked child: descriptors of its own, and nothing of the parent's threads.
    pub(crate) fn become_child(&self, slot: SlotId) -> Result<(), SetupError> {
        self.uffd.renew()?;
        self.memory.renew(|| open_memory(&self.member.usage.proc))?;
        self.pagemap.renew(|| self.member.usage.proc.open("self/pagemap"))?;
        self.member.become_child(slot)?;
        if let Some(trace) = &self.trace {
            trace.begin(slot);
        }
        self.keeper.reset();
        self.held.store(false, Ordering::Relaxed);
        self.inbox.reset();
        self.ringing.store(false, Ordering::Relaxed);
        self.guarded.store(false, Ordering::Relaxed);
        self.staging.register(&self.uffd)?;
        Ok(())
    }

    /// Ends the threads: the handler last, for the others may wait for it. Where there are no others yet, it ends
    /// with the next.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.evictor().call();
        self.keeper.call();
    }

    /// Who works here.
    pub(crate) fn threads(&self) -> MutexGuard<'_, Vec<u32>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The compressed pages. Called inside the gate, as [`Engine::queue`] is: a fork would leave their locks locked
    /// otherwise.
    pub(crate) fn store(&self) -> &Store {
        debug_assert!(self.gate.is_in_use(), "the store is used outside of the gate");
        self.member.store()
    }

    /// The blocks that wait for eviction.
    pub(crate) fn queue(&self) -> &Queue {
        debug_assert!(self.gate.is_in_use(), "the queue is used outside of the gate");
        &self.queue
    }

    /// What a thread needs to store and to load.
    pub(crate) fn scratch(&self) -> Scratch {
        self.member.store().scratch()
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
            self.queue().push_passed(block, self.member.segment().clock());
        } else {
            self.enqueue(block);
        }
    }

    /// Puts a block that is marked as queued at the end of the queue.
    pub(crate) fn enqueue(&self, block: usize) {
        self.queue().push(block, self.member.segment().clock());
    }

    /// Tells the other processes of the run how old the head of the queue is.
    pub(crate) fn publish_oldest(&self) {
        self.member.publish_oldest(self.oldest());
    }

    /// What the evictor waits for.
    pub(crate) fn evictor(&self) -> &Event<true> {
        self.member.event()
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
        self.member.refresh(self.resident());
    }

    /// Enters pages and pool that came since: seldom enough to do so after each fault.
    pub(crate) fn enter_usage(&self) {
        self.member.enter(self.resident());
    }

    /// Bytes that the evictor should free now.
    pub(crate) fn over_low(&self) -> u64 {
        self.member.over_low(self.resident())
    }

    /// Bytes by which one more page would break the limit.
    pub(crate) fn over_high(&self) -> u64 {
        self.member.over_high(self.resident())
    }

    /// Bytes that the run may use beyond what it uses now.
    pub(crate) fn left(&self) -> u64 {
        self.member.left(self.resident())
    }

    /// Ends the program: it would see wrong contents otherwise, or pass its limit.
    pub(crate) fn die(&self, message: &str) -> ! {
        let reported = self.member.segment().report_death(message);
        self.host.die(message, reported)
    }

    /// Ends the program, of which a page cannot be placed.
    pub(crate) fn lose(&self, why: &str, errno: Errno) -> ! {
        self.blame_lock();
        self.die(&format!("a page was lost: {why} ({errno})"))
    }

    /// Ends the program if it has locked all memory past libc. The kernel has put zeros then wherever nothing was, in
    /// ramfold's tables as well: that is why there is no room, and no place for a page.
    fn blame_lock(&self) {
        if self.staging.is_locked() {
            self.die(
                "the program has locked all memory by its own instructions (mlockall), and ramfold's with it",
            );
        }
    }

    /// Ends the program as the system would when it is out of memory.
    pub(crate) fn out_of_memory(&self) -> ! {
        self.blame_lock();
        self.die(&self.member.out_of_memory())
    }

    pub(crate) fn count(&self, counter: Counter, amount: u64) {
        self.member.count(counter, amount);
    }
}

impl Door for Engine {
    /// Frames of managed pages, those included that lie in the staging window though their pages are in the store.
    fn resident(&self) -> u64 {
        (self.pages.resident() + self.staging.stored()) * PAGE as u64
    }

    fn candidates(&self) -> usize {
        self.queue().len()
    }

    fn oldest(&self) -> Option<u64> {
        self.queue().oldest()
    }

    fn is_wanted(&self) -> bool {
        !self.queue().has_passed()
    }

    fn is_closing(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn inside(&self) -> impl Sized {
        self.gate.enter()
    }
}

/// The process's memory, by the name that it has for this thread: on the one that it has for the process `ramfold run`
/// has a lease, and who opens that waits. ESRCH if it is another's: pages are copied from it.
fn open_memory(proc: &Proc) -> Result<OwnedFd, Errno> {
    let memory = proc.open_own("mem")?;
    let (own, mut seen) = (now_ns().to_ne_bytes(), [0; 8]);
    sys::read_at(memory.as_fd(), std::ptr::from_ref(&own).expose_provenance(), &mut seen)?;
    if seen == own { Ok(memory) } else { Err(Errno::SRCH) }
}
