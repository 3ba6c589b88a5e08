//! Sets of pages of a stretch: the blocks that leave together, side by side.

use crate::pages::BLOCK_PAGES;
use std::ops::Range;

/// Most blocks in a stretch.
pub(crate) const STRETCH_BLOCKS: usize = 8;
/// Most pages in one.
pub(crate) const STRETCH_PAGES: usize = STRETCH_BLOCKS * BLOCK_PAGES;

/// Pages of a stretch: bit n is the n-th.
pub(crate) type Mask = u128;
const _: () = assert!(STRETCH_PAGES == Mask::BITS as usize);

/// The bits of a range that is not empty.
pub(crate) fn ones(range: Range<usize>) -> Mask {
    Mask::MAX >> (STRETCH_PAGES - range.len()) << range.start
}

/// The ranges of set bits.
pub(crate) fn runs(mask: Mask) -> impl Iterator<Item = Range<usize>> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let start = rest.trailing_zeros();
            let end = start + (rest >> start).trailing_ones();
            rest &= Mask::MAX.checked_shl(end).unwrap_or(0);
            start as usize..end as usize
        })
    })
}

/// The ranges that begin and end with a page of `cold` and hold no page that is in neither mask.
pub(crate) fn spans(cold: Mask, absent: Mask) -> impl Iterator<Item = Range<usize>> {
    runs(cold | absent).filter_map(move |run| {
        let cold = cold & ones(run);
        let end = (Mask::BITS - cold.leading_zeros()) as usize;
        (cold != 0).then(|| cold.trailing_zeros() as usize..end)
    })
}

/// The numbers of the set bits.
pub(crate) fn bits(mask: Mask) -> impl Iterator<Item = usize> {
    runs(mask).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_set_bits() {
        for mask in [0, 1, 1 << 127, Mask::MAX, Mask::MAX >> 64, 0b0110_1110_0000_0001] {
            let mut again = 0;
            for run in runs(mask) {
                assert!(!run.is_empty());
                for bit in run {
                    again |= 1 << bit;
                }
            }
            assert_eq!(again, mask);
        }
        assert_eq!(runs(0b1110_0110).count(), 2);
    }

    #[test]
    fn spans_reach_over_what_is_absent_and_stop_at_what_is_hot() {
        let found = |cold, absent| spans(cold, absent).map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(found(0b0010_1001, 0b1101_0110), [(0, 6)]);
        assert_eq!(found(0b0010_1001, 0), [(0, 1), (3, 4), (5, 6)]);
        assert_eq!(found(0b0010_1001, 0b1101_0010), [(0, 1), (3, 6)]);
        assert_eq!(found(0, 0xffff), []);
    }
}
