//! Spots and places: a key with what is needed to find it, and where an entry was found, in 32 bits.

use super::leaf::{LEAF_PAGES, Leaf};
use crate::bits::{low_size, low32};
use crate::pools::{Key, PoolId};

/// Bits of a shard's number.
pub(super) const SHARD_BITS: u32 = 6;
/// Bits of a leaf number that a [`Place`] can hold.
const LEAF_BITS: u32 = 20;

/// A key, and where to look for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) key: Key,
    pub(crate) bit: u32,
    pub(super) chunk: u64,
    pub(super) hash: u64,
}

impl Spot {
    pub(crate) fn new(key: Key) -> Self {
        let chunk = key.index / LEAF_PAGES;
        let bit = low32(key.index % LEAF_PAGES);
        Self { key, bit, chunk, hash: hash(key.pool, key.object, chunk) }
    }

    pub(crate) fn shard(&self) -> usize {
        low_size(self.hash >> (64 - SHARD_BITS))
    }

    pub(super) fn names(&self, leaf: &Leaf) -> bool {
        leaf.chunk == self.chunk && leaf.object == self.key.object && leaf.pool == self.key.pool
    }
}

/// Shard, leaf and bit of an entry in 32 bits: a hint where something was, that may be out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    /// None if the leaf number is too large (a shard of more than a million leaves).
    pub(crate) fn new(shard: usize, leaf: u32, bit: u32) -> Option<Self> {
        (leaf >> LEAF_BITS == 0).then_some(Self(low32(shard as u64) << (LEAF_BITS + 6) | leaf << 6 | bit))
    }

    pub(crate) fn shard(self) -> usize {
        (self.0 >> (LEAF_BITS + 6)) as usize
    }

    pub(crate) fn leaf(self) -> u32 {
        self.0 >> 6 & ((1 << LEAF_BITS) - 1)
    }

    pub(crate) fn bit(self) -> u32 {
        self.0 & 63
    }
}

/// Mixes by the folded product of two halves, as wyhash does.
pub(super) fn hash(pool: PoolId, object: u64, chunk: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        let [low, high] = [product & u128::from(u64::MAX), product >> 64];
        u64::try_from(low ^ high).expect("both halves have 64 bits")
    };
    let object = object ^ u64::from(pool.to_bits()).rotate_left(40) ^ 0xa076_1d64_78bd_642f;
    fold(fold(object, 0xe703_7ed1_a0b4_28db) ^ chunk, 0x8ebc_6af0_9c88_c6e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_32_bits_and_comes_back() {
        let place = Place::new(63, (1 << LEAF_BITS) - 1, 63).unwrap();
        assert_eq!((place.shard(), place.leaf(), place.bit()), (63, (1 << LEAF_BITS) - 1, 63));
        assert_eq!(Place::new(0, 1 << LEAF_BITS, 0), None);
    }
}
