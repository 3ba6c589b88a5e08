//! The size classes of zsmalloc: which slots there are, and how many go into a zspage.
//!
//! A zspage of n pages holds k slots; n is the number of pages that wastes least at its end (the kernel's rule in
//! `mm/zsmalloc.c`, with up to 16 pages instead of its 4 or 8), and then the slots are made as large as n pages
//! allow. What a slot costs in the end is n * 4096 / k bytes. A class that costs as much as a larger one is left
//! out, since the larger one can do its work (the kernel's merging of classes); so near 4096 bytes there are few.

use crate::page::PAGE_SIZE;
use crate::zpool::arena::BLOCK_PAGES;

/// Bytes of a slot that hold its tag; the class of whole pages keeps its tags elsewhere.
pub(super) const TAG: usize = 4;
/// Slot sizes are multiples of this, for the tags.
const ALIGN: usize = 4;
/// Bytes from one slot size to the next, roughly. Finer steps waste less within the slots and, until a pool
/// has some hundred megabytes, more in half-empty pages.
const STEP: usize = 16;
/// The smallest slot, in bytes.
pub(super) const MIN_SLOT: usize = 32;

/// One size class: `slots` slots of `size` bytes in `pages` pages.
///
/// `slots * size <= pages * PAGE_SIZE`, and the last page holds part of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) size: usize,
    pub(super) pages: usize,
    pub(super) slots: usize,
}

impl Shape {
    /// The shape for slots of at least `size` bytes that wastes least.
    fn of(size: usize) -> Self {
        let shapes =
            (1..=BLOCK_PAGES).rev().map(|pages| Self { size, pages, slots: pages * PAGE_SIZE / size });
        // The first of equals is taken: many pages, so that descriptors are few.
        let shape = shapes.min_by(|a, b| (a.pages * b.slots).cmp(&(b.pages * a.slots))).expect("16 shapes");
        Self { size: (shape.pages * PAGE_SIZE / shape.slots) & !(ALIGN - 1), ..shape }
    }

    /// The one whose slots are whole pages.
    fn of_pages() -> Self {
        Self { size: PAGE_SIZE, pages: BLOCK_PAGES, slots: BLOCK_PAGES }
    }

    /// Whether the slots have their tags inside.
    pub(super) fn is_tagged(&self) -> bool {
        self.size < PAGE_SIZE
    }

    /// Slots that fit into the first `pages` pages of a zspage.
    pub(super) fn slots_in(&self, pages: usize) -> usize {
        self.slots.min(pages * PAGE_SIZE / self.size)
    }

    /// Pages that the first `slots` slots need.
    pub(super) fn pages_for(&self, slots: usize) -> usize {
        (slots * self.size).div_ceil(PAGE_SIZE)
    }

    /// The largest object that a slot takes.
    pub(super) fn payload(&self) -> usize {
        if self.is_tagged() { self.size - TAG } else { self.size }
    }
}

/// All classes, by size.
pub(super) fn shapes() -> Vec<Shape> {
    let mut shapes = vec![Shape::of_pages()];
    for size in (MIN_SLOT..PAGE_SIZE).step_by(STEP).rev() {
        let shape = Shape::of(size);
        let larger = shapes[shapes.len() - 1];
        if shape.pages * larger.slots < larger.pages * shape.slots {
            shapes.push(shape);
        }
    }
    shapes.reverse();
    shapes
}

/// For each object size 0..=PAGE_SIZE, the number of the smallest class that takes it.
pub(super) fn class_of_size(shapes: &[Shape]) -> Box<[u8]> {
    let class = |size| shapes.partition_point(|shape| shape.payload() < size);
    (0..=PAGE_SIZE).map(|size| u8::try_from(class(size)).expect("at most 256 classes")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_few_and_waste_little() {
        let shapes = shapes();
        assert!((100..=256).contains(&shapes.len()), "{}", shapes.len());
        for shape in &shapes {
            assert!(shape.slots * shape.size <= shape.pages * PAGE_SIZE, "{shape:?}");
            assert!(shape.size.is_multiple_of(ALIGN) && shape.size >= MIN_SLOT, "{shape:?}");
            assert!(shape.slots <= 1 << 12, "{shape:?}");
            let waste = shape.pages * PAGE_SIZE - shape.slots * shape.size;
            assert!(waste * 100 <= 2 * shape.pages * PAGE_SIZE, "{shape:?} wastes {waste}");
            assert_eq!(shape.slots_in(shape.pages), shape.slots);
            assert_eq!(shape.pages_for(shape.slots), shape.pages, "{shape:?}");
        }
    }

    #[test]
    fn each_size_has_the_smallest_class_that_takes_it() {
        let shapes = shapes();
        let class = class_of_size(&shapes);
        for size in 1..=PAGE_SIZE {
            let at = class[size] as usize;
            assert!(shapes[at].payload() >= size);
            assert!(at == 0 || shapes[at - 1].payload() < size);
        }
        assert_eq!(shapes[class[PAGE_SIZE] as usize].slots, BLOCK_PAGES);
    }
}
