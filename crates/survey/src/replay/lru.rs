//! Pages in the order of their last touch.

use std::collections::{BTreeMap, HashMap};

/// An exact LRU.
#[derive(Debug, Default)]
pub struct Lru {
    by_time: BTreeMap<u64, u64>,
    times: HashMap<u64, u64>,
    now: u64,
}

impl Lru {
    pub fn contains(&self, page: u64) -> bool {
        self.times.contains_key(&page)
    }

    pub fn len(&self) -> u64 {
        self.times.len() as u64
    }

    /// Makes the page the youngest.
    pub fn touch(&mut self, page: u64) {
        self.now += 1;
        if let Some(time) = self.times.insert(page, self.now) {
            self.by_time.remove(&time);
        }
        self.by_time.insert(self.now, page);
    }

    /// Takes the oldest page out.
    pub fn pop_oldest(&mut self) -> Option<u64> {
        let (_, page) = self.by_time.pop_first()?;
        self.times.remove(&page);
        Some(page)
    }

    /// Takes the page out, if it is there.
    pub fn remove(&mut self, page: u64) {
        if let Some(time) = self.times.remove(&page) {
            self.by_time.remove(&time);
        }
    }
}
