//! The store: which pages are kept, and where.
//!
//! A page is kept as one of: a repeated word in its entry, compressed bytes (or the page as it is) in a zpool,
//! a part in an object that other pages share, or a slot of the tier. What is cheap is tried first, and all that can
//! fail comes before the commit point. Duplicates are looked for after compression: the bytes are fewer then, one
//! hash of them serves as checksum and for the search, and nothing has to be decompressed to compare. The price: a
//! duplicate costs a compression, and is found only among pages of the same compressor.
//!
//! Guarantees: after a store that succeeded a load gives that page or an error, never another page and never
//! an older one. A persistent page leaves only by invalidation. A store that is refused leaves a persistent
//! pool as it was, and takes the stale entry out of an ephemeral one.

use crate::batch::Batch;
use crate::codec::{self, Codec, CompressError};
use crate::config::{Config, ConfigError, Knobs, PoorPages};
use crate::dedup::Dedup;
use crate::entry::{Entry, MAX_CODECS, MAX_ZPOOLS, State};
use crate::generations::Generations;
use crate::index::{Index, Place, Shard, Spot};
use crate::packed::Packed;
use crate::page::{PAGE_SIZE, Page, same_filled};
use crate::pools::{Key, PoolId, PoolKind, Pools};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::tier::Tier;
use crate::zpool::{self, ArenaOptions, Handle, MallocError, Zpool};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// A store of compressed pages. All methods may be called from any thread.
///
/// Lock order, outermost first; each is let go before another of its own kind is taken:
///
/// 1. `shrinking`: one thread shrinks at a time. Held over everything, the tier's I/O included.
/// 2. a shard of `index`: its entries, their LRU and counters. An object in a zpool is read under the lock of
///    the shard whose entry names it, so it cannot be freed meanwhile. Never held over the tier's I/O, nor
///    while a page is compressed; two shards are never locked at once.
/// 3. a stripe of `shared`: its objects. The same holds for their bytes.
/// 4. the zpools' own locks.
///
/// The tables of `dedup`, the locks within `codecs`, `zpools` and `pools`, and the tier's own are taken with no
/// lock of 2 to 4 held.
#[derive(Debug)]
pub struct Store {
    pub(crate) knobs: Knobs,
    pub(crate) codecs: Generations<dyn Codec, MAX_CODECS>,
    pub(crate) zpools: Generations<dyn Zpool, MAX_ZPOOLS>,
    /// The number of the zpool that takes whole pages when the current one does not.
    whole_pages: OnceLock<usize>,
    pub(crate) tier: Option<Arc<dyn Tier>>,
    pub(crate) pools: Pools,
    pub(crate) index: Index,
    pub(crate) shared: Shared,
    pub(crate) dedup: Dedup,
    pub(crate) counters: Counters,
    /// The pool was at its limit and has not been under the accept threshold since.
    pub(crate) was_full: AtomicBool,
    pub(crate) shrinking: Mutex<Batch>,
}

/// One thread's working memory.
pub struct Scratch {
    pub(crate) codecs: Scratches,
    /// A page while it is compressed, or comes from the tier.
    pub(crate) packed: Box<Page>,
    /// The key after the one that was loaded last.
    pub(crate) next: Option<Key>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// The working memory of each codec, by its number; made when it is first wanted.
#[derive(Default)]
pub(crate) struct Scratches(Vec<Option<codec::Scratch>>);

impl Scratches {
    pub(crate) fn of(&mut self, number: usize, codec: &dyn Codec) -> &mut codec::Scratch {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number].get_or_insert_with(|| codec.scratch())
    }
}

/// Why a page was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// the store is switched off
    #[error("the store is switched off")]
    Disabled,
    /// there is no such pool
    #[error("there is no such pool")]
    NoPool,
    /// the page compresses too poorly
    #[error("the page compresses too poorly")]
    Poor,
    /// the codec failed
    #[error("the codec failed")]
    Compress,
    /// the pool is full
    #[error("the pool is full and nothing could be taken out")]
    Full,
    /// the system gives the zpool no memory
    #[error("the system gives the zpool no memory")]
    NoMemory,
    /// there is no memory for the entry
    #[error("there is no memory for the entry")]
    NoMeta,
}

/// The number of a zpool, and room in it.
type Room = (usize, Handle);

/// What was found to have the contents of a page that is to be stored.
enum Duplicate {
    /// The entry of its own key.
    Itself,
    /// Another, which shares its object with this new entry.
    Other(Entry),
}

impl Store {
    /// A store as `config` says, writing back to `tier` if there is one.
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
            codecs: Generations::new(codec),
            zpools: Generations::new(zpool),
            whole_pages: OnceLock::new(),
            tier,
            pools: Pools::new(),
            index: Index::new(),
            shared: Shared::new(),
            dedup: Dedup::new(),
            counters: Counters::default(),
            was_full: AtomicBool::new(false),
            shrinking: Mutex::default(),
        }
    }

    /// Working memory for one thread; some hundred kilobytes once it has been used.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        let mut codecs = Scratches::default();
        let (number, codec) = self.codecs.current();
        codecs.of(number, codec);
        Scratch { codecs, packed: Box::new([0; PAGE_SIZE]), next: None }
    }

    /// A new pool of keys. `memlimit` bounds the bytes that its pages take in the zpools (what is shared is not
    /// counted); over it, the pool's own least recently used pages go first.
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

    /// Stores `page` under `key`, in the place of what was there.
    ///
    /// # Errors
    /// [`StoreError`]. In a persistent pool the old page is still there, in an ephemeral one there is none.
    pub fn store(&self, key: Key, page: &Page, scratch: &mut Scratch) -> Result<(), StoreError> {
        let spot = Spot::new(key);
        let stored = self.try_store(&spot, page, scratch);
        if let Err(error) = stored {
            self.count_refusal(error);
            if key.pool.kind() == PoolKind::Ephemeral {
                self.remove(&spot, false);
            }
        }
        stored
    }

    fn try_store(&self, spot: &Spot, page: &Page, scratch: &mut Scratch) -> Result<(), StoreError> {
        if !self.pools.exists(spot.key.pool) {
            return Err(StoreError::NoPool);
        }
        if !self.knobs.enabled.load(Relaxed) {
            return Err(StoreError::Disabled);
        }
        if self.knobs.same_filled.load(Relaxed)
            && let Some(word) = same_filled(page)
        {
            return self.publish(spot, Entry::same(word)).map(drop);
        }
        self.index.prefetch(spot.shard());
        let Scratch { codecs, packed, .. } = scratch;
        let packed = self.pack(page, packed, codecs)?;
        if self.knobs.duplicates.load(Relaxed) {
            return self.store_unless_duplicate(spot, &packed);
        }
        let room = self.room(spot.key.pool, packed.bytes.len())?;
        self.publish(spot, self.place(room, &packed)).map(drop)
    }

    /// The bytes are placed before it is known whether they are needed: what the search looks at is far away as a rule,
    /// and comes meanwhile.
    fn store_unless_duplicate(&self, spot: &Spot, packed: &Packed) -> Result<(), StoreError> {
        self.dedup.prefetch(packed.hash);
        let room = self.room_ahead(spot.key.pool, packed.bytes.len());
        let ahead = room.map(|room| self.place(room, packed));
        if let Some(duplicate) = self.find_duplicate(spot, packed) {
            if let Some(entry) = ahead {
                self.release(entry);
            }
            return match duplicate {
                Duplicate::Itself => Ok(()),
                Duplicate::Other(entry) => self.publish(spot, entry).map(drop),
            };
        }
        let entry = match ahead {
            Some(entry) => entry,
            None => self.place(self.room(spot.key.pool, packed.bytes.len())?, packed),
        };
        let (place, pages) = self.publish(spot, entry)?;
        if let Some(place) = place {
            self.dedup.insert(packed.hash, place, pages);
        }
        Ok(())
    }

    /// Compresses the page, or keeps it as it is.
    fn pack<'a>(
        &self,
        page: &'a Page,
        out: &'a mut Page,
        codecs: &mut Scratches,
    ) -> Result<Packed<'a>, StoreError> {
        let (number, codec) = self.codecs.current();
        let percent = usize::from(self.knobs.max_compression_ratio.load(Relaxed).min(100));
        let most = (PAGE_SIZE * percent / 100).min(PAGE_SIZE - 1).min(self.zpools.current().1.max_size());
        match codec.compress(codecs.of(number, codec), page, &mut out[..most]) {
            Ok(len @ 1..) => Ok(Packed::new(&out[..len], number)),
            Err(CompressError::TooPoor) if self.knobs.poor == PoorPages::KeepRaw => {
                Ok(Packed::new(page, number))
            }
            Err(CompressError::TooPoor) => Err(StoreError::Poor),
            Ok(0) | Err(CompressError::Failed) => Err(StoreError::Compress),
        }
    }

    /// An object of the same bytes, to be shared by this new entry.
    fn find_duplicate(&self, spot: &Spot, packed: &Packed) -> Option<Duplicate> {
        let place = self.dedup.find(packed.hash)?;
        let equal = |object: Entry| packed.is_in(object, self.zpools.get(object.zpool()));
        let mut shard = self.index.lock(place.shard());
        let (key, entry) = shard.at(place)?;
        if key == spot.key {
            let unchanged = match entry.state() {
                State::Shared => self.shared.read(entry.shared_id(), equal),
                _ => equal(entry),
            };
            shard.counts.stores += u64::from(unchanged);
            shard.touch(place.leaf(), place.bit());
            return unchanged.then_some(Duplicate::Itself);
        }
        match entry.state() {
            State::Shared => self.shared.join(entry.shared_id(), equal).then_some(Duplicate::Other(entry)),
            State::Pool | State::Writing if equal(entry) => {
                let shared = Entry::shared(self.shared.insert(place.shard(), entry));
                shard.put(place.leaf(), place.bit(), shared);
                self.charge(key.pool, shared, Some(entry));
                Some(Duplicate::Other(shared))
            }
            _ => None,
        }
    }

    /// Places the bytes in a zpool.
    fn place(&self, (number, handle): Room, packed: &Packed) -> Entry {
        self.zpools.get(number).write(handle, packed.bytes);
        packed.entry(handle, number)
    }

    /// Room for so many bytes in the zpool that takes them.
    fn room(&self, pool: PoolId, size: usize) -> Result<Room, StoreError> {
        let (mut number, mut zpool) = self.zpools.current();
        if size > zpool.max_size() {
            number = self.whole_page_zpool()?;
            zpool = self.zpools.get(number);
        }
        Ok((number, self.allocate(pool, zpool, size)?))
    }

    /// The same, if it is to be had at once and without shrinking; its memory is asked for.
    fn room_ahead(&self, pool: PoolId, size: usize) -> Option<Room> {
        let (number, zpool) = self.zpools.current();
        if pool.is_limited() || size > zpool.max_size() {
            return None;
        }
        let handle = self.allocate_within_limit(zpool, size).ok().flatten()?;
        zpool.prefetch(handle, size);
        Some((number, handle))
    }

    /// Room in the zpool, within the limits. Shrinks if that is this thread's business.
    fn allocate(&self, pool: PoolId, zpool: &dyn Zpool, size: usize) -> Result<Handle, StoreError> {
        if pool.is_limited() {
            self.keep_memlimit(pool, size as u64)?;
        }
        if let Some(handle) = self.allocate_within_limit(zpool, size)? {
            return Ok(handle);
        }
        self.counters.pool_limit_hit.add(1);
        self.was_full.store(true, Relaxed);
        if !self.knobs.shrink_inline {
            return Err(StoreError::Full);
        }
        self.shrink();
        self.allocate_within_limit(zpool, size)?.ok_or(StoreError::Full)
    }

    /// None if the pool would have to grow above its limit.
    pub(crate) fn allocate_within_limit(
        &self,
        zpool: &dyn Zpool,
        size: usize,
    ) -> Result<Option<Handle>, StoreError> {
        let handle = match zpool.malloc(size) {
            Ok(handle) => handle,
            Err(MallocError::NoMemory) => return Err(StoreError::NoMemory),
            Err(MallocError::TooLarge) => return Err(StoreError::Poor),
        };
        let (held, limit) = (self.pool_bytes(), self.knobs.max_pool_bytes.load(Relaxed));
        if held > limit {
            zpool.free(handle);
            return Ok(None);
        }
        if self.was_full.load(Relaxed) && held > self.shrink_target() {
            self.counters.pool_limit_hit.add(1);
        }
        Ok(Some(handle))
    }

    /// The zpool for pages that are kept as they are, when the current one has no room for a whole page.
    fn whole_page_zpool(&self) -> Result<usize, StoreError> {
        if let Some(number) = self.whole_pages.get() {
            return Ok(*number);
        }
        let zpool = named_zpool("zsmalloc").map_err(|_| StoreError::Poor)?;
        let number = self.zpools.add(zpool, |zpool| zpool.name()).ok_or(StoreError::Poor)?;
        Ok(*self.whole_pages.get_or_init(|| number))
    }

    /// Makes `entry` what the store knows under the key. Gives its place and, roughly, the number of all pages.
    fn publish(&self, spot: &Spot, entry: Entry) -> Result<(Option<Place>, usize), StoreError> {
        let mut shard = self.index.lock(spot.shard());
        let Ok(leaf) = shard.reserve(spot) else {
            drop(shard);
            self.release(entry);
            return Err(StoreError::NoMeta);
        };
        // Commit point: nothing after this can fail.
        let old = shard.publish(leaf, spot.bit, entry);
        self.charge(spot.key.pool, entry, old);
        shard.counts.stores += 1;
        let pages = shard.estimate();
        let look = Self::should_look(&shard);
        drop(shard);
        if let Some(old) = old {
            self.release(old);
        }
        if look {
            self.keep_dense();
        }
        Ok((Place::new(spot.shard(), leaf, spot.bit), pages))
    }

    /// Puts `new` in the place of `old`, and does what else is to be done under the same lock (with shard, leaf and
    /// bit), if `old` still is what the store knows under the key. Frees nothing.
    pub(crate) fn exchange(
        &self,
        key: Key,
        old: Entry,
        new: Entry,
        also: impl FnOnce(&mut Shard, u32, u32),
    ) -> bool {
        let spot = Spot::new(key);
        let mut shard = self.index.lock(spot.shard());
        let Some((leaf, _)) = shard.get(&spot).filter(|(_, entry)| *entry == old) else { return false };
        shard.put(leaf, spot.bit, new);
        also(&mut shard, leaf, spot.bit);
        self.charge(key.pool, new, Some(old));
        true
    }

    /// Gives back what an entry holds that nothing names any more.
    pub(crate) fn release(&self, entry: Entry) {
        match entry.state() {
            State::Same => {}
            State::Pool | State::Writing => self.zpools.get(entry.zpool()).free(entry.handle()),
            State::Tier => {
                if let Some(tier) = &self.tier {
                    tier.discard(entry.slot());
                }
            }
            State::Shared => {
                if let Some(object) = self.shared.leave(entry.shared_id()) {
                    self.release(object);
                }
            }
        }
    }

    /// Counts the bytes of a limited pool, after `new` took the place of `old`.
    pub(crate) fn charge(&self, pool: PoolId, new: Entry, old: Option<Entry>) {
        let bytes = |entry: Entry| if entry.in_pool() { entry.len() } else { 0 };
        self.pools.charge(pool, bytes(new), old.map_or(0, bytes));
    }

    fn count_refusal(&self, error: StoreError) {
        match error {
            StoreError::Disabled | StoreError::NoPool => {}
            StoreError::Poor => self.counters.reject_compress_poor.add(1),
            StoreError::Compress => self.counters.reject_compress_fail.add(1),
            StoreError::Full => self.counters.reject_reclaim_fail.add(1),
            StoreError::NoMemory => self.counters.reject_alloc_fail.add(1),
            StoreError::NoMeta => self.counters.reject_meta_fail.add(1),
        }
    }
}

pub(crate) fn named_codec(name: &str) -> Result<Arc<dyn Codec>, ConfigError> {
    let made = codec::by_name(name).map(Arc::from);
    made.map_err(|error| ConfigError::Compressor { name: name.to_owned(), why: error.to_string() })
}

pub(crate) fn named_zpool(name: &str) -> Result<Arc<dyn Zpool>, ConfigError> {
    let made = zpool::by_name(name, &ArenaOptions::default()).map(Arc::from);
    made.map_err(|error| ConfigError::Zpool { name: name.to_owned(), why: error.to_string() })
}
