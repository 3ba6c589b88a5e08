//! Storing: from a page to its entry.
//!
//! What is cheap is tried first, and all that can fail comes before the commit point. Duplicates are looked for after
//! compression: the bytes are fewer then, one hash of them serves as checksum and for the search, and nothing has to be
//! decompressed to compare. The price: a duplicate costs a compression, and is found only among pages of the same
//! compressor. The guarantee: a store that fails has changed nothing, but for an ephemeral pool, which forgets the page
//! that was there.

use super::{Scratch, Store};
use crate::codec::CompressError;
use crate::entry::{Entry, State};
use crate::index::{Place, Spot};
use crate::objects::{Packed, Scratches};
use crate::page::{PAGE_SIZE, Page, same_filled};
use crate::pools::{Key, PoolKind};
use crate::zpool::MallocError;
use std::sync::atomic::Ordering::Relaxed;

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

impl From<MallocError> for StoreError {
    fn from(error: MallocError) -> Self {
        match error {
            MallocError::NoMemory => Self::NoMemory,
            MallocError::TooLarge => Self::Poor,
        }
    }
}

/// What was found to have the contents of a page that is to be stored.
pub(super) enum Duplicate {
    /// The entry of its own key.
    Itself,
    /// Another, which shares its object with this new entry.
    Other(Entry),
}

impl Store {
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
        if let Some(word) = self.same_filling(page) {
            return self.store_same(spot, page, word);
        }
        self.index.prefetch(spot.shard());
        if self.takes_fresh(spot.key.pool) && self.store_fresh(spot, page)? {
            return Ok(());
        }
        let Scratch { codecs, packed, .. } = scratch;
        let packed = self.pack(page, packed, codecs)?;
        if self.knobs.duplicates.load(Relaxed) && !spot.key.pool.is_limited() {
            return self.store_unless_duplicate(spot, &packed);
        }
        let room = self.room(spot.key.pool, packed.bytes.len())?;
        self.publish(spot, self.objects.place(room, &packed)).map(drop)
    }

    /// The word that the page is filled with, if such pages are told from others.
    pub(super) fn same_filling(&self, page: &Page) -> Option<u64> {
        if self.knobs.same_filled.load(Relaxed) { same_filled(page) } else { None }
    }

    /// The bytes are placed before it is known whether they are needed: what the search looks at is far away as a rule,
    /// and comes meanwhile.
    fn store_unless_duplicate(&self, spot: &Spot, packed: &Packed) -> Result<(), StoreError> {
        self.dedup.prefetch(packed.hash);
        let room = self.room_ahead(packed.bytes.len());
        let ahead = room.map(|room| self.objects.place(room, packed));
        if let Some(duplicate) = self.find_duplicate(spot, packed) {
            if let Some(entry) = ahead {
                self.objects.release(entry);
            }
            return match duplicate {
                Duplicate::Itself => Ok(()),
                Duplicate::Other(entry) => self.publish(spot, entry).map(drop),
            };
        }
        let entry = match ahead {
            Some(entry) => entry,
            None => self.objects.place(self.room(spot.key.pool, packed.bytes.len())?, packed),
        };
        let (place, pages) = self.publish(spot, entry)?;
        if let Some(place) = place {
            self.dedup.insert(packed.hash, place, pages);
        }
        Ok(())
    }

    /// Compresses the page, or keeps it as it is.
    pub(super) fn pack<'a>(
        &self,
        page: &'a Page,
        out: &'a mut Page,
        codecs: &mut Scratches,
    ) -> Result<Packed<'a>, StoreError> {
        let (number, codec) = self.objects.codecs.current();
        let percent = usize::from(self.knobs.max_compression_ratio.load(Relaxed).min(100));
        let most =
            (PAGE_SIZE * percent / 100).min(PAGE_SIZE - 1).min(self.objects.zpools.current().1.max_size());
        match codec.compress(codecs.of(number, codec), page, &mut out[..most]) {
            Ok(len @ 1..) => Ok(Packed::new(&out[..len], number)),
            Err(CompressError::TooPoor) if self.knobs.keep_raw.load(Relaxed) => Ok(Packed::new(page, number)),
            Err(CompressError::TooPoor) => Err(StoreError::Poor),
            Ok(0) | Err(CompressError::Failed) => Err(StoreError::Compress),
        }
    }

    /// An object of the same bytes, to be shared by this new entry.
    pub(super) fn find_duplicate(&self, spot: &Spot, packed: &Packed) -> Option<Duplicate> {
        let place = self.dedup.find(packed.hash)?;
        let equal = |object| self.objects.holds(object, packed);
        let mut shard = self.index.lock(place.shard());
        let (key, entry) =
            shard.at(place).filter(|(key, entry)| !key.pool.is_limited() && !entry.is_fresh())?;
        if key == spot.key {
            let unchanged = match entry.state() {
                State::Shared => self.objects.shared.read(entry.shared_id(), equal),
                _ => equal(entry),
            };
            shard.counts.stores += u64::from(unchanged);
            shard.touch(place.leaf(), place.bit());
            return unchanged.then_some(Duplicate::Itself);
        }
        match entry.state() {
            State::Shared => {
                self.objects.shared.join(entry.shared_id(), equal).then_some(Duplicate::Other(entry))
            }
            State::Pool | State::Writing if equal(entry) => {
                let shared = Entry::shared(self.objects.shared.insert(place.shard(), entry));
                shard.put(place.leaf(), place.bit(), shared);
                self.charge(key.pool, shared, Some(entry));
                Some(Duplicate::Other(shared))
            }
            _ => None,
        }
    }

    /// Makes `entry` what the store knows under the key. Gives its place and, roughly, the number of all pages.
    pub(super) fn publish(&self, spot: &Spot, entry: Entry) -> Result<(Option<Place>, usize), StoreError> {
        let mut shard = self.index.lock(spot.shard());
        let Ok(leaf) = shard.reserve(spot) else {
            drop(shard);
            self.objects.release(entry);
            return Err(StoreError::NoMeta);
        };
        // Commit point: nothing after this can fail.
        let old = shard.publish(leaf, spot.bit, entry);
        self.charge(spot.key.pool, entry, old);
        shard.counts.stores += 1;
        if entry.in_pool() && entry.is_huge() {
            self.counters.huge_pages_since.add(1);
        }
        let pages = shard.estimate();
        let look = Self::should_look(&shard);
        drop(shard);
        if let Some(old) = old {
            self.objects.release(old);
        }
        if look {
            self.keep_dense();
        }
        Ok((Place::new(spot.shard(), leaf, spot.bit), pages))
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
