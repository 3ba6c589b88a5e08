//! ramfold's engine: a store of compressed pages, and the mechanisms it is made of.
//!
//! ```text
//!     doors (run, disk, mount)
//!        |
//!     Store      store / load / invalidate: what is kept, and where      (policy)
//!     |    |   \
//!  Codec  Zpool  Tier                                                    (mechanism)
//! ```
//!
//! The three mechanisms never see each other; only the store and its writeback touch all three. The library
//! has no threads of its own, no door and no async runtime.

pub mod codec;
pub mod page;
pub mod tier;
pub mod zpool;

mod answers;
mod batch;
mod bits;
mod compaction;
mod config;
mod dedup;
mod entry;
mod generations;
mod index;
mod invalidate;
mod knobs;
mod leaf;
mod load;
mod lru;
mod packed;
mod pools;
mod prefetch;
mod recompress;
mod shared;
mod stats;
mod store;
mod writeback;

pub use config::{Config, ConfigError, PoorPages};
pub use load::{Corrupt, LoadError};
pub use page::{PAGE_SIZE, Page};
pub use pools::{Key, PoolId, PoolKind};
pub use recompress::{Recompressed, Sweep};
pub use stats::Stats;
pub use store::{Scratch, Store, StoreError};
pub use writeback::{Shrunk, Stop};

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Why the locks below may panic: what they protect may then be half changed.
const POISONED: &str = "a thread panicked inside the store";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect(POISONED)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect(POISONED)
}
