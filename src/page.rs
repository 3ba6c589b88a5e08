//! The unit of everything: a page of 4096 bytes.

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// The contents of one page.
pub type Page = [u8; PAGE_SIZE];

/// The word that fills the whole page, if one does.
///
/// A same-filled page (zswap's `zswap_is_page_same_filled`) costs no pool memory: the word is the entry. Most pages
/// are told by their first cache line, which the compressor needs next. The last word comes before the rest, because
/// pages that begin with a run of zeros and end otherwise are common.
#[must_use]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let (line, rest) = words.split_at(8);
    let first = line[0];
    let all = |words: &[[u8; 8]]| words.iter().all(|word| *word == first);
    (all(line) && rest.last() == Some(&first) && all(rest)).then(|| u64::from_ne_bytes(first))
}

/// Fills `page` with the repeated `word` that [`same_filled`] found.
pub fn fill(page: &mut Page, word: u64) {
    for chunk in page.as_chunks_mut::<8>().0 {
        *chunk = word.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_word_is_found_and_filled_again() {
        let mut page = [0u8; PAGE_SIZE];
        assert_eq!(same_filled(&page), Some(0));
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(same_filled(&page), Some(0x0123_4567_89ab_cdef));
        for at in [0, 1, 7, 8, 2047, 4095] {
            let mut other = page;
            other[at] ^= 1;
            assert_eq!(same_filled(&other), None, "byte {at}");
        }
    }
}
