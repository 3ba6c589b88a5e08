//! What writeback has collected on its way to the tier ([`crate::writeback`]).

use crate::entry::Entry;
use crate::pools::Key;

/// Pages written at once.
const BATCH_PAGES: usize = 256;
/// Bytes written at once, more or less.
const BATCH_BYTES: usize = 256 << 10;

/// Pages on their way to the tier.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
    /// Bytes of the ephemeral objects dropped while it was collected.
    pub(crate) dropped_bytes: u64,
}

/// One object in the batch. The objects lie in `bytes` in the order of the items.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) owner: Owner,
    /// As marked.
    pub(crate) entry: Entry,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    Entry(Key),
    Shared(u64),
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.dropped_bytes = 0;
    }

    pub(crate) fn is_full(&self, excess: u64) -> bool {
        self.items.len() >= BATCH_PAGES || self.bytes.len() >= BATCH_BYTES || self.freeing() >= excess
    }

    pub(crate) fn freeing(&self) -> u64 {
        self.bytes.len() as u64 + self.dropped_bytes
    }

    pub(crate) fn records(&self) -> Vec<&[u8]> {
        let mut rest = &self.bytes[..];
        let record = |item: &Item| {
            let (record, after) = rest.split_at(item.entry.len());
            rest = after;
            record
        };
        self.items.iter().map(record).collect()
    }
}
