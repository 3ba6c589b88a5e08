//! Ages: when the page that would leave next was used last.
//!
//! Time is what the LRU's stamps are drawn from: it goes on by one whenever 64 neighbours go to the tail of the queue.
//! Whoever wants to compare it with another clock notes what both say now and then.
//!
//! Price: a look at the heads of all shards, and marks of use that are taken away as writeback would do.

use super::Store;
use super::writeback::oldest;
use crate::index::SHARDS;

/// Neighbours that are passed in one look because all of them were used since the last.
const PASSED: usize = 64;

/// A moment of the store's time, and the present one. Both go round at 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// When the page came, or was last found to have been used.
    pub since: u32,
    /// Now.
    pub now: u32,
}

impl Store {
    /// The store's time.
    #[must_use]
    pub fn time(&self) -> u32 {
        self.index.now()
    }

    /// The age of the page that writeback would take next. What was used since the last look becomes younger by it.
    /// None if there is no such page.
    #[must_use]
    pub fn oldest(&self) -> Option<Age> {
        let mut heads: [Option<u32>; SHARDS] =
            std::array::from_fn(|number| self.index.lock(number).oldest_stamp());
        for _ in 0..PASSED {
            let (number, _) = oldest(&heads, self.index.now())?;
            let mut shard = self.index.lock(number);
            let is_cold = shard.oldest_is_cold();
            heads[number] = shard.oldest_stamp();
            if is_cold {
                break;
            }
        }
        let now = self.index.now();
        oldest(&heads, now).map(|(_, since)| Age { since, now })
    }
}
