//! What this process takes of the limit, and when it has to give.
//!
//! The pager knows exactly how many managed pages are resident and what the pool holds. Everything else that is
//! anonymous memory (the program's own data and stacks, the pager's tables, memory that was allocated before the
//! pager began) is what the kernel counts beyond that: `RssAnon` less the two. It is read from /proc/self/statm now
//! and then (a few microseconds), not for each fault. What a forked child has in common with its parent counts for
//! the parent only ([`crate::segment`], heirs). Where that changes under the pager's hands, or the pools'
//! ([`ramfold::zpool::forks`]), it is told at once; the rest (static data, tables) is found in /proc/self/smaps_rollup,
//! as often as its price allows.
//!
//! Two marks steer eviction: over *low* (the limit less a small reserve) the evictor works until under it; over
//! *high* (the limit itself) a fault makes room before it takes a page.

use crate::Host;
use crate::fds::{Kept, Proc};
use crate::process::{parse_anonymous, size_in};
use crate::segment::{Gauge, Segment, SlotId};
use crate::time::{now_ns, thread_ns};
use ramfold::PAGE_SIZE as PAGE;
use ramfold::zpool::forks;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes that the other processes of the run need not know of yet: there may be hundreds with so much each.
const UNSEEN: u64 = 64 << 10;

/// About what the pager's buffers come to once it evicts and writes back. It counts from the start: where there are
/// many processes, all begin with it at the same time.
const BUFFERS: u64 = 1 << 20;

/// How long after a look that told nothing the next one comes, and how many in a row there are: 200 ms.
const PUT_OFF_NS: u64 = 5_000_000;
const PUT_OFF_AT_MOST: u32 = 40;

/// This process's account in the run's shared budget.
#[derive(Debug)]
pub struct Account {
    /// What all members share.
    pub segment: Arc<Segment>,
    slot: AtomicUsize,
}

/// The account, and where the kernel tells what the process has.
#[derive(Debug)]
pub struct Usage {
    /// Where it is entered.
    pub account: Arc<Account>,
    /// The process's /proc.
    pub proc: Arc<Proc>,
    statm: Kept,
    /// Bytes that were read from it last.
    seen: AtomicU64,
    /// Memory that is not managed counts too.
    whole_process: bool,
    /// Bytes of resident pages and pool when they were last entered.
    entered: AtomicU64,
    /// There was a fork: pages may be in common with other processes.
    related: AtomicBool,
    /// Bytes of which there came to be more because of what this process did, and how many there were when it was
    /// refreshed last.
    divided: AtomicU64,
    divided_before: AtomicU64,
    /// When the next look at what is still in common is due.
    next_look: AtomicU64,
    /// Looks in a row that told nothing, since whom this process inherited from was ending.
    put_off: AtomicU32,
    /// Bytes with which resident pages and pool count at most.
    most: AtomicU64,
    /// Where the rest of the process's memory counts, if the process has several members.
    rest: Option<Arc<Rest>>,
}

impl Account {
    /// The account under this slot.
    pub fn new(segment: Arc<Segment>, slot: SlotId) -> Self {
        Self { segment, slot: AtomicUsize::new(slot.0) }
    }

    /// Its slot now: a forked child gets another.
    pub fn slot(&self) -> SlotId {
        SlotId(self.slot.load(Ordering::Relaxed))
    }
}

impl Usage {
    /// Usage that is entered into this account; of all the process's anonymous memory if `whole_process`, else of
    /// what its members hold.
    ///
    /// # Errors
    /// What the system answers.
    pub fn new(account: Arc<Account>, whole_process: bool, host: &'static dyn Host) -> Result<Self, Errno> {
        Self::seen_through(Arc::new(Proc::new(host)?), account, whole_process, host)
    }

    /// The same with a /proc that was opened before.
    ///
    /// # Errors
    /// What the system answers.
    pub fn seen_through(
        proc: Arc<Proc>,
        account: Arc<Account>,
        whole_process: bool,
        host: &'static dyn Host,
    ) -> Result<Self, Errno> {
        let statm = Kept::new(proc.open("self/statm")?, host)?;
        Ok(Self {
            account,
            proc,
            statm,
            seen: AtomicU64::new(0),
            whole_process,
            entered: AtomicU64::new(0),
            related: AtomicBool::new(false),
            divided: AtomicU64::new(0),
            divided_before: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            put_off: AtomicU32::new(0),
            most: AtomicU64::new(u64::MAX),
            rest: None,
        })
    }

    /// The same of one of several members: what the process has beside them counts there, and once.
    #[must_use]
    pub fn beside(mut self, rest: Option<Arc<Rest>>) -> Self {
        self.rest = rest;
        self
    }

    /// What all members share.
    pub fn segment(&self) -> &Segment {
        &self.account.segment
    }

    /// The account's slot.
    pub fn slot(&self) -> SlotId {
        self.account.slot()
    }

    /// What is read: statm of a thread that lives.
    pub fn statm(&self) -> &Kept {
        &self.statm
    }

    /// Before a fork: a slot for the child, which inherits all that this process has but for so many pages, which it
    /// copies at once.
    pub fn prepare_child(&self, copied: usize) -> io::Result<SlotId> {
        forks::note_fork();
        self.related.store(true, Ordering::Relaxed);
        let inherited = self.anonymous().saturating_sub((copied * PAGE) as u64);
        self.segment().prepare_child(self.slot(), inherited, &|_| ())
    }

    /// In a forked child: its own slot and its own statm.
    pub fn become_child(&self, slot: SlotId) -> Result<(), Errno> {
        self.account.slot.store(slot.0, Ordering::Relaxed);
        self.follow_thread()?;
        self.next_look.store(0, Ordering::Relaxed);
        self.put_off.store(0, Ordering::Relaxed);
        self.set_most(u64::MAX);
        self.entered.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Reads usage through the calling thread from now on: /proc tells nothing more through a thread that has ended,
    /// and the program's first thread may end before the program. Nobody else is inside the gate.
    pub fn follow_thread(&self) -> Result<(), Errno> {
        self.statm.renew(|| self.proc.open_own("statm"))
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn set_most(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    /// Enters what this process has now, in bytes.
    pub fn refresh(&self, resident: u64, pool: u64) {
        if let Some(rest) = &self.rest {
            return self.refresh_beside(rest, resident, pool);
        }
        self.divided_before.store(self.divided(), Ordering::Relaxed);
        let anonymous = if self.whole_process { self.anonymous() } else { resident + pool };
        let least = if self.whole_process { BUFFERS } else { 0 };
        let own = anonymous.saturating_sub(resident + pool).max(least);
        self.segment().inherited_at_most(self.slot(), anonymous);
        let mut shared = self.segment().inherited(self.slot());
        let mut less = |bytes: u64| {
            let part = bytes.min(shared);
            shared -= part;
            bytes - part
        };
        let (segment, slot) = (self.segment(), self.slot());
        let counted = (resident + pool).min(self.most());
        let pool = pool.min(counted);
        let parts = [(Gauge::Own, own), (Gauge::Pool, pool), (Gauge::Resident, counted - pool)];
        segment.publish_all(slot, &parts.map(|(gauge, bytes)| (gauge, less(bytes))));
        self.entered.store(counted, Ordering::Relaxed);
    }

    /// No process with several members is forked, so it has nothing in common with another.
    fn refresh_beside(&self, rest: &Rest, resident: u64, pool: u64) {
        let (segment, slot, held) = (self.segment(), self.slot(), resident + pool);
        rest.note(self.entered.swap(held, Ordering::Relaxed), held);
        segment.publish_all(slot, &[(Gauge::Pool, pool), (Gauge::Resident, resident)]);
        rest.enter(self.anonymous());
    }

    /// Enters what resident pages and pool, `held` bytes together, have grown by, once it is something. The rest is
    /// as at the last refreshment, which takes microseconds.
    pub fn enter(&self, held: u64) {
        let entered = self.entered.load(Ordering::Relaxed);
        let more = held.saturating_sub(entered);
        let won =
            || self.entered.compare_exchange(entered, held, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if more >= UNSEEN && won() {
            self.rest.iter().for_each(|rest| rest.note(entered, held));
            self.segment().charge(self.slot(), Gauge::Resident, more);
        }
    }

    /// Whether so much that was in common is not any more that the others have to know: then what this process has is
    /// to be refreshed.
    pub fn has_divided(&self) -> bool {
        self.divided() >= self.divided_before.load(Ordering::Relaxed) + UNSEEN
    }

    /// What this process has inherited and is its own by now, as far as nobody told. Walks the page tables: a
    /// millisecond for some hundred megabytes, a twentieth of the time at most.
    pub fn look_for_own(&self) {
        /// How long after a look the next one comes, in multiples of the processor time that it takes.
        const REST: u64 = 20;
        if self.segment().inherited(self.slot()) == 0 {
            return;
        }
        let next = self.next_look.load(Ordering::Relaxed);
        let begin = || self.next_look.compare_exchange(next, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
        if now_ns() < next || begin().is_err() {
            return;
        }
        let worked = thread_ns();
        let shared = shared_bytes(&self.proc);
        if self.is_put_off() {
            self.next_look.store(now_ns() + PUT_OFF_NS, Ordering::Relaxed);
            return;
        }
        if let Some(shared) = shared {
            let found = self.segment().inherited_at_most(self.slot(), shared);
            self.divided.fetch_add(found, Ordering::Relaxed);
        }
        let rest = (thread_ns() - worked) * REST;
        self.next_look.store(now_ns() + rest, Ordering::Relaxed);
    }

    /// What was just seen to be private may be so because whom it was inherited from is ending: it still counts there,
    /// and is passed on with that slot. A process whose first thread has ended looks as if it were ending, so this is
    /// believed for a while only.
    fn is_put_off(&self) -> bool {
        let giver = self.segment().giver(self.slot());
        let is_ending =
            giver.is_some_and(|(slot, pid)| has_no_memory(&self.proc, pid) || !self.segment().lives(slot));
        if !is_ending {
            self.put_off.store(0, Ordering::Relaxed);
        }
        is_ending && self.put_off.fetch_add(1, Ordering::Relaxed) < PUT_OFF_AT_MOST
    }

    /// Whether pages of this process may be another's too. Notices when there is no such process any more.
    pub fn look_at_relatives(&self) -> bool {
        let related = self.is_related() && self.segment().in_common(self.slot()) > 0;
        self.related.store(related, Ordering::Relaxed);
        related
    }

    /// The same, as it was when somebody looked last.
    pub fn is_related(&self) -> bool {
        self.related.load(Ordering::Relaxed)
    }

    /// So many pages that were in common with others are this process's own, or theirs alone, from now on.
    pub fn divide(&self, pages: u32) {
        if pages > 0 {
            let bytes = u64::from(pages) * PAGE as u64;
            self.divided.fetch_add(bytes, Ordering::Relaxed);
            self.segment().divide(self.slot(), bytes);
        }
    }

    /// Bytes that were told to [`Usage::divide`], or found by looking, so far.
    pub fn divided(&self) -> u64 {
        self.divided.load(Ordering::Relaxed)
    }

    /// Whether the run would have used up most of its limit if all that is in common were written to.
    pub fn could_come_short(&self) -> bool {
        let limit = self.segment().limit();
        let common = if self.is_related() { self.segment().in_common(self.slot()) } else { 0 };
        common > 0 && self.segment().in_use().saturating_add(common) > limit - limit / 4
    }

    /// Bytes over the mark at which the evictor starts.
    pub fn over_low(&self, held: u64) -> u64 {
        let limit = self.segment().limit();
        self.now(held).saturating_sub(limit.saturating_sub(reserve(limit)))
    }

    /// Bytes over the limit that one more page would be.
    pub fn over_high(&self, held: u64) -> u64 {
        self.now(held).saturating_add(PAGE as u64).saturating_sub(self.segment().limit())
    }

    /// Bytes that are left of the limit.
    pub fn left(&self, held: u64) -> u64 {
        self.segment().limit().saturating_sub(self.now(held))
    }

    /// What the whole run uses, with this process's resident pages and pool as they are now.
    fn now(&self, held: u64) -> u64 {
        self.segment().in_use().saturating_add(held).saturating_sub(self.entered.load(Ordering::Relaxed))
    }

    /// RssAnon in bytes; as it was last where it cannot be read: the thread that it is read through has ended
    /// (a thread of its own had read it), or the program has closed the descriptor for its own threads. A thread that
    /// is about to end has no memory any more, while those that end with it may still ask.
    fn anonymous(&self) -> u64 {
        let mut text = [0u8; 128];
        let len = match rustix::io::pread(self.statm.as_fd(), &mut text, 0) {
            Ok(len @ 1..) => len,
            _ => return self.seen.load(Ordering::Relaxed),
        };
        match parse_anonymous(&text[..len]) {
            0 => self.seen.load(Ordering::Relaxed),
            anonymous => {
                self.seen.store(anonymous, Ordering::Relaxed);
                anonymous
            }
        }
    }
}

/// What a process of several members has beside what these hold: an account of its own.
#[derive(Debug)]
pub struct Rest {
    account: Account,
    /// Bytes that the members have entered.
    held: AtomicU64,
}

impl Rest {
    /// On this account.
    #[must_use]
    pub fn new(account: Account) -> Self {
        Self { account, held: AtomicU64::new(0) }
    }

    /// A member holds `now` bytes in the place of `before`.
    pub(crate) fn note(&self, before: u64, now: u64) {
        self.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Enters what the process has, less what its members hold.
    fn enter(&self, anonymous: u64) {
        // What two threads note of one member at the same time may come in any order.
        let held = self.held.load(Ordering::Relaxed).cast_signed().max(0).unsigned_abs();
        let own = anonymous.saturating_sub(held).max(BUFFERS);
        self.account.segment.publish(self.account.slot(), Gauge::Own, own);
    }
}

/// Whether this process is there and has given up its memory, which it does before the kernel takes it away.
fn has_no_memory(proc: &Proc, pid: u32) -> bool {
    let mut text = [0; 128];
    let told = proc.open(&format!("{pid}/statm")).and_then(|statm| rustix::io::read(statm, &mut text));
    told.is_ok_and(|len| text[..len].starts_with(b"0 "))
}

/// Bytes of anonymous pages that another process has too; `None` if that cannot be read. All of one walk: pages leave
/// meanwhile.
fn shared_bytes(proc: &Proc) -> Option<u64> {
    let mut text = String::new();
    File::from(proc.open_own("smaps_rollup").ok()?).read_to_string(&mut text).ok()?;
    // What is private and was written to is anonymous, but for some pages of memory files.
    Some(size_in(&text, "Anonymous:")?.saturating_sub(size_in(&text, "Private_Dirty:")?))
}

/// Bytes kept free below the limit, so that a fault finds room without waiting for an eviction.
fn reserve(limit: u64) -> u64 {
    (limit / 128).clamp(256 << 10, 2 << 20)
}
