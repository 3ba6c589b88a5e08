//! What each compressor and zpool makes of a sample, and of the whole.
//!
//! A codec compresses every page of the sample once. The sizes go into a real [`Store`](ramfold::Store) over the real
//! zpool, by a codec that only knows sizes; so rounding to size classes, pages that do not compress and the zpool's
//! own needs are not modelled, they happen. A pool has costs that do not grow with it (a zspage begun in each size
//! class), which would be scaled along with a small sample: it is therefore filled with the sample once and twice, and
//! the whole is extrapolated from the slope between the two. Sharing duplicates needs no pool of its own:
//! a content that c pages have weighs 1/c.
//!
//! Times are those of the store itself on this machine, one page at a time in an order without pattern.

use crate::look::{Look, MEASURED, Sampled};
use crate::shelf::{Quantiles, Shelf, ShelfError};
use crate::standin::{self, Standin};
use crate::statistics::Estimate;
use ramfold::codec;
use ramfold::{PAGE_SIZE, Page};
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// Pages of which stores and loads are timed.
const TIMED: usize = 1024;
/// Buckets of the histogram of compressed sizes, of 256 bytes each; the last holds what does not compress.
pub const BUCKETS: usize = PAGE_SIZE / 256 + 1;

/// Compressed sizes of a sample.
#[derive(Debug)]
pub struct Sizes {
    /// As it was asked for: `lz4`, `zstd:-1`.
    pub compressor: String,
    /// Bytes of each page; a whole page if it does not compress.
    pub bytes: Vec<u16>,
}

/// A compressor, a unit and a zpool.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Compressor by name.
    pub compressor: String,
    /// KiB that are compressed as one.
    pub unit_kib: u64,
    /// Zpool by name.
    pub zpool: String,
    /// Bytes before to bytes after compression, of pages that are not same-filled.
    pub ratio: f64,
    /// The uncertainty of the bytes after compression, in percent (95 %).
    pub error_percent: f64,
    /// Pool memory of all pages, each stored for itself, in bytes.
    pub pool_bytes: f64,
    /// The same if equal pages share their memory.
    pub pool_bytes_shared: f64,
    /// Share of these pages that do not become smaller.
    pub incompressible: f64,
    /// Microseconds to store a page.
    pub store_us: f64,
    /// Microseconds to load one page: of a larger unit all of it.
    pub load_us: f64,
}

impl Sizes {
    /// Compresses the sample.
    ///
    /// # Errors
    /// [`ShelfError::Name`]: there is no such compressor.
    pub fn of(compressor: &str, sample: &[Sampled]) -> Result<Self, ShelfError> {
        let codec = codec::by_name(compressor).map_err(|error| ShelfError::Name(error.to_string()))?;
        let (mut scratch, mut out) = (codec.scratch(), [0; PAGE_SIZE - 1]);
        let mut size = |sampled: &Sampled| {
            let len = codec.compress(&mut scratch, &sampled.page, &mut out).unwrap_or(PAGE_SIZE);
            u16::try_from(len).expect("at most a page")
        };
        Ok(Self { compressor: compressor.to_owned(), bytes: sample.iter().map(&mut size).collect() })
    }

    /// The mean size, for a population of `whole` pages.
    #[must_use]
    pub fn mean(&self, whole: f64) -> Estimate {
        let bytes: Vec<f64> = self.bytes.iter().map(|bytes| f64::from(*bytes)).collect();
        // A count of pages.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Estimate::of(&bytes, whole as u64)
    }

    /// Bytes before to bytes after.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let after: f64 = self.bytes.iter().map(|bytes| f64::from(*bytes)).sum();
        (self.bytes.len() * PAGE_SIZE) as f64 / after.max(1.0)
    }

    /// Share of pages that do not become smaller.
    #[must_use]
    pub fn incompressible(&self) -> f64 {
        let raw = self.bytes.iter().filter(|bytes| usize::from(**bytes) == PAGE_SIZE).count();
        raw as f64 / self.bytes.len().max(1) as f64
    }

    /// Pages by compressed size, in steps of 256 bytes.
    #[must_use]
    pub fn histogram(&self) -> [u64; BUCKETS] {
        let mut counts = [0; BUCKETS];
        self.bytes.iter().for_each(|bytes| counts[usize::from(*bytes) / 256] += 1);
        counts
    }

    /// The part of the bytes that is left when equal pages share.
    #[must_use]
    pub fn shared_part(&self, sample: &[Sampled]) -> f64 {
        let all: f64 = self.bytes.iter().map(|bytes| f64::from(*bytes)).sum();
        let weighed =
            self.bytes.iter().zip(sample).map(|(bytes, page)| f64::from(*bytes) / f64::from(page.copies));
        weighed.sum::<f64>() / all.max(1.0)
    }
}

impl Row {
    /// The row of a page as the unit.
    ///
    /// # Errors
    /// [`ShelfError`].
    pub fn measure(look: &Look, sizes: &Sizes, zpool: &str) -> Result<Self, ShelfError> {
        let pages = look.filled_pages();
        let pool_bytes = pool_bytes(&sizes.bytes, pages, zpool)?;
        let (store, load) = times(&look.sample, &sizes.compressor, zpool)?;
        Ok(Self {
            compressor: sizes.compressor.clone(),
            unit_kib: 4,
            zpool: zpool.to_owned(),
            ratio: sizes.ratio(),
            error_percent: sizes.mean(pages).percent(),
            pool_bytes,
            pool_bytes_shared: pool_bytes * sizes.shared_part(&look.sample),
            incompressible: sizes.incompressible(),
            store_us: store.p50,
            load_us: load.p50,
        })
    }

    /// What of `memory` bytes is left free when all of it lies in the pool, as a share.
    #[must_use]
    pub fn saved(&self, memory: u64) -> f64 {
        1.0 - self.pool_bytes_shared / memory as f64
    }
}

/// Bytes that a zpool of that kind needs for `objects` objects of these sizes (1..=4096), each as often as the other.
///
/// # Errors
/// [`ShelfError`].
pub fn pool_bytes(sizes: &[u16], objects: f64, zpool: &str) -> Result<f64, ShelfError> {
    if sizes.is_empty() {
        return Ok(0.0);
    }
    let mut shelf = Shelf::with_codec(Arc::new(Standin), zpool)?;
    // Small samples are repeated more often, so that both fillings are of the size of a real pool.
    let times = (MEASURED / sizes.len()).max(1);
    let (some, all) = (times * sizes.len(), 2 * times * sizes.len());
    if objects <= all as f64 {
        // A count below `all`. Fewer than there are sizes are taken at even distances.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = objects.round() as usize;
        let size =
            |n: usize| sizes[if count < sizes.len() { n * sizes.len() / count } else { n % sizes.len() }];
        return fill(&mut shelf, 0..count, size);
    }
    let half = fill(&mut shelf, 0..some, |n| sizes[n % sizes.len()])?;
    let full = fill(&mut shelf, some..all, |n| sizes[n % sizes.len()])?;
    let slope = (full - half) / (all - some) as f64;
    Ok(full + slope * (objects - all as f64))
}

/// Stores objects of these numbers, each with the size that `size` chooses; returns what the pool then holds.
fn fill(shelf: &mut Shelf, numbers: Range<usize>, size: impl Fn(usize) -> u16) -> Result<f64, ShelfError> {
    for number in numbers {
        shelf.put(number, &standin::page(size(number), number as u64))?;
    }
    Ok(shelf.stats().pool_total_size as f64)
}

fn times(sample: &[Sampled], compressor: &str, zpool: &str) -> Result<(Quantiles, Quantiles), ShelfError> {
    let pages: Vec<Page> =
        sample.iter().step_by(sample.len().div_ceil(TIMED).max(1)).map(|s| *s.page).collect();
    if pages.is_empty() {
        let none = Quantiles { p50: 0.0, p99: 0.0 };
        return Ok((none, none));
    }
    let mut shelf = Shelf::new(compressor, zpool)?;
    shelf.store_all(&pages)?;
    shelf.latencies(&pages, pages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_extrapolated_as_it_grows() {
        let sizes: Vec<u16> = (0..512u16).map(|n| 40 + n * 7).collect();
        let exact = |zpool: &str, count: usize| {
            let mut shelf = Shelf::with_codec(Arc::new(Standin), zpool).unwrap();
            (0..count).for_each(|n| shelf.put(n, &standin::page(sizes[n % sizes.len()], n as u64)).unwrap());
            shelf.stats().pool_total_size as f64
        };
        for zpool in ramfold::zpool::NAMES {
            let (told, true_size) = (pool_bytes(&sizes, 100_000.0, zpool).unwrap(), exact(zpool, 100_000));
            assert!((told / true_size - 1.0).abs() < 0.01, "{zpool}: {told} for {true_size}");
            assert_eq!(pool_bytes(&sizes, 512.0, zpool).unwrap(), exact(zpool, 512), "{zpool}");
        }
    }

    #[test]
    fn sizes_tell_ratio_and_histogram() {
        let sizes = Sizes { compressor: "lz4".into(), bytes: vec![1024, 1024, 4096, 255] };
        assert!((sizes.ratio() - 16384.0 / 6399.0).abs() < 1e-9);
        assert!((sizes.incompressible() - 0.25).abs() < 1e-9);
        let histogram = sizes.histogram();
        assert_eq!((histogram[0], histogram[4], histogram[16]), (1, 2, 1));
        assert_eq!(sizes.mean(4.0).error95, 0.0);
    }

    #[test]
    fn sharing_counts_a_content_once() {
        let sampled = |copies| Sampled {
            page: Box::new([0; PAGE_SIZE]),
            rank: 0,
            at: crate::population::PageAt { source: 0, place: 0, offset: 0 },
            copies,
            hash: 0,
        };
        let sizes = Sizes { compressor: "lz4".into(), bytes: vec![100, 100, 200] };
        assert_eq!(sizes.shared_part(&[sampled(2), sampled(2), sampled(1)]), 0.75);
    }
}
