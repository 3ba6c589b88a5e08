//! What writeback has collected on its way out of the pool ([`super::writeback`]).

use crate::entry::Entry;
use crate::pools::Key;

/// Pages collected at once.
const BATCH_PAGES: usize = 256;
/// Bytes written at once, more or less.
const BATCH_BYTES: usize = 256 << 10;

/// Pages on their way to a tier, and pages dropped beside them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) items: Vec<Item>,
    /// Entries that nothing names any more, to be released when no shard is locked.
    pub(super) dropped: Vec<Entry>,
    dropped_bytes: u64,
}

/// One object in the batch. The objects lie in `bytes` in the order of the items.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) owner: Owner,
    /// As marked.
    pub(super) entry: Entry,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    Entry(Key),
    Shared(u64),
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.dropped.clear();
        self.dropped_bytes = 0;
    }

    pub(super) fn drop_entry(&mut self, entry: Entry) {
        self.dropped_bytes += if entry.in_pool() { entry.len() as u64 } else { 0 };
        self.dropped.push(entry);
    }

    pub(super) fn is_full(&self, excess: u64) -> bool {
        let pages = self.items.len() + self.dropped.len();
        pages >= BATCH_PAGES || self.bytes.len() >= BATCH_BYTES || self.freeing() >= excess
    }

    /// Bytes of the objects dropped.
    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    pub(super) fn records(&self) -> Vec<&[u8]> {
        let mut rest = &self.bytes[..];
        let record = |item: &Item| {
            let (record, after) = rest.split_at(item.entry.len());
            rest = after;
            record
        };
        self.items.iter().map(record).collect()
    }

    fn freeing(&self) -> u64 {
        self.bytes.len() as u64 + self.dropped_bytes
    }
}
