//! Entries: what the store knows of one page, in 12 bytes.
//!
//! An entry is a word of 64 bits and a checksum of 32:
//!
//! ```text
//!     state 3 | zpool or tier 4 | codec 5 | length - 1: 12 | location 40      checksum of the stored bytes 32
//! ```
//!
//! The location is a zpool handle, a tier's slot or the number of a shared object, by state. The checksum is
//! taken over the bytes as stored (compressed or raw), so a load can tell a damaged object before it
//! decompresses it, and it goes with the bytes from the pool to the tier. A same-filled page needs neither
//! length nor checksum; its word lies in their place. A page that was stored as it is has no
//! codec: there it says whether no codec makes it smaller (huge) or none has tried yet (fresh).
//!
//! ```text
//!     (none) --store--> Pool <--> Writing --written back--> Tier
//!                        |  \______duplicate found______> Shared
//!                        same-filled: Same
//! ```
//!
//! The price: a store can know at most 32 codecs, 16 zpools and 16 tiers in its life, and four batches of writeback may
//! be under way. The guarantee: an entry whose state is `Writing` is the very one that the batch of its number has
//! marked, because every other way to make an entry gives another state or number; so writeback may compare entries to
//! see that nothing came in between.

use crate::bits::{low_size, low16, low32};
use crate::page::PAGE_SIZE;
use crate::tier::Slot;
use crate::zpool::Handle;

const LENGTH_SHIFT: u32 = 40;
const CODEC_SHIFT: u32 = 52;
const ZPOOL_SHIFT: u32 = 57;
const STATE_SHIFT: u32 = 61;
const LOCATION_MASK: u64 = (1 << LENGTH_SHIFT) - 1;

/// Codecs that the entries of one store can name.
pub(crate) const MAX_CODECS: usize = 1 << (ZPOOL_SHIFT - CODEC_SHIFT);
/// Zpools that the entries of one store can name.
pub(crate) const MAX_ZPOOLS: usize = 1 << (STATE_SHIFT - ZPOOL_SHIFT);
/// Tiers that the entries of one store can name, in the bits that number the zpool otherwise.
pub(crate) const MAX_TIERS: usize = MAX_ZPOOLS;
/// Batches of writeback that entries can be marked for at once.
pub(crate) const MAX_BATCHES: usize = 4;

/// In the place of the codec of a page that is kept as it is: a codec has tried.
const HUGE: u64 = 0;
/// None has tried yet.
const FRESH: u64 = 1;
/// One is trying.
const SETTLING: u64 = 2;

/// Where the page of an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In a zpool, owned by this entry alone.
    Pool,
    /// In an object that several entries share.
    Shared,
    /// In a slot of a tier.
    Tier,
    /// Nowhere: the page is one repeated word.
    Same,
    /// As `Pool`, and a batch of writeback has a copy that it is about to write. The last, for its number is added.
    Writing,
}

/// One entry. See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    low: u32,
    high: u32,
    sum: u32,
}

impl Entry {
    /// An object of `len` bytes in a zpool.
    pub(crate) fn pool(handle: Handle, len: usize, codec: usize, zpool: usize, sum: u32) -> Self {
        debug_assert!((1..=PAGE_SIZE).contains(&len) && codec < MAX_CODECS && zpool < MAX_ZPOOLS);
        let (len, codec, zpool) = (len as u64 - 1, codec as u64, zpool as u64);
        let parts = len << LENGTH_SHIFT | codec << CODEC_SHIFT | zpool << ZPOOL_SHIFT;
        Self::from_word(handle.to_bits() | parts | (State::Pool as u64) << STATE_SHIFT, sum)
    }

    /// A page as it is, in a zpool, that is to be compressed later.
    pub(crate) fn fresh(handle: Handle, zpool: usize, sum: u32) -> Self {
        Self::pool(handle, PAGE_SIZE, low_size(FRESH), zpool, sum)
    }

    /// The same object while it is being compressed: every other way to make an entry takes the mark off.
    pub(crate) fn settling(self) -> Self {
        debug_assert!(self.is_fresh());
        self.with_codec(SETTLING)
    }

    /// The same page, kept as it is.
    pub(crate) fn huge(self) -> Self {
        debug_assert!(self.is_raw());
        self.with_codec(HUGE)
    }

    /// A page of one repeated word.
    pub(crate) fn same(filling: u64) -> Self {
        let (high, low) = split(filling);
        Self::from_word(u64::from(low) | (State::Same as u64) << STATE_SHIFT, high)
    }

    /// A part in the shared object `id`.
    pub(crate) fn shared(id: u64) -> Self {
        debug_assert!(id <= LOCATION_MASK);
        Self::from_word(id | (State::Shared as u64) << STATE_SHIFT, 0)
    }

    /// The same object while the batch of this number writes it.
    pub(crate) fn writing(self, batch: usize) -> Self {
        debug_assert!(self.in_pool() && batch < MAX_BATCHES);
        self.in_state(State::Writing as u64 + batch as u64)
    }

    /// The same object, writeback's mark taken off.
    pub(crate) fn settled(self) -> Self {
        if self.state() == State::Writing { self.in_state(State::Pool as u64) } else { self }
    }

    /// The same bytes, now in a slot of the tier of this number.
    pub(crate) fn in_tier(self, tier: usize, slot: Slot) -> Self {
        debug_assert!(self.in_pool() && tier < MAX_TIERS);
        let object = if self.is_raw() { self.huge() } else { self };
        let kept = object.word() & !LOCATION_MASK & ((1 << ZPOOL_SHIFT) - 1);
        let place = slot.to_bits() | (tier as u64) << ZPOOL_SHIFT;
        Self::from_word(kept | place | (State::Tier as u64) << STATE_SHIFT, self.sum)
    }

    pub(crate) fn state(self) -> State {
        match self.word() >> STATE_SHIFT {
            0 => State::Pool,
            1 => State::Shared,
            2 => State::Tier,
            3 => State::Same,
            _ => State::Writing,
        }
    }

    /// Bytes stored.
    pub(crate) fn len(self) -> usize {
        usize::from(low16(self.word() >> LENGTH_SHIFT) & 0xfff) + 1
    }

    /// The page was stored as it is, not compressed.
    pub(crate) fn is_raw(self) -> bool {
        self.len() == PAGE_SIZE
    }

    /// The page was stored as it is, and no codec makes it smaller.
    pub(crate) fn is_huge(self) -> bool {
        self.is_raw() && self.codec() == low_size(HUGE)
    }

    /// The page lies in a zpool as it is, because no codec has tried it yet.
    pub(crate) fn is_fresh(self) -> bool {
        self.in_pool() && self.is_raw() && !self.is_huge()
    }

    /// Number of the codec that made the bytes; without meaning if the page is raw.
    pub(crate) fn codec(self) -> usize {
        low_size(self.word() >> CODEC_SHIFT) % MAX_CODECS
    }

    /// Number of the zpool that holds the bytes.
    pub(crate) fn zpool(self) -> usize {
        debug_assert!(self.in_pool());
        low_size(self.word() >> ZPOOL_SHIFT) % MAX_ZPOOLS
    }

    /// Number of the tier that holds the bytes.
    pub(crate) fn tier(self) -> usize {
        debug_assert!(self.state() == State::Tier);
        low_size(self.word() >> ZPOOL_SHIFT) % MAX_TIERS
    }

    /// Checksum of the stored bytes.
    pub(crate) fn sum(self) -> u32 {
        self.sum
    }

    /// `Pool` or `Writing`: the bytes are in a zpool under [`Entry::handle`].
    pub(crate) fn in_pool(self) -> bool {
        matches!(self.state(), State::Pool | State::Writing)
    }

    /// Whether taking the entry out of memory could free pool memory.
    pub(crate) fn evictable(self) -> bool {
        matches!(self.state(), State::Pool | State::Writing | State::Shared)
    }

    pub(crate) fn handle(self) -> Handle {
        debug_assert!(self.in_pool());
        Handle::from_bits(self.location())
    }

    pub(crate) fn slot(self) -> Slot {
        debug_assert!(self.state() == State::Tier);
        Slot::from_bits(self.location())
    }

    pub(crate) fn shared_id(self) -> u64 {
        debug_assert!(self.state() == State::Shared);
        self.location()
    }

    /// The word that fills the page.
    pub(crate) fn filling(self) -> u64 {
        debug_assert!(self.state() == State::Same);
        u64::from(self.sum) << 32 | u64::from(self.low)
    }

    fn location(self) -> u64 {
        self.word() & LOCATION_MASK
    }

    fn with_codec(self, codec: u64) -> Self {
        let others = !((MAX_CODECS as u64 - 1) << CODEC_SHIFT);
        Self::from_word(self.word() & others | codec << CODEC_SHIFT, self.sum)
    }

    fn in_state(self, state: u64) -> Self {
        Self::from_word(self.word() & ((1 << STATE_SHIFT) - 1) | state << STATE_SHIFT, self.sum)
    }

    fn word(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }

    fn from_word(word: u64, sum: u32) -> Self {
        let (high, low) = split(word);
        Self { low, high, sum }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}(at {:#x}, {} bytes, sum {:08x})", self.state(), self.location(), self.len(), self.sum)
    }
}

/// High and low half.
fn split(word: u64) -> (u32, u32) {
    (low32(word >> 32), low32(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_gives_back_what_it_was_made_of() {
        assert_eq!(size_of::<Entry>(), 12);
        let handle = Handle::from_bits((1 << Handle::BITS) - 1);
        for len in [1, 2, 2048, 4095, 4096] {
            let entry = Entry::pool(handle, len, MAX_CODECS - 1, MAX_ZPOOLS - 1, 0xdead_beef);
            assert_eq!((entry.state(), entry.handle(), entry.len()), (State::Pool, handle, len));
            assert_eq!((entry.codec(), entry.zpool()), (MAX_CODECS - 1, MAX_ZPOOLS - 1));
            assert_eq!((entry.sum(), entry.is_raw()), (0xdead_beef, len == 4096));
            for batch in 0..MAX_BATCHES {
                let writing = entry.writing(batch);
                assert_eq!((writing.state(), writing.handle()), (State::Writing, handle));
                assert!(writing != entry && writing.settled() == entry);
                assert!((0..batch).all(|other| entry.writing(other) != writing), "a batch knows its own");
                for tier in [0, 5, MAX_TIERS - 1] {
                    let there = writing.in_tier(tier, Slot::from_bits(7));
                    assert_eq!(
                        (there.state(), there.slot(), there.tier()),
                        (State::Tier, Slot::from_bits(7), tier)
                    );
                    let kept = (there.len(), there.codec(), there.sum());
                    let codec = if len == 4096 { low_size(HUGE) } else { MAX_CODECS - 1 };
                    assert_eq!(kept, (len, codec, 0xdead_beef));
                }
            }
        }
    }

    #[test]
    fn a_fresh_page_is_not_huge_until_it_was_tried() {
        let fresh = Entry::fresh(Handle::from_bits(7), 3, 9);
        let settling = fresh.settling();
        assert!(fresh.is_fresh() && fresh.is_raw() && !fresh.is_huge());
        assert!(settling.is_fresh() && settling != fresh && settling.writing(2).is_fresh());
        let huge = settling.huge();
        assert!(huge.is_huge() && !huge.is_fresh());
        assert_eq!((huge.handle(), huge.zpool(), huge.sum(), huge.len()), (Handle::from_bits(7), 3, 9, 4096));
        let there = settling.in_tier(1, Slot::from_bits(5));
        assert!(there.is_huge() && !there.is_fresh());
        assert!(!Entry::same(0x1fff << LENGTH_SHIFT | 1 << CODEC_SHIFT).is_fresh());
    }

    #[test]
    fn same_filled_words_and_shared_numbers_fit() {
        for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let entry = Entry::same(word);
            assert_eq!((entry.state(), entry.filling()), (State::Same, word));
        }
        let entry = Entry::shared(LOCATION_MASK);
        assert_eq!((entry.state(), entry.shared_id()), (State::Shared, LOCATION_MASK));
        assert!(entry.evictable() && !entry.in_pool());
    }
}
