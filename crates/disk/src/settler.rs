//! The settler: pages that were just written lie in memory as they are, and are compressed once they are left alone.
//!
//! What a write or a read costs then is a copy. How many bytes may lie so is looked at four times a second: an eighth
//! of `mem_limit` and of the memory that is to be had, whichever is less; none while others need the memory, and none
//! in a budget with others: who works there is to have the room, not who compresses late. A page that was not used from
//! one sweep to the next is compressed, after one to two seconds; any page is while most of the bound is taken. A disk
//! that is busy is not swept until half of the bound is taken: its clients want the processors.
//!
//! Pages that are compressed late leave holes in the pool: a tenth of it was seen. So the pool is compacted when a
//! sweep has compressed many, and the disk is not busy.
//!
//! Price: a thread, that much memory for a time, and a copy for each page that is not written anew. Where others want
//! the processor it rests. Guarantee: that of [`ramfold::Store::settle_fresh`]; without a bound all is as if there were
//! no settler.

use ramfold::{Store, Which};
use ramfold_budget::member::Member;
use ramfold_budget::pressure::Pressure;
use ramfold_budget::recompress::Manners;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One part in so many of what there is may be fresh.
const SHARE: u64 = 8;
/// Between two looks at how much that is.
const LOOK: Duration = Duration::from_millis(250);
/// A disk is busy if more pages than this are stored or loaded between two looks.
const BUSY: u64 = 1024;
/// Between the beginnings of two sweeps.
const SWEEP: Duration = Duration::from_secs(1);
/// Pages in a piece of work, and how long it goes on before it looks again.
const PIECE: usize = 8;
const TURN: Duration = Duration::from_millis(20);
/// Pages compressed that are worth a compaction.
const MANY: u64 = 64;
/// The longest rest for others: what is not compressed is memory that they do not have.
const MOST_REST: Duration = Duration::from_millis(40);

/// What bounds the fresh pages of a disk.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) is_enabled: AtomicBool,
    /// Bytes; 0: no limit.
    pub(crate) mem_limit: AtomicU64,
    /// Held by who settles all, and by the thread for each piece: its sweeps leave out what is not idle.
    sweeping: Mutex<()>,
}

impl Bounds {
    pub(crate) fn new(mem_limit: u64) -> Self {
        let mem_limit = AtomicU64::new(mem_limit);
        Self { is_enabled: AtomicBool::new(true), mem_limit, sweeping: Mutex::default() }
    }

    /// Compresses all that is fresh when it begins, but for what cannot be. What becomes fresh meanwhile may stay so:
    /// it ends however much is written. The first end of a sweep may be of one that was under way; from there to the
    /// second each fresh page is tried.
    pub(crate) fn settle_all(&self, store: &Store) {
        let _alone = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ends = 0;
        while store.fresh_bytes() > 0 && ends < 2 {
            ends += u32::from(store.settle_fresh(PIECE, Which::All).swept);
        }
    }

    /// Sets whether pages become fresh. Those that are stay until they are settled.
    pub(crate) fn enable(&self, it: bool, store: &Store) {
        self.is_enabled.store(it, Relaxed);
        if !it {
            store.set_most_fresh(0);
        }
    }

    /// The most bytes that may be fresh now, of so many that are to be had.
    fn most(&self, member: &Member, available: Option<u64>, is_pressed: bool) -> u64 {
        if !self.is_enabled.load(Relaxed) || is_pressed || member.is_shared() {
            return 0;
        }
        let own = Some(self.mem_limit.load(Relaxed)).filter(|limit| *limit > 0);
        let free = available.map(|bytes| bytes + member.store().fresh_bytes());
        [own, free].into_iter().flatten().min().unwrap_or(0) / SHARE
    }
}

/// The settler's thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Settler {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Bell {
    is_closing: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Waits so long. True if the settler is to end.
    fn wait(&self, most: Duration) -> bool {
        let is_closing = self.is_closing.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_closing, most, |is_closing| !*is_closing);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Settler {
    /// Starts it for the pages of a member.
    pub(crate) fn start(member: Arc<Member>, bounds: Arc<Bounds>) -> io::Result<Self> {
        let bell = Arc::<Bell>::default();
        let mut work = Work::new();
        work.look(&member, &bounds);
        let heard = Arc::clone(&bell);
        let thread = std::thread::Builder::new().name("ramfold-settler".to_owned());
        let thread = thread.spawn(move || {
            let mut pause = LOOK;
            while !heard.wait(pause) {
                work.look(&member, &bounds);
                pause = work.turn(member.store(), &bounds);
            }
        })?;
        Ok(Self { bell, thread: Some(thread) })
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        *self.bell.is_closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.rung.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread remembers.
struct Work {
    pressure: Pressure,
    /// Pages stored and loaded until the last look.
    uses: u64,
    is_busy: bool,
    next_look: Instant,
    next_sweep: Instant,
    /// Pages compressed since the pool was compacted.
    settled: u64,
    manners: Manners,
}

impl Work {
    fn new() -> Self {
        let now = Instant::now();
        let (pressure, manners) = (Pressure::new(), Manners::default());
        Self { pressure, uses: 0, is_busy: false, next_look: now, next_sweep: now, settled: 0, manners }
    }

    /// Sets the bound, if it is time to look.
    fn look(&mut self, member: &Member, bounds: &Bounds) {
        let now = Instant::now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        self.pressure.allowed(0, now);
        let stats = member.store().stats();
        let uses = stats.stores + stats.loads;
        self.is_busy = uses - std::mem::replace(&mut self.uses, uses) > BUSY;
        let most = bounds.most(member, self.pressure.available(), self.pressure.is_felt());
        member.store().set_most_fresh(most);
    }

    /// Compacts the pool after a sweep, if that is worth it and clients leave time for it.
    fn close_holes(&mut self, store: &Store) {
        if !self.is_busy && self.settled >= MANY {
            store.compact();
            self.settled = 0;
        }
    }

    /// Compresses what is to be compressed now, or a part of it. Returns how long to wait then.
    fn turn(&mut self, store: &Store, bounds: &Bounds) -> Duration {
        let begun = Instant::now();
        while begun.elapsed() < TURN {
            let which = if is_taken(store, 3) { Which::All } else { Which::Idle };
            if which == Which::Idle && self.is_busy && !is_taken(store, 2) {
                return LOOK;
            }
            if which == Which::Idle && Instant::now() < self.next_sweep {
                return self.next_sweep.saturating_duration_since(begun).min(LOOK);
            }
            let alone = bounds.sweeping.try_lock();
            if matches!(alone, Err(TryLockError::WouldBlock)) {
                return LOOK;
            }
            let (settled, rest) = self.manners.piece(|| store.settle_fresh(PIECE, which));
            drop(alone);
            self.settled += settled.pages;
            if settled.swept && which == Which::Idle {
                self.next_sweep = begun + SWEEP;
                self.close_holes(store);
            }
            if rest > 0 {
                return Duration::from_nanos(rest).min(MOST_REST);
            }
        }
        Duration::ZERO
    }
}

/// Whether more than so many quarters of what may be fresh are.
fn is_taken(store: &Store, quarters: u64) -> bool {
    let fresh = store.fresh_bytes();
    fresh > 0 && fresh > store.most_fresh() / 4 * quarters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{bytes, random};
    use ramfold::{Config, Key, PAGE_SIZE, PoolKind};

    /// Pages that compress to a tenth and more of their size, in an order that nothing can foresee.
    #[test]
    fn what_was_compressed_late_leaves_no_holes() {
        let store = Store::new(&Config { recomp_algorithm: None, ..Config::default() }, None).unwrap();
        store.set_most_fresh(1 << 30);
        let (pool, mut scratch) = (store.create_pool(PoolKind::Persistent, None), store.scratch());
        let mut state = 1;
        for index in 0..8192 {
            let mut page = [0; PAGE_SIZE];
            let len = usize::try_from(random(&mut state)).unwrap() % 3000 + 400;
            page.iter_mut().zip(bytes(index)).take(len).for_each(|(to, byte)| *to = byte);
            store.store(Key { pool, object: 0, index }, &page, &mut scratch).unwrap();
        }
        let (mut work, bounds) = (Work::new(), Bounds::new(0));
        while store.fresh_bytes() > 0 || work.settled > 0 {
            work.turn(&store, &bounds);
            work.next_sweep = Instant::now();
        }
        let pages = store.compact();
        assert!(pages < 4, "{pages} pages were left to give back");
    }

    #[test]
    fn the_thread_leaves_all_to_who_settles_all() {
        let store = Store::new(&Config { recomp_algorithm: None, ..Config::default() }, None).unwrap();
        store.set_most_fresh(1 << 30);
        let (mut page, mut scratch) = ([0; PAGE_SIZE], store.scratch());
        page[0] = 1;
        let pool = store.create_pool(PoolKind::Persistent, None);
        store.store(Key { pool, object: 0, index: 0 }, &page, &mut scratch).unwrap();
        let (mut work, bounds) = (Work::new(), Bounds::new(0));
        // The first sweep makes it idle.
        work.turn(&store, &bounds);
        work.next_sweep = Instant::now();
        let sweeping = bounds.sweeping.lock().unwrap();
        assert_eq!((work.turn(&store, &bounds), store.fresh_bytes()), (LOOK, PAGE_SIZE as u64));
        drop(sweeping);
        bounds.settle_all(&store);
        assert_eq!(store.fresh_bytes(), 0);
    }
}
