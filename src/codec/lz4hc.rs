//! LZ4 HC: LZ4's format, packed ten times slower and a seventh better, for pages that are cold.
//!
//! Levels 2 to 9 search hash chains in the state they are given. The optimal parser of levels 10 to 12 is left
//! out: it calls `malloc` for each page, which this library must not do inside the programs it serves.
//!
//! Price: a state of 256 KiB for each thread. Guarantee: as [`super::lz4`], which restores its pages.

use super::lz4::{self, PAGE_BYTES, State};
use super::{Codec, CompressError, DecompressError, Scratch};
use crate::page::Page;
use lz4_sys::{c_char, c_int};
use std::ffi::c_void;
use std::ops::RangeInclusive;

// In the library that lz4-sys builds, though not among its declarations.
unsafe extern "C" {
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_HC_extStateHC(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_size: c_int,
        dest_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// LZ4 with a search as deep as the level.
#[derive(Debug)]
pub struct Lz4Hc {
    level: c_int,
}

/// A type of its own, so that a scratch of `lz4`, which is smaller, is not taken for it.
struct StateHc(State);

impl Lz4Hc {
    /// The levels: 9 packs best.
    pub const LEVELS: RangeInclusive<i32> = 2..=9;

    /// LZ4 HC at the level nearest to `level` in [`Self::LEVELS`].
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self { level: level.clamp(*Self::LEVELS.start(), *Self::LEVELS.end()) }
    }
}

impl Codec for Lz4Hc {
    fn name(&self) -> &'static str {
        "lz4hc"
    }

    fn level(&self) -> Option<i32> {
        Some(self.level)
    }

    fn scratch(&self) -> Scratch {
        // SAFETY: no preconditions.
        Box::new(StateHc(State::new(unsafe { LZ4_sizeofStateHC() })))
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let state = scratch.downcast_mut::<StateHc>().expect("a scratch of lz4hc");
        // SAFETY: the state is as large and as aligned as the library asks; source and destination are valid
        // for the lengths given with them.
        let length = unsafe {
            LZ4_compress_HC_extStateHC(
                state.0.as_mut_ptr(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                PAGE_BYTES,
                lz4::capacity(out),
                self.level,
            )
        };
        lz4::compressed(length)
    }

    fn decompress(&self, _: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        lz4::decompress(data, page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::lz4::Lz4;

    super::super::conformance::codec_suite!(Lz4Hc::new(2), Lz4Hc::new(4), Lz4Hc::new(9));

    #[test]
    fn lz4_restores_its_pages_and_finds_them_smaller() {
        let page = super::super::conformance::text_page();
        let (fast, high) = (Lz4::new(1), Lz4Hc::new(9));
        let mut out = [0; 4096];
        let length = high.compress(&mut high.scratch(), &page, &mut out).unwrap();
        assert!(length < fast.compress(&mut fast.scratch(), &page, &mut [0; 4096]).unwrap());
        let mut restored = [0; 4096];
        fast.decompress(&mut fast.scratch(), &out[..length], &mut restored).unwrap();
        assert_eq!(restored, page);
    }
}
