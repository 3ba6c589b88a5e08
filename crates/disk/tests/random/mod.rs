//! What the tests of this crate have at random, its unit tests too: xorshift64 (Marsaglia, "Xorshift RNGs", 2003). It
//! costs three shifts a word, and a word a byte; it is the same in each run, and its bytes do not compress.

/// The next number. From a state other than 0.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Bytes from any seed, without an end.
pub fn bytes(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || random(&mut state).to_le_bytes()[3])
}
