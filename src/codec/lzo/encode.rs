//! The compressor.

use super::{END, FAR, LEAST_ZEROS, MOST_BYTES, MOST_ZEROS, VERSIONED, WITH_ZEROS, ZEROS};

const BITS: u32 = 13;
/// Matches are nearer than this. Instructions reach half as far again, but some of those distances, with some
/// lengths, read as a run of zeros.
const REACH: usize = 32 << 10;
/// The end of a page is not looked at: what is found there saves next to nothing.
const TAIL: usize = 20;
/// A step for each so many bytes in which nothing was found.
const PATIENCE: u32 = 5;

/// Where four bytes with a hash were seen last.
pub(super) struct Dictionary(Box<[u16; 1 << BITS]>);

impl Dictionary {
    pub(super) fn new() -> Self {
        Self(Box::new([0; 1 << BITS]))
    }

    /// The place that the hash of `word` had before it has `at`.
    #[inline]
    fn swap(&mut self, word: u32, at: usize) -> usize {
        let hash = word.wrapping_mul(0x1824_429d) >> (u32::BITS - BITS);
        #[allow(clippy::cast_possible_truncation, reason = "a place in a page")]
        usize::from(std::mem::replace(&mut self.0[hash as usize], at as u16))
    }
}

/// Compresses `input`, of 64 KiB at most, into the front of `out`; None if that is too small.
pub(super) fn encode(
    input: &[u8],
    dictionary: &mut Dictionary,
    zeros: bool,
    out: &mut [u8],
) -> Option<usize> {
    assert!(input.len() <= MOST_BYTES, "the dictionary knows no places behind");
    dictionary.0.fill(0);
    let mut writer = Writer { out, len: 0, small: 0, start: 0 };
    if zeros {
        writer.put(VERSIONED)?;
        writer.put(WITH_ZEROS)?;
        writer.start = writer.len;
    }
    let end = input.len().saturating_sub(TAIL);
    // The first bytes have nothing to repeat; and no stream may begin with a match.
    let (mut at, mut literals) = (5, 0);
    while at < end {
        let word = word_at(input, at);
        let len = if word == 0 && zeros {
            let len = zeros_at(input, at);
            writer.literals(&input[literals..at])?;
            writer.zeros(len)?;
            len
        } else {
            let seen = dictionary.swap(word, at);
            if word_at(input, seen) != word || at - seen >= REACH {
                at += 1 + ((at - literals) >> PATIENCE);
                continue;
            }
            let len = common(input, seen, at);
            writer.literals(&input[literals..at])?;
            writer.copy(len, at - seen)?;
            len
        };
        at += len;
        literals = at;
    }
    writer.literals(&input[literals.min(input.len())..])?;
    writer.put_all(&END)?;
    Some(writer.len)
}

#[inline]
fn word_at(input: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(input[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn long_at(input: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(input.get(at..at + 8)?.try_into().ok()?))
}

/// How many bytes at `at`, at least four, are those at `seen`.
fn common(input: &[u8], seen: usize, at: usize) -> usize {
    let mut len = 4;
    while let (Some(before), Some(now)) = (long_at(input, seen + len), long_at(input, at + len)) {
        if before != now {
            return len + (before ^ now).trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + input[at + len..].iter().zip(&input[seen + len..]).take_while(|(now, before)| now == before).count()
}

/// How many zeros are at `at`, as far as one run goes.
fn zeros_at(input: &[u8], at: usize) -> usize {
    let most = &input[at..input.len().min(at + MOST_ZEROS)];
    let mut len = 0;
    while let Some(word) = long_at(most, len) {
        if word != 0 {
            return len + word.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + most[len..].iter().take_while(|byte| **byte == 0).count()
}

/// What was written.
struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
    /// The byte in whose lowest two bits up to three literals of the next instruction are counted.
    small: usize,
    /// Where the first instruction is.
    start: usize,
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, byte: u8) -> Option<()> {
        *self.out.get_mut(self.len)? = byte;
        self.len += 1;
        Some(())
    }

    #[inline]
    fn put_all(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.len..self.len + bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// A number that did not fit into its instruction: zeros stand for 255 each, the last byte is not zero.
    fn put_long(&mut self, mut number: usize) -> Option<()> {
        while number > 255 {
            number -= 255;
            self.put(0)?;
        }
        self.put(low(number))
    }

    /// An instruction with a number that may not fit into its last bits: `most` does.
    #[inline]
    fn put_number(&mut self, instruction: usize, number: usize, most: usize) -> Option<()> {
        if number <= most {
            return self.put(low(instruction | number));
        }
        self.put(low(instruction))?;
        self.put_long(number - most)
    }

    #[inline]
    fn literals(&mut self, bytes: &[u8]) -> Option<()> {
        match bytes.len() {
            0 => return Some(()),
            len if self.len == self.start && len <= 238 => self.put(low(17 + len))?,
            len @ 1..=3 => self.out[self.small] |= low(len),
            len => self.put_number(0, len - 3, 15)?,
        }
        self.put_all(bytes)
    }

    /// The distance in the bits above the lowest two.
    #[inline]
    fn put_distance(&mut self, distance: usize) -> Option<()> {
        self.put(low(distance << 2))?;
        self.put(low(distance >> 6))?;
        self.small = self.len - 2;
        Some(())
    }

    /// `len` bytes, at least four, from `distance` before.
    #[inline]
    fn copy(&mut self, len: usize, distance: usize) -> Option<()> {
        const NEAR: usize = 2 << 10;
        if len <= 8 && distance <= NEAR {
            let distance = distance - 1;
            self.put(low((len - 1) << 5 | (distance & 7) << 2))?;
            self.put(low(distance >> 3))?;
            self.small = self.len - 2;
            Some(())
        } else if distance <= FAR {
            self.put_number(32, len - 2, 31)?;
            self.put_distance(distance - 1)
        } else {
            self.put_number(16, len - 2, 7)?;
            self.put_distance(distance - FAR)
        }
    }

    fn zeros(&mut self, len: usize) -> Option<()> {
        let rest = len - LEAST_ZEROS;
        let [first, second] = ZEROS.to_le_bytes();
        self.put_all(&[low(0x18 | rest & 7), first, second, low(rest >> 3)])?;
        self.small = self.len - 3;
        Some(())
    }
}

/// The lowest byte.
#[inline]
fn low(number: usize) -> u8 {
    number.to_le_bytes()[0]
}
