//! Codecs: how a page becomes fewer bytes, and a page again.
//!
//! A codec is chosen by name at run time (`lz4`, `zstd:-1`, `deflate:6`). Its parameters never change after it
//! is made; what a thread needs while it works lives in a [`Scratch`] of its own (the split of zram's
//! `zcomp_params` and `zcomp_ctx`), so one codec serves any number of threads without a lock.

mod deflate;
mod dictionary;
mod heap;
mod lz4;
mod lz4hc;
mod lzo;
mod names;
mod zstd;

#[cfg(test)]
mod conformance;

pub use deflate::Deflate;
pub use dictionary::{Dictionary, DictionaryError, MOST_DICTIONARY, NotTrained, train};
pub use lz4::Lz4;
pub use lz4hc::Lz4Hc;
pub use lzo::Lzo;
pub use names::{CodecNameError, NAMES, by_name};
pub use zstd::Zstd;

use crate::page::Page;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// One thread's working memory for one codec. Made by [`Codec::scratch`], of use only to the codec that made it.
pub type Scratch = Box<dyn Any + Send>;

/// A compressor and its decompressor for single pages.
pub trait Codec: Send + Sync + Debug {
    /// The name under which it was chosen, without the level: `lz4`, `zstd`.
    fn name(&self) -> &'static str;

    /// The level, where the codec has levels.
    fn level(&self) -> Option<i32>;

    /// The dictionary, where the codec has one: a page that it compressed is readable with that alone.
    fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        None
    }

    /// Bytes of memory that the codec itself takes, beside what threads have.
    fn meta_bytes(&self) -> usize {
        0
    }

    /// Working memory for one thread. May allocate some hundred kilobytes.
    fn scratch(&self) -> Scratch;

    /// Compresses `page` into the front of `out` and returns the number of bytes.
    ///
    /// # Errors
    /// [`CompressError::TooPoor`] if the result does not fit into `out`: the caller gives a smaller `out` to
    /// have poor pages refused early.
    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError>;

    /// Restores a page from exactly the bytes that `compress` made. Any input is safe: wrong bytes give an
    /// error or, at worst, a wrong page (the store's checksum is for that), never a panic.
    ///
    /// # Errors
    /// [`DecompressError`] if `data` is no page of this codec.
    fn decompress(&self, scratch: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError>;
}

/// Why a page was not compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressError {
    /// the compressed page does not fit into the space given
    #[error("the compressed page does not fit into the space given")]
    TooPoor,
    /// the codec failed
    #[error("the codec failed")]
    Failed,
}

/// The bytes are no page of this codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no page of this codec")]
pub struct DecompressError;
