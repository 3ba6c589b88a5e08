//! Recompression: what stays in the pool for long is made denser by a slower codec, as zram's `recompress` does.
//!
//! A sweep goes over all leaves. An entry that it meets for the first time is marked idle; one that is idle still when
//! the next sweep comes by (it was neither loaded nor stored meanwhile) is compressed anew. So the time between two
//! sweeps, which is the caller's to choose, is the age at which a page counts as cold. What the dense codec makes no
//! smaller is left as it is and not tried again, unless it is stored anew.
//!
//! The price: two bits an entry, and the processor time of the caller, who should have nothing better to do. No lock
//! is held while a page is compressed; the guarantee is that of writeback: the new object takes the place of the old
//! one only if the entry still is the one that was read, and both give the same page.

mod chosen;
mod sample;

use super::Store;
use crate::entry::{Entry, State};
use crate::index::{SHARDS, Shard};
use crate::objects::{Packed, Scratches};
use crate::page::{PAGE_SIZE, Page};
use crate::pools::Key;
use std::sync::atomic::Ordering::Relaxed;

/// A dense object is smaller by this part of the old one at least: less does not pay for the slower load.
const LEAST_GAIN: usize = 16;

/// Leaves that are looked through in about the time that compressing a page takes.
const LEAVES_A_PAGE: usize = 16;

/// The working memory and the place of who sweeps. Some megabytes once it has been used.
pub struct Sweep {
    codecs: Scratches,
    packed: Box<Page>,
    page: Box<Page>,
    shard: usize,
    leaf: u32,
    bit: u32,
}

impl std::fmt::Debug for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweep").field("shard", &self.shard).field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

impl Default for Sweep {
    fn default() -> Self {
        let (packed, page) = (Box::new([0; PAGE_SIZE]), Box::new([0; PAGE_SIZE]));
        Self { codecs: Scratches::default(), packed, page, shard: 0, leaf: 0, bit: 0 }
    }
}

/// What a part of a sweep has done.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Recompressed {
    /// Pages made denser.
    pub pages: u64,
    /// The sweep is over; the next call begins another.
    pub swept: bool,
}

/// A page that was found idle. Its bytes are in the sweep's buffer.
struct Idle {
    key: Key,
    entry: Entry,
}

/// The pool is full: another time.
struct NoRoom;

impl Store {
    /// Goes on with a sweep until `most` idle pages have been tried, or as much was looked at as takes that long. Does
    /// nothing if no dense codec was chosen.
    pub fn recompress(&self, most: usize, sweep: &mut Sweep) -> Recompressed {
        let mut done = Recompressed::default();
        let Some(dense) = self.dense() else { return Recompressed { swept: true, ..done } };
        let mut leaves = most.saturating_mul(LEAVES_A_PAGE);
        for _ in 0..most {
            let Some(idle) = self.next_idle(sweep, &mut leaves) else {
                if sweep.shard == SHARDS {
                    (sweep.shard, sweep.leaf, sweep.bit) = (0, 0, 0);
                    done.swept = true;
                }
                break;
            };
            let Ok(new) = self.make_denser(&idle, dense, sweep) else { continue };
            done.pages += u64::from(self.settle(&idle, new));
        }
        self.counters.recompressed_pages.add(done.pages);
        done
    }

    /// The next page that was idle already, and marks on the way. None at the end of the sweep, or of so many leaves.
    fn next_idle(&self, sweep: &mut Sweep, leaves: &mut usize) -> Option<Idle> {
        while sweep.shard < SHARDS && *leaves > 0 {
            let mut shard = self.index.lock(sweep.shard);
            let Some(id) = shard.next_leaf(sweep.leaf, |_| true) else {
                drop(shard);
                (sweep.shard, sweep.leaf, sweep.bit) = (sweep.shard + 1, 0, 0);
                continue;
            };
            if id != sweep.leaf {
                (sweep.leaf, sweep.bit) = (id, 0);
            }
            while let Some(bit) = shard.next_idle_in(id, &mut sweep.bit) {
                let (key, entry) = (shard.leaf(id).key(bit), shard.leaf(id).get(bit)?);
                if entry.is_fresh() {
                    continue;
                }
                if entry.state() == State::Pool && !self.is_dense(entry) {
                    let packed = &mut sweep.packed[..entry.len()];
                    self.objects.read(entry, &mut |bytes| packed.copy_from_slice(bytes));
                    return Some(Idle { key, entry });
                }
                shard.set_dense(id, bit);
            }
            (sweep.leaf, sweep.bit) = (id + 1, 0);
            *leaves -= 1;
        }
        None
    }

    /// The page as an object of the dense codec, if that is smaller.
    fn make_denser(&self, idle: &Idle, dense: usize, sweep: &mut Sweep) -> Result<Option<Entry>, NoRoom> {
        let Sweep { codecs, packed, page, .. } = sweep;
        let len = idle.entry.len();
        // A damaged object stays: who loads it will be told.
        if self.objects.decode(idle.entry, &packed[..len], page, codecs).is_err() {
            return Ok(None);
        }
        let codec = self.objects.codecs.get(dense);
        let room = &mut packed[..len - len / LEAST_GAIN - 1];
        let Ok(len @ 1..) = codec.compress(codecs.of(dense, codec), page, room) else { return Ok(None) };
        let room = self.room_within_limit(idle.entry.zpool(), len).ok().flatten().ok_or(NoRoom)?;
        Ok(Some(self.objects.place(room, &Packed::new(&packed[..len], dense))))
    }

    /// Puts the new object in the place of the old one, or notes that there is none to be had. Whether the page is
    /// denser.
    fn settle(&self, idle: &Idle, new: Option<Entry>) -> bool {
        let old = idle.entry;
        let unchanged = self.exchange(idle.key, old, new.unwrap_or(old), Shard::set_dense);
        let Some(new) = new else { return false };
        self.objects.release(if unchanged { old } else { new });
        unchanged
    }

    /// Whether the entry's own object was made by the dense codec.
    pub(super) fn is_dense(&self, entry: Entry) -> bool {
        entry.in_pool() && self.dense() == Some(entry.codec()) && !entry.is_raw()
    }

    /// The number of the dense codec, if there is one.
    fn dense(&self) -> Option<usize> {
        self.knobs.dense.load(Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, PoolKind};
    use std::sync::Arc;

    fn store(dense: Option<&str>) -> Store {
        let config = Config {
            max_pool_bytes: 64 << 20,
            recomp_algorithm: dense.map(str::to_owned),
            ..Config::default()
        };
        Store::new(&config, None).unwrap()
    }

    /// Text-like: lz4 finds less in it than zstd.
    fn page(number: u64) -> Page {
        let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            b"etaoinsh"[usize::from(x.to_le_bytes()[0] % 8)]
        })
    }

    /// Calls until the sweep is over.
    fn sweep_all(store: &Store, sweep: &mut Sweep) -> Recompressed {
        let mut sum = Recompressed::default();
        while !sum.swept {
            let part = store.recompress(7, sweep);
            sum.pages += part.pages;
            sum.swept = part.swept;
        }
        sum
    }

    #[test]
    fn what_stays_becomes_denser_and_reads_the_same() {
        let store = store(Some("zstd:1"));
        let pool = store.create_pool(PoolKind::Persistent, None);
        let key = |index| Key { pool, object: 3, index };
        let (mut scratch, mut sweep) = (store.scratch(), Sweep::default());
        for index in 0..200 {
            store.store(key(index), &page(index), &mut scratch).unwrap();
        }
        let before = store.stats().compr_data_size;
        assert_eq!(sweep_all(&store, &mut sweep).pages, 0, "seen for the first time");
        // Used again, and stored anew: neither is cold.
        store.load(key(5), &mut [0; PAGE_SIZE], &mut scratch).unwrap();
        store.store(key(6), &page(1000), &mut scratch).unwrap();
        let done = sweep_all(&store, &mut sweep);
        assert_eq!(done.pages, 198);
        let stats = store.stats();
        assert_eq!((stats.recompressed_pages, stats.stored_pages), (198, 200));
        assert!(stats.compr_data_size < before * 9 / 10, "{before} to {}", stats.compr_data_size);
        assert_eq!(sweep_all(&store, &mut sweep).pages, 2);
        assert_eq!(sweep_all(&store, &mut sweep).pages, 0, "all are done");
        let mut back = [0; PAGE_SIZE];
        for index in 0..200 {
            store.load(key(index), &mut back, &mut scratch).unwrap();
            assert!(back == page(if index == 6 { 1000 } else { index }), "page {index}");
        }
        store.check();
    }

    #[test]
    fn another_compressor_tries_again_what_the_first_made_no_smaller() {
        let store = store(Some("lz4hc:2"));
        let pool = store.create_pool(PoolKind::Persistent, None);
        let key = |index| Key { pool, object: 3, index };
        let (mut scratch, mut sweep) = (store.scratch(), Sweep::default());
        for index in 0..100 {
            store.store(key(index), &page(index), &mut scratch).unwrap();
        }
        (0..3).for_each(|_| assert_eq!(sweep_all(&store, &mut sweep).pages, 0, "no gain in it"));
        store.set_recomp_algorithm(Some("zstd:1")).unwrap();
        assert_eq!(sweep_all(&store, &mut sweep).pages, 100);
        store.check();
    }

    #[test]
    fn a_dictionary_of_a_sample_makes_pages_denser() {
        use crate::codec::{Dictionary, Zstd, train};
        // Words of 64 bytes that pages have in common, some to a page.
        let words = |number: u64| {
            let mut text = page(number);
            for (at, word) in text.as_chunks_mut::<64>().0.iter_mut().enumerate().skip(1) {
                word.copy_from_slice(&page((number * 7 + at as u64 * 13) % 200)[..64]);
            }
            text
        };
        let store = store(Some("zstd:3"));
        let pool = store.create_pool(PoolKind::Persistent, None);
        let key = |index| Key { pool, object: 3, index };
        let (mut scratch, mut sweep) = (store.scratch(), Sweep::default());
        for index in 0..400 {
            store.store(key(index), &words(index), &mut scratch).unwrap();
        }
        (0..2).for_each(|_| _ = sweep_all(&store, &mut sweep));
        let mut sample = vec![[0; PAGE_SIZE]; 128];
        for (index, page) in (0..).zip(&mut sample) {
            assert!(store.sample_page(key(index * 2), page, &mut sweep));
            assert!(*page == words(index * 2));
        }
        assert!(!store.sample_page(key(400), &mut [0; PAGE_SIZE], &mut sweep), "there is none");
        assert_eq!(store.stats().loads, 0, "a look is no use");
        let (before, meta) = (store.stats().compr_data_size, store.meta_bytes());
        let dictionary = Arc::new(Dictionary::new(train(&sample, 32 << 10).unwrap()).unwrap());
        let codec = || Arc::new(Zstd::with_dictionary(3, Arc::clone(&dictionary)).unwrap());
        let by = store.add_codec(codec()).unwrap();
        assert_eq!(store.add_codec(codec()), Ok(by), "the same once more");
        assert_ne!(store.compressor("zstd:3"), Ok(by), "not the one without it");
        assert!(store.meta_bytes() > meta + (32 << 10));
        store.set_recompressor(Some(by));
        assert_eq!((0..2).map(|_| sweep_all(&store, &mut sweep).pages).sum::<u64>(), 400);
        let stats = store.stats();
        assert!(stats.compr_data_size < before / 2, "{before} to {}", stats.compr_data_size);
        let mut back = [0; PAGE_SIZE];
        for index in 0..400 {
            store.load(key(index), &mut back, &mut scratch).unwrap();
            assert!(back == words(index), "page {index}");
        }
        store.check();
    }

    #[test]
    fn without_a_dense_codec_nothing_happens() {
        let store = store(None);
        assert!(store.recompress(10, &mut Sweep::default()).swept);
    }

    #[test]
    fn stores_and_loads_beside_a_sweep_read_what_they_stored() {
        let store = store(Some("zstd:1"));
        let pool = store.create_pool(PoolKind::Persistent, None);
        let key = |index| Key { pool, object: 0, index };
        std::thread::scope(|threads| {
            let worker = |thread: u64| {
                let store = &store;
                move || {
                    let mut scratch = store.scratch();
                    let mut back = [0; PAGE_SIZE];
                    for round in 0..40 {
                        for index in (thread * 64..thread * 64 + 128).step_by(2) {
                            let index = index * 2 + thread;
                            store.store(key(index), &page(index + round), &mut scratch).unwrap();
                            store.load(key(index), &mut back, &mut scratch).unwrap();
                            assert!(back == page(index + round));
                            if round % 3 == 0 {
                                store.invalidate(key(index));
                            }
                        }
                    }
                }
            };
            let workers = [threads.spawn(worker(0)), threads.spawn(worker(1))];
            let mut sweep = Sweep::default();
            while workers.iter().any(|worker| !worker.is_finished()) {
                store.recompress(50, &mut sweep);
            }
        });
        store.check();
    }
}
