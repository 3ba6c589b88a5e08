//! The slot table: where the record of a slot lies, in eight bytes a slot.
//!
//! Slots are indices of the table and stay what they are when the cleaner moves a record; only the word
//! changes. Free words form a list through the table. The table grows by chunks, so that growing copies
//! nothing while a reader waits; it does not shrink, its size is that of the most records at one time.
//!
//! ```text
//! taken   1 | extent: 31 bits | offset / 8: 17 bits | length - 1: 12 bits | 000
//! free    0 | next free slot + 1, or 0
//! ```

/// Words in a chunk.
const CHUNK: usize = 1024;
/// The bit of a word that is no link of the free list.
const TAKEN: u64 = 1 << 63;

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    /// The extent, below [`Location::EXTENTS`].
    pub(super) extent: u32,
    /// In bytes from the extent's begin: a multiple of 8 below 2^20.
    pub(super) offset: u32,
    /// 1..=4096.
    pub(super) length: u16,
}

impl Location {
    /// Extents that can be named.
    pub(super) const EXTENTS: u32 = 1 << 31;

    fn to_word(self) -> u64 {
        debug_assert!(self.extent < Self::EXTENTS && self.offset < 1 << 20 && self.offset.is_multiple_of(8));
        debug_assert!((1..=4096).contains(&self.length));
        TAKEN
            | u64::from(self.extent) << 32
            | u64::from(self.offset / 8) << 15
            | u64::from(self.length - 1) << 3
    }

    fn from_word(word: u64) -> Self {
        let bits = |shift: u32, count: u32| (word >> shift) & ((1 << count) - 1);
        let narrow = |value: u64| u32::try_from(value).expect("at most 31 bits were taken");
        Self {
            extent: narrow(bits(32, 31)),
            offset: narrow(bits(15, 17)) * 8,
            length: u16::try_from(bits(3, 12) + 1).expect("12 bits were taken"),
        }
    }
}

/// The table. A slot in it is free, reserved (its record is being written) or has a location.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct SlotTable {
    chunks: Vec<Box<[u64]>>,
    /// Slots that were ever taken: all words from here on are unused.
    len: usize,
    /// The first free slot + 1, or 0.
    free: u64,
}

/// The word of a reserved slot: taken, with a location that no record has.
const RESERVED: u64 = TAKEN | 1;

impl SlotTable {
    /// Takes a slot that has no location yet. `None` when there are no more than 2^40.
    pub(super) fn reserve(&mut self) -> Option<u64> {
        if self.free != 0 {
            let slot = self.free - 1;
            self.free = *self.word(slot)?;
            *self.word_mut(slot) = RESERVED;
            return Some(slot);
        }
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(vec![0; CHUNK].into());
        }
        let slot = self.len as u64;
        if slot >> super::super::Slot::BITS != 0 {
            return None;
        }
        self.len += 1;
        *self.word_mut(slot) = RESERVED;
        Some(slot)
    }

    /// The location of `slot`; `None` if it is free, reserved or was never taken.
    pub(super) fn get(&self, slot: u64) -> Option<Location> {
        let word = *self.word(slot)?;
        (word & TAKEN != 0 && word != RESERVED).then(|| Location::from_word(word))
    }

    /// Gives a taken slot its location.
    pub(super) fn set(&mut self, slot: u64, location: Location) {
        debug_assert!(self.word(slot).is_some_and(|word| word & TAKEN != 0), "slot {slot} is not taken");
        *self.word_mut(slot) = location.to_word();
    }

    /// Makes a taken slot free.
    pub(super) fn free(&mut self, slot: u64) {
        debug_assert!(self.word(slot).is_some_and(|word| word & TAKEN != 0), "slot {slot} is not taken");
        *self.word_mut(slot) = self.free;
        self.free = slot + 1;
    }

    /// Bytes of memory of the table.
    pub(super) fn meta_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<u64>() + self.chunks.capacity() * size_of::<Box<[u64]>>()
    }

    /// Whether the slot was ever taken.
    #[cfg(test)]
    pub(super) fn is_known(&self, slot: u64) -> bool {
        self.word(slot).is_some()
    }

    /// The word of a slot that was once taken.
    fn word(&self, slot: u64) -> Option<&u64> {
        let index = usize::try_from(slot).ok().filter(|index| *index < self.len)?;
        Some(&self.chunks[index / CHUNK][index % CHUNK])
    }

    fn word_mut(&mut self, slot: u64) -> &mut u64 {
        let index = usize::try_from(slot).expect("a slot of this table");
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_survives_its_word() {
        for extent in [0, 1, Location::EXTENTS - 1] {
            for offset in [0, 8, (1 << 20) - 8] {
                for length in [1, 2, 4095, 4096] {
                    let location = Location { extent, offset, length };
                    assert_eq!(Location::from_word(location.to_word()), location);
                    assert_ne!(location.to_word(), RESERVED);
                }
            }
        }
    }

    #[test]
    fn slots_are_taken_located_freed_and_taken_again() {
        let mut table = SlotTable::default();
        let location = Location { extent: 3, offset: 16, length: 4 };
        let slots: Vec<_> = (0..3000).map(|_| table.reserve().unwrap()).collect();
        assert_eq!(slots, (0..3000).collect::<Vec<_>>());
        assert_eq!((table.get(5), table.get(3000), table.get(u64::MAX)), (None, None, None));
        table.set(5, location);
        assert_eq!(table.get(5), Some(location));
        for slot in [5, 2999, 0] {
            table.free(slot);
            assert_eq!(table.get(slot), None);
        }
        let again: Vec<_> = (0..4).map(|_| table.reserve().unwrap()).collect();
        assert_eq!(again, [0, 2999, 5, 3000]);
        assert!(table.meta_bytes() <= 3072 * 8 + 200);
    }
}
