//! The codec alone: what the store is measured against.

use crate::failure::Failure;
use ramfold::codec::{self, Codec};
use ramfold::{PAGE_SIZE, Page};
use ramfold_survey::shelf::thread_time;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A codec, and the pages of the corpus as it packs them.
pub struct Bare {
    name: String,
    codec: Arc<dyn Codec>,
    scratch: codec::Scratch,
    packed: Arc<PackedPages>,
    /// Where compressed pages go, one after another as in `packed`.
    run: Vec<u8>,
    packing: Duration,
}

/// Compressed pages one after another; those that do not compress are as they were.
#[derive(Debug, Default)]
pub struct PackedPages {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl PackedPages {
    /// The bytes of a page.
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index]]
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Memory for a copy, with room for one page more.
    fn room(&self) -> Vec<u8> {
        vec![1; self.bytes.len() + PAGE_SIZE]
    }
}

impl Bare {
    /// The compressor of this name, with all pages packed.
    pub fn new(name: &str, pages: &[Page]) -> Result<Self, Failure> {
        let codec: Arc<dyn Codec> =
            codec::by_name(name).map_err(|error| Failure::usage(error.to_string()))?.into();
        let mut scratch = codec.scratch();
        let (mut packed, mut out, started) = (PackedPages::default(), [0; PAGE_SIZE - 1], thread_time());
        for page in pages {
            let len = codec.compress(&mut scratch, page, &mut out);
            packed.bytes.extend_from_slice(len.map_or(&page[..], |len| &out[..len]));
            packed.ends.push(packed.bytes.len());
        }
        Ok(Self {
            name: name.into(),
            codec,
            scratch,
            run: packed.room(),
            packed: Arc::new(packed),
            packing: thread_time() - started,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn packed(&self) -> &Arc<PackedPages> {
        &self.packed
    }

    /// The same for another thread.
    pub fn share(&self) -> Self {
        let (codec, packed) = (Arc::clone(&self.codec), Arc::clone(&self.packed));
        let (scratch, run) = (codec.scratch(), packed.room());
        Self { name: self.name.clone(), codec, scratch, packed, run, packing: self.packing }
    }

    /// How many pages are compressed in that time.
    pub fn pages_in(&self, time: Duration) -> usize {
        let pages = self.packed.ends.len() as u128 * time.as_nanos() / self.packing.as_nanos().max(1);
        usize::try_from(pages).unwrap_or(usize::MAX)
    }

    pub fn compress(&mut self, pages: &[Page], range: Range<usize>) -> Duration {
        let started = thread_time();
        for index in range {
            let out = &mut self.run[self.packed.start(index)..][..PAGE_SIZE - 1];
            let _ = black_box(self.codec.compress(&mut self.scratch, &pages[index], out));
        }
        thread_time() - started
    }

    pub fn decompress(&mut self, range: Range<usize>) -> Duration {
        let mut page = [0; PAGE_SIZE];
        let started = thread_time();
        for index in range {
            let bytes = self.packed.get(index);
            if bytes.len() == PAGE_SIZE {
                page.copy_from_slice(bytes);
            } else {
                let _ = black_box(self.codec.decompress(&mut self.scratch, bytes, &mut page));
            }
            black_box(&page);
        }
        thread_time() - started
    }
}
