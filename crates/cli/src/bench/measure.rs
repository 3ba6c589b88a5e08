//! One row of the report: a compressor and a zpool on the corpus.
//!
//! The store and the bare codec take turns in chunks of a megabyte, half the corpus apart: both see the machine at
//! the same speed, and neither finds in the cache what the other has just read. Both get the same pages in the same
//! order, none of them same-filled or a duplicate; the bare codec compresses into one run of bytes, and decompresses
//! from one. Rates are by the thread's processor time, so that other programs do not count. Slow codecs are timed on
//! a part of the chunks.

mod ageing;
mod bare;

use super::corpus::Corpus;
use crate::failure::Failure;
pub use bare::Bare;
use ramfold::PAGE_SIZE;
use ramfold_survey::shelf::{Quantiles, Shelf, thread_time};
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Rounds of which the median counts.
const ROUNDS: usize = 5;
/// Pages in a turn.
const CHUNK: usize = 256;
/// About how long the compressor may work in a round.
const ROUND_TIME: Duration = Duration::from_millis(120);

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
    pub store_of_codec: f64,
    pub load_of_codec: f64,
    pub store_us: Quantiles,
    pub load_us: Quantiles,
    pub two_threads_x: f64,
    pub codec_two_threads_x: f64,
}

impl Row {
    /// Measures. `bare` is the compressor alone.
    pub fn measure(corpus: &Corpus, bare: &mut Bare, zpool: &str) -> Result<Self, Failure> {
        let pages = &corpus.unique;
        let mut shelf = Shelf::new(bare.name(), zpool)?;
        shelf.store_all(pages)?;
        let stats = shelf.stats();
        let (original, compressed) = (stats.orig_data_size as f64, stats.compr_data_size as f64);
        let chunks = chunks(pages.len(), bare.pages_in(ROUND_TIME));
        let [store, compress, load, decompress] = alternate(corpus, &mut shelf, bare, &chunks)?;
        let (store_us, load_us) = shelf.latencies(pages, chunks.len() * CHUNK)?;
        let (two_threads_x, codec_two_threads_x) = two_threads(corpus, &mut shelf, bare, &chunks)?;
        drop(shelf);
        Ok(Self {
            compressor: bare.name().into(),
            zpool: zpool.into(),
            ratio: original / compressed,
            pool_ratio: original / stats.pool_total_size as f64,
            pool_overhead: stats.pool_total_size as f64 / compressed,
            pool_overhead_aged: ageing::overhead(corpus, bare, zpool)?,
            meta_bytes_per_page: stats.meta_bytes as f64 / stats.stored_pages as f64,
            store_of_codec: middle(ratios(&store, &compress)),
            load_of_codec: middle(ratios(&load, &decompress)),
            store_mb_s: middle(store),
            load_mb_s: middle(load),
            codec_compress_mb_s: middle(compress),
            codec_decompress_mb_s: middle(decompress),
            store_us,
            load_us,
            two_threads_x,
            codec_two_threads_x,
        })
    }
}

/// How fast pages are copied from where they lie to one place, in MB/s.
pub fn memcpy_mb_s(corpus: &Corpus) -> f64 {
    let mut page = [0; PAGE_SIZE];
    let mut copy = || {
        let started = thread_time();
        for from in &corpus.unique {
            page.copy_from_slice(from);
            black_box(&page);
        }
        rate(corpus.unique.len(), thread_time() - started)
    };
    middle((0..ROUNDS).map(|_| copy()).collect())
}

/// Chunks at even distances, with about `wanted` pages in all.
fn chunks(pages: usize, wanted: usize) -> Vec<Range<usize>> {
    let all = pages.div_ceil(CHUNK);
    let taken = wanted.div_ceil(CHUNK).clamp(2.min(all), all);
    (0..taken).map(|index| index * all / taken * CHUNK).map(|at| at..(at + CHUNK).min(pages)).collect()
}

/// MB/s of storing, compressing, loading and decompressing, in each round.
fn alternate(
    corpus: &Corpus,
    shelf: &mut Shelf,
    bare: &mut Bare,
    chunks: &[Range<usize>],
) -> Result<[Vec<f64>; 4], Failure> {
    let pages = &corpus.unique;
    let count = chunks.iter().map(ExactSizeIterator::len).sum();
    let pairs = || chunks.iter().cloned().zip(chunks.iter().cycle().skip(chunks.len() / 2).cloned());
    let mut rates: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut spent = [Duration::ZERO; 4];
        for (ours, theirs) in pairs() {
            spent[0] += shelf.replace(pages, ours)?;
            spent[1] += bare.compress(pages, theirs);
        }
        for (ours, theirs) in pairs() {
            spent[2] += shelf.load(ours)?;
            spent[3] += bare.decompress(theirs);
        }
        rates.iter_mut().zip(spent).for_each(|(rates, spent)| rates.push(rate(count, spent)));
    }
    Ok(rates)
}

/// How many times more two threads replace and load than one, each its own half of the chunks; and the same for the
/// bare codec, which shows what the machine can give at the time.
fn two_threads(
    corpus: &Corpus,
    shelf: &mut Shelf,
    bare: &mut Bare,
    chunks: &[Range<usize>],
) -> Result<(f64, f64), Failure> {
    let pages = &corpus.unique;
    let (mut other_shelf, mut other_bare) = (shelf.share(), bare.share());
    let store = |shelf: &mut Shelf, chunk: &Range<usize>| {
        shelf
            .replace(pages, chunk.clone())
            .and_then(|_| shelf.load(chunk.clone()))
            .map(drop)
            .map_err(Failure::from)
    };
    let pack = |bare: &mut Bare, chunk: &Range<usize>| {
        bare.compress(pages, chunk.clone());
        bare.decompress(chunk.clone());
        Ok(())
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(speed_up(shelf, &mut other_shelf, chunks, store)?);
        theirs.push(speed_up(bare, &mut other_bare, chunks, pack)?);
    }
    Ok((middle(ours), middle(theirs)))
}

/// The time that `own` needs for all chunks, in units of the time that both need with half of them each.
fn speed_up<T: Send>(
    own: &mut T,
    other: &mut T,
    chunks: &[Range<usize>],
    work: impl Fn(&mut T, &Range<usize>) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let all =
        |worker: &mut T, chunks: &[Range<usize>]| chunks.iter().try_for_each(|chunk| work(worker, chunk));
    let (low, high) = chunks.split_at(chunks.len() / 2);
    let started = Instant::now();
    all(own, chunks)?;
    let alone = started.elapsed();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| all(other, high));
        let here = all(own, low);
        here.and(beside.join().expect("the thread only stores and loads"))
    })?;
    Ok(alone.as_secs_f64() / started.elapsed().as_secs_f64())
}

/// MB/s for so many pages.
fn rate(pages: usize, time: Duration) -> f64 {
    (pages * PAGE_SIZE) as f64 / 1e6 / time.as_secs_f64()
}

fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
