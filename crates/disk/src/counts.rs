//! What a disk has done, by zram's names where there are any.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counts of a disk.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Reads that failed.
    pub(crate) failed_reads: AtomicU64,
    /// Writes, zeroings and discards that failed.
    pub(crate) failed_writes: AtomicU64,
    /// Requests beyond the end of the disk.
    pub(crate) invalid_io: AtomicU64,
    /// Pages whose memory was given back because they were discarded or zeroed.
    pub(crate) notify_free: AtomicU64,
    /// Times that a write had to make room.
    pub(crate) writestall: AtomicU64,
    /// The most bytes of memory that the pool has had.
    pub(crate) mem_used_max: AtomicU64,
}

impl Counts {
    /// Notes how much memory the pool has.
    pub(crate) fn note_used(&self, bytes: u64) {
        self.mem_used_max.fetch_max(bytes, Relaxed);
    }

    /// Notes a failure in `failures`, if it is one.
    pub(crate) fn note<T, E>(failures: &AtomicU64, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            failures.fetch_add(1, Relaxed);
        }
        result
    }

    /// Begins anew.
    pub(crate) fn clear(&self) {
        let Self { failed_reads, failed_writes, invalid_io, notify_free, writestall, mem_used_max } = self;
        for count in [failed_reads, failed_writes, invalid_io, notify_free, writestall, mem_used_max] {
            count.store(0, Relaxed);
        }
    }
}
