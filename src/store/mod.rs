//! The store: which pages are kept, and where.
//!
//! A page is kept as one of: a repeated word in its entry, compressed bytes (or the page as it is) in a zpool,
//! a part in an object that other pages share, or a slot of a tier. An operation is a file here, and a file holds no
//! other; below them are the index, which knows keys and entries, and the objects that entries name.
//!
//! Guarantees: after a store that succeeded a load gives that page or an error, never another page and never
//! an older one. A persistent page leaves only by invalidation. A store that is refused leaves a persistent
//! pool as it was, and takes the stale entry out of an ephemeral one.

mod age;
mod answers;
mod batch;
mod compact;
mod fresh;
mod invalidate;
mod knobs;
mod load;
mod look;
mod memlimit;
mod recompress;
mod room;
#[allow(clippy::module_inception, reason = "it is the word for this operation")]
mod store;
mod turns;
mod writeback;

pub use age::Age;
pub use fresh::{Settled, Which};
pub use load::LoadError;
pub use look::{Compressor, PagePlace, PageState};
pub use recompress::{Recompressed, Sweep};
pub use store::StoreError;
pub use writeback::{Shrunk, Stop};

use crate::codec::{self, Codec};
use crate::config::{Config, ConfigError, Knobs};
use crate::entry::Entry;
use crate::index::{Dedup, Index, Shard, Spot};
use crate::objects::{Objects, Scratches};
use crate::page::{PAGE_SIZE, Page};
use crate::pools::{Key, PoolId, PoolKind, Pools};
use crate::stats::Counters;
use crate::tier::Tier;
use crate::zpool::{self, ArenaOptions, Zpool};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use turns::Turns;

/// A store of compressed pages. All methods may be called from any thread.
///
/// Lock order, outermost first; each is let go before another of its own kind is taken:
///
/// 1. a shard of `index`: its entries, their LRU and counters. An object in a zpool is read under the lock of
///    the shard whose entry names it, so it cannot be freed meanwhile. Never held while a page is compressed; two
///    shards are never locked at once.
/// 2. a stripe of the shared objects. The same holds for their bytes.
/// 3. the zpools' own locks.
///
/// The lock of `turns`, the tables of `dedup`, the locks with which a codec, zpool, tier or pool is added, and the
/// tiers' own are taken with none of these held. No lock is held over a tier's I/O.
#[derive(Debug)]
pub struct Store {
    knobs: Knobs,
    pools: Pools,
    objects: Objects,
    index: Index,
    dedup: Dedup,
    counters: Counters,
    /// The pool was at its limit and has not been under the accept threshold since.
    was_full: AtomicBool,
    turns: Turns,
    fresh: fresh::Fresh,
}

/// One thread's working memory.
pub struct Scratch {
    codecs: Scratches,
    /// A page while it is compressed, or comes from the tier.
    packed: Box<Page>,
    /// The key after the one that was loaded last.
    next: Option<Key>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Store {
    /// A store as `config` says, writing back to `tier` if there is one; see also [`Store::add_tier`].
    ///
    /// # Errors
    /// [`ConfigError`] if there is no such compressor or zpool.
    pub fn new(config: &Config, tier: Option<Arc<dyn Tier>>) -> Result<Self, ConfigError> {
        let codec = named_codec(&config.compressor)?;
        let zpool = named_zpool(&config.zpool)?;
        let store = Self::from_parts(config, codec, zpool, tier);
        store.set_recomp_algorithm(config.recomp_algorithm.as_deref())?;
        Ok(store)
    }

    /// A store with the given codec and zpool, whatever `config` calls them: for parts of the caller's own.
    #[must_use]
    pub fn from_parts(
        config: &Config,
        codec: Arc<dyn Codec>,
        zpool: Arc<dyn Zpool>,
        tier: Option<Arc<dyn Tier>>,
    ) -> Self {
        Self {
            knobs: Knobs::new(config),
            pools: Pools::new(),
            objects: Objects::new(codec, zpool, tier),
            index: Index::new(),
            dedup: Dedup::new(),
            counters: Counters::default(),
            was_full: AtomicBool::new(false),
            turns: Turns::default(),
            fresh: fresh::Fresh::default(),
        }
    }

    /// Working memory for one thread; some hundred kilobytes once it has been used.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        let mut codecs = Scratches::default();
        let (number, codec) = self.objects.codecs.current();
        codecs.of(number, codec);
        Scratch { codecs, packed: Box::new([0; PAGE_SIZE]), next: None }
    }

    /// Adds a tier behind those that there are: it is written to when they take nothing or are busy. What was added
    /// before is not added again.
    ///
    /// # Errors
    /// [`ConfigError::TooManyTiers`].
    pub fn add_tier(&self, tier: Arc<dyn Tier>) -> Result<(), ConfigError> {
        let address = |tier: &(dyn Tier + 'static)| std::ptr::from_ref(tier).addr();
        self.objects.tiers.add(tier, address).map(drop).ok_or(ConfigError::TooManyTiers)
    }

    /// A new pool of keys. `memlimit` bounds the bytes that its pages take in the zpools; over it, the pool's own least
    /// recently used pages go first. Pages of a pool with a memlimit are shared with no others.
    ///
    /// # Panics
    /// If the store has 4096 pools.
    pub fn create_pool(&self, kind: PoolKind, memlimit: Option<u64>) -> PoolId {
        self.pools.create(kind, memlimit)
    }

    /// Invalidates all pages of the pool and forgets it. No other thread may use the pool any more.
    pub fn destroy_pool(&self, pool: PoolId) {
        if self.pools.exists(pool) {
            self.invalidate_leaves(|leaf| leaf.pool == pool, |_| u64::MAX);
            self.pools.destroy(pool);
        }
    }

    /// Puts `new` in the place of `old`, and does what else is to be done under the same lock (with shard, leaf and
    /// bit), if `old` still is what the store knows under the key. Frees nothing.
    fn exchange(&self, key: Key, old: Entry, new: Entry, also: impl FnOnce(&mut Shard, u32, u32)) -> bool {
        let spot = Spot::new(key);
        let mut shard = self.index.lock(spot.shard());
        let Some((leaf, _)) = shard.get(&spot).filter(|(_, entry)| *entry == old) else { return false };
        shard.put(leaf, spot.bit, new);
        also(&mut shard, leaf, spot.bit);
        self.charge(key.pool, new, Some(old));
        true
    }

    /// Counts the bytes of a limited pool, after `new` took the place of `old`.
    fn charge(&self, pool: PoolId, new: Entry, old: Option<Entry>) {
        let bytes = |entry: Entry| if entry.in_pool() { entry.len() } else { 0 };
        self.pools.charge(pool, bytes(new), old.map_or(0, bytes));
    }
}

fn named_codec(name: &str) -> Result<Arc<dyn Codec>, ConfigError> {
    let made = codec::by_name(name).map(Arc::from);
    made.map_err(|error| ConfigError::Compressor { name: name.to_owned(), why: error.to_string() })
}

fn named_zpool(name: &str) -> Result<Arc<dyn Zpool>, ConfigError> {
    let made = zpool::by_name(name, &ArenaOptions::default()).map(Arc::from);
    made.map_err(|error| ConfigError::Zpool { name: name.to_owned(), why: error.to_string() })
}
