//! Loading: from an entry back to the page.
//!
//! An object in a zpool is verified and decompressed straight out of the pool, under the lock of the shard whose
//! entry names it: no copy, and nothing can free it meanwhile. A tier is read without a lock; after that the
//! entry is looked at again, and if it is another one, what was read may be anything and the load starts anew.
//!
//! Neighbours that lie in the pool as they are come together, under one lock ([`Store::load_run`]), or are not even
//! copied ([`Store::lend`]). The price: who wants another page of the shard waits for up to 64 copies.

use super::{Scratch, Store};
use crate::entry::{Entry, State};
use crate::index::{Shard, Spot};
use crate::objects::{Corrupt, Scratches};
use crate::page::{Page, fill};
use crate::pools::Key;
use crate::tier;

/// Why a page was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// the store does not hold the page
    #[error("the store does not hold the page")]
    Miss,
    /// the page is damaged
    #[error("the page is damaged: {0}")]
    Corrupt(Corrupt),
    /// the tier did not give the page
    #[error("the tier did not give the page: {0}")]
    Tier(tier::ReadError),
}

impl Store {
    /// Loads the page stored under `key` into `page`. It stays stored, and is the most recently used.
    ///
    /// # Errors
    /// [`LoadError`]; then the contents of `page` are undefined.
    pub fn load(&self, key: Key, page: &mut Page, scratch: &mut Scratch) -> Result<(), LoadError> {
        self.load_run(key, std::slice::from_mut(page), scratch).map(drop)
    }

    /// Loads the page stored under `key` into the first of `pages`, as [`Store::load`] does, and its neighbours into
    /// those behind it while that takes no more than a copy each. Gives how many pages it loaded: one at least.
    ///
    /// # Errors
    /// [`LoadError`], of the first page; then the contents of `pages` are undefined.
    ///
    /// # Panics
    /// If `pages` is empty.
    pub fn load_run(&self, key: Key, pages: &mut [Page], scratch: &mut Scratch) -> Result<usize, LoadError> {
        let spot = Spot::new(key);
        let (page, behind) = pages.split_first_mut().expect("room for a page");
        let after = |count: usize| Some(Key { index: key.index.wrapping_add(count as u64), ..key });
        let Scratch { codecs, packed, next, .. } = scratch;
        let in_sequence = !behind.is_empty() || *next == Some(key);
        *next = after(1);
        loop {
            let mut shard = self.index.lock(spot.shard());
            let Some((leaf, entry)) = shard.get(&spot) else {
                shard.counts.misses += 1;
                return Err(LoadError::Miss);
            };
            shard.touch(leaf, spot.bit);
            if in_sequence {
                self.prefetch(shard.leaf(leaf).get(spot.bit + 1));
            }
            let in_tier = match entry.state() {
                State::Shared => {
                    self.objects.shared.read(entry.shared_id(), |object| self.load_here(object, page, codecs))
                }
                _ => self.load_here(entry, page, codecs),
            };
            let Some(object) = in_tier.map_err(|why| self.corrupt(why))? else {
                shard.counts.loads += 1;
                shard.counts.dense_loads += u64::from(self.is_dense(entry));
                let old = self.keep_loaded(&mut shard, (leaf, spot.bit), entry, page);
                let count = 1 + self.load_raw(&mut shard, (leaf, spot.bit + 1), behind, codecs);
                drop(shard);
                old.into_iter().for_each(|old| self.objects.release(old));
                *next = after(count);
                return Ok(count);
            };
            drop(shard);
            let result = self.load_from_tier(object, page, packed, codecs);
            if self.still_there(&spot, entry, object, result.is_ok()) {
                return result.map(|()| 1);
            }
        }
    }

    /// Loads the pages of a leaf from a bit on that lie in a zpool as they are, or nowhere, until one does not. Gives
    /// how many.
    fn load_raw(
        &self,
        shard: &mut Shard,
        (leaf, first): (u32, u32),
        pages: &mut [Page],
        codecs: &mut Scratches,
    ) -> usize {
        let mut count = 0;
        for (bit, page) in (first..).zip(pages) {
            let entries = shard.leaf(leaf);
            let is_near = |entry: &Entry| entry.state() == State::Same || entry.in_pool() && entry.is_raw();
            let Some(entry) = entries.get(bit).filter(is_near) else { break };
            self.prefetch(entries.get(bit + 1));
            if self.load_here(entry, page, codecs).is_err() {
                // Whoever loads this page for itself is told.
                break;
            }
            shard.touch(leaf, bit);
            count += 1;
        }
        shard.counts.loads += count as u64;
        count
    }

    /// Lends the page stored under `key` and those behind it, `count` in all, to `with`, where they lie. False, and
    /// nothing was lent, unless all lie in one zpool as they are, or are zeros, in one leaf and undamaged. They stay
    /// stored, and are the most recently used.
    ///
    /// Contract of the caller: `with` takes no longer than copies of the pages, and does not call the store. Whoever
    /// wants a page of the shard waits for it.
    pub fn lend(&self, key: Key, count: usize, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let spot = Spot::new(key);
        let mut shard = self.index.lock(spot.shard());
        let Some(leaf) = shard.find(&spot) else { return false };
        let bits = || (spot.bit..).take(count);
        let entry = |bit| shard.leaf(leaf).get(bit);
        let Some(entries) = bits().map(entry).collect::<Option<Vec<_>>>() else { return false };
        let is_lent = self.objects.lend(&entries, with);
        if is_lent {
            bits().for_each(|bit| shard.touch(leaf, bit));
            shard.counts.loads += count as u64;
        }
        is_lent
    }

    /// Has the processor fetch what the next load of a sequence will read, while it decompresses this page.
    fn prefetch(&self, next: Option<Entry>) {
        if let Some(entry) = next.filter(|entry| entry.in_pool()) {
            self.objects.prefetch(entry);
        }
    }

    /// Loads an entry or shared object from memory; gives it back if it is in the tier.
    fn load_here(
        &self,
        object: Entry,
        page: &mut Page,
        codecs: &mut Scratches,
    ) -> Result<Option<Entry>, Corrupt> {
        match object.state() {
            State::Same => fill(page, object.filling()),
            State::Tier => return Ok(Some(object)),
            _ => self.objects.unpack(object, page, codecs)?,
        }
        Ok(None)
    }

    fn load_from_tier(
        &self,
        object: Entry,
        page: &mut Page,
        packed: &mut Page,
        codecs: &mut Scratches,
    ) -> Result<(), LoadError> {
        let tier = self.objects.tiers.get(object.tier());
        let len = tier.read(object.slot(), packed).map_err(|error| {
            self.counters.tier_fail.add(1);
            LoadError::Tier(error)
        })?;
        let bytes = packed.get(..len).filter(|bytes| bytes.len() == object.len());
        let decoded =
            bytes.ok_or(Corrupt::Checksum).and_then(|bytes| self.objects.decode(object, bytes, page, codecs));
        decoded.map_err(|why| self.corrupt(why))
    }

    /// Whether the object that was read from the tier without a lock is still what the key stands for. If not,
    /// its slot may have been used for something else meanwhile.
    fn still_there(&self, spot: &Spot, entry: Entry, object: Entry, loaded: bool) -> bool {
        let mut shard = self.index.lock(spot.shard());
        let same = shard.get(spot).is_some_and(|(_, now)| {
            now == entry
                && (entry == object || self.objects.shared.read(entry.shared_id(), |now| now == object))
        });
        shard.counts.loads += u64::from(same && loaded);
        shard.counts.tier_loads += u64::from(same && loaded);
        same
    }

    fn corrupt(&self, why: Corrupt) -> LoadError {
        match why {
            Corrupt::Checksum => self.counters.checksum_fail.add(1),
            Corrupt::Decompress => self.counters.decompress_fail.add(1),
        }
        LoadError::Corrupt(why)
    }
}
