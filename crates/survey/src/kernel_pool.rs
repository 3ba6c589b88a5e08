//! What the kernel's zsmalloc would need, by its size classes.
//!
//! ramfold's zsmalloc is not the kernel's: here zspages have up to 16 pages, there up to
//! CONFIG_ZSMALLOC_CHAIN_SIZE, 8 unless configured otherwise. So for zram and zswap the pool is computed, from the
//! rules in the kernel's documentation (Documentation/mm/zsmalloc.rst): classes 16 bytes apart, from 32 to 4096; an
//! object carries its handle of 8 bytes; a class uses the zspage length with the least waste; classes with the same
//! number of objects on the same number of pages are one. What is too large to share a page takes a whole one. The last
//! zspage of a class is half empty on average.

use ramfold::PAGE_SIZE;
use std::collections::HashSet;

const HANDLE: usize = 8;
const STEP: usize = 16;
const LEAST: usize = 32;
const CHAIN: usize = 8;

/// A zspage: `objects` on `pages` pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    pages: usize,
    objects: usize,
}

impl Shape {
    /// For an object of so many bytes.
    fn of(bytes: usize) -> Self {
        let size = (bytes + HANDLE).next_multiple_of(STEP).max(LEAST);
        if size >= PAGE_SIZE {
            return Self { pages: 1, objects: 1 };
        }
        let pages = (1..=CHAIN).min_by_key(|pages| pages * PAGE_SIZE % size).unwrap_or(1);
        Self { pages, objects: pages * PAGE_SIZE / size }
    }

    fn bytes_per_object(self) -> f64 {
        (self.pages * PAGE_SIZE) as f64 / self.objects as f64
    }
}

/// Bytes that the kernel's zsmalloc needs for `objects` objects of these sizes, each as often as the other.
#[must_use]
pub fn pool_bytes(sizes: &[u16], objects: f64) -> f64 {
    let shapes: Vec<Shape> = sizes.iter().map(|bytes| Shape::of(usize::from(*bytes))).collect();
    let used: HashSet<&Shape> = shapes.iter().filter(|shape| shape.objects > 1).collect();
    let half_empty: f64 = used.iter().map(|shape| (shape.pages * PAGE_SIZE) as f64 / 2.0).sum();
    let each = shapes.iter().map(|shape| shape.bytes_per_object()).sum::<f64>() / sizes.len().max(1) as f64;
    each * objects + half_empty
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_documentation() {
        // Rows of the table in zsmalloc.rst, for chains of up to 8 pages: size, objects per zspage, pages.
        for (size, objects, pages) in [(2048, 2, 1), (3072, 4, 3), (3264, 5, 4), (1632, 5, 2), (3632, 9, 8)] {
            assert_eq!(Shape::of(size - HANDLE), Shape { pages, objects }, "{size}");
        }
        assert_eq!(Shape::of(4096), Shape { pages: 1, objects: 1 });
        assert_eq!(Shape::of(1), Shape { pages: 1, objects: 128 });
    }

    #[test]
    fn a_pool_is_the_sum_of_its_zspages() {
        assert_eq!(pool_bytes(&[2040, 4096], 1000.0), 500.0 * 2048.0 + 500.0 * 4096.0 + 2048.0);
        assert_eq!(pool_bytes(&[], 0.0), 0.0);
    }
}
