//! A page on its way into a zpool: its bytes as they will be stored, and their hash.
//!
//! One hash has two uses: its low half is the checksum in the entry, all of it finds duplicates. Equal pages have equal
//! bytes, since a codec gives the same bytes for the same page each time.

use crate::bits::low32;
use crate::entry::Entry;
use crate::page::PAGE_SIZE;
use crate::zpool::Handle;

/// Bytes that are to be stored.
#[derive(Debug)]
pub(crate) struct Packed<'a> {
    /// Compressed, or a whole page as it is.
    pub(crate) bytes: &'a [u8],
    pub(crate) hash: u64,
    codec: usize,
}

impl<'a> Packed<'a> {
    /// What the codec of this number made of a page.
    pub(crate) fn new(bytes: &'a [u8], codec: usize) -> Self {
        Self { bytes, hash: hash(bytes), codec }
    }

    /// The entry of these bytes once they are in a zpool.
    pub(crate) fn entry(&self, handle: Handle, zpool: usize) -> Entry {
        let entry = Entry::pool(handle, self.bytes.len(), self.codec, zpool, low32(self.hash));
        if entry.is_raw() { entry.huge() } else { entry }
    }

    /// Whether the object may have these bytes, by all that its entry tells.
    pub(super) fn may_be(&self, object: Entry) -> bool {
        object.in_pool()
            && object.len() == self.bytes.len()
            && object.sum() == low32(self.hash)
            && (object.codec() == self.codec || self.bytes.len() == PAGE_SIZE)
    }
}

/// The hash of stored bytes: XXH3.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}
