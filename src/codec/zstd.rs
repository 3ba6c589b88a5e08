//! Zstandard: the best ratio for its time, above all at the negative levels.
//!
//! Frames without magic number, content size and checksum: the store knows all three, and eight bytes a page
//! are half a percent. The contexts are made once for each thread and used again, as zram's `zcomp` does it.
//! Source: <https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md>.
//!
//! Price: contexts of some hundred kilobytes for each thread ([`Codec::scratch`] compresses a page to have
//! them allocated to their full size). A page that does not fit into `out` is noticed where the block is
//! written, after the search for matches: it saves the entropy coding only. Guarantee: no allocation after
//! [`Codec::scratch`], and the contexts' memory comes from the Rust heap ([`super::heap`]).

use super::{Codec, CompressError, DecompressError, Scratch, heap};
use crate::page::{PAGE_SIZE, Page};
use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use zstd_safe::zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_ErrorCode, ZSTD_cParameter,
    ZSTD_compress2, ZSTD_createCCtx_advanced, ZSTD_createDCtx_advanced, ZSTD_customMem, ZSTD_dParameter,
    ZSTD_decompressDCtx, ZSTD_format_e, ZSTD_freeCCtx, ZSTD_freeDCtx, ZSTD_getErrorCode, ZSTD_isError,
};

/// Zstandard at a level.
#[derive(Debug)]
pub struct Zstd {
    level: c_int,
}

/// The contexts of one thread, owned.
struct Contexts {
    compressor: NonNull<ZSTD_CCtx>,
    decompressor: NonNull<ZSTD_DCtx>,
}

// SAFETY: the contexts are owned by this value alone and bound to no thread.
unsafe impl Send for Contexts {}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: both were made by their create functions and are freed once.
        unsafe {
            ZSTD_freeCCtx(self.compressor.as_ptr());
            ZSTD_freeDCtx(self.decompressor.as_ptr());
        }
    }
}

extern "C" fn allocate(_: *mut c_void, size: usize) -> *mut c_void {
    heap::malloc(size)
}

unsafe extern "C" fn release(_: *mut c_void, block: *mut c_void) {
    // SAFETY: zstd gives back, once, what `allocate` gave it.
    unsafe { heap::free(block) }
}

impl Contexts {
    /// Contexts for pages at `level`. Panics if there is no memory for them, as `Box::new` does.
    fn new(level: c_int) -> Self {
        let memory = || ZSTD_customMem {
            customAlloc: Some(allocate),
            customFree: Some(release),
            opaque: std::ptr::null_mut(),
        };
        // SAFETY: the two functions are a pair, as zstd demands.
        let (compressor, decompressor) =
            unsafe { (ZSTD_createCCtx_advanced(memory()), ZSTD_createDCtx_advanced(memory())) };
        let contexts = Self {
            compressor: NonNull::new(compressor).expect("memory for zstd"),
            decompressor: NonNull::new(decompressor).expect("memory for zstd"),
        };
        let magicless = ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;
        // ZSTD_c_format and ZSTD_d_format by the names of the stable interface.
        let (c_format, d_format) =
            (ZSTD_cParameter::ZSTD_c_experimentalParam2, ZSTD_dParameter::ZSTD_d_experimentalParam1);
        contexts.set(ZSTD_cParameter::ZSTD_c_compressionLevel, level);
        contexts.set(c_format, magicless);
        contexts.set(ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0);
        contexts.set(ZSTD_cParameter::ZSTD_c_checksumFlag, 0);
        contexts.set(ZSTD_cParameter::ZSTD_c_dictIDFlag, 0);
        // SAFETY: the decompressor is valid and idle.
        let result = unsafe { ZSTD_DCtx_setParameter(contexts.decompressor.as_ptr(), d_format, magicless) };
        assert!(!is_error(result), "zstd refuses its magicless format");
        contexts
    }

    /// Sets a parameter of the compressor; all that are set here exist in any zstd since 1.4.
    fn set(&self, parameter: ZSTD_cParameter, value: c_int) {
        // SAFETY: the compressor is valid and idle.
        let result = unsafe { ZSTD_CCtx_setParameter(self.compressor.as_ptr(), parameter, value) };
        assert!(!is_error(result), "zstd refuses {parameter:?} = {value}");
    }

    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        // SAFETY: the compressor is valid; source and destination are valid for the lengths given with them.
        let result = unsafe {
            let (to, from) = (out.as_mut_ptr().cast(), page.as_ptr().cast());
            ZSTD_compress2(self.compressor.as_ptr(), to, out.len(), from, PAGE_SIZE)
        };
        if !is_error(result) {
            return Ok(result);
        }
        // SAFETY: no preconditions.
        match unsafe { ZSTD_getErrorCode(result) } {
            ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall => Err(CompressError::TooPoor),
            _ => Err(CompressError::Failed),
        }
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        // SAFETY: the decompressor is valid; source and destination are valid for the lengths given with them;
        // zstd stays within them for any source bytes.
        let result = unsafe {
            let (to, from) = (page.as_mut_ptr().cast(), data.as_ptr().cast());
            ZSTD_decompressDCtx(self.decompressor.as_ptr(), to, PAGE_SIZE, from, data.len())
        };
        if result == PAGE_SIZE { Ok(()) } else { Err(DecompressError) }
    }
}

/// Whether zstd's result is an error and no length.
fn is_error(result: usize) -> bool {
    // SAFETY: no preconditions.
    unsafe { ZSTD_isError(result) != 0 }
}

impl Zstd {
    /// The levels. Negative ones are faster than 1.
    pub const LEVELS: RangeInclusive<i32> = -(1 << 17)..=22;

    /// Zstandard at the level nearest to `level` in [`Self::LEVELS`]. Level 0 is zstd's own default, 3.
    #[must_use]
    pub fn new(level: i32) -> Self {
        Self { level: level.clamp(*Self::LEVELS.start(), *Self::LEVELS.end()) }
    }
}

impl Codec for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn level(&self) -> Option<i32> {
        Some(self.level)
    }

    fn scratch(&self) -> Scratch {
        let mut contexts = Contexts::new(self.level);
        contexts.compress(&[0; PAGE_SIZE], &mut [0; 2 * PAGE_SIZE]).expect("there is room for any page");
        Box::new(contexts)
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        scratch.downcast_mut::<Contexts>().expect("a scratch of zstd").compress(page, out)
    }

    fn decompress(&self, scratch: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        scratch.downcast_mut::<Contexts>().expect("a scratch of zstd").decompress(data, page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zstd_safe::zstd_sys::{ZSTD_sizeof_CCtx, ZSTD_sizeof_DCtx};

    super::super::conformance::codec_suite!(
        Zstd::new(-7),
        Zstd::new(-1),
        Zstd::new(1),
        Zstd::new(3),
        Zstd::new(9),
        Zstd::new(22)
    );

    #[test]
    fn a_page_of_zeros_has_no_frame_fields() {
        let codec = Zstd::new(-1);
        let length = codec.compress(&mut codec.scratch(), &[0; PAGE_SIZE], &mut [0; 64]).unwrap();
        // Descriptor, window, block header, and the repeated byte or a block of a few.
        assert!(length <= 16, "{length} bytes");
    }

    #[test]
    fn contexts_do_not_grow_after_they_are_made() {
        for level in [-5, -1, 1, 3, 12, 19, 22] {
            let codec = Zstd::new(level);
            let mut scratch = codec.scratch();
            let size = |scratch: &Scratch| {
                let contexts = scratch.downcast_ref::<Contexts>().unwrap();
                // SAFETY: both contexts are valid.
                unsafe {
                    ZSTD_sizeof_CCtx(contexts.compressor.as_ptr())
                        + ZSTD_sizeof_DCtx(contexts.decompressor.as_ptr())
                }
            };
            let made = size(&scratch);
            for page in super::super::conformance::pages() {
                let mut out = [0; 5000];
                let length = codec.compress(&mut scratch, &page, &mut out).unwrap();
                codec.decompress(&mut scratch, &out[..length], &mut [0; PAGE_SIZE]).unwrap();
            }
            assert_eq!(size(&scratch), made, "level {level}");
        }
    }
}
