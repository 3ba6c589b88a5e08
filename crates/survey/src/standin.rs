//! Pages that stand for others: of a page only its compressed size is known.
//!
//! A stand-in names a size and a number; its codec makes of it so many bytes, which begin with both, and gives it
//! back. So a real store and a real zpool can be filled with nothing but sizes. No size is below [`LEAST`] bytes.

use ramfold::codec::{Codec, CompressError, DecompressError, Scratch};
use ramfold::{PAGE_SIZE, Page};

/// Bytes that name a stand-in.
pub const LEAST: usize = 16;

/// A page that compresses to `bytes`, and is unlike those of other numbers.
#[must_use]
pub fn page(bytes: u16, number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&u64::from(bytes).to_ne_bytes());
    page[8..LEAST].copy_from_slice(&number.to_ne_bytes());
    page[PAGE_SIZE - 1] = 1;
    page
}

/// The codec of stand-ins.
#[derive(Debug, Clone, Copy)]
pub struct Standin;

impl Codec for Standin {
    fn name(&self) -> &'static str {
        "standin"
    }

    fn level(&self) -> Option<i32> {
        None
    }

    fn scratch(&self) -> Scratch {
        Box::new(())
    }

    fn compress(&self, _: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        let (bytes, _) = page.split_first_chunk::<8>().ok_or(CompressError::Failed)?;
        let bytes = usize::try_from(u64::from_ne_bytes(*bytes)).map_err(|_| CompressError::Failed)?;
        let out = out.get_mut(..bytes.max(LEAST)).ok_or(CompressError::TooPoor)?;
        out.fill(0);
        out[..LEAST].copy_from_slice(&page[..LEAST]);
        Ok(out.len())
    }

    fn decompress(&self, _: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        page.fill(0);
        page[..LEAST].copy_from_slice(data.get(..LEAST).ok_or(DecompressError)?);
        page[PAGE_SIZE - 1] = 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standin_has_its_size_and_comes_back() {
        let (mut scratch, mut out, mut again) = (Standin.scratch(), [0; PAGE_SIZE - 1], [0; PAGE_SIZE]);
        for bytes in [1, 100, 4095] {
            let page = page(bytes, 7);
            let len = Standin.compress(&mut scratch, &page, &mut out).unwrap();
            assert_eq!(len, usize::from(bytes).max(LEAST));
            Standin.decompress(&mut scratch, &out[..len], &mut again).unwrap();
            assert!(page == again);
        }
        assert!(Standin.compress(&mut scratch, &page(4096, 7), &mut out).is_err());
        assert!(Standin.decompress(&mut scratch, &[0; 3], &mut again).is_err());
    }
}
