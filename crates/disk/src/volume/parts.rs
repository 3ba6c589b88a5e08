//! A request and the pages that it is of.
//!
//! A request is cut at pages. Whole pages are stored from the caller's bytes and loaded into them. A part of a page is
//! read, changed and stored, while nobody else changes it. Price: a part of a page costs a load and a store.

use super::{PAGE, Volume, Worker};
use crate::face::DiskError;
use ramfold::Page;
use std::ops::Range;
use std::slice::from_mut;

/// A part of a page: its number, and bytes within it.
type Part = (u64, Range<usize>);

/// The parts of pages that a range of the disk consists of.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (number, from) = (at / PAGE, at % PAGE);
        let to = (end - number * PAGE).min(PAGE);
        at = number * PAGE + to;
        // Both are at most a page.
        #[allow(clippy::cast_possible_truncation)]
        (from < to).then_some((number, from as usize..to as usize))
    })
}

/// The pages that lie within a range as a whole.
pub(super) fn whole_pages(offset: u64, len: u64) -> Range<u64> {
    let (first, end) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
    first..end.max(first)
}

/// Requests that lie on the disk.
impl Volume {
    pub(super) fn read_parts(
        &self,
        offset: u64,
        out: &mut [u8],
        worker: &mut Worker,
    ) -> Result<(), DiskError> {
        let (whole, end) = (whole_pages(offset, out.len() as u64), offset + out.len() as u64);
        // Less than a page, or all.
        #[allow(clippy::cast_possible_truncation)]
        let (head, rest) = out.split_at_mut(((whole.start * PAGE).min(end) - offset) as usize);
        let (pages, tail) = rest.as_chunks_mut();
        self.read_part(offset, head, worker)?;
        self.pages.load(whole.start, pages, &mut worker.scratch)?;
        self.read_part(end - tail.len() as u64, tail, worker)
    }

    /// Reads bytes of one page, or none.
    fn read_part(&self, offset: u64, out: &mut [u8], worker: &mut Worker) -> Result<(), DiskError> {
        let Worker { scratch, page, .. } = worker;
        for (number, part) in parts(offset, out.len() as u64) {
            self.pages.load(number, from_mut(page), scratch)?;
            out.copy_from_slice(&page[part]);
        }
        Ok(())
    }

    pub(super) fn write_parts(
        &self,
        offset: u64,
        mut data: &[u8],
        worker: &mut Worker,
    ) -> Result<(), DiskError> {
        for (number, part) in parts(offset, data.len() as u64) {
            let (here, rest) = data.split_at(part.len());
            data = rest;
            if let Ok(page) = <&Page>::try_from(here) {
                self.pages.store(number, page, &mut worker.scratch)?;
            } else {
                self.pages.change(number, worker, |page| page[part].copy_from_slice(here))?;
            }
        }
        Ok(())
    }

    pub(super) fn zero_parts(&self, offset: u64, len: u64, worker: &mut Worker) -> Result<(), DiskError> {
        let (whole, end) = (whole_pages(offset, len), offset + len);
        let head = offset..(whole.start * PAGE).min(end);
        let tail = (whole.end * PAGE).clamp(head.end, end)..end;
        for (number, part) in
            [head, tail].into_iter().flat_map(|range| parts(range.start, range.end - range.start))
        {
            if self.store().contains(self.pages.key(number)) {
                self.pages.change(number, worker, |page| page[part].fill(0))?;
            }
        }
        self.pages.forget(whole);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_pages() {
        let cut = |offset, len| parts(offset, len).collect::<Vec<_>>();
        assert_eq!(cut(0, 4096), [(0, 0..4096)]);
        assert_eq!(cut(100, 5000), [(0, 100..4096), (1, 0..1004)]);
        assert_eq!(cut(8191, 2), [(1, 4095..4096), (2, 0..1)]);
        assert_eq!((cut(5, 0), cut(4096, 0)), (vec![], vec![]));
        assert_eq!((whole_pages(1, 8191), whole_pages(0, 8191), whole_pages(100, 50)), (1..2, 0..1, 1..1));
    }
}
