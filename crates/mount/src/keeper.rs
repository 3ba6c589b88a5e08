//! Keeping: what the keeper's thread does for a mount with every look, beside what it does for any server.
//!
//! It keeps the process within its limit. What the process has beside compressed pages (nodes, buffers, the store's
//! index) comes first; the pool has the rest. It tells the cache how much fits. The files stay in the source, so pages
//! go without being written anywhere.

use crate::cache::Cache;
use ramfold::PAGE_SIZE;
use ramfold_budget::segment::Gauge;
use std::time::Duration;

/// How often it looks, uncalled.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// Of the limit, one part in so many stays free for what comes between two looks.
const SPARE: u64 = 32;
/// A pool counts as full when more than so many hundredths of its bound are taken: it drops pages down to 90.
const FULL_PERCENT: u64 = 85;

/// Gives the pool what the rest of the process leaves of the limit.
pub(crate) fn keep(cache: &Cache) {
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
    let capacity = if used == 0 {
        0
    } else {
        u64::try_from(u128::from(pages) * u128::from(most) / u128::from(used)).unwrap_or(u64::MAX)
    };
    cache.admission.set_room(capacity, is_full);
}
