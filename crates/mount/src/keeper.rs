//! Keeping: what the keeper's thread does for a mount with every look, beside what it does for any server.
//!
//! It keeps the process within its limit. What the process has beside compressed pages (nodes, buffers, the store's
//! index) comes first; the pool has the rest, or less while others need memory ([`ramfold_budget::pressure`]). It tells
//! the cache how much fits. A page that does not compress is as well in the kernel's cache, and a few of them among
//! many that do would each cost a read of the source: so they are kept up to a part of the pool, and no more of them
//! than of others, for among themselves they only take memory from the kernel's cache. The files stay in the source, so
//! pages go without being written anywhere.

use crate::cache::Cache;
use crate::sys::give_free_memory_back;
use ramfold::{PAGE_SIZE, PoorPages};
use ramfold_budget::pressure::Pressure;
use ramfold_budget::segment::Gauge;
use std::time::{Duration, Instant};

/// How often it looks, uncalled.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// Of the limit, one part in so many stays free for what comes between two looks.
const SPARE: u64 = 32;
/// A pool counts as full when more than so many hundredths of its bound are taken: it drops pages down to 90.
const FULL_PERCENT: u64 = 85;

/// One part in so many of the pool may be pages that do not compress.
const POOR: u64 = 8;

/// Between two times that free memory of the allocator's is given back, while memory is short.
const TRIM: Duration = Duration::from_secs(1);

/// What the keeper remembers.
#[derive(Debug)]
pub(crate) struct Keeper {
    trimmed: Option<Instant>,
    pressure: Pressure,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self { trimmed: None, pressure: Pressure::new() }
    }

    /// Gives the pool what the rest of the process leaves of the limit, and tells the cache what fits.
    pub(crate) fn look(&mut self, cache: &Cache) {
        let (member, limit) = (&cache.member, cache.limit());
        if !cache.gives_way() {
            self.pressure.release();
        }
        let limit = self.pressure.allowed(limit, Instant::now());
        let own = member.segment().gauge(member.slot(), Gauge::Own);
        let most = limit.saturating_sub(own + limit / SPARE).max(PAGE_SIZE as u64);
        member.set_max_pool(most);
        let used = member.store().pool_bytes();
        member.shrink_if_full();
        let is_due = self.trimmed.is_none_or(|trimmed| trimmed.elapsed() >= TRIM);
        if own > limit / 2 && is_due {
            give_free_memory_back();
            self.trimmed = Some(Instant::now());
        }
        let is_full = used > most / 100 * FULL_PERCENT;
        let stats = member.store().stats();
        let poor = stats.stored_incompressible_pages * PAGE_SIZE as u64;
        let is_room = cache.keeps_poor() && !is_full && poor < (most / POOR).min(used.saturating_sub(poor));
        member.store().set_poor(if is_room { PoorPages::KeepRaw } else { PoorPages::Refuse });
        let pages = u128::from(stats.stored_pages);
        let capacity = (pages * u128::from(most)).checked_div(used.into()).unwrap_or(0);
        if cache.parts.look(&stats) {
            cache.publish_parts();
        }
        cache.admission.set_room(u64::try_from(capacity).unwrap_or(u64::MAX), is_full);
    }
}
