//! What is counted: charges against the limit, gauges of each process, counters of all.
//!
//! Counters belong to the run, so a process that dies loses nothing. Gauges belong to a slot, so that what a dead
//! process had can be taken off.

use super::slots::Kind;
use super::{Segment, Slot, SlotId};
use std::sync::atomic::Ordering;

macro_rules! named {
    ($(#[$meta:meta])* $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum $kind { $($(#[$doc])* $variant,)+ }

        impl $kind {
            /// All of them, in the order of the segment.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name under which it is reported.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

named! {
    /// What only grows. Counted over all processes of the run, living and dead.
    Counter {
        /// Processes that were managed.
        Processes = "processes",
        /// Processes that had to wait before they could begin.
        Waits = "waits",
        /// Faults that the pager resolved.
        Faults = "faults",
        /// Faults on pages that had been evicted.
        Refaults = "refaults",
        /// Pages that were taken away from a process and stored.
        EvictedPages = "evicted_pages",
        /// Loads from the store.
        Loads = "loads",
        /// Stores.
        Stores = "stores",
        /// Entries that were invalidated.
        Invalidates = "invalidates",
        /// Loads that found nothing.
        Misses = "misses",
        /// Pages that went from the pool to the swap file.
        WrittenBackPages = "written_back_pages",
        /// Bytes written to the swap file.
        WritebackBytes = "writeback_bytes",
        /// Batches that the swap file did not take; their pages stayed in the pool.
        WritebackFail = "writeback_fail",
        /// Ephemeral pages dropped to make room.
        DroppedPages = "dropped_pages",
        /// Pages that compaction gave back to the system.
        PagesCompacted = "pages_compacted",
        /// Pages that stayed in the pool for long and were compressed anew.
        RecompressedPages = "recompressed_pages",
        /// Pages that were stored as they are and compressed later.
        SettledPages = "settled_pages",
        /// Loads of pages that had been compressed anew.
        DenseLoads = "dense_loads",
        /// Loads that were served by the swap file.
        TierLoads = "tier_loads",
        /// Stores that found the pool at its limit, or above the accept threshold after it was full.
        PoolLimitHit = "pool_limit_hit",
        /// Stores refused because nothing could be written back.
        RejectReclaimFail = "reject_reclaim_fail",
        /// Stores refused because the zpool had no memory.
        RejectAllocFail = "reject_alloc_fail",
        /// Stores refused because there was no memory for the entry.
        RejectMetaFail = "reject_meta_fail",
        /// Stores refused because the codec failed.
        RejectCompressFail = "reject_compress_fail",
        /// Stores refused because the page did not compress well enough.
        RejectCompressPoor = "reject_compress_poor",
        /// Loads that failed because the bytes could not be decompressed.
        DecompressFail = "decompress_fail",
        /// Loads that failed because the page is not the one that was stored.
        ChecksumFail = "checksum_fail",
        /// Loads that failed because the swap file could not be read.
        TierFail = "tier_fail",
    }
}

named! {
    /// What a process has now. The first three are charged against the limit.
    Gauge {
        /// Bytes of resident managed pages.
        Resident = "resident_bytes",
        /// Bytes of pool memory.
        Pool = "pool_total_size",
        /// Bytes that ramfold itself uses: tables, index, buffers, stacks.
        Own = "own_bytes",
        /// Pages in the store.
        StoredPages = "stored_pages",
        /// Pages in the swap file.
        TierPages = "tier_pages",
        /// Bytes of their records there; a forked process has those of its parent too.
        SwapBytes = "swap_bytes",
        /// Bytes of the pages in the store before compression.
        OrigDataSize = "orig_data_size",
        /// Their bytes after compression.
        ComprDataSize = "compr_data_size",
        /// Bytes of the store's own tables; part of what ramfold uses itself.
        MetaBytes = "meta_bytes",
        /// Pages stored as one repeated word.
        SameFilledPages = "same_filled_pages",
        /// Pages that share another's pool memory.
        DuplicatePages = "duplicate_pages",
        /// Pages stored as they are, because they did not compress.
        StoredIncompressiblePages = "stored_incompressible_pages",
        /// Pages stored as they are, to be compressed later.
        FreshPages = "fresh_pages",
    }
}

pub(super) const COUNTERS: usize = Counter::ALL.len();
pub(super) const GAUGES: usize = Gauge::ALL.len();

impl Gauge {
    /// Whether it counts against the limit.
    #[must_use]
    pub fn is_charged(self) -> bool {
        matches!(self, Self::Resident | Self::Pool | Self::Own)
    }
}

/// A sum that goes round, or nothing if it has gone below that.
fn from_zero(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}

/// Charges and gauges.
impl Segment {
    /// Bytes charged now: resident pages, pool and ramfold's own memory of all processes. Nothing, where a member's
    /// nonsense has brought the sum below that.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        from_zero(self.header().in_use.load(Ordering::Relaxed))
    }

    /// Moves the sum up, or down by going round.
    fn move_in_use(&self, change: u64) {
        let now = self.header().in_use.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.header().peak.fetch_max(from_zero(now), Ordering::Relaxed);
    }

    /// The highest value of [`Segment::in_use`] so far.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.header().peak.load(Ordering::Relaxed)
    }

    /// Adds to a gauge; a charged one may pass the limit: who charges looks at [`Segment::in_use`] and evicts.
    pub fn charge(&self, slot: SlotId, gauge: Gauge, amount: u64) {
        if gauge.is_charged() {
            self.move_in_use(amount);
        }
        self.slots()[slot.0].gauges[gauge as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds to a charged gauge if the sum stays within the limit, and says whether it did.
    #[must_use]
    pub fn try_charge(&self, slot: SlotId, gauge: Gauge, amount: u64) -> bool {
        let limit = self.limit();
        let fits = |now: u64| {
            let is_within = from_zero(now).checked_add(amount).is_some_and(|sum| sum <= limit);
            is_within.then(|| now.wrapping_add(amount))
        };
        let Ok(before) = self.header().in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) else {
            return false;
        };
        self.header().peak.fetch_max(from_zero(before.wrapping_add(amount)), Ordering::Relaxed);
        self.slots()[slot.0].gauges[gauge as usize].fetch_add(amount, Ordering::Relaxed);
        true
    }

    /// Takes from a gauge what was charged to it.
    pub fn uncharge(&self, slot: SlotId, gauge: Gauge, amount: u64) {
        self.slots()[slot.0].gauges[gauge as usize].fetch_sub(amount, Ordering::Relaxed);
        if gauge.is_charged() {
            self.header().in_use.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    /// Sets a gauge, and moves the charge by the difference. For gauges that one place in the process sets.
    pub fn publish(&self, slot: SlotId, gauge: Gauge, value: u64) {
        self.publish_all(slot, &[(gauge, value)]);
    }

    /// The same of several: what goes from one to another counts once at any moment. Who is killed in between leaves a
    /// charge that no gauge has. A gauge that was never charged would be taken off with its slot all the same. So the
    /// sum goes up first and down last, and what falls is set before what rises.
    pub fn publish_all(&self, slot: SlotId, values: &[(Gauge, u64)]) {
        let now = |gauge: Gauge| &self.slots()[slot.0].gauges[gauge as usize];
        let difference =
            |(gauge, value): &(Gauge, u64)| value.wrapping_sub(now(*gauge).load(Ordering::Relaxed));
        let charged = values.iter().filter(|(gauge, _)| gauge.is_charged());
        let change = charged.map(difference).fold(0, u64::wrapping_add);
        let ahead = from_zero(change);
        if ahead != 0 {
            self.move_in_use(ahead);
        }
        // Others may charge to the same gauge meanwhile ([`Segment::divide`]): what it had tells what is left to do.
        let mut left = 0_u64.wrapping_sub(ahead);
        for falls in [true, false] {
            for (gauge, value) in values {
                let has = now(*gauge).load(Ordering::Relaxed);
                if has == *value || falls && has < *value {
                    continue;
                }
                let old = now(*gauge).swap(*value, Ordering::Relaxed);
                if gauge.is_charged() {
                    left = left.wrapping_add(value.wrapping_sub(old));
                }
            }
        }
        if left != 0 {
            self.move_in_use(left);
        }
    }

    /// Enters the bytes that no slot has, of processes without one and of what related ones have in common; they are
    /// charged. For one who sees all processes.
    pub fn set_unmanaged(&self, bytes: u64) {
        let old = self.header().unmanaged.swap(bytes, Ordering::Relaxed);
        self.move_in_use(bytes.wrapping_sub(old));
    }

    /// Bytes that no member has: what [`Segment::set_unmanaged`] entered last, and what runs have entered.
    #[must_use]
    pub fn unmanaged(&self) -> u64 {
        let of = |slot: &Slot| slot.gauges[Gauge::Own as usize].load(Ordering::Relaxed);
        let runs = self.used_slots().iter().filter(|slot| slot.is_of(Kind::Run)).map(of);
        runs.fold(self.header().unmanaged.load(Ordering::Relaxed), u64::wrapping_add)
    }

    /// A gauge of one process.
    #[must_use]
    pub fn gauge(&self, slot: SlotId, gauge: Gauge) -> u64 {
        self.slots()[slot.0].gauges[gauge as usize].load(Ordering::Relaxed)
    }

    /// A gauge's sum over all members.
    #[must_use]
    pub fn gauge_sum(&self, gauge: Gauge) -> u64 {
        let of = |slot: &Slot| slot.gauges[gauge as usize].load(Ordering::Relaxed);
        self.used_slots().iter().filter(|slot| !slot.is_of(Kind::Run)).map(of).fold(0, u64::wrapping_add)
    }

    /// Whether no other member has more of it; of several with as much, only one has most. What is apart is no rival.
    #[must_use]
    pub fn has_most(&self, slot: SlotId, gauge: Gauge) -> bool {
        let has = |slot: &Slot| slot.gauges[gauge as usize].load(Ordering::Relaxed);
        let numbered = self.used_slots().iter().enumerate();
        let rivals = numbered.filter(|(_, rival)| rival.is_of(Kind::Process));
        rivals.max_by_key(|(_, rival)| has(rival)).is_some_and(|(index, _)| index == slot.0)
    }

    /// Bytes of the charged gauges of a slot.
    #[must_use]
    pub fn charged(&self, slot: SlotId) -> u64 {
        let charged = Gauge::ALL.iter().filter(|gauge| gauge.is_charged());
        charged.map(|gauge| self.gauge(slot, *gauge)).fold(0, u64::wrapping_add)
    }

    /// Bytes of the pools of members that are apart ([`Segment::set_apart`]).
    #[must_use]
    pub fn pools_apart(&self) -> u64 {
        let apart = self.used_slots().iter().filter(|slot| slot.is_of(Kind::Apart));
        let of = |slot: &Slot| slot.gauges[Gauge::Pool as usize].load(Ordering::Relaxed);
        apart.map(of).fold(0, u64::wrapping_add)
    }

    /// Members that there are now.
    #[must_use]
    pub fn living(&self) -> usize {
        self.used_slots().iter().filter(|slot| slot.is_member()).count()
    }
}

/// Counters.
impl Segment {
    /// Counts.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.header().counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// What was counted in all processes so far.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.header().counters[counter as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;

    #[test]
    fn what_goes_from_one_gauge_to_another_counts_once() {
        let (_fd, segment) = segment(0);
        let slot = segment.attach_another().unwrap();
        segment.publish_all(slot, &[(Gauge::Resident, 100), (Gauge::Pool, 50), (Gauge::StoredPages, 7)]);
        segment.publish_all(slot, &[(Gauge::Resident, 60), (Gauge::Pool, 90)]);
        assert_eq!((segment.in_use(), segment.peak(), segment.charged(slot)), (150, 150, 150));
        segment.publish_all(slot, &[(Gauge::Pool, 10), (Gauge::Resident, 70)]);
        segment.publish_all(slot, &[(Gauge::StoredPages, 9)]);
        assert_eq!((segment.in_use(), segment.peak(), segment.gauge(slot, Gauge::StoredPages)), (80, 150, 9));
    }

    #[test]
    fn a_sum_below_nothing_is_nothing() {
        let (_fd, segment) = segment(0);
        let slot = segment.attach_another().unwrap();
        segment.uncharge(slot, Gauge::Resident, 4096);
        assert_eq!((segment.in_use(), segment.peak()), (0, 0));
        assert!(segment.try_charge(slot, Gauge::Own, segment.limit()));
        assert_eq!(segment.peak(), segment.limit() - 4096);
    }
}
