//! LZO1X-1: the compressor that zram and zswap began with, and zram's `lzo-rle`.
//!
//! A hash of the next four bytes leads to where they were seen last; what is not found so is copied as it is, and where
//! nothing is found for long, more and more is stepped over. `lzo-rle` writes runs of zeros as such. Either reads both.
//! Source: the bitstream's description in Documentation/staging/lzo.rst of the kernel; both ways agree with liblzo2.
//!
//! Price: a dictionary of 16 KiB for each thread, cleared before each page; no unsafe code. Guarantee: no allocation
//! after [`Codec::scratch`]; a page that does not fit into `out` is given up where `out` ends.

mod decode;
mod encode;

use super::{Codec, CompressError, DecompressError, Scratch};
use crate::page::Page;

/// Shortest run of zeros that is written as one.
const LEAST_ZEROS: usize = 4;
/// Longest: eleven bits more.
const MOST_ZEROS: usize = LEAST_ZEROS + 0x7ff;
/// The bits of a distance that stand for a run of zeros.
const ZEROS: u16 = 0xfffc;
/// The first byte of a bitstream with a version.
const VERSIONED: u8 = 17;
/// The version with runs of zeros.
const WITH_ZEROS: u8 = 1;
/// Distances from here on have an instruction of their own, and this one means the end.
const FAR: usize = 16 << 10;
/// The end: three bytes at the distance [`FAR`].
const END: [u8; 3] = [17, 0, 0];

/// Most bytes that are compressed as one.
const MOST_BYTES: usize = 64 << 10;

/// LZO1X-1, with runs of zeros or without.
#[derive(Debug)]
pub struct Lzo {
    zeros: bool,
}

impl Lzo {
    /// As `lzo` of the kernel, and liblzo2.
    #[must_use]
    pub fn plain() -> Self {
        Self { zeros: false }
    }

    /// As `lzo-rle` of the kernel.
    #[must_use]
    pub fn with_zeros() -> Self {
        Self { zeros: true }
    }

    /// As [`Codec::compress`], for up to 64 KiB.
    ///
    /// # Errors
    /// [`CompressError::TooPoor`] if it does not fit into `out`.
    ///
    /// # Panics
    /// If there are more bytes, or `scratch` is another codec's.
    pub fn compress_unit(
        &self,
        scratch: &mut Scratch,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CompressError> {
        let dictionary = scratch.downcast_mut().expect("a scratch of lzo");
        encode::encode(bytes, dictionary, self.zeros, out).ok_or(CompressError::TooPoor)
    }

    /// As [`Codec::decompress`], for as many bytes as `out` has.
    ///
    /// # Errors
    /// [`DecompressError`] if `data` is not so many bytes of this codec.
    pub fn decompress_unit(&self, data: &[u8], out: &mut [u8]) -> Result<(), DecompressError> {
        decode::decode(data, out).ok_or(DecompressError)
    }
}

impl Codec for Lzo {
    fn name(&self) -> &'static str {
        if self.zeros { "lzo-rle" } else { "lzo" }
    }

    fn level(&self) -> Option<i32> {
        None
    }

    fn scratch(&self) -> Scratch {
        Box::new(encode::Dictionary::new())
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        self.compress_unit(scratch, page, out)
    }

    fn decompress(&self, _: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        self.decompress_unit(data, page)
    }
}

#[cfg(test)]
mod tests;
