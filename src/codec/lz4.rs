//! LZ4: the fastest codec, and the default.
//!
//! The block format, without frame, checksum or length, from the C library: on real pages it decompresses a
//! quarter faster than the pure Rust one, and has the high compression variant ([`super::lz4hc`]) as well.
//! Source: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>.
//!
//! Price: a state of 16 KiB for each thread, cleared before each page. Guarantee: no allocation after
//! [`Codec::scratch`]; a page that does not fit into `out` is given up where `out` ends.

use super::{Codec, CompressError, DecompressError, Scratch};
use crate::page::{PAGE_SIZE, Page};
use lz4_sys::{LZ4_decompress_safe, c_char, c_int};
use std::ffi::c_void;
use std::ops::RangeInclusive;

// In the library that lz4-sys builds, though not among its declarations.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_size: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// A page's size as the C interface has it.
pub(super) const PAGE_BYTES: c_int = 4096;
const _: () = assert!(PAGE_BYTES as usize == PAGE_SIZE);

/// LZ4 with an acceleration: how many bytes more it skips where nothing repeats.
#[derive(Debug)]
pub struct Lz4 {
    acceleration: c_int,
}

/// The state of either compressor, in words because it must be aligned to eight bytes.
pub(super) struct State(Box<[u64]>);

impl State {
    /// A state of at least `bytes`.
    pub(super) fn new(bytes: c_int) -> Self {
        let bytes = usize::try_from(bytes).expect("the library knows its state's size");
        Self(vec![0; bytes.div_ceil(8)].into())
    }

    /// The state for the C interface.
    pub(super) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

impl Lz4 {
    /// The accelerations: 1 packs best.
    pub const LEVELS: RangeInclusive<i32> = 1..=65537;

    /// LZ4 with the acceleration nearest to `acceleration` in [`Self::LEVELS`].
    #[must_use]
    pub fn new(acceleration: i32) -> Self {
        Self { acceleration: acceleration.clamp(*Self::LEVELS.start(), *Self::LEVELS.end()) }
    }
}

impl Codec for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn level(&self) -> Option<i32> {
        Some(self.acceleration)
    }

    fn scratch(&self) -> Scratch {
        // SAFETY: no preconditions.
        Box::new(State::new(unsafe { LZ4_sizeofState() }))
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let state = scratch.downcast_mut::<State>().expect("a scratch of lz4");
        // SAFETY: the state is as large and as aligned as the library asks; source and destination are valid
        // for the lengths given with them.
        let length = unsafe {
            LZ4_compress_fast_extState(
                state.as_mut_ptr(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_BYTES,
                capacity(out),
                self.acceleration,
            )
        };
        compressed(length)
    }

    fn decompress(&self, _: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        decompress(data, page)
    }
}

/// The length of `out` for the C interface; what is longer than any page needs is not told.
pub(super) fn capacity(out: &[u8]) -> c_int {
    c_int::try_from(out.len()).unwrap_or(c_int::MAX)
}

/// The compressors' answer: a length, or 0 where the space was too small.
pub(super) fn compressed(length: c_int) -> Result<usize, CompressError> {
    match usize::try_from(length) {
        Ok(0) | Err(_) => Err(CompressError::TooPoor),
        Ok(length) => Ok(length),
    }
}

/// Restores a page; one format serves both compressors.
pub(super) fn decompress(data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
    let length = c_int::try_from(data.len()).map_err(|_| DecompressError)?;
    // SAFETY: source and destination are valid for the lengths given with them; the function stays within
    // them for any source bytes.
    let restored =
        unsafe { LZ4_decompress_safe(data.as_ptr().cast(), page.as_mut_ptr().cast(), length, PAGE_BYTES) };
    if restored == PAGE_BYTES { Ok(()) } else { Err(DecompressError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    super::super::conformance::codec_suite!(Lz4::new(1), Lz4::new(8));

    #[test]
    fn acceleration_trades_size() {
        let page = super::super::conformance::text_page();
        let length = |codec: Lz4| codec.compress(&mut codec.scratch(), &page, &mut [0; 5000]).unwrap();
        assert!(length(Lz4::new(1)) < length(Lz4::new(64)));
    }
}
