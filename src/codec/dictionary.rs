//! Dictionaries of zstd: what many pages have in common, kept once beside them.
//!
//! A page of 4 KiB is short: most of what repeats in it repeats in other pages. With a dictionary each page is
//! compressed as if these bytes had come before it, so it refers to them, and begins with their statistics. Unlike a
//! unit of several pages, each page stays readable by itself, at the same price. A dictionary is trained from a sample
//! of the pages ([`train`]: zstd's fast cover, which picks the pieces that most pages have), or given as `zstd --train`
//! makes it; bytes without the magic of such a file are taken as they are.
//! Source: <https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md#dictionary-format>.
//!
//! Price: the bytes, a table of 28 KiB for readers, and one of up to about ten times the bytes for writers of each
//! level; they are shared by all threads. Guarantee: any bytes are safe. They are a dictionary from then on, or told to
//! be none; that they are the ones a page was compressed with is for the store's checksum, and for who names codecs.

use super::heap;
use crate::page::{PAGE_SIZE, Page};
use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;
use std::sync::Arc;
use zstd_safe::zstd_sys::{
    ZDICT_fastCover_params_t, ZDICT_isError, ZDICT_params_t, ZDICT_trainFromBuffer_fastCover, ZSTD_CDict,
    ZSTD_DDict, ZSTD_compressionParameters, ZSTD_createCDict_advanced, ZSTD_createDDict_advanced,
    ZSTD_dictContentType_e, ZSTD_dictLoadMethod_e, ZSTD_freeCDict, ZSTD_freeDDict, ZSTD_getCParams,
    ZSTD_sizeof_CDict, ZSTD_sizeof_DDict,
};

/// The most bytes that a dictionary has.
pub const MOST_DICTIONARY: usize = 1 << 20;
/// Fewer are no dictionary to zstd.
const LEAST: usize = 8;
/// What a file of `zstd --train` begins with.
const MAGIC: [u8; 4] = 0xec30_a437_u32.to_le_bytes();
/// A hash table for writers has 2 to the power of this entries at most: beyond it levels pay more than they gain.
const MOST_HASH_LOG: c_uint = 18;

/// Why bytes are no dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DictionaryError {
    /// it has too few or too many bytes
    #[error("a dictionary has {LEAST} to {MOST_DICTIONARY} bytes, and this has {0}")]
    Length(usize),
    /// it is damaged
    #[error("it is damaged")]
    Damaged,
    /// there is no memory for it
    #[error("there is no memory for it")]
    NoMemory,
}

/// The pages were too few, or have nothing in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the pages give no dictionary")]
pub struct NotTrained;

/// A dictionary, ready for readers.
#[derive(Debug)]
pub struct Dictionary {
    /// Refers to `bytes`, and goes first.
    reader: Reader,
    bytes: Box<[u8]>,
}

/// Zstd's form for readers, owned.
#[derive(Debug)]
struct Reader(NonNull<ZSTD_DDict>);

/// Zstd's form for writers, owned.
#[derive(Debug)]
struct Writer(NonNull<ZSTD_CDict>);

/// A dictionary that is ready for writers of one level, too.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Refers to the dictionary's bytes, and goes first.
    writer: Writer,
    dictionary: Arc<Dictionary>,
}

// SAFETY: it is owned, and not changed once it is made.
unsafe impl Send for Reader {}
// SAFETY: as above; zstd lets any number of threads read it.
unsafe impl Sync for Reader {}
// SAFETY: as above.
unsafe impl Send for Writer {}
// SAFETY: as above.
unsafe impl Sync for Writer {}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: it was made by its create function and is freed once.
        unsafe { ZSTD_freeDDict(self.0.as_ptr()) };
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { ZSTD_freeCDict(self.0.as_ptr()) };
    }
}

impl PartialEq for Dictionary {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Dictionary {}

impl Dictionary {
    /// A dictionary of these bytes.
    ///
    /// # Errors
    /// [`DictionaryError`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, DictionaryError> {
        if !(LEAST..=MOST_DICTIONARY).contains(&bytes.len()) {
            return Err(DictionaryError::Length(bytes.len()));
        }
        let bytes = bytes.into_boxed_slice();
        let (by_reference, auto) =
            (ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef, ZSTD_dictContentType_e::ZSTD_dct_auto);
        // SAFETY: the bytes are valid for their length, and live on the heap, unchanged, longer than what refers to
        // them; the two functions of `for_zstd` are a pair, as zstd demands.
        let reader = unsafe {
            let (at, length) = (bytes.as_ptr().cast(), bytes.len());
            ZSTD_createDDict_advanced(at, length, by_reference, auto, heap::for_zstd())
        };
        let reader = NonNull::new(reader).map(Reader).ok_or(Self::why_none(&bytes))?;
        Ok(Self { reader, bytes })
    }

    /// Bytes without the magic cannot be damaged.
    fn why_none(bytes: &[u8]) -> DictionaryError {
        if bytes.starts_with(&MAGIC) { DictionaryError::Damaged } else { DictionaryError::NoMemory }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Prepared {
    pub(super) fn new(level: c_int, dictionary: Arc<Dictionary>) -> Result<Self, DictionaryError> {
        let (by_reference, auto) =
            (ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef, ZSTD_dictContentType_e::ZSTD_dct_auto);
        // SAFETY: as for the reader.
        let writer = unsafe {
            let (at, length) = (dictionary.bytes.as_ptr().cast(), dictionary.bytes.len());
            let parameters = parameters(level, length);
            ZSTD_createCDict_advanced(at, length, by_reference, auto, parameters, heap::for_zstd())
        };
        let writer = NonNull::new(writer).map(Writer).ok_or(Dictionary::why_none(&dictionary.bytes))?;
        Ok(Self { writer, dictionary })
    }

    pub(super) fn dictionary(&self) -> &Arc<Dictionary> {
        &self.dictionary
    }

    /// Valid as long as this lives.
    pub(super) fn writer(&self) -> *const ZSTD_CDict {
        self.writer.0.as_ptr()
    }

    /// Valid as long as this lives.
    pub(super) fn reader(&self) -> *const ZSTD_DDict {
        self.dictionary.reader.0.as_ptr()
    }

    /// Memory that it takes, with the dictionary.
    pub(super) fn bytes(&self) -> usize {
        // SAFETY: both are valid.
        let forms = unsafe { ZSTD_sizeof_CDict(self.writer()) + ZSTD_sizeof_DDict(self.reader()) };
        forms + self.dictionary.bytes.len()
    }
}

/// The level's search as it is for pages, over a window with the dictionary in it.
fn parameters(level: c_int, length: usize) -> ZSTD_compressionParameters {
    // SAFETY: no preconditions.
    let for_pages = unsafe { ZSTD_getCParams(level, PAGE_SIZE as u64, 0) };
    let log = (length + PAGE_SIZE).next_power_of_two().ilog2();
    ZSTD_compressionParameters { windowLog: log, chainLog: log, hashLog: log.min(MOST_HASH_LOG), ..for_pages }
}

/// The bytes of a dictionary of at most `size` for pages like these: some dozen times as many bytes do well.
///
/// Takes 1.5 MiB beside the pages while it works, some tenths of a second, from the C library's heap.
///
/// # Errors
/// [`NotTrained`].
pub fn train(pages: &[Page], size: usize) -> Result<Vec<u8>, NotTrained> {
    let count = c_uint::try_from(pages.len()).map_err(|_| NotTrained)?;
    let (mut dictionary, sizes) = (vec![0; size.min(MOST_DICTIONARY)], vec![PAGE_SIZE; pages.len()]);
    // The two parameters that the method has to be told, as they were best for pages of files and of programs.
    let parameters = ZDICT_fastCover_params_t {
        k: 1024,
        d: 8,
        f: 18,
        steps: 0,
        nbThreads: 0,
        splitPoint: 0.0,
        accel: 1,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: ZDICT_params_t { compressionLevel: 9, notificationLevel: 0, dictID: 0 },
    };
    // SAFETY: the dictionary is valid for its length, and the pages lie one behind the other, with a size for each.
    let length = unsafe {
        let (to, from) = (dictionary.as_mut_ptr().cast(), pages.as_ptr().cast());
        ZDICT_trainFromBuffer_fastCover(to, dictionary.len(), from, sizes.as_ptr(), count, parameters)
    };
    // SAFETY: no preconditions.
    if unsafe { ZDICT_isError(length) } != 0 {
        return Err(NotTrained);
    }
    dictionary.truncate(length);
    Ok(dictionary)
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{dictionary, random_page, text_page};
    use super::super::{Codec, zstd::Zstd};
    use super::*;

    #[test]
    fn bytes_are_a_dictionary_or_are_told_to_be_none() {
        assert_eq!(Dictionary::new(vec![1; 7]).unwrap_err(), DictionaryError::Length(7));
        let large = vec![1; MOST_DICTIONARY + 1];
        assert_eq!(Dictionary::new(large).unwrap_err(), DictionaryError::Length(MOST_DICTIONARY + 1));
        assert!(Dictionary::new(text_page().to_vec()).is_ok(), "any bytes will do");
        let good = dictionary();
        for cut in [LEAST, 20, 60] {
            let cut = Dictionary::new(good.bytes()[..cut].to_vec());
            assert_eq!(cut.unwrap_err(), DictionaryError::Damaged);
        }
        let mut bad = good.bytes().to_vec();
        bad[8..40].fill(0xff);
        assert_eq!(Dictionary::new(bad).unwrap_err(), DictionaryError::Damaged);
        assert!(*good == Dictionary::new(good.bytes().to_vec()).unwrap());
    }

    #[test]
    fn a_dictionary_changed_anywhere_is_refused_or_works() {
        let good = dictionary();
        for at in (0..good.bytes().len()).step_by(7) {
            let mut bytes = good.bytes().to_vec();
            bytes[at] ^= 0x55;
            let Ok(dictionary) = Dictionary::new(bytes) else { continue };
            let Ok(codec) = Zstd::with_dictionary(3, Arc::new(dictionary)) else { continue };
            for page in [text_page(), random_page(3)] {
                let (mut scratch, mut out, mut back) =
                    (codec.scratch(), [0; PAGE_SIZE + 128], [0; PAGE_SIZE]);
                let length = codec.compress(&mut scratch, &page, &mut out).unwrap();
                codec.decompress(&mut scratch, &out[..length], &mut back).unwrap();
                assert!(back == page, "changed at {at}");
            }
        }
    }

    #[test]
    fn memory_is_counted() {
        let codec = Zstd::with_dictionary(9, dictionary()).unwrap();
        let (all, bytes) = (codec.meta_bytes(), dictionary().bytes().len());
        assert!(all > bytes && all < bytes * 40 + (64 << 10), "{all} bytes for {bytes}");
        assert_eq!(Zstd::new(9).meta_bytes(), 0);
    }

    #[test]
    fn nothing_in_common_gives_none() {
        assert_eq!(train(&[], 4096), Err(NotTrained));
        assert_eq!(train(&[[0; PAGE_SIZE]; 2], 4096).map(|_| ()), Err(NotTrained));
    }
}
