//! What writeback has collected on its way to the tier ([`super::writeback`]).

use crate::entry::Entry;
use crate::pools::Key;

/// Pages written at once.
const BATCH_PAGES: usize = 256;
/// Bytes written at once, more or less.
const BATCH_BYTES: usize = 256 << 10;

/// Pages on their way to the tier.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) items: Vec<Item>,
    /// Bytes of the ephemeral objects dropped while it was collected.
    pub(super) dropped_bytes: u64,
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
        self.dropped_bytes = 0;
    }

    pub(super) fn is_full(&self, excess: u64) -> bool {
        self.items.len() >= BATCH_PAGES || self.bytes.len() >= BATCH_BYTES || self.freeing() >= excess
    }

    pub(super) fn freeing(&self) -> u64 {
        self.bytes.len() as u64 + self.dropped_bytes
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
}
