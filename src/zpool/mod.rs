//! Zpools: where compressed bytes are placed.
//!
//! A zpool places bytes and gives a [`Handle`] for them. It never evicts and never calls up: which pages are
//! kept is the store's business. The interface is that of the kernel's `include/linux/zpool.h` in its last
//! form (read and write, not map and unmap).

use std::fmt::Debug;

/// Names one object in the zpool that gave it. Fits into [`Handle::BITS`] bits, so that an entry of the store
/// can hold it beside a length and a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

impl Handle {
    /// Bits that a handle needs at most.
    pub const BITS: u32 = 40;

    /// The handle with these bits. Panics if they are more than [`Handle::BITS`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        assert!(bits >> Self::BITS == 0, "a handle has {} bits", Self::BITS);
        Self(bits)
    }

    /// The bits of the handle: `from_bits(h.to_bits()) == h`.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// An allocator for compressed pages. All methods may be called from any thread.
///
/// Contract of the caller: a handle is freed once, and not read or written while or after it is freed; two
/// threads do not write one handle at the same time. The pool may move objects (`compact`) at any time, also
/// while others read: it holds its own locks for that.
pub trait Zpool: Send + Sync + Debug {
    /// The name under which it was chosen: `zsmalloc`, `zbud`, `xvmalloc`.
    fn name(&self) -> &'static str;

    /// The largest size that `malloc` takes, in bytes; at most a page.
    fn max_size(&self) -> usize;

    /// Room for `size` bytes (1..=max_size), contents undefined.
    ///
    /// # Errors
    /// [`MallocError::TooLarge`] above `max_size`; [`MallocError::NoMemory`] if the system gives no more.
    fn malloc(&self, size: usize) -> Result<Handle, MallocError>;

    /// Gives the object back.
    fn free(&self, handle: Handle);

    /// Writes `bytes` to the front of the object; not more than it was allocated with.
    fn write(&self, handle: Handle, bytes: &[u8]);

    /// Lends the first `len` bytes of the object to `with`, once. `with` must not call the pool.
    fn read(&self, handle: Handle, len: usize, with: &mut dyn FnMut(&[u8]));

    /// Pages of memory that the pool holds for objects now (its `zs_get_total_pages`): all that it has taken
    /// from the system and not given back, kept-in-reserve pages included.
    fn total_pages(&self) -> usize;

    /// Bytes that the pool uses beside those pages: tables, descriptors.
    fn meta_bytes(&self) -> usize;

    /// Moves objects together and gives whole pages back to the system. Returns the pages given back.
    fn compact(&self) -> usize;
}

/// Why the zpool gave no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MallocError {
    /// the object is larger than the zpool takes
    #[error("the object is larger than the zpool takes")]
    TooLarge,
    /// the system gives the zpool no more memory
    #[error("the system gives the zpool no more memory")]
    NoMemory,
}
