//! Which process has to give: the one whose pages have been in memory for longest.
//!
//! Each process evicts for itself, from a queue of its own. To make the queues of a run together behave as one, each
//! publishes when the head of its queue was put there, by the run's clock, which counts evictions. Who needs memory and
//! finds a head that is clearly older than its own asks its owner to evict, and does so itself only if that takes long.
//! So memory flows from those who sleep to those who work, and equals stay equal. The price is a look at all slots for
//! each batch; nothing waits for anybody who does not answer.

use super::{Counter, Segment, SlotId};
use crate::event::Event;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process's part in it.
#[derive(Debug)]
pub(super) struct Balance {
    /// Calls its evictor.
    evictor: Event<true>,
    /// When the head of its queue was put there; [`NOTHING`] if there is no head.
    oldest: AtomicU64,
    /// Bytes that it was asked to evict.
    asked: AtomicU64,
}

const NOTHING: u64 = u64::MAX;

impl Balance {
    /// For a new owner of the slot.
    pub(super) fn reset(&self) {
        self.evictor.reset();
        self.oldest.store(NOTHING, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }
}

/// Who evicts.
impl Segment {
    /// The run's clock: pages evicted so far.
    pub fn clock(&self) -> u64 {
        self.total(Counter::EvictedPages)
    }

    /// What a process's evictor waits for.
    pub fn evictor(&self, slot: SlotId) -> &Event<true> {
        &self.slots()[slot.0].balance.evictor
    }

    /// Says when the oldest page that the process could evict was put into its queue.
    pub fn publish_oldest(&self, slot: SlotId, time: Option<u64>) {
        self.slots()[slot.0].balance.oldest.store(time.unwrap_or(NOTHING), Ordering::Relaxed);
    }

    /// Asks the process with the oldest pages to evict `bytes`, if they are older than this one's by more than `margin`
    /// evictions. False if there is none.
    pub fn ask_older(&self, slot: SlotId, margin: u64, bytes: u64) -> bool {
        let oldest = |index: usize| self.slots()[index].balance.oldest.load(Ordering::Relaxed);
        let others = (0..self.used_slots().len()).filter(|index| *index != slot.0);
        let Some(donor) = others.min_by_key(|index| oldest(*index)) else { return false };
        if oldest(donor).saturating_add(margin) >= oldest(slot.0).min(self.clock()) {
            return false;
        }
        self.ask(SlotId(donor), bytes);
        true
    }

    /// Asks a process to evict `bytes`.
    pub fn ask(&self, slot: SlotId, bytes: u64) {
        let balance = &self.slots()[slot.0].balance;
        balance.asked.fetch_max(bytes, Ordering::Relaxed);
        balance.evictor.call();
    }

    /// Bytes that this process was asked to evict.
    pub fn asked(&self, slot: SlotId) -> u64 {
        self.slots()[slot.0].balance.asked.load(Ordering::Relaxed)
    }

    /// So many of them were evicted; or all that can be, if None.
    pub fn answer(&self, slot: SlotId, evicted: Option<u64>) {
        let less = |asked: u64| Some(evicted.map_or(0, |evicted| asked.saturating_sub(evicted)));
        let _ = self.slots()[slot.0].balance.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;

    #[test]
    fn the_oldest_is_asked_if_it_is_older_by_the_margin() {
        let (_fd, segment) = segment(0);
        let [busy, idle, empty] = [(); 3].map(|()| segment.attach_another().unwrap());
        segment.add(Counter::EvictedPages, 1000);
        segment.publish_oldest(busy, Some(900));
        segment.publish_oldest(idle, Some(500));
        assert!(!segment.ask_older(busy, 400, 4096), "not older by more than 400");
        assert!(segment.ask_older(busy, 399, 4096));
        assert!(!segment.ask_older(idle, 0, 4096), "it is the oldest itself");
        assert!(segment.ask_older(empty, 100, 1000), "it has nothing to evict");
        assert_eq!([busy, idle, empty].map(|slot| segment.asked(slot)), [0, 4096, 0]);
        segment.answer(idle, Some(1096));
        assert_eq!(segment.asked(idle), 3000);
        segment.answer(idle, None);
        segment.publish_oldest(idle, None);
        assert_eq!(segment.asked(idle), 0);
        assert!(!segment.ask_older(busy, 0, 4096), "nobody has anything");
    }
}
