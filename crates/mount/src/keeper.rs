//! The keeper: the mount's one thread beside those that serve requests.
//!
//! It keeps the process within its limit. What the process has beside compressed pages (nodes, buffers, the store's
//! index) comes first; the pool has the rest. It drops pages when the pool is full, so that readers seldom do; tells
//! the cache how much fits; and gives the holes that dropped pages leave back to the system. The files stay in the
//! source, so pages go without being written anywhere.

use crate::cache::Cache;
use ramfold::PAGE_SIZE;
use ramfold_budget::door::Door;
use ramfold_budget::segment::Gauge;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks, uncalled.
const LOOK: Duration = Duration::from_millis(10);
/// Between two times that holes are closed.
const CLOSE_HOLES: Duration = Duration::from_millis(250);
/// Of the limit, one part in so many stays free for what comes between two looks.
const SPARE: u64 = 32;
/// A pool counts as full when more than so many hundredths of its bound are taken: it drops pages down to 90.
const FULL_PERCENT: u64 = 85;

/// The keeper's thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    cache: Arc<Cache>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(cache: Arc<Cache>) -> std::io::Result<Self> {
        let kept = Arc::clone(&cache);
        let thread = std::thread::Builder::new().name("ramfold-keeper".to_owned());
        let thread = Some(thread.spawn(move || keep(&kept))?);
        Ok(Self { cache, thread })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.cache.closing.store(true, Relaxed);
        self.cache.member.event().call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Door for Cache {
    fn resident(&self) -> u64 {
        0
    }

    fn candidates(&self) -> usize {
        0
    }

    fn oldest(&self) -> Option<u64> {
        None
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }
}

fn keep(cache: &Cache) {
    let member = &cache.member;
    let mut next = Instant::now();
    while !cache.is_closing() {
        member.tick(cache);
        set_bound(cache);
        if Instant::now() >= next {
            member.store().compact();
            next = Instant::now() + CLOSE_HOLES;
        }
        member.event().wait(LOOK);
    }
}

/// Gives the pool what the rest of the process leaves of the limit.
fn set_bound(cache: &Cache) {
    let (member, limit) = (&cache.member, cache.limit());
    let own = member.segment().gauge(member.slot(), Gauge::Own);
    let most = limit.saturating_sub(own + limit / SPARE).max(PAGE_SIZE as u64);
    member.set_max_pool(most);
    let used = member.store().pool_bytes();
    if member.store().needs_shrink() {
        member.store().shrink();
    }
    let is_full = used > most / 100 * FULL_PERCENT;
    let pages = member.store().stats().stored_pages;
    let capacity = if used == 0 { 0 } else { u64::try_from(u128::from(pages) * u128::from(most) / u128::from(used)).unwrap_or(u64::MAX) };
    cache.admission.set_room(capacity, is_full);
}
