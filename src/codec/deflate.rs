//! Deflate: zlib's format, for comparison with the kernel's `deflate` and for what must be packed small.
//!
//! Raw deflate from libdeflate, which knows the whole page before it begins. zstd packs as well in a third of
//! the time; measure before choosing this. Source: RFC 1951, <https://github.com/ebiggers/libdeflate>.
//!
//! Price: a compressor of some hundred kilobytes for each thread (megabytes from level 10 on); a page that
//! does not fit into `out` is noticed as late as zstd's. Guarantee: no allocation after [`Codec::scratch`],
//! and its memory comes from the Rust heap ([`super::heap`]).

use super::{Codec, CompressError, DecompressError, Scratch, heap};
use crate::page::{PAGE_SIZE, Page};
use libdeflate_sys::{
    libdeflate_alloc_compressor_ex, libdeflate_alloc_decompressor_ex, libdeflate_compressor,
    libdeflate_decompressor, libdeflate_deflate_compress, libdeflate_deflate_decompress_ex,
    libdeflate_free_compressor, libdeflate_free_decompressor, libdeflate_options,
    libdeflate_result_LIBDEFLATE_SUCCESS,
};
use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

/// Deflate at a level.
#[derive(Debug)]
pub struct Deflate {
    level: c_int,
}

/// The compressor and decompressor of one thread, owned.
struct Contexts {
    compressor: NonNull<libdeflate_compressor>,
    decompressor: NonNull<libdeflate_decompressor>,
}

// SAFETY: both are owned by this value alone and bound to no thread.
unsafe impl Send for Contexts {}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: both were made by their alloc functions and are freed once.
        unsafe {
            libdeflate_free_compressor(self.compressor.as_ptr());
            libdeflate_free_decompressor(self.decompressor.as_ptr());
        }
    }
}

impl Deflate {
    /// The levels: 12 packs best.
    pub const LEVELS: RangeInclusive<i32> = 1..=12;

    /// Deflate at the level nearest to `level` in [`Self::LEVELS`].
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self { level: level.clamp(*Self::LEVELS.start(), *Self::LEVELS.end()) }
    }
}

impl Codec for Deflate {
    fn name(&self) -> &'static str {
        "deflate"
    }

    fn level(&self) -> Option<i32> {
        Some(self.level)
    }

    fn scratch(&self) -> Scratch {
        let options = libdeflate_options {
            sizeof_options: size_of::<libdeflate_options>(),
            malloc_func: Some(heap::malloc),
            free_func: Some(heap::free),
        };
        // SAFETY: the options are complete, their functions a pair, and the level one that exists.
        let (compressor, decompressor) = unsafe {
            (
                libdeflate_alloc_compressor_ex(self.level, &raw const options),
                libdeflate_alloc_decompressor_ex(&raw const options),
            )
        };
        Box::new(Contexts {
            compressor: NonNull::new(compressor).expect("memory for deflate"),
            decompressor: NonNull::new(decompressor).expect("memory for deflate"),
        })
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let contexts = scratch.downcast_mut::<Contexts>().expect("a scratch of deflate");
        // SAFETY: the compressor is valid; source and destination are valid for the lengths given with them.
        let length = unsafe {
            let (from, to) = (page.as_ptr().cast(), out.as_mut_ptr().cast());
            libdeflate_deflate_compress(contexts.compressor.as_ptr(), from, PAGE_SIZE, to, out.len())
        };
        if length == 0 { Err(CompressError::TooPoor) } else { Ok(length) }
    }

    fn decompress(&self, scratch: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        let contexts = scratch.downcast_mut::<Contexts>().expect("a scratch of deflate");
        let (mut read, mut written) = (0, 0);
        // SAFETY: the decompressor is valid; source and destination are valid for the lengths given with them;
        // libdeflate stays within them for any source bytes.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                contexts.decompressor.as_ptr(),
                data.as_ptr().cast(),
                data.len(),
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                &raw mut read,
                &raw mut written,
            )
        };
        let whole =
            result == libdeflate_result_LIBDEFLATE_SUCCESS && read == data.len() && written == PAGE_SIZE;
        if whole { Ok(()) } else { Err(DecompressError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    super::super::conformance::codec_suite!(Deflate::new(1), Deflate::new(6), Deflate::new(12));

    #[test]
    fn bytes_after_the_page_are_no_page() {
        let codec = Deflate::new(6);
        let mut scratch = codec.scratch();
        let mut out = [0; 64];
        let length = codec.compress(&mut scratch, &[7; PAGE_SIZE], &mut out).unwrap();
        let mut page = [0; PAGE_SIZE];
        assert_eq!(codec.decompress(&mut scratch, &out[..=length], &mut page), Err(DecompressError));
    }
}
