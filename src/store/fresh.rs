//! Fresh pages: written now, compressed soon.
//!
//! A page that was just stored is often stored anew or read before long. While there is memory for it, it lies in the
//! pool as it is, and is compressed once it was left alone for a time ([`Store::settle_fresh`]): the store of a hot
//! page is a copy, into its own place if it is fresh already, and so is its load. A compressed page that is loaded
//! twice between two sweeps becomes fresh again. The time between two sweeps and the bound are the caller's to choose
//! ([`Store::set_most_fresh`]); without a bound nothing is fresh.
//!
//! A fresh page is an entry as any other; its codec says that it is fresh ([`Entry::fresh`]). Duplicates are found when
//! it is compressed. It takes no room from others: fresh pages are added only while the pool is under its accept
//! threshold, and who finds the pool full, or is to make it smaller, compresses them first. The last [`ROOM`] bytes of
//! the limit are kept for that while there are any.
//!
//! The price: a page that is not stored anew costs a copy and a checksum more, and memory until it is compressed. The
//! guarantee is that of recompression, and exact: an entry is compressed under a mark that only the sweep sets and
//! every store takes off. One thread at a time sweeps.

use super::load::LoadError;
use super::store::{Duplicate, StoreError};
use super::writeback::ROOM;
use super::{Scratch, Store};
use crate::bits::low32;
use crate::entry::{Entry, State};
use crate::index::{Leaf, Place, SHARDS, Shard, Spot};
use crate::objects::{Packed, Scratches, hash, is_whole};
use crate::page::{PAGE_SIZE, Page};
use crate::pools::{Key, PoolId};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that are compressed at a time by who needs room.
const BITE: usize = 16;

/// What a store knows of its fresh pages.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// Most bytes that may be fresh; 0: nothing becomes fresh.
    most: AtomicU64,
    /// Taken with nothing else held.
    settler: Mutex<Option<Box<Settler>>>,
}

/// The working memory and the place of who compresses fresh pages.
struct Settler {
    codecs: Scratches,
    packed: Page,
    page: Page,
    shard: usize,
    leaf: u32,
    bit: u32,
}

impl std::fmt::Debug for Settler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settler")
            .field("shard", &self.shard)
            .field("leaf", &self.leaf)
            .finish_non_exhaustive()
    }
}

impl Default for Settler {
    fn default() -> Self {
        let page = [0; PAGE_SIZE];
        Self { codecs: Scratches::default(), packed: page, page, shard: 0, leaf: 0, bit: 0 }
    }
}

/// Which fresh pages are to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that were neither stored nor loaded since the last sweep came by.
    Idle,
    /// All.
    All,
}

/// What a part of a sweep over the fresh pages has done.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Pages that are not fresh any more.
    pub pages: u64,
    /// The sweep is over; the next call begins another.
    pub swept: bool,
}

/// A fresh page as it was marked. Its bytes are in the settler's buffer.
struct Found {
    key: Key,
    marked: Entry,
}

impl Store {
    /// Sets the most bytes of pages that are kept as they are for now. 0: none becomes fresh; those that are fresh stay
    /// until they are settled.
    pub fn set_most_fresh(&self, bytes: u64) {
        self.fresh.most.store(bytes, Relaxed);
    }

    /// The most bytes that may be fresh.
    #[must_use]
    pub fn most_fresh(&self) -> u64 {
        self.fresh.most.load(Relaxed)
    }

    /// Bytes of pages that are fresh now. A load from memory.
    #[must_use]
    pub fn fresh_bytes(&self) -> u64 {
        self.index.fresh() * PAGE_SIZE as u64
    }

    /// Compresses fresh pages: goes on with a sweep over them until `most` were tried. No lock is held while a page is
    /// compressed.
    pub fn settle_fresh(&self, most: usize, which: Which) -> Settled {
        let mut done = Settled::default();
        let mut settler = crate::lock(&self.fresh.settler);
        let settler = settler.get_or_insert_default();
        for _ in 0..most {
            let Some(found) = self.next_fresh(settler, which) else {
                (settler.shard, settler.leaf, settler.bit) = (0, 0, 0);
                done.swept = true;
                break;
            };
            done.pages += u64::from(self.settle_page(&found, settler));
        }
        self.counters.settled_pages.add(done.pages);
        done
    }

    /// Compresses some of the fresh pages, whichever, for who needs room. False if that was of no use.
    pub(super) fn settle_for_room(&self) -> bool {
        if self.index.fresh() == 0 {
            return false;
        }
        let mut done = self.settle_fresh(BITE, Which::All);
        if done.swept && done.pages == 0 {
            // That was the end of a sweep; from its beginning there may be more.
            done = self.settle_fresh(BITE, Which::All);
        }
        done.pages > 0
    }

    /// Bytes of the limit that only the compression of fresh pages may use.
    pub(super) fn kept_for_fresh(&self) -> u64 {
        if self.index.fresh() == 0 { 0 } else { ROOM }
    }

    /// Whether pages of the pool are kept as they are for now.
    pub(super) fn takes_fresh(&self, pool: PoolId) -> bool {
        self.most_fresh() > 0 && self.knobs.keep_raw.load(Relaxed) && !pool.is_limited()
    }

    /// Whether one more page may be fresh.
    fn has_room_for_fresh(&self) -> bool {
        let page = PAGE_SIZE as u64;
        self.fresh_bytes() + page <= self.most_fresh() && self.pool_bytes() + page <= self.shrink_target()
    }

    /// Stores the page as it is. False if it is to be compressed.
    pub(super) fn store_fresh(&self, spot: &Spot, page: &Page) -> Result<bool, StoreError> {
        let sum = low32(hash(page));
        if self.store_in_place(spot, page, sum) {
            return Ok(true);
        }
        let Some(entry) = self.place_fresh(page, sum) else { return Ok(false) };
        self.publish(spot, entry).map(|_| true)
    }

    /// Stores a page that is one word again and again: as it is over a fresh page, which keeps its place beside its
    /// neighbours, and as no more than the word elsewhere.
    pub(super) fn store_same(&self, spot: &Spot, page: &Page, word: u64) -> Result<(), StoreError> {
        let is_fresh = self.takes_fresh(spot.key.pool) && self.store_in_place(spot, page, low32(hash(page)));
        if is_fresh { Ok(()) } else { self.publish(spot, Entry::same(word)).map(drop) }
    }

    /// Writes the page over the one that is there, if that is fresh. Who reads it has the lock of the shard.
    fn store_in_place(&self, spot: &Spot, page: &Page, sum: u32) -> bool {
        let mut shard = self.index.lock(spot.shard());
        let Some((leaf, old)) = shard.get(spot) else { return false };
        if old.state() != State::Pool || !old.is_fresh() {
            return false;
        }
        self.objects.zpools.get(old.zpool()).write(old.handle(), page);
        shard.publish(leaf, spot.bit, Entry::fresh(old.handle(), old.zpool(), sum));
        shard.counts.stores += 1;
        true
    }

    /// Places a page as it is, if there may be one more.
    fn place_fresh(&self, page: &Page, sum: u32) -> Option<Entry> {
        if !self.has_room_for_fresh() {
            return None;
        }
        let zpool = self.objects.zpool_for(PAGE_SIZE)?;
        let (zpool, handle) = self.objects.allocate(zpool, PAGE_SIZE, self.shrink_target()).ok()??;
        self.objects.zpools.get(zpool).write(handle, page);
        Some(Entry::fresh(handle, zpool, sum))
    }

    /// Keeps a page as it is that was loaded twice since a sweep came by. Gives the object that it had, to be released.
    /// Under the lock of its shard.
    pub(super) fn keep_loaded(
        &self,
        shard: &mut Shard,
        (leaf, bit): (u32, u32),
        entry: Entry,
        page: &Page,
    ) -> Option<Entry> {
        let pool = shard.leaf(leaf).pool;
        if !self.takes_fresh(pool) || entry.state() != State::Pool || entry.is_raw() {
            return None;
        }
        if !shard.note_load(leaf, bit) {
            return None;
        }
        let fresh = self.place_fresh(page, low32(hash(page)))?;
        shard.put(leaf, bit, fresh);
        Some(entry)
    }

    /// Makes a page fresh that will be loaded soon, wherever it lies: then that load is a copy. `page` is room to load
    /// it into. False: there may be no more fresh pages. Contract of the caller: nobody stores or invalidates the page
    /// meanwhile.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn fetch(&self, key: Key, page: &mut Page, scratch: &mut Scratch) -> Result<bool, LoadError> {
        let spot = Spot::new(key);
        let found = self.index.lock(spot.shard()).get(&spot).map(|(_, entry)| entry);
        let entry = found.ok_or(LoadError::Miss)?;
        let is_far = entry.state() == State::Tier || entry.state() == State::Pool && !entry.is_raw();
        if !is_far {
            return Ok(true);
        }
        if !self.takes_fresh(key.pool) || !self.has_room_for_fresh() {
            return Ok(false);
        }
        self.load(key, page, scratch)?;
        let Some(fresh) = self.place_fresh(page, low32(hash(page))) else { return Ok(false) };
        let is_done = self.exchange(key, entry, fresh, |_, _, _| ());
        self.objects.release(if is_done { entry } else { fresh });
        Ok(true)
    }

    /// The next page that is to be compressed, copied and marked. None at the end of the sweep.
    fn next_fresh(&self, settler: &mut Settler, which: Which) -> Option<Found> {
        while settler.shard < SHARDS {
            let mut shard = self.index.lock(settler.shard);
            let goes_on = (settler.leaf, settler.bit) != (0, 0) || shard.begin_sweep();
            let id = if goes_on { shard.next_leaf(settler.leaf, Leaf::is_warm) } else { None };
            let Some(id) = id else {
                (settler.shard, settler.leaf, settler.bit) = (settler.shard + 1, 0, 0);
                continue;
            };
            if id != settler.leaf {
                (settler.leaf, settler.bit) = (id, 0);
            }
            while let Some(bit) = shard.next_fresh_in(id, &mut settler.bit, which == Which::All) {
                let (key, entry) = (shard.leaf(id).key(bit), shard.leaf(id).get(bit)?);
                if entry.state() != State::Pool {
                    continue;
                }
                let page = &mut settler.page;
                self.objects.read(entry, &mut |bytes| page.copy_from_slice(bytes));
                let marked = entry.settling();
                shard.put(id, bit, marked);
                return Some(Found { key, marked });
            }
            (settler.leaf, settler.bit) = (id + 1, 0);
        }
        None
    }

    /// Puts a smaller object, or another's, in the place of the page, or notes that there is none to be had. Whether it
    /// is settled.
    fn settle_page(&self, found: &Found, settler: &mut Settler) -> bool {
        let Settler { codecs, packed, page, .. } = settler;
        let &Found { key, marked } = found;
        if !is_whole(marked, page) {
            // A damaged page stays as it is: who loads it will be told.
            return self.exchange(key, marked, marked.huge(), |_, _, _| ());
        }
        if let Some(word) = self.same_filling(page) {
            return self.replace_fresh(found, Entry::same(word), None);
        }
        let spot = Spot::new(key);
        let Ok(packed) = self.pack(page, packed, codecs) else {
            // It was accepted, so it is kept.
            return self.exchange(key, marked, marked.huge(), |_, _, _| ());
        };
        let duplicates = self.knobs.duplicates.load(Relaxed);
        if duplicates && let Some(Duplicate::Other(shared)) = self.find_duplicate(&spot, &packed) {
            return self.replace_fresh(found, shared, None);
        }
        let new = if packed.bytes.len() == PAGE_SIZE {
            self.counters.huge_pages_since.add(1);
            Some(marked.huge())
        } else {
            self.place_settled(&packed)
        };
        let Some(new) = new else { return false };
        self.replace_fresh(found, new, duplicates.then_some(packed.hash))
    }

    /// Room within the whole limit; a pool that is over it becomes smaller with each page. The old object goes at once.
    fn place_settled(&self, packed: &Packed) -> Option<Entry> {
        let (limit, held) = (self.knobs.max_pool_bytes.load(Relaxed), self.pool_bytes());
        let limit = if held > limit { held + ROOM } else { limit };
        let zpool = self.objects.zpool_for(packed.bytes.len())?;
        let room = self.objects.allocate(zpool, packed.bytes.len(), limit).ok()??;
        Some(self.objects.place(room, packed))
    }

    /// Puts `new` in the place of the marked entry, if that is still there, and tells of it who looks for this hash.
    fn replace_fresh(&self, found: &Found, new: Entry, hash: Option<u64>) -> bool {
        let mut place = None;
        let is_done = self.exchange(found.key, found.marked, new, |shard, leaf, bit| {
            let number = Spot::new(found.key).shard();
            place = Place::new(number, leaf, bit).map(|place| (place, shard.estimate()));
        });
        let keeps_object = new == found.marked.huge();
        if !keeps_object {
            self.objects.release(if is_done { found.marked } else { new });
        }
        if let (Some(hash), Some((place, pages))) = (hash, place) {
            self.dedup.insert(hash, place, pages);
        }
        is_done
    }
}
