//! One row of the report: a compressor and a zpool on the corpus.
//!
//! The store and the bare codec take turns in chunks of a megabyte, half the corpus apart: both see the machine at
//! the same speed, and neither finds in the cache what the other has just read.

use super::corpus::Corpus;
use crate::failure::Failure;
use ramfold::codec::{self, Codec};
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolId, PoolKind, Scratch, Store};
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds of which the median counts.
const ROUNDS: usize = 5;
/// Pages in a turn.
const CHUNK: usize = 256;
/// Churn: rounds, the share of the pages replaced in each, and the rounds that are averaged.
const AGE_ROUNDS: usize = 40;
const AGE_SHARE: usize = 10;
const AGE_COUNTED: usize = 10;

/// What was measured of one compressor and one zpool.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    pub compressor: String,
    pub zpool: String,
    pub ratio: f64,
    pub pool_ratio: f64,
    pub pool_overhead: f64,
    pub pool_overhead_aged: f64,
    pub meta_bytes_per_page: f64,
    pub store_mb_s: f64,
    pub load_mb_s: f64,
    pub codec_compress_mb_s: f64,
    pub codec_decompress_mb_s: f64,
    pub store_us: Quantiles,
    pub load_us: Quantiles,
    pub two_threads_x: f64,
}

/// Durations in microseconds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

impl Quantiles {
    fn of(mut ns: Vec<u64>) -> Self {
        ns.sort_unstable();
        let at = |percent: usize| ns[(ns.len() - 1) * percent / 100] as f64 / 1000.0;
        Self { p50: at(50), p99: at(99) }
    }
}

impl Row {
    /// Measures.
    pub fn measure(corpus: &Corpus, compressor: &str, zpool: &str) -> Result<Self, Failure> {
        let mut shelf = Shelf::new(compressor, zpool)?;
        let mut bare = Bare::new(compressor)?;
        shelf.store_all(&corpus.unique)?;
        let stats = shelf.store.stats();
        let (original, compressed) = (stats.orig_data_size as f64, stats.compr_data_size as f64);
        bare.pack_all(&corpus.unique);
        let rates = alternate(corpus, &mut shelf, &mut bare)?;
        let (store_us, load_us) = shelf.latencies(&corpus.unique)?;
        Ok(Self {
            compressor: compressor.into(),
            zpool: zpool.into(),
            ratio: original / compressed,
            pool_ratio: original / stats.pool_total_size as f64,
            pool_overhead: stats.pool_total_size as f64 / compressed,
            pool_overhead_aged: aged_overhead(&corpus.unique, compressor, zpool)?,
            meta_bytes_per_page: stats.meta_bytes as f64 / stats.stored_pages as f64,
            store_mb_s: rates.store,
            load_mb_s: rates.load,
            codec_compress_mb_s: rates.compress,
            codec_decompress_mb_s: rates.decompress,
            store_us,
            load_us,
            two_threads_x: shelf.two_threads(&corpus.unique)?,
        })
    }
}

/// How fast pages are copied from where they lie to one place, in MB/s.
pub fn memcpy_mb_s(corpus: &Corpus) -> f64 {
    let mut page = [0; PAGE_SIZE];
    median(|| {
        let started = Instant::now();
        for from in &corpus.unique {
            page.copy_from_slice(from);
            black_box(&page);
        }
        rate(corpus.bytes(), started.elapsed())
    })
}

/// MB/s of the four kinds of work.
struct Rates {
    store: f64,
    load: f64,
    compress: f64,
    decompress: f64,
}

fn alternate(corpus: &Corpus, shelf: &mut Shelf, bare: &mut Bare) -> Result<Rates, Failure> {
    let pages = &corpus.unique;
    let chunks: Vec<_> =
        (0..pages.len()).step_by(CHUNK).map(|at| at..(at + CHUNK).min(pages.len())).collect();
    let mut rounds: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut spent = [Duration::ZERO; 4];
        for (index, ours) in chunks.iter().enumerate() {
            let theirs = chunks[(index + chunks.len() / 2) % chunks.len()].clone();
            spent[0] += shelf.replace(pages, ours.clone())?;
            spent[1] += bare.compress(pages, theirs);
        }
        for (index, ours) in chunks.iter().enumerate() {
            let theirs = chunks[(index + chunks.len() / 2) % chunks.len()].clone();
            spent[2] += shelf.load(ours.clone())?;
            spent[3] += bare.decompress(theirs);
        }
        rounds.iter_mut().zip(spent).for_each(|(all, spent)| all.push(rate(corpus.bytes(), spent)));
    }
    let [store, compress, load, decompress] = rounds.map(middle);
    Ok(Rates { store, load, compress, decompress })
}

/// The bare codec, with the compressed pages one after another.
struct Bare {
    codec: Box<dyn Codec>,
    scratch: codec::Scratch,
    packed: Vec<u8>,
    /// Where each page's bytes end in `packed`; pages that do not compress are packed as they are.
    ends: Vec<usize>,
}

impl Bare {
    fn new(compressor: &str) -> Result<Self, Failure> {
        let codec = codec::by_name(compressor).map_err(|error| Failure::usage(error.to_string()))?;
        let scratch = codec.scratch();
        Ok(Self { codec, scratch, packed: Vec::new(), ends: vec![0] })
    }

    fn pack_all(&mut self, pages: &[Page]) {
        let mut out = [0; PAGE_SIZE - 1];
        for page in pages {
            let len = self.codec.compress(&mut self.scratch, page, &mut out);
            self.packed.extend_from_slice(len.map_or(&page[..], |len| &out[..len]));
            self.ends.push(self.packed.len());
        }
    }

    fn compress(&mut self, pages: &[Page], range: Range<usize>) -> Duration {
        let mut out = [0; PAGE_SIZE - 1];
        let started = Instant::now();
        for page in &pages[range] {
            let _ = black_box(self.codec.compress(&mut self.scratch, page, &mut out));
        }
        started.elapsed()
    }

    fn decompress(&mut self, range: Range<usize>) -> Duration {
        let mut page = [0; PAGE_SIZE];
        let started = Instant::now();
        for index in range {
            let bytes = &self.packed[self.ends[index]..self.ends[index + 1]];
            if bytes.len() == PAGE_SIZE {
                page.copy_from_slice(bytes);
            } else {
                let _ = black_box(self.codec.decompress(&mut self.scratch, bytes, &mut page));
            }
            black_box(&page);
        }
        started.elapsed()
    }
}

/// A store without a limit and without a tier, and one thread's working memory for it.
struct Shelf {
    store: Arc<Store>,
    pool: PoolId,
    scratch: Scratch,
}

impl Shelf {
    fn new(compressor: &str, zpool: &str) -> Result<Self, Failure> {
        let config = Config {
            compressor: compressor.into(),
            zpool: zpool.into(),
            max_pool_bytes: u64::MAX,
            ..Config::default()
        };
        let store = Store::new(&config, None).map_err(|error| Failure::usage(error.to_string()))?;
        let pool = store.create_pool(PoolKind::Persistent, None);
        let scratch = store.scratch();
        Ok(Self { store: Arc::new(store), pool, scratch })
    }

    fn key(&self, index: usize) -> Key {
        Key { pool: self.pool, object: 0, index: index as u64 }
    }

    fn put(&mut self, index: usize, page: &Page) -> Result<(), Failure> {
        self.store.store(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    fn get(&mut self, index: usize, page: &mut Page) -> Result<(), Failure> {
        self.store.load(self.key(index), page, &mut self.scratch).map_err(refused)
    }

    fn store_all(&mut self, pages: &[Page]) -> Result<(), Failure> {
        pages.iter().enumerate().try_for_each(|(index, page)| self.put(index, page))
    }

    /// Stores the pages again where they were just invalidated. The invalidation is not timed: in a pager it
    /// belongs to the load before.
    fn replace(&mut self, pages: &[Page], range: Range<usize>) -> Result<Duration, Failure> {
        for index in range.clone() {
            self.store.invalidate(self.key(index));
        }
        let started = Instant::now();
        for index in range {
            self.put(index, &pages[index])?;
        }
        Ok(started.elapsed())
    }

    fn load(&mut self, range: Range<usize>) -> Result<Duration, Failure> {
        let mut page = [0; PAGE_SIZE];
        let started = Instant::now();
        for index in range {
            self.get(index, &mut page)?;
            black_box(&page);
        }
        Ok(started.elapsed())
    }

    /// Each store and each load on its own, in an order without pattern.
    fn latencies(&mut self, pages: &[Page]) -> Result<(Quantiles, Quantiles), Failure> {
        let mut random = Random(1);
        let (mut stores, mut loads, mut page) = (Vec::new(), Vec::new(), [0; PAGE_SIZE]);
        for _ in 0..pages.len() {
            let index = random.below(pages.len());
            self.store.invalidate(self.key(index));
            let started = Instant::now();
            self.put(index, &pages[index])?;
            stores.push(nanoseconds(started.elapsed()));
            let other = random.below(pages.len());
            let started = Instant::now();
            self.get(other, &mut page)?;
            loads.push(nanoseconds(started.elapsed()));
        }
        Ok((Quantiles::of(stores), Quantiles::of(loads)))
    }

    /// Two threads that replace and load pages, each its own half, against one that does both halves.
    fn two_threads(&mut self, pages: &[Page]) -> Result<f64, Failure> {
        let (low, high) = (0..pages.len() / 2, pages.len() / 2..pages.len());
        let mut second =
            Self { store: Arc::clone(&self.store), pool: self.pool, scratch: self.store.scratch() };
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let started = Instant::now();
            self.replace_and_load(pages, low.clone())?;
            self.replace_and_load(pages, high.clone())?;
            let alone = started.elapsed();
            let started = Instant::now();
            std::thread::scope(|scope| {
                let other = scope.spawn(|| second.replace_and_load(pages, high.clone()));
                let own = self.replace_and_load(pages, low.clone());
                own.and(other.join().expect("the thread only stores and loads"))
            })?;
            ratios.push(alone.as_secs_f64() / started.elapsed().as_secs_f64());
        }
        Ok(middle(ratios))
    }

    fn replace_and_load(&mut self, pages: &[Page], range: Range<usize>) -> Result<(), Failure> {
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..(start + CHUNK).min(range.end);
            self.replace(pages, chunk.clone())?;
            self.load(chunk)?;
        }
        Ok(())
    }
}

/// Bytes of pool memory to compressed bytes after churn. Two thirds of the pages are stored; in each round a tenth
/// of those gives way to pages of the rest.
fn aged_overhead(pages: &[Page], compressor: &str, zpool: &str) -> Result<f64, Failure> {
    let mut shelf = Shelf::new(compressor, zpool)?;
    let mut random = Random(2);
    let stored = pages.len() * 2 / 3;
    // `order[..stored]` are the pages that are stored, each under its place in the order.
    let mut order: Vec<usize> = (0..pages.len()).collect();
    for (place, page) in order[..stored].iter().enumerate() {
        shelf.put(place, &pages[*page])?;
    }
    let mut overheads = Vec::new();
    for _ in 0..AGE_ROUNDS {
        for _ in 0..stored / AGE_SHARE {
            let (out, r#in) = (random.below(stored), stored + random.below(pages.len() - stored));
            order.swap(out, r#in);
            shelf.put(out, &pages[order[out]])?;
        }
        let stats = shelf.store.stats();
        overheads.push(stats.pool_total_size as f64 / stats.compr_data_size as f64);
        shelf.store.compact();
    }
    let counted = &overheads[AGE_ROUNDS - AGE_COUNTED..];
    Ok(counted.iter().sum::<f64>() / AGE_COUNTED as f64)
}

/// Marsaglia's xorshift: the order only has to be without pattern, and the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap_or(0)
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("bench pages: {error}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    middle((0..ROUNDS).map(|_| measure()).collect())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
