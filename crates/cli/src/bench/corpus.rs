//! The pages that are measured with: those of the files, same-filled ones and duplicates counted and left out.

use crate::failure::Failure;
use ramfold::{PAGE_SIZE, Page, page::same_filled};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

/// Fewer pages tell nothing.
const MIN_PAGES: usize = 256;

/// Pages and what was counted while they were read.
#[derive(Debug)]
pub struct Corpus {
    /// Pages in the files.
    pub pages: u64,
    /// Those of one repeated word.
    pub same_filled: u64,
    /// Those that are like an earlier one and not same-filled.
    pub duplicates: u64,
    /// What is left, or an even selection of it.
    pub unique: Vec<Page>,
}

impl Corpus {
    /// Reads the files; keeps at most `most` pages for measuring.
    pub fn read(files: &[PathBuf], most: usize) -> Result<Self, Failure> {
        let (mut seen, mut unique) = (HashSet::new(), Vec::new());
        let (mut pages, mut same, mut duplicates) = (0, 0, 0);
        for path in files {
            let failed = |error| {
                Failure::failed(format!("{}: {error} (give a file that can be read)", path.display()))
            };
            let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
            let mut page = [0; PAGE_SIZE];
            while fill(&mut file, &mut page).map_err(failed)? {
                pages += 1;
                if same_filled(&page).is_some() {
                    same += 1;
                } else if seen.insert(page) {
                    unique.push(page);
                } else {
                    duplicates += 1;
                }
            }
        }
        if unique.len() < MIN_PAGES {
            return Err(Failure::failed(format!(
                "bench pages: the files have {} different pages, too few to measure (give files of at least {} MiB)",
                unique.len(),
                (MIN_PAGES * PAGE_SIZE) >> 20
            )));
        }
        Ok(Self { pages, same_filled: same, duplicates, unique: select(unique, most) })
    }
}

/// Whether there was another whole page.
fn fill(file: &mut impl Read, page: &mut Page) -> std::io::Result<bool> {
    match file.read_exact(page) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// `most` of the pages at even distances.
fn select(pages: Vec<Page>, most: usize) -> Vec<Page> {
    if pages.len() <= most {
        return pages;
    }
    (0..most).map(|index| pages[index * pages.len() / most]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_each() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages");
        let mut bytes = vec![0; 3 * PAGE_SIZE];
        for number in (0..600u32).chain(0..50) {
            let mut page = [0; PAGE_SIZE];
            page[..4].copy_from_slice(&(number + 1).to_le_bytes());
            bytes.extend(page);
        }
        bytes.extend([1; 100]);
        std::fs::write(&path, bytes).unwrap();
        let corpus = Corpus::read(std::slice::from_ref(&path), 300).unwrap();
        assert_eq!((corpus.pages, corpus.same_filled, corpus.duplicates), (653, 3, 50));
        assert_eq!(
            (corpus.unique.len(), corpus.unique[299][..2].to_vec()),
            (300, 599u16.to_le_bytes().to_vec())
        );
        std::fs::write(&path, vec![0; 100 * PAGE_SIZE]).unwrap();
        assert!(Corpus::read(&[path], 300).is_err());
    }
}
