//! Cutting words into parts.

/// The low 16 bits.
#[allow(clippy::cast_possible_truncation, reason = "cutting is its purpose")]
pub(crate) fn low16(word: u64) -> u16 {
    word as u16
}

/// The low 32 bits.
#[allow(clippy::cast_possible_truncation, reason = "cutting is its purpose")]
pub(crate) fn low32(word: u64) -> u32 {
    word as u32
}

/// As many low bits as an address has.
#[allow(clippy::cast_possible_truncation, reason = "cutting is its purpose")]
pub(crate) fn low_size(word: u64) -> usize {
    word as usize
}

/// The numbers of the bits that are set, lowest first.
pub(crate) fn ones(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_word() {
        let word = 0x0123_4567_89ab_cdef;
        assert_eq!((low16(word), low32(word)), (0xcdef, 0x89ab_cdef));
        assert_eq!(ones(1 << 63 | 0b1010).collect::<Vec<_>>(), [1, 3, 63]);
        assert_eq!((ones(0).count(), ones(u64::MAX).count()), (0, 64));
    }
}
