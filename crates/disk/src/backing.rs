//! The backing: where cold pages go, with zram's books of what went there.
//!
//! It stands between the store and the tier that keeps the records, and counts pages in and out. A limit on writing,
//! if one is set, holds for whoever writes back, the store itself included: flash wears out, whoever wears it. What
//! is over the limit is refused as a full tier refuses it, and the pages stay in memory. Records come in batches that
//! are taken as a whole or not, so what is left of the limit may be less than the next batch needs.

use ramfold::tier::{ReadError, Slot, Tier, WriteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A tier, with its books.
#[derive(Debug)]
pub struct Backing {
    tier: Arc<dyn Tier>,
    /// Where it is, as it was given.
    name: String,
    reads: AtomicU64,
    writes: AtomicU64,
    is_limited: AtomicBool,
    /// Pages that may still be written, if that is limited.
    left: AtomicU64,
}

impl Backing {
    /// The backing over this tier.
    #[must_use]
    pub fn new(tier: Arc<dyn Tier>, name: String) -> Self {
        let [reads, writes, left] = [(); 3].map(|()| AtomicU64::new(0));
        Self { tier, name, reads, writes, is_limited: AtomicBool::new(false), left }
    }

    /// Where it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pages read from it.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Pages written to it.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// Whether there is a limit on writing.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Relaxed)
    }

    /// Switches the limit on or off.
    pub fn set_limited(&self, is_limited: bool) {
        self.is_limited.store(is_limited, Relaxed);
    }

    /// Pages that may still be written while the limit is on.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.left.load(Relaxed)
    }

    /// Sets how many pages may be written from now on.
    pub fn set_limit(&self, pages: u64) {
        self.left.store(pages, Relaxed);
    }

    /// Pages that may be written now.
    #[must_use]
    pub fn left(&self) -> u64 {
        if self.is_limited() { self.limit() } else { u64::MAX }
    }

    /// Forgets what was counted.
    pub fn clear(&self) {
        [&self.reads, &self.writes].into_iter().for_each(|count| count.store(0, Relaxed));
    }

    fn take(&self, pages: u64) -> bool {
        let less = |left: u64| left.checked_sub(pages);
        !self.is_limited() || self.left.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

impl Tier for Backing {
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        let pages = records.len() as u64;
        if !self.take(pages) {
            return Err(WriteError::Full);
        }
        let written = self.tier.write(records);
        if written.is_ok() {
            self.writes.fetch_add(pages, Relaxed);
        } else {
            self.left.fetch_add(if self.is_limited() { pages } else { 0 }, Relaxed);
        }
        written
    }

    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        self.reads.fetch_add(1, Relaxed);
        self.tier.read(slot, out)
    }

    fn discard(&self, slot: Slot) {
        self.tier.discard(slot);
    }

    fn used_bytes(&self) -> u64 {
        self.tier.used_bytes()
    }

    fn meta_bytes(&self) -> usize {
        self.tier.meta_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold::tier::MemoryTier;

    #[test]
    fn what_is_over_the_limit_is_refused_as_a_whole() {
        let backing = Backing::new(Arc::new(MemoryTier::new()), "memory".to_owned());
        let write = |count: usize| backing.write(&vec![&b"page"[..]; count]).is_ok();
        assert!(write(3));
        backing.set_limited(true);
        assert!(!write(1), "nothing is allowed until a limit is set");
        backing.set_limit(5);
        assert!(write(4) && !write(2) && write(1) && !write(1));
        backing.set_limited(false);
        assert!(write(9));
        assert_eq!((backing.writes(), backing.limit()), (17, 0));
    }
}
