//! What a zpool costs after churn.
//!
//! Only sizes matter for that, so the compressed bytes are those that the bare codec has already made.

use super::bare::PackedPages;
use super::{Bare, Corpus};
use crate::failure::Failure;
use ramfold::codec::{Codec, CompressError, DecompressError, Scratch};
use ramfold::{PAGE_SIZE, Page};
use ramfold_survey::random::Random;
use ramfold_survey::shelf::Shelf;
use std::sync::Arc;

/// Rounds, the share of the pages replaced in each, and the rounds that are averaged.
const ROUNDS: usize = 40;
const SHARE: usize = 10;
const COUNTED: usize = 10;

/// Bytes of pool memory to compressed bytes after churn. Two thirds of the pages are stored; in each round a tenth
/// of those gives way to pages of the rest. Nothing compacts but the store of its own accord.
pub fn overhead(corpus: &Corpus, bare: &Bare, zpool: &str) -> Result<f64, Failure> {
    let pages = &corpus.unique;
    let mut shelf = Shelf::with_codec(Arc::new(Replay(Arc::clone(bare.packed()))), zpool)?;
    let (mut random, stored) = (Random::new(2), pages.len() * 2 / 3);
    // `order[..stored]` are the pages that are stored, each under its place in the order.
    let mut order: Vec<usize> = (0..pages.len()).collect();
    for (place, page) in order[..stored].iter().enumerate() {
        shelf.put(place, &numbered(*page))?;
    }
    let mut overheads = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..stored / SHARE {
            let (out, r#in) = (random.index(stored), stored + random.index(pages.len() - stored));
            order.swap(out, r#in);
            shelf.put(out, &numbered(order[out]))?;
        }
        let stats = shelf.stats();
        overheads.push(stats.pool_total_size as f64 / stats.compr_data_size as f64);
    }
    Ok(overheads[ROUNDS - COUNTED..].iter().sum::<f64>() / COUNTED as f64)
}

/// A page that stands for the page of this number.
fn numbered(index: usize) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[..size_of::<usize>()].copy_from_slice(&index.to_ne_bytes());
    page[PAGE_SIZE - 1] = 1;
    page
}

/// Gives the bytes that another codec made of the page whose number it is given.
#[derive(Debug)]
struct Replay(Arc<PackedPages>);

impl Codec for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn level(&self) -> Option<i32> {
        None
    }

    fn scratch(&self) -> Scratch {
        Box::new(())
    }

    fn compress(&self, _: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let (number, _) = page.split_first_chunk().ok_or(CompressError::Failed)?;
        let bytes = self.0.get(usize::from_ne_bytes(*number));
        out.get_mut(..bytes.len()).ok_or(CompressError::TooPoor)?.copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn decompress(&self, _: &mut Scratch, _: &[u8], _: &mut Page) -> Result<(), DecompressError> {
        Err(DecompressError)
    }
}
