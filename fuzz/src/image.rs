//! Images of disks, as the fuzzer makes them up.

use ramfold::codec::{NAMES, by_name};
use ramfold::{PAGE_SIZE, Page};
use ramfold_disk::image::format::{BODY, Header, ReadError, Writer, read, sealed};
use std::sync::LazyLock;

/// Pages of the disk.
const PAGES: u64 = 64;
const SIZE: u64 = PAGES * PAGE_SIZE as u64;

/// A small image for each compressor, and its pages.
static IMAGES: LazyLock<Vec<(Header, Vec<u8>, Vec<(u64, Page)>)>> = LazyLock::new(|| {
    let made = NAMES.iter().map(|name| {
        let pages: Vec<(u64, Page)> =
            (0..8_u8).map(|n| (u64::from(n) * 7, crate::page_of(&[n; 9]))).collect();
        let mut writer = Writer::new(Vec::new(), by_name(name).expect("a name of NAMES"));
        pages.iter().for_each(|(number, page)| writer.page(*number, page).expect("memory"));
        let (body, header) = writer.finish(SIZE, 0).expect("memory");
        (header, body, pages)
    });
    made.collect()
});

/// Gives the reader `data` as a whole image, as changes of one, and as records under right sums.
pub fn image(data: &[u8]) {
    if let Ok(header) = Header::parse(data) {
        assert!(header.block()[..] == data[..4096], "a header is what it says");
        let body = data.get(usize::try_from(BODY).expect("small")..).unwrap_or_default();
        pages_of(&header, body);
    }
    let Some((kind, data)) = data.split_first() else { return };
    let (header, body, pages) = &IMAGES[usize::from(*kind) % NAMES.len()];
    changed(header, body, pages, data);
    forged(header, *kind, data);
}

/// What is given of an image is right, whatever was done to it.
fn changed(header: &Header, body: &[u8], pages: &[(u64, Page)], edits: &[u8]) {
    let mut body = body.to_vec();
    let len = body.len();
    for edit in edits.as_chunks::<3>().0 {
        body[usize::from(u16::from_le_bytes([edit[0], edit[1]])) % len] ^= edit[2];
    }
    let (found, is_whole) = pages_of(header, &body);
    assert!(found == pages[..found.len()] && (!is_whole || found.len() == pages.len()));
}

/// Chunks of any records: the first two bytes of each are its length.
fn forged(header: &Header, records: u8, mut data: &[u8]) {
    let mut chunks = vec![];
    while let Some(([a, b], rest)) = data.split_first_chunk() {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*a, *b]))));
        chunks.push((u32::from(records >> 5) + 1, payload));
        data = rest;
    }
    let count = chunks.iter().map(|(records, _)| u64::from(*records)).sum();
    let (header, body) = sealed(SIZE, count, &header.codec, &chunks);
    let (found, is_whole) = pages_of(&header, &body);
    assert!(!is_whole || found.len() as u64 == count);
}

/// The pages that are read, each once and within the disk, and whether the reader takes it for all.
fn pages_of(header: &Header, body: &[u8]) -> (Vec<(u64, Page)>, bool) {
    let mut found: Vec<(u64, Page)> = vec![];
    let end = read(body, header, &mut |number, page| {
        assert!(number < header.size / PAGE_SIZE as u64);
        assert!(found.last().is_none_or(|(last, _)| *last < number));
        found.push((number, *page));
        Ok(())
    });
    match end {
        Ok(()) => (found, true),
        Err(ReadError::Damaged(_)) => (found, false),
        Err(error) => panic!("{error}"),
    }
}
