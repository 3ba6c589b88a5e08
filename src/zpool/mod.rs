//! Zpools: where compressed bytes are placed.
//!
//! A zpool places bytes and gives a [`Handle`] for them. It never evicts and never calls up: which pages are
//! kept is the store's business. The interface is that of the kernel's `include/linux/zpool.h` in its last
//! form (read and write, not map and unmap).

mod arena;
#[cfg(test)]
mod conformance;
pub mod forks;
mod pages;
mod reservation;
mod xvmalloc;
mod zbud;
mod zsmalloc;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use arena::{ArenaOptions, PageLimit};
pub use reservation::reserved_address_space;
pub use xvmalloc::Xvmalloc;
pub use zbud::Zbud;
pub use zsmalloc::Zsmalloc;

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

    /// Tells that the object, which was allocated with `len` bytes, will be used soon.
    fn prefetch(&self, _handle: Handle, _len: usize) {}

    /// Lends the first `len` bytes of the object to `with`, once. `with` must not call the pool.
    fn read(&self, handle: Handle, len: usize, with: &mut dyn FnMut(&[u8]));

    /// As [`Zpool::read`], of several objects at once. False if the pool does not do that; then nothing was lent.
    fn read_together(&self, _handles: &[Handle], _len: usize, _with: &mut dyn FnMut(&[&[u8]])) -> bool {
        false
    }

    /// Pages of memory that the pool holds for objects now (its `zs_get_total_pages`): all that it has taken
    /// from the system and not given back, kept-in-reserve pages included.
    fn total_pages(&self) -> usize;

    /// Bytes that the pool uses beside those pages: tables, descriptors.
    fn meta_bytes(&self) -> usize;

    /// Moves objects together and gives the pages that become empty back to the system, until about `max_pages` have
    /// gone. `usize::MAX`: until nothing is to be gained; the free pages that the pool keeps in hand go too.
    /// Returns the pages given back.
    fn compact(&self, max_pages: usize) -> usize;
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

/// The names that [`by_name`] knows.
pub const NAMES: [&str; 3] = ["zsmalloc", "zbud", "xvmalloc"];

/// A new zpool by its name.
///
/// # Errors
/// [`NewZpoolError`] if there is no such zpool, or the system has no address space for it.
pub fn by_name(name: &str, options: &ArenaOptions) -> Result<Box<dyn Zpool>, NewZpoolError> {
    Ok(match name {
        "zsmalloc" => Box::new(Zsmalloc::new(options)?),
        "zbud" => Box::new(Zbud::new(options)?),
        "xvmalloc" => Box::new(Xvmalloc::new(options)?),
        _ => return Err(NewZpoolError::Unknown(name.to_owned())),
    })
}

/// Why there is no new zpool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewZpoolError {
    /// no zpool has that name
    #[error("no zpool is called {0:?}; there are zsmalloc, zbud and xvmalloc")]
    Unknown(String),
    /// the system refuses the address space
    #[error("the system refuses the zpool's address space: {0}")]
    Reserve(#[from] rustix::io::Errno),
}

/// Locks. A panic elsewhere under the lock came from an assertion, before anything was changed or from the
/// caller's own code, so the state is sound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
