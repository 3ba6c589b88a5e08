//! ramfold's engine: a store of compressed pages, and the mechanisms it is made of.
//!
//! ```text
//!     doors (run, disk, mount)
//!        |
//!     store      store / load / invalidate: what is kept, and where      (policy)
//!     index      from a key to its entry
//!     objects    from an entry to its bytes
//!     |    |   \
//!  Codec  Zpool  Tier                                                    (mechanism)
//! ```
//!
//! No floor calls up, and the three mechanisms never see each other. The library has no threads of its own, no door and
//! no async runtime.

pub mod codec;
pub mod page;
pub mod tier;
pub mod zpool;

mod bits;
mod config;
mod entry;
mod index;
mod objects;
mod pools;
mod prefetch;
mod stats;
mod store;

pub use config::{Config, ConfigError, PoorPages};
pub use objects::Corrupt;
pub use page::{PAGE_SIZE, Page};
pub use pools::{Key, PoolId, PoolKind};
pub use stats::Stats;
pub use store::{
    Age, Compressor, LoadError, PagePlace, PageState, Recompressed, Scratch, Settled, Shrunk, Stop, Store,
    StoreError, Sweep, Which,
};

use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Why the locks below may panic: what they protect may then be half changed.
const POISONED: &str = "a thread panicked inside the store";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).expect(POISONED)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect(POISONED)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect(POISONED)
}
