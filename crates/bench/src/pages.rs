//! What the workloads fill memory with: pages of a page file (4096-byte pages one after another, as
//! `collect-pages` writes them), or made-up ones that compress about as well as a program's memory does under lz4
//! (2.4 : 1): text-like words, pointers, small integers, in proportions that differ from page to page.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ramfold::{PAGE_SIZE, Page};

use crate::random::{Random, mix};

/// Contents for any number of pages.
#[derive(Debug)]
pub enum Pages {
    /// The pages of a file, from the beginning again when they run out.
    File {
        /// Read with `pread`, so that its pages are page cache and not the workload's own memory.
        file: File,
        /// How many pages it holds.
        count: u64,
    },
    /// Made up from a seed.
    Generated {
        /// The same seed gives the same pages.
        seed: u64,
    },
}

impl Pages {
    /// The pages of the file at `path`, or made-up ones.
    ///
    /// # Errors
    /// The file cannot be read or holds no whole page.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Generated { seed: 1 });
        };
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let count = file.metadata()?.len() / PAGE_SIZE as u64;
        ensure!(count > 0, "{} holds no whole page", path.display());
        Ok(Self::File { file, count })
    }

    /// Writes the content number `index` into `page`.
    ///
    /// # Errors
    /// The page file cannot be read.
    pub fn fill(&self, index: u64, page: &mut Page) -> Result<()> {
        match self {
            Self::File { file, count } => file
                .read_exact_at(page, index % count * PAGE_SIZE as u64)
                .context("cannot read the page file"),
            Self::Generated { seed } => {
                generate(&mut Random::new(mix(*seed) ^ index), page);
                Ok(())
            }
        }
    }
}

const WORDS: [&str; 32] = [
    "the",
    "of",
    "memory",
    "page",
    "and",
    "to",
    "store",
    "in",
    "compressed",
    "is",
    "that",
    "pool",
    "for",
    "name",
    "value",
    "with",
    "address",
    "entry",
    "size",
    "index",
    "user",
    "request",
    "was",
    "not",
    "http",
    "error",
    "content",
    "type",
    "table",
    "return",
    "number",
    "length",
];

/// A page of 256-byte stretches, each of one kind.
fn generate(random: &mut Random, page: &mut Page) {
    let heap = 0x7f00_0000_0000 | (random.word() & 0xff_fff0_0000);
    for stretch in page.as_chunks_mut::<256>().0 {
        match random.below(10) {
            0..4 => words(random, stretch),
            4..6 => objects(random, heap, stretch),
            6..8 => small_integers(random, stretch),
            _ => stretch.fill(0),
        }
    }
}

fn words(random: &mut Random, stretch: &mut [u8; 256]) {
    let mut rest = stretch.as_mut_slice();
    while !rest.is_empty() {
        let word = match random.below(16) {
            0 => format!("{} ", random.below(100_000)),
            _ => format!("{} ", WORDS[usize::try_from(random.below(32)).expect("below 32")]),
        };
        let len = word.len().min(rest.len());
        rest[..len].copy_from_slice(&word.as_bytes()[..len]);
        rest = &mut rest[len..];
    }
}

/// Records as an object heap has them: a type's address, a reference count, a pointer, a length.
fn objects(random: &mut Random, heap: u64, stretch: &mut [u8; 256]) {
    let kind = heap + 0x40 * random.below(8);
    for record in stretch.as_chunks_mut::<32>().0 {
        let pointer = heap + 16 * random.below(1 << 16);
        let fields = [random.below(3) + 1, kind, pointer, random.below(64)];
        for (bytes, field) in record.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *bytes = field.to_le_bytes();
        }
    }
}

fn small_integers(random: &mut Random, stretch: &mut [u8; 256]) {
    for bytes in stretch.as_chunks_mut::<8>().0 {
        *bytes = random.below(1000).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_index_gives_the_same_page_and_another_index_another() {
        let pages = Pages::open(None).unwrap();
        let [mut a, mut b, mut c] = [[0; PAGE_SIZE]; 3];
        pages.fill(3, &mut a).unwrap();
        pages.fill(3, &mut b).unwrap();
        pages.fill(4, &mut c).unwrap();
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn a_page_file_repeats() {
        let dir = std::env::temp_dir().join(format!("ramfold-pages-{}", std::process::id()));
        std::fs::write(&dir, [[1u8; PAGE_SIZE], [2; PAGE_SIZE]].concat()).unwrap();
        let pages = Pages::open(Some(&dir)).unwrap();
        std::fs::remove_file(&dir).unwrap();
        let mut page = [0; PAGE_SIZE];
        for (index, byte) in [(0, 1), (1, 2), (2, 1), (101, 2)] {
            pages.fill(index, &mut page).unwrap();
            assert_eq!(page, [byte; PAGE_SIZE]);
        }
    }
}
