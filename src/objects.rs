//! Objects: the stored bytes that an entry names, wherever they are.
//!
//! An entry names a codec, and a zpool with a handle, a tier with a slot, or a shared object, by numbers. Here the
//! numbers have their meaning: room is taken, bytes are placed, lent, unpacked and given back. Which pages are
//! kept, and under which keys, is not known here: this floor lies below the index and never calls up.
//!
//! Guarantee: what [`Objects::unpack`] and [`Objects::decode`] give is the page that was packed, or an error. That an
//! object is not freed while it is read is the caller's business: it holds the lock under which its entry lies.

mod generations;
mod packed;
mod shared;

pub(crate) use packed::{Packed, hash};
pub(crate) use shared::{Gauges, Shared, Visit};

use crate::bits::low32;
use crate::codec::{self, Codec};
use crate::entry::{Entry, MAX_CODECS, MAX_TIERS, MAX_ZPOOLS, State};
use crate::page::{PAGE_SIZE, Page};
use crate::tier::Tier;
use crate::zpool::{self, ArenaOptions, Handle, MallocError, Zpool};
use generations::Generations;
use std::sync::{Arc, OnceLock};

/// What the entries of one store can name.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) codecs: Generations<dyn Codec, MAX_CODECS>,
    pub(crate) zpools: Generations<dyn Zpool, MAX_ZPOOLS>,
    /// The number of the zpool that takes whole pages when the current one does not.
    whole_pages: OnceLock<usize>,
    /// In the order in which they are written to.
    pub(crate) tiers: Generations<dyn Tier, MAX_TIERS>,
    pub(crate) shared: Shared,
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

/// How a stored page was found to be damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// the stored bytes are not what was stored
    #[error("the stored bytes are not what was stored")]
    Checksum,
    /// the stored bytes do not decompress
    #[error("the stored bytes do not decompress")]
    Decompress,
}

/// The number of a zpool, and room in it.
pub(crate) type Room = (usize, Handle);

/// Whether these are the bytes that the object was stored with, by its checksum.
pub(crate) fn is_whole(object: Entry, bytes: &[u8]) -> bool {
    low32(hash(bytes)) == object.sum()
}

impl Objects {
    pub(crate) fn new(codec: Arc<dyn Codec>, zpool: Arc<dyn Zpool>, tier: Option<Arc<dyn Tier>>) -> Self {
        Self {
            codecs: Generations::new(Some(codec)),
            zpools: Generations::new(Some(zpool)),
            whole_pages: OnceLock::new(),
            tiers: Generations::new(tier),
            shared: Shared::new(),
        }
    }

    /// The zpool that takes new objects of this size. None if none does.
    pub(crate) fn zpool_for(&self, size: usize) -> Option<usize> {
        let (number, zpool) = self.zpools.current();
        if size <= zpool.max_size() { Some(number) } else { self.whole_page_zpool() }
    }

    /// The zpool for pages that are kept as they are, when the current one has no room for a whole page.
    fn whole_page_zpool(&self) -> Option<usize> {
        if let Some(number) = self.whole_pages.get() {
            return Some(*number);
        }
        let zpool = zpool::by_name("zsmalloc", &ArenaOptions::default()).ok()?;
        let number = self.zpools.add(Arc::from(zpool), |zpool| zpool.name())?;
        Some(*self.whole_pages.get_or_init(|| number))
    }

    /// Room for so many bytes in the zpool of this number. None if the zpools would hold more than `limit` then.
    pub(crate) fn allocate(
        &self,
        number: usize,
        size: usize,
        limit: u64,
    ) -> Result<Option<Room>, MallocError> {
        let zpool = self.zpools.get(number);
        let handle = zpool.malloc(size)?;
        if self.pool_bytes() > limit {
            zpool.free(handle);
            return Ok(None);
        }
        Ok(Some((number, handle)))
    }

    /// Places the bytes in the room that they were given.
    pub(crate) fn place(&self, (number, handle): Room, packed: &Packed) -> Entry {
        self.zpools.get(number).write(handle, packed.bytes);
        packed.entry(handle, number)
    }

    /// Has the processor fetch an object that is in a zpool.
    pub(crate) fn prefetch(&self, object: Entry) {
        self.zpools.get(object.zpool()).prefetch(object.handle(), object.len());
    }

    /// Lends the bytes of an object that is in a zpool.
    pub(crate) fn read(&self, object: Entry, with: &mut dyn FnMut(&[u8])) {
        self.zpools.get(object.zpool()).read(object.handle(), object.len(), with);
    }

    /// Lends pages that lie in one zpool as they are, and pages of zeros, if none is damaged and the zpool does that.
    pub(crate) fn lend(&self, pages: &[Entry], with: &mut dyn FnMut(&[&[u8]])) -> bool {
        static ZEROS: Page = [0; PAGE_SIZE];
        let is_zeros = |page: &Entry| page.state() == State::Same && page.filling() == 0;
        let objects: Vec<Entry> = pages.iter().copied().filter(|page| !is_zeros(page)).collect();
        let Some(first) = objects.first() else {
            with(&vec![&ZEROS[..]; pages.len()]);
            return true;
        };
        if !objects.iter().all(|page| page.in_pool() && page.is_raw() && page.zpool() == first.zpool()) {
            return false;
        }
        let handles: Vec<Handle> = objects.iter().map(|page| page.handle()).collect();
        let mut are_whole = false;
        self.zpools.get(first.zpool()).read_together(&handles, PAGE_SIZE, &mut |lent| {
            are_whole = lent.iter().zip(&objects).all(|(bytes, page)| is_whole(*page, bytes));
            if are_whole {
                let mut lent = lent.iter().copied();
                let of_page = |page| if is_zeros(page) { Some(&ZEROS[..]) } else { lent.next() };
                with(&pages.iter().filter_map(of_page).collect::<Vec<_>>());
            }
        });
        are_whole
    }

    /// Whether the object is in a zpool and has these bytes, one by one.
    pub(crate) fn holds(&self, object: Entry, packed: &Packed) -> bool {
        let mut equal = false;
        if packed.may_be(object) {
            self.read(object, &mut |stored| equal = stored == packed.bytes);
        }
        equal
    }

    /// The page of an object that is in a zpool.
    pub(crate) fn unpack(
        &self,
        object: Entry,
        page: &mut Page,
        codecs: &mut Scratches,
    ) -> Result<(), Corrupt> {
        let mut result = Err(Corrupt::Checksum);
        self.read(object, &mut |bytes| result = self.decode(object, bytes, page, codecs));
        result
    }

    /// The page of an object's bytes. Any bytes are safe to decompress, and then they are near: so the checksum is
    /// looked at last.
    pub(crate) fn decode(
        &self,
        object: Entry,
        bytes: &[u8],
        page: &mut Page,
        codecs: &mut Scratches,
    ) -> Result<(), Corrupt> {
        let restored = if object.is_raw() {
            page.copy_from_slice(bytes);
            Ok(())
        } else {
            let codec = self.codecs.get(object.codec());
            codec.decompress(codecs.of(object.codec(), codec), bytes, page)
        };
        if !is_whole(object, bytes) {
            return Err(Corrupt::Checksum);
        }
        restored.map_err(|_| Corrupt::Decompress)
    }

    /// Gives back what an entry holds that nothing names any more.
    pub(crate) fn release(&self, entry: Entry) {
        match entry.state() {
            State::Same => {}
            State::Pool | State::Writing => self.zpools.get(entry.zpool()).free(entry.handle()),
            State::Tier => self.tiers.get(entry.tier()).discard(entry.slot()),
            State::Shared => {
                if let Some(object) = self.shared.leave(entry.shared_id()) {
                    self.release(object);
                }
            }
        }
    }

    /// Has each zpool move objects together, as [`Zpool::compact`]. Returns the pages given back to the system.
    pub(crate) fn compact(&self, max_pages: usize) -> usize {
        self.zpools.iter().map(|zpool| zpool.compact(max_pages)).sum()
    }

    /// Bytes that the zpools hold now. A few loads from memory.
    pub(crate) fn pool_bytes(&self) -> u64 {
        self.zpools.iter().map(|zpool| zpool.total_pages() as u64 * PAGE_SIZE as u64).sum()
    }

    /// Bytes of the tables of codecs, zpools, tiers and shared objects.
    pub(crate) fn meta_bytes(&self) -> usize {
        let codecs: usize = self.codecs.iter().map(Codec::meta_bytes).sum();
        let zpools: usize = self.zpools.iter().map(Zpool::meta_bytes).sum();
        let tiers: usize = self.tiers.iter().map(Tier::meta_bytes).sum();
        codecs + zpools + tiers + self.shared.meta_bytes()
    }
}
