//! A member of a budget: one store of compressed pages, its tier and its account.
//!
//! What counts against the limit is what the door keeps in memory beside the store (`resident`, in bytes, told by the
//! door with each question), the store's pool, and whatever else the process has. The member answers how much that is
//! too much, writes back when the pool is full, shares the bound of all pools and the swap file with other members,
//! and enters the store's counters.
//!
//! Locks: those of the store and of the books, taken in turn. Who forks sees to it that nobody has them.

use crate::books::Books;
use crate::door::Door;
use crate::event::Event;
use crate::segment::{Counter, EXTENT_SIZE, Gauge, Segment, SlotId};
use crate::usage::Usage;
use ramfold::tier::Tier;
use ramfold::tier::file::FileTier;
use ramfold::{ConfigError, PAGE_SIZE, Shrunk, Stop, Store};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a thread writes back at a time while a program may wait for it.
pub(crate) const BITE: u64 = 256 << 10;
/// One part in so many of the limit may be memory that cannot leave before the pools have less for it.
const FREE_PART: u64 = 16;

/// A member.
#[derive(Debug)]
pub struct Member {
    store: Store,
    /// The swap file, if there is one.
    pub tier: Option<Arc<FileTier>>,
    /// What the process takes of the limit.
    pub usage: Usage,
    /// Bytes that all pools of the budget together may have.
    max_pool: AtomicU64,
    books: Mutex<Books>,
    exhausted: AtomicBool,
    /// Pages that were given up so far.
    given: AtomicU64,
    /// Candidates that its evictor looked at, and gave nothing.
    in_vain: AtomicU64,
    /// Its pool is all that its door has to give, and has a bound of its own.
    is_apart: bool,
    /// The budget may have other members.
    is_shared: bool,
}

/// See [`Member::burden`]; in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Burden {
    bytes: u64,
    divided: u64,
}

impl Member {
    /// A member with a store of these settings over this tier, which counts on this account.
    ///
    /// # Errors
    /// [`ConfigError`] of the store.
    pub fn new(
        config: &ramfold::Config,
        tier: Option<Arc<FileTier>>,
        usage: Usage,
    ) -> Result<Self, ConfigError> {
        let below = tier.clone().map(|tier| tier as Arc<dyn Tier>);
        let store = Store::new(config, below)?;
        Ok(Self {
            store,
            tier,
            usage,
            max_pool: AtomicU64::new(config.max_pool_bytes),
            books: Mutex::default(),
            exhausted: AtomicBool::new(false),
            given: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            is_apart: false,
            is_shared: true,
        })
    }

    /// As the member of a door that keeps nothing in memory beside the store: the pool's bound is for it alone.
    #[must_use]
    pub fn apart(mut self, is_shared: bool) -> Self {
        self.segment().set_apart(self.slot());
        (self.is_apart, self.is_shared) = (true, is_shared);
        self
    }

    /// Whether the budget may have other members.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The compressed pages.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What all members share.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        self.usage.segment()
    }

    /// This member's place there.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.usage.slot()
    }

    /// In a forked child, which has the parent's store: a slot and a tier of its own.
    ///
    /// # Errors
    /// What the system answers.
    pub fn become_child(&self, slot: SlotId) -> Result<(), Errno> {
        debug_assert!(self.store.is_quiet(), "a batch of the parent is half way");
        self.usage.become_child(slot)?;
        if let Some(tier) = &self.tier {
            tier.become_child();
        }
        self.books().skip(&self.store.stats());
        Ok(())
    }

    /// Adds to a counter of the budget.
    pub fn count(&self, counter: Counter, amount: u64) {
        self.segment().add(counter, amount);
    }

    /// Enters the store's counters.
    pub fn publish_books(&self) {
        self.books().publish(&self.usage.account, &self.store.stats());
        if let Some(tier) = &self.tier {
            self.segment().publish(self.slot(), Gauge::SwapBytes, tier.live_bytes());
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// To be called every few milliseconds, by one thread.
impl Member {
    /// Writes back when the pool is full, shares the pool's bound and the swap file with other members, and enters
    /// the counters.
    pub fn tick(&self, door: &impl Door) {
        self.shrink_if_full();
        self.usage.look_for_own();
        self.refresh(door.resident());
        self.share_pool();
        self.tidy_swap();
        self.publish_books();
    }
}

/// How much is too much. `resident`: what the door keeps in memory beside the store now, in bytes.
impl Member {
    /// Enters what this member uses.
    pub fn refresh(&self, resident: u64) {
        self.usage.refresh(resident, self.store.pool_bytes());
    }

    /// Enters what came since: seldom enough to do so after each page.
    pub fn enter(&self, resident: u64) {
        if self.usage.has_divided() {
            self.refresh(resident);
        } else {
            self.usage.enter(self.held(resident));
        }
    }

    /// What the door keeps, and the pool, as far as they count.
    #[must_use]
    pub fn held(&self, resident: u64) -> u64 {
        (resident + self.store.pool_bytes()).min(self.usage.most())
    }

    /// What the door keeps and the pool count with no more than they are now, until [`Member::count_all`].
    pub fn count_no_more(&self, resident: u64) {
        self.usage.set_most(self.held(resident));
    }

    /// The same with so many bytes less. Returns how many less it is.
    pub fn count_less(&self, bytes: u64) -> u64 {
        let most = self.usage.most();
        let less = most.saturating_sub(bytes);
        self.usage.set_most(less);
        most - less
    }

    /// They count in full.
    pub fn count_all(&self) {
        self.usage.set_most(u64::MAX);
    }

    /// Bytes that should be given up now, while nobody waits for it.
    #[must_use]
    pub fn over_low(&self, resident: u64) -> u64 {
        self.usage.over_low(self.held(resident))
    }

    /// Bytes by which one more page would break the limit.
    #[must_use]
    pub fn over_high(&self, resident: u64) -> u64 {
        self.usage.over_high(self.held(resident))
    }

    /// Bytes that the budget has beyond what is used now.
    #[must_use]
    pub fn left(&self, resident: u64) -> u64 {
        self.usage.left(self.held(resident))
    }

    /// Bytes that count of this member.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.segment().charged(self.slot())
    }

    /// Whether one more page fits. Who gives up is called where little is left.
    #[must_use]
    pub fn has_room(&self, resident: u64) -> bool {
        if self.over_low(resident) > 0 && !self.is_exhausted() {
            self.event().call();
        }
        self.over_high(resident) == 0
    }

    /// Bytes that are missing for what a forked child takes before it has done anything: stacks and buffers, and copies
    /// of what both write to. Nothing where all that this member has could become two.
    pub(crate) fn short_for_child(&self, resident: u64) -> u64 {
        /// Bytes; an eighth of the limit at most.
        const CHILD: u64 = 4 << 20;
        let (limit, left, has) = (self.segment().limit(), self.left(resident), self.charged());
        if left > has { 0 } else { CHILD.min(limit / 8).min(has).saturating_sub(left) }
    }

    /// More than a quarter of the limit is left.
    #[must_use]
    pub fn has_plenty(&self, resident: u64) -> bool {
        self.left(resident) > self.segment().limit() / 4
    }

    /// Whether there is something to give up: the member is over its mark, or others have asked.
    #[must_use]
    pub fn is_pressed(&self, resident: u64) -> bool {
        self.over_low(resident) > 0 || self.asked() > 0
    }

    /// Nothing more can be given up: pool and tier are full, or there is no tier.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_exhausted(&self, exhausted: bool) {
        self.exhausted.store(exhausted, Ordering::Relaxed);
    }

    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    pub(crate) fn note_given(&self, pages: usize) {
        self.given.fetch_add(pages as u64, Ordering::Relaxed);
    }

    pub(crate) fn in_vain(&self) -> u64 {
        self.in_vain.load(Ordering::Relaxed)
    }

    pub(crate) fn note_in_vain(&self, candidates: usize) {
        self.in_vain.fetch_add(candidates.max(1) as u64, Ordering::Relaxed);
    }

    /// What this member burdens the budget with: what it holds, and what it has made more of. To give up what nobody
    /// else has makes it less.
    pub(crate) fn burden(&self, resident: u64) -> Burden {
        let divided = self.usage.divided();
        Burden { bytes: self.held(resident) + divided, divided }
    }

    /// Whether what was given up since is still somebody else's: it has freed nothing, and the pool has grown.
    pub(crate) fn was_in_vain(&self, before: Burden, resident: u64) -> bool {
        let now = self.burden(resident);
        now.divided > before.divided && now.bytes >= before.bytes
    }
}

/// The pool and the swap file.
impl Member {
    /// Sets the most that all pools of the budget together may have, as this member sees it, in bytes; that its own may
    /// have, if it is apart.
    pub fn set_max_pool(&self, bytes: u64) {
        self.max_pool.store(bytes, Ordering::Relaxed);
        self.share_pool();
    }

    /// The most that the pools may have together: of what members that are apart leave of the limit, the same part as
    /// of the whole. Where pages have a tier to go to, memory that cannot leave is no part of that whole either, beyond
    /// [`FREE_PART`] of the limit: under a tight one it would leave a pool, and nothing for resident pages.
    fn max_pool(&self) -> u64 {
        let (segment, max_pool) = (self.segment(), self.max_pool.load(Ordering::Relaxed));
        if self.is_apart {
            return max_pool;
        }
        let limit = segment.limit().max(1);
        let unmanaged = if self.tier.is_some() { segment.gauge_sum(Gauge::Own) } else { 0 };
        let taken = segment.pools_apart() + unmanaged.saturating_sub(limit / FREE_PART);
        let share = u128::from(max_pool) * u128::from(limit.saturating_sub(taken)) / u128::from(limit);
        u64::try_from(share).unwrap_or(max_pool)
    }

    /// Leaves to this member's pool what the pools of the others leave of the most that all may
    /// have, but never less than its part if all had the same, or a sixteenth.
    fn share_pool(&self) {
        let (segment, max_pool) = (self.segment(), self.max_pool());
        if self.is_apart {
            return self.store.set_max_pool_bytes(max_pool);
        }
        let mine = segment.gauge(self.slot(), Gauge::Pool);
        let others = self.common_pools().saturating_sub(mine);
        let equal = max_pool / (segment.living() as u64).max(16);
        let share = max_pool.saturating_sub(others).max(equal);
        self.store.set_max_pool_bytes(share);
    }

    /// Bytes of all pools of the budget but those that are apart.
    fn common_pools(&self) -> u64 {
        let segment = self.segment();
        segment.gauge_sum(Gauge::Pool).saturating_sub(segment.pools_apart())
    }

    /// What is left of the pool and the swap file might not hold what the door has promised and not got yet:
    /// it should promise no more. An allocation that fails can be answered, a touch that fails cannot.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        let segment = self.segment();
        let max_pool = self.max_pool();
        let pool = max_pool.saturating_sub(self.common_pools());
        let limit = segment.limit();
        pool + self.swap_left() < max_pool / 8 + self.swap_margin() && segment.in_use() > limit - limit / 16
    }

    /// Bytes that the swap file may take yet. Once it has been filled, the log takes all extents, but what is dead in
    /// them can be had again.
    fn swap_left(&self) -> u64 {
        let segment = self.segment();
        let used = segment.swap_used().min(segment.gauge_sum(Gauge::SwapBytes));
        segment.swap_limit().saturating_sub(used)
    }

    /// Bytes of the swap file that its log needs to be cleaned.
    fn swap_margin(&self) -> u64 {
        self.segment().swap_limit() / 16 + 2 * EXTENT_SIZE
    }

    /// Whether what the pool writes back next may find no place, or did not: there is no swap file, it is full of what
    /// lives, or it cannot be written.
    pub(crate) fn is_swap_full(&self) -> bool {
        self.swap_left() < self.swap_margin() || self.store.stats().writeback_fail > 0
    }

    /// Writes back until a full pool is under its accept threshold: for a thread that nobody waits for. After one batch
    /// the next pages would find it full again.
    pub fn shrink_if_full(&self) {
        if self.store.needs_shrink() {
            self.store.shrink();
        }
    }

    /// Writes back a little of a full pool, so that the store accepts pages again: for a thread that is waited for. The
    /// rest is left to who is not. False if nothing is to be had.
    pub fn bite(&self) -> bool {
        let Shrunk { written_back, dropped, freed_bytes, stop } = self.store.shrink_by(BITE);
        stop == Stop::Done || written_back + dropped + freed_bytes > 0 || !self.store.needs_shrink()
    }

    /// Writes back a part of the pool, though it is within its bound: there is nothing else to give. The bound becomes
    /// smaller by an eighth; `bytes` of that leave at once, the rest with the next tick. A pool that is apart gives the
    /// eighth at once. False if nothing is to be had.
    pub(crate) fn squeeze(&self, bytes: u64) -> bool {
        let before = self.store.pool_bytes();
        if self.is_apart {
            // A bound would refuse what others have made room for meanwhile.
            return self.store.reclaim(before / 8).freed_bytes > 0;
        }
        self.store.set_max_pool_bytes(before - before / 8);
        self.store.reclaim(bytes);
        self.store.pool_bytes() < before
    }

    /// Gives an extent of the swap file back if little lives in it, and others may have none or nearly all that this
    /// member holds of the file is dead. Who is alone and short cleans when it writes.
    fn tidy_swap(&self) {
        let Some(tier) = &self.tier else { return };
        let others_wait = self.segment().is_swap_short() && self.segment().living() > 1;
        if others_wait || is_mostly_dead(tier) {
            // Failed, nothing is lost; who has no room himself tells it.
            let _ = tier.tidy();
        }
    }

    /// Why nothing more can be held, and what to do.
    #[must_use]
    pub fn out_of_memory(&self) -> String {
        let mib = |gauge| self.segment().gauge_sum(gauge) >> 20;
        let (why, way_out) = self.what_is_full();
        format!(
            "out of memory: {why}: {} MiB resident, {} MiB compressed, {} MiB not managed ({way_out})",
            mib(Gauge::Resident),
            mib(Gauge::Pool),
            mib(Gauge::Own),
        )
    }

    /// What is full, and what gives more room. Where the swap file takes more, the limit is full of pages that stay.
    /// The swap file is written by this process, and may have a smaller size for it.
    fn what_is_full(&self) -> (String, String) {
        let segment = self.segment();
        let [limit, used, most] =
            [segment.limit(), segment.swap_used(), segment.swap_limit()].map(|all| all >> 20);
        let file = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let both = format!("the limit of {limit} MiB and the swap file ({used} of {most} MiB) are full");
        if file < segment.swap_limit() {
            let file = file >> 10;
            let way_out = format!(
                "this process may write files of {file} KiB, the swap file too: raise ulimit -f, or give a larger -m"
            );
            return (both, way_out);
        }
        if segment.is_swap_short() || self.store.stats().writeback_fail > 0 {
            return (both, "give a larger -m, --max-pool-percent or --swap-size".into());
        }
        let stays = format!(
            "the limit of {limit} MiB is full of what stays in memory (not managed, locked, or in use by the kernel; \
             swap file: {used} of {most} MiB)"
        );
        (stays, "give a larger -m".into())
    }
}

/// Whether less than an eighth lives of what the tier holds, beside what it writes next. Nobody needs the room, so to
/// move what lives has to be worth little.
fn is_mostly_dead(tier: &FileTier) -> bool {
    const LIVE: u64 = 8;
    const NEXT: u64 = 8 * EXTENT_SIZE;
    tier.used_bytes() > LIVE * tier.live_bytes() + NEXT
}

/// Other members.
impl Member {
    /// Where the thread that gives up waits until it is called.
    #[must_use]
    pub fn event(&self) -> &Event<true> {
        self.segment().evictor(self.slot())
    }

    /// Tells the others how old what this member would give up next is.
    pub fn publish_oldest(&self, oldest: Option<u64>) {
        self.segment().publish_oldest(self.slot(), oldest);
    }

    /// Bytes that this one was asked to give up.
    pub(crate) fn asked(&self) -> u64 {
        self.segment().asked(self.slot())
    }

    /// Asks this one's own evictor to give up so many bytes.
    pub(crate) fn ask_itself(&self, bytes: u64) {
        self.segment().ask(self.slot(), bytes);
    }

    /// So many pages were given up, or None if no more can be.
    pub(crate) fn answer(&self, pages: Option<usize>) {
        self.segment().answer(self.slot(), pages.map(|pages| (pages * PAGE_SIZE) as u64));
    }

    /// Asks a member with older pages, if there is one, to make room. False if there is none.
    pub(crate) fn ask_older(&self, resident: u64) -> bool {
        /// A sixteenth of what the limit holds.
        const MARGIN: u64 = 16;
        /// Bytes: enough for a while.
        const LEAST: u64 = 1 << 20;
        let (segment, bytes) = (self.segment(), self.over_low(resident).max(LEAST));
        segment.ask_older(self.slot(), segment.limit() / PAGE_SIZE as u64 / MARGIN, bytes)
    }
}
