//! Tiers: where the coldest pages go when the pool is full. A tier takes compressed records and gives a
//! [`Slot`] for each. A store may have several.

pub mod file;
pub mod memory;
mod swap;

#[cfg(test)]
mod conformance;

pub use file::FileTier;
pub use memory::MemoryTier;
pub use swap::{OpenSwapError, open_swap};

use std::fmt::Debug;

/// Names one record in the tier that gave it. Fits into [`Slot::BITS`] bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u64);

impl Slot {
    /// Bits that a slot needs at most.
    pub const BITS: u32 = 40;

    /// The slot with these bits. Panics if they are more than [`Slot::BITS`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        assert!(bits >> Self::BITS == 0, "a slot has {} bits", Self::BITS);
        Self(bits)
    }

    /// The bits of the slot: `from_bits(s.to_bits()) == s`.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// A place for records outside the pool. All methods may be called from any thread.
///
/// A record is 1..=4096 bytes. A slot stays readable, with the same bytes, until it is discarded; it is
/// discarded once and not used after. A write may take its time: no lock of the store is held over it, and nothing
/// else here waits for it.
pub trait Tier: Send + Sync + Debug {
    /// Writes all `records`, and returns a slot for each, in order. All or nothing: after an error no slot is
    /// in use and what was stored before is untouched.
    ///
    /// # Errors
    /// [`WriteError::Full`] when its space bound or the device is reached, [`WriteError::Io`] else.
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError>;

    /// Reads a record into the front of `out` and returns its length.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if the bytes are not those that were written (authenticated, not only summed).
    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError>;

    /// Gives the slot's space back.
    fn discard(&self, slot: Slot);

    /// Bytes that the tier occupies outside now, dead records included.
    fn used_bytes(&self) -> u64;

    /// Bytes of memory that the tier uses: tables, buffers.
    fn meta_bytes(&self) -> usize;
}

/// Why records were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// the tier is full
    #[error("the tier is full")]
    Full,
    /// the tier could not be written
    #[error("the tier could not be written: {0}")]
    Io(#[from] std::io::Error),
}

/// Why a record was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// the record is not what was written
    #[error("the record is not what was written")]
    Corrupt,
    /// the tier could not be read
    #[error("the tier could not be read: {0}")]
    Io(#[from] std::io::Error),
}
