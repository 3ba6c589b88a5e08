//! Zstandard: the best ratio for its time, above all at the negative levels.
//!
//! Frames without magic number, content size and checksum: the store knows all three, and eight bytes a page
//! are half a percent. The contexts are made once for each thread and used again, as zram's `zcomp` does it.
//! Given a dictionary ([`Dictionary`]), each page is compressed as if that had come before it. The dictionary is no
//! part of the bytes: who reads them needs it too.
//! Source: <https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md>.
//!
//! Price: contexts of some hundred kilobytes for each thread, made when it first compresses or first decompresses. A
//! page that does not fit into `out` is noticed where the block is written, after the search for matches: it saves the
//! entropy coding only. Guarantee: no allocation after the first page, and the contexts' memory comes from the Rust
//! heap ([`super::heap`]); without memory for them the page is refused.

use super::dictionary::{Dictionary, DictionaryError, Prepared};
use super::{Codec, CompressError, DecompressError, Scratch, heap};
use crate::page::{PAGE_SIZE, Page};
use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use zstd_safe::zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_refCDict, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_refDDict,
    ZSTD_DCtx_setParameter, ZSTD_ErrorCode, ZSTD_cParameter, ZSTD_compress2, ZSTD_createCCtx_advanced,
    ZSTD_createDCtx_advanced, ZSTD_dParameter, ZSTD_decompressDCtx, ZSTD_format_e, ZSTD_freeCCtx,
    ZSTD_freeDCtx, ZSTD_getErrorCode, ZSTD_isError,
};

/// Zstandard at a level, with a dictionary or without.
#[derive(Debug)]
pub struct Zstd {
    level: c_int,
    prepared: Option<Arc<Prepared>>,
}

/// The contexts of one thread, each made when it is first wanted: who only loads pages needs no compressor.
struct Contexts {
    level: c_int,
    compressor: Option<Compressor>,
    decompressor: Option<Decompressor>,
    /// What both refer to. The last field, so it goes after them.
    prepared: Option<Arc<Prepared>>,
}

/// A compressor, owned.
struct Compressor(NonNull<ZSTD_CCtx>);

/// A decompressor, owned.
struct Decompressor(NonNull<ZSTD_DCtx>);

// SAFETY: the contexts are owned by this value alone and bound to no thread.
unsafe impl Send for Contexts {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: it was made by its create function and is freed once.
        unsafe { ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { ZSTD_freeDCtx(self.0.as_ptr()) };
    }
}

const MAGICLESS: c_int = ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;

impl Compressor {
    /// For pages at `level`, or at that of a dictionary. None if there is no memory.
    ///
    /// # Safety
    /// `prepared` lives longer than the compressor.
    unsafe fn new(level: c_int, prepared: Option<&Prepared>) -> Option<Self> {
        // SAFETY: the two functions of `for_zstd` are a pair, as zstd demands.
        let compressor = Self(NonNull::new(unsafe { ZSTD_createCCtx_advanced(heap::for_zstd()) })?);
        // ZSTD_c_format by the name of the stable interface.
        let format = ZSTD_cParameter::ZSTD_c_experimentalParam2;
        compressor.set(ZSTD_cParameter::ZSTD_c_compressionLevel, level);
        compressor.set(format, MAGICLESS);
        compressor.set(ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0);
        compressor.set(ZSTD_cParameter::ZSTD_c_checksumFlag, 0);
        compressor.set(ZSTD_cParameter::ZSTD_c_dictIDFlag, 0);
        if let Some(prepared) = prepared {
            // SAFETY: the compressor is valid and idle; the dictionary is valid, and stays so by the caller's word.
            let result = unsafe { ZSTD_CCtx_refCDict(compressor.0.as_ptr(), prepared.writer()) };
            assert!(!is_error(result), "zstd refuses a dictionary that it has made");
        }
        Some(compressor)
    }

    /// Sets a parameter; all that are set here exist in any zstd since 1.4.
    fn set(&self, parameter: ZSTD_cParameter, value: c_int) {
        // SAFETY: the compressor is valid and idle.
        let result = unsafe { ZSTD_CCtx_setParameter(self.0.as_ptr(), parameter, value) };
        assert!(!is_error(result), "zstd refuses {parameter:?} = {value}");
    }

    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        // SAFETY: the compressor is valid; source and destination are valid for the lengths given with them.
        let result = unsafe {
            let (to, from) = (out.as_mut_ptr().cast(), page.as_ptr().cast());
            ZSTD_compress2(self.0.as_ptr(), to, out.len(), from, PAGE_SIZE)
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
}

impl Decompressor {
    /// None if there is no memory.
    ///
    /// # Safety
    /// `prepared` lives longer than the decompressor.
    unsafe fn new(prepared: Option<&Prepared>) -> Option<Self> {
        // SAFETY: the two functions of `for_zstd` are a pair, as zstd demands.
        let decompressor = Self(NonNull::new(unsafe { ZSTD_createDCtx_advanced(heap::for_zstd()) })?);
        // ZSTD_d_format by the name of the stable interface.
        let format = ZSTD_dParameter::ZSTD_d_experimentalParam1;
        // SAFETY: the decompressor is valid and idle.
        let result = unsafe { ZSTD_DCtx_setParameter(decompressor.0.as_ptr(), format, MAGICLESS) };
        assert!(!is_error(result), "zstd refuses its magicless format");
        if let Some(prepared) = prepared {
            // SAFETY: the decompressor is valid and idle; the dictionary is valid, and stays so by the caller's word.
            let result = unsafe { ZSTD_DCtx_refDDict(decompressor.0.as_ptr(), prepared.reader()) };
            assert!(!is_error(result), "zstd refuses a dictionary that it has made");
        }
        Some(decompressor)
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        // SAFETY: the decompressor is valid; source and destination are valid for the lengths given with them;
        // zstd stays within them for any source bytes.
        let result = unsafe {
            let (to, from) = (page.as_mut_ptr().cast(), data.as_ptr().cast());
            ZSTD_decompressDCtx(self.0.as_ptr(), to, PAGE_SIZE, from, data.len())
        };
        if result == PAGE_SIZE { Ok(()) } else { Err(DecompressError) }
    }
}

impl Contexts {
    fn compressor(&mut self) -> Option<&mut Compressor> {
        if self.compressor.is_none() {
            // SAFETY: what is prepared is held by the field behind the compressor's.
            self.compressor = unsafe { Compressor::new(self.level, self.prepared.as_deref()) };
        }
        self.compressor.as_mut()
    }

    fn decompressor(&mut self) -> Option<&mut Decompressor> {
        if self.decompressor.is_none() {
            // SAFETY: as above.
            self.decompressor = unsafe { Decompressor::new(self.prepared.as_deref()) };
        }
        self.decompressor.as_mut()
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
        Self { level: level.clamp(*Self::LEVELS.start(), *Self::LEVELS.end()), prepared: None }
    }

    /// The same, with a dictionary.
    ///
    /// # Errors
    /// [`DictionaryError`] if zstd cannot use it.
    pub fn with_dictionary(level: i32, dictionary: Arc<Dictionary>) -> Result<Self, DictionaryError> {
        let plain = Self::new(level);
        let prepared = Some(Arc::new(Prepared::new(plain.level, dictionary)?));
        Ok(Self { prepared, ..plain })
    }
}

impl Codec for Zstd {
    fn name(&self) -> &'static str {
        "zstd"
    }

    fn level(&self) -> Option<i32> {
        Some(self.level)
    }

    fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.prepared.as_ref().map(|prepared| prepared.dictionary())
    }

    fn meta_bytes(&self) -> usize {
        self.prepared.as_ref().map_or(0, |prepared| prepared.bytes())
    }

    fn scratch(&self) -> Scratch {
        let prepared = self.prepared.clone();
        Box::new(Contexts { level: self.level, compressor: None, decompressor: None, prepared })
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let contexts = scratch.downcast_mut::<Contexts>().expect("a scratch of zstd");
        contexts.compressor().ok_or(CompressError::Failed)?.compress(page, out)
    }

    fn decompress(&self, scratch: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        let contexts = scratch.downcast_mut::<Contexts>().expect("a scratch of zstd");
        contexts.decompressor().ok_or(DecompressError)?.decompress(data, page)
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

    mod with_a_dictionary {
        use super::super::super::conformance::{codec_suite, dictionary};
        use super::super::Zstd;

        codec_suite!(
            Zstd::with_dictionary(-1, dictionary()).unwrap(),
            Zstd::with_dictionary(3, dictionary()).unwrap(),
            Zstd::with_dictionary(9, dictionary()).unwrap(),
            Zstd::with_dictionary(19, dictionary()).unwrap()
        );
    }

    #[test]
    fn pages_are_read_by_their_own_dictionary_alone() {
        use super::super::conformance::{dictionary, text_page};
        let codec = Zstd::with_dictionary(3, dictionary()).unwrap();
        let (mut out, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let length = codec.compress(&mut codec.scratch(), &text_page(), &mut out).unwrap();
        let plain = Zstd::new(3);
        let alone = plain.compress(&mut plain.scratch(), &text_page(), &mut [0; PAGE_SIZE]).unwrap();
        assert!(length < alone, "{length} bytes, {alone} without a dictionary");
        let read = plain.decompress(&mut plain.scratch(), &out[..length], &mut page);
        assert!(read.is_err() || page != text_page());
        // A scratch keeps what it refers to, and no other codec is harmed by it.
        let mut scratch = codec.scratch();
        codec.decompress(&mut scratch, &out[..length], &mut page).unwrap();
        drop(codec);
        let _ = plain.decompress(&mut scratch, &out[..length], &mut page);
        assert!(page == text_page());
    }

    #[test]
    fn a_page_of_zeros_has_no_frame_fields() {
        let codec = Zstd::new(-1);
        let length = codec.compress(&mut codec.scratch(), &[0; PAGE_SIZE], &mut [0; 64]).unwrap();
        // Descriptor, window, block header, and the repeated byte or a block of a few.
        assert!(length <= 16, "{length} bytes");
    }

    #[test]
    fn contexts_do_not_grow_after_they_are_made() {
        let with = |level| Zstd::with_dictionary(level, super::super::conformance::dictionary()).unwrap();
        let plain = [-5, -1, 1, 3, 12, 19, 22].map(Zstd::new);
        for codec in plain.into_iter().chain([-5, -1, 1, 3, 9, 12, 19, 22].map(with)) {
            let mut scratch = codec.scratch();
            let size = |scratch: &mut Scratch| {
                let contexts = scratch.downcast_mut::<Contexts>().unwrap();
                let (c, d) = (contexts.compressor().unwrap().0, contexts.decompressor().unwrap().0);
                // SAFETY: both contexts are valid.
                unsafe { ZSTD_sizeof_CCtx(c.as_ptr()) + ZSTD_sizeof_DCtx(d.as_ptr()) }
            };
            codec.compress(&mut scratch, &[0; PAGE_SIZE], &mut [0; 5000]).unwrap();
            let made = size(&mut scratch);
            for page in super::super::conformance::pages() {
                let mut out = [0; 5000];
                let length = codec.compress(&mut scratch, &page, &mut out).unwrap();
                codec.decompress(&mut scratch, &out[..length], &mut [0; PAGE_SIZE]).unwrap();
            }
            assert_eq!(size(&mut scratch), made, "level {}", codec.level);
        }
    }
}
