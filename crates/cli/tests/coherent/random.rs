//! Numbers at random, the same ones in each run: xorshift64 (Marsaglia, "Xorshift RNGs", 2003).

pub struct Random(u64);

impl Random {
    /// From a seed other than 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.word() >> 33).unwrap() % bound
    }
}
