//! Pages that a request chooses: to be written back, or compressed anew.
//!
//! The disk is gone through once. What is known of a page is looked at, not used, so it becomes no younger; between
//! the look and the deed it may change, and the store does to a page only what suits it then. Pages are collected in
//! batches, so what a request costs in memory does not grow with the disk.

use super::AttributeError;
use super::request::{Chosen, Kind, Recompress};
use crate::backing::Backing;
use crate::volume::Volume;
use ramfold::{Compressor, Key, PagePlace, PageState, Stop, Sweep};
use std::ops::Range;

/// Pages looked at before those chosen among them are compressed.
const LOOK: u64 = 4096;

impl Kind {
    fn is_of(self, state: &PageState, is_idle: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Any => true,
            Self::Idle => is_idle(),
            Self::Huge => state.is_huge(),
            Self::HugeIdle => state.is_huge() && is_idle(),
            Self::Incompressible => state.is_incompressible,
        }
    }
}

/// Whether the page is in memory and of the kind.
fn is_chosen(disk: &Volume, page: u64, state: &PageState, kind: Kind) -> bool {
    let is_idle = || disk.age(page).is_some_and(|age| age.is_idle);
    state.place == PagePlace::Memory && kind.is_of(state, is_idle)
}

/// A range in pieces.
fn pieces(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = pages.end;
    std::iter::successors((!pages.is_empty()).then_some(pages.start), move |at| {
        at.checked_add(LOOK).filter(|next| *next < end)
    })
    .map(move |at| at..at.saturating_add(LOOK).min(end))
}

/// Compresses pages anew.
pub(super) fn recompress(disk: &Volume, what: &Recompress, by: Compressor) {
    let (mut sweep, mut left) = (Sweep::default(), what.max_pages);
    for piece in pieces(disk.numbers()) {
        let mut found = Vec::new();
        disk.look(piece, &mut |page, state| {
            if is_chosen(disk, page, &state, what.kind) && state.len >= what.threshold {
                found.push(page);
            }
            true
        });
        for page in found {
            if left == 0 {
                return;
            }
            left -= u64::from(disk.store().recompress_page(disk.key(page), by, &mut sweep));
        }
    }
}

/// Writes pages back, so many at a time.
///
/// # Errors
/// Those of the backing. What was written before stays written.
pub(super) fn write_back(disk: &Volume, chosen: &[Chosen], batch: usize) -> Result<(), AttributeError> {
    let backing = disk.backing().ok_or(AttributeError::NoBacking)?;
    for choice in chosen {
        let (kind, pages) = match choice {
            Chosen::Kind(kind) => (*kind, disk.numbers()),
            Chosen::Pages(pages) => (Kind::Any, within(disk, *pages.start(), *pages.end())),
        };
        for piece in pieces(pages) {
            let mut found = Vec::new();
            disk.look(piece, &mut |page, state| {
                if is_chosen(disk, page, &state, kind) {
                    found.push(disk.key(page));
                }
                true
            });
            write_back_keys(disk, backing, &found, batch)?;
        }
    }
    Ok(())
}

/// The pages of the disk from the first to the last.
fn within(disk: &Volume, first: u64, last: u64) -> Range<u64> {
    let end = disk.numbers().end;
    first.min(end)..last.saturating_add(1).min(end)
}

fn write_back_keys(
    disk: &Volume,
    backing: &Backing,
    mut keys: &[Key],
    batch: usize,
) -> Result<(), AttributeError> {
    while !keys.is_empty() {
        let left = usize::try_from(backing.left()).unwrap_or(usize::MAX);
        let (now, rest) = keys.split_at(keys.len().min(batch).min(left));
        if now.is_empty() {
            return Err(AttributeError::Limit);
        }
        match disk.store().write_back_pages(now).stop {
            Stop::Done | Stop::NothingToEvict => {}
            Stop::TierFull if backing.left() == 0 => return Err(AttributeError::Limit),
            Stop::TierFull => return Err(AttributeError::BackingFull),
            Stop::TierError => return Err(AttributeError::BackingFailed),
        }
        keys = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_range() {
        for range in [0..0, 0..1, 5..LOOK + 5, 0..3 * LOOK, u64::MAX - 2..u64::MAX] {
            let all: Vec<Range<u64>> = pieces(range.clone()).collect();
            assert_eq!(all.iter().map(|piece| piece.end - piece.start).sum::<u64>(), range.end - range.start);
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(all.iter().all(|piece| !piece.is_empty()));
        }
    }
}
