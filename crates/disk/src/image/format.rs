//! The image of a disk: what its bytes mean.
//!
//! Numbers are little-endian. Sums are XXH3 of 128 bits.
//!
//! - 0..4096, the header: [`MAGIC`]; version, u32; 0, u32; size of the disk, u64; pages, u64; length of the file, u64;
//!   time of the stop, u64, seconds since 1970; compressor, 16 bytes; last sum of the chunks; zeros; in the last 16
//!   bytes the sum of all before.
//! - 4096..8192, the mark: [`CLEAN`] and zeros; or that a log follows ([`super::log`]); else the disk was served since.
//! - 8192.., chunks of up to 256 records; the end of the last is the end of the file, but for a log.
//!
//! A chunk is the number of its records, u32, their bytes, u32, its sum, and the records. The sum is of the sum of the
//! chunk before (16 zeros before the first), the two numbers and the records: so the header's sum stands for all. A
//! record is the page's number, u64, its kind, u16, the bytes that follow, u16, and these: 0, the page; 1, the page as
//! the compressor of the header makes it; 2, the eight bytes that it repeats. Numbers of pages ascend. A page without a
//! record was never written, or discarded: it is zeros.
//!
//! Price: 12 bytes a page, and a page that others share is written for each. Guarantee: any bytes may be read; each
//! page that is given was in the sums. They are for damage, not for malice: who may write the image may write a disk.

use crate::face::DiskError;
use crate::volume::is_size;
use ramfold::codec::{Codec, Scratch, by_name};
use ramfold::page::{fill, same_filled};
use ramfold::{PAGE_SIZE, Page};
use std::io::{self, ErrorKind, Read, Write};
use twox_hash::xxhash3_128::Hasher;

/// How an image begins.
pub const MAGIC: [u8; 16] = *b"ramfold-disk\r\n\x1a\n";
/// The version that is written, and read.
pub const VERSION: u32 = 1;
/// How the mark begins when the disk ended in order.
pub const CLEAN: [u8; 16] = *b"clean stop\r\n\x1a\n\0\0";
/// Bytes of the header, and of the mark.
pub const BLOCK: usize = 4096;
/// Where the chunks begin.
pub const BODY: u64 = 2 * BLOCK as u64;

const CHUNK_RECORDS: u32 = 256;
pub(super) const CHUNK_HEAD: usize = 24;
const RECORD_HEAD: usize = 12;
const CHUNK_BYTES: usize = CHUNK_RECORDS as usize * (RECORD_HEAD + PAGE_SIZE);
pub(super) const SUM: usize = 16;

const RAW: u16 = 0;
const COMPRESSED: u16 = 1;
const SAME: u16 = 2;
/// Of a log alone: so many pages are holes.
const HOLES: u16 = 3;

/// A block.
pub type Block = [u8; BLOCK];

/// What an image says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the disk.
    pub size: u64,
    /// Pages that have a record.
    pub pages: u64,
    /// Bytes of the image.
    pub length: u64,
    /// When the disk was stopped, in seconds since 1970.
    pub saved: u64,
    /// What compressed the pages.
    pub codec: String,
    /// The last chunk's sum.
    pub last: u128,
}

/// Why a header is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// it is no image
    #[error("it is no image of a disk")]
    NotAnImage,
    /// it is of another version
    #[error("it is an image of version {0}, and this ramfold reads {VERSION}")]
    Version(u32),
    /// it is damaged
    #[error("the image is damaged in its header")]
    Damaged,
}

/// Why pages were not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// it is damaged
    #[error("the image is damaged from byte {0} on")]
    Damaged(u64),
    /// it could not be read
    #[error("the image could not be read: {0}")]
    Io(#[from] io::Error),
    /// the disk does not take a page
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Header {
    /// The header as a block.
    #[must_use]
    pub fn block(&self) -> Block {
        let mut block = [0; BLOCK];
        let mut name = [0; SUM];
        let codec = self.codec.as_bytes();
        name[..codec.len()].copy_from_slice(codec);
        let fields: [&[u8]; 9] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &[0; 4],
            &self.size.to_le_bytes(),
            &self.pages.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.saved.to_le_bytes(),
            &name,
            &self.last.to_le_bytes(),
        ];
        let fields = fields.concat();
        block[..fields.len()].copy_from_slice(&fields);
        let sum = sum_of(&[&block[..BLOCK - SUM]]);
        block[BLOCK - SUM..].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The header that these bytes are; they may be fewer than a block.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut fields = Fields(bytes);
        if fields.take::<16>() != Some(MAGIC) {
            return Err(HeaderError::NotAnImage);
        }
        let version = fields.u32().ok_or(HeaderError::Damaged)?;
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        Self::fields(bytes, fields).ok_or(HeaderError::Damaged)
    }

    /// What follows the version.
    fn fields(bytes: &[u8], mut fields: Fields<'_>) -> Option<Self> {
        let (summed, sum) = bytes.get(..BLOCK)?.split_last_chunk::<SUM>()?;
        if sum_of(&[summed]).to_le_bytes() != *sum || fields.u32()? != 0 {
            return None;
        }
        let [size, pages, length, saved] = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        let name = fields.take::<16>()?;
        let codec = std::str::from_utf8(&name).ok()?.trim_end_matches('\0').to_owned();
        let last = u128::from_le_bytes(fields.take()?);
        let fits = is_size(size) && pages <= size / PAGE_SIZE as u64 && length >= BODY;
        (fits && by_name(&codec).is_ok()).then_some(Self { size, pages, length, saved, codec, last })
    }
}

/// The mark of a disk that ended in order.
#[must_use]
pub fn clean() -> Block {
    let mut block = [0; BLOCK];
    block[..CLEAN.len()].copy_from_slice(&CLEAN);
    block
}

/// The front of what is left of some bytes.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

pub(super) fn sum_of(parts: &[&[u8]]) -> u128 {
    let mut hasher = Hasher::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish_128()
}

/// The sum of a chunk: the one before, its numbers, its records.
fn chain(before: u128, records: u32, payload: &[u8]) -> u128 {
    let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    sum_of(&[&before.to_le_bytes(), &records.to_le_bytes(), &bytes.to_le_bytes(), payload])
}

/// Writes the chunks of an image.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    codec: Box<dyn Codec>,
    scratch: Scratch,
    /// The head of a chunk, and the records so far.
    chunk: Vec<u8>,
    records: u32,
    pages: u64,
    length: u64,
    last: u128,
}

impl<W: Write> Writer<W> {
    /// Writes from [`BODY`] on: `out` is there.
    pub fn new(out: W, codec: Box<dyn Codec>) -> Self {
        let scratch = codec.scratch();
        let chunk = Vec::with_capacity(CHUNK_HEAD + CHUNK_BYTES);
        let mut writer = Self { out, codec, scratch, chunk, records: 0, pages: 0, length: BODY, last: 0 };
        writer.begin();
        writer
    }

    /// Where the chunks go.
    pub(super) fn out(&mut self) -> &mut W {
        &mut self.out
    }

    /// Forgets a chunk that has not ended, and goes on after a chunk of this sum.
    pub(super) fn go_on_after(&mut self, last: u128) {
        self.last = last;
        self.begin();
    }

    /// Ends the chunk, and adds one without records, which says that the pages so far belong together. Gives its sum.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn commit(&mut self) -> io::Result<u128> {
        if self.records > 0 {
            self.end()?;
        }
        self.end()?;
        Ok(self.last)
    }

    /// Adds that so many pages are holes.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn holes(&mut self, number: u64, count: u64) -> io::Result<()> {
        let head = self.chunk.len();
        self.chunk.resize(head + RECORD_HEAD, 0);
        self.chunk.extend_from_slice(&count.to_le_bytes());
        self.end_record(head, number, HOLES)
    }

    /// Adds a page. Their numbers ascend.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn page(&mut self, number: u64, page: &Page) -> io::Result<()> {
        let head = self.chunk.len();
        self.chunk.resize(head + RECORD_HEAD, 0);
        let kind = if let Some(word) = same_filled(page) {
            self.chunk.extend_from_slice(&word.to_ne_bytes());
            SAME
        } else {
            let data = self.chunk.len();
            self.chunk.resize(data + PAGE_SIZE - 1, 0);
            match self.codec.compress(&mut self.scratch, page, &mut self.chunk[data..]) {
                Ok(len @ 1..) => {
                    self.chunk.truncate(data + len);
                    COMPRESSED
                }
                _ => {
                    self.chunk.truncate(data);
                    self.chunk.extend_from_slice(page);
                    RAW
                }
            }
        };
        self.pages += 1;
        self.end_record(head, number, kind)
    }

    /// Ends the record that begins there in the chunk.
    fn end_record(&mut self, head: usize, number: u64, kind: u16) -> io::Result<()> {
        let len = u16::try_from(self.chunk.len() - head - RECORD_HEAD).unwrap_or(u16::MAX);
        self.chunk[head..head + 8].copy_from_slice(&number.to_le_bytes());
        self.chunk[head + 8..head + 10].copy_from_slice(&kind.to_le_bytes());
        self.chunk[head + 10..head + 12].copy_from_slice(&len.to_le_bytes());
        self.records += 1;
        if self.records == CHUNK_RECORDS { self.end() } else { Ok(()) }
    }

    /// Ends the image of a disk of this size. The header is still to be written.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self, size: u64, saved: u64) -> io::Result<(W, Header)> {
        if self.records > 0 {
            self.end()?;
        }
        let Self { out, codec, pages, length, last, .. } = self;
        Ok((out, Header { size, pages, length, saved, codec: codec.name().to_owned(), last }))
    }

    fn begin(&mut self) {
        self.chunk.clear();
        self.chunk.resize(CHUNK_HEAD, 0);
        self.records = 0;
    }

    fn end(&mut self) -> io::Result<()> {
        let bytes = u32::try_from(self.chunk.len() - CHUNK_HEAD).unwrap_or(u32::MAX);
        self.last = chain(self.last, self.records, &self.chunk[CHUNK_HEAD..]);
        self.chunk[..4].copy_from_slice(&self.records.to_le_bytes());
        self.chunk[4..8].copy_from_slice(&bytes.to_le_bytes());
        self.chunk[8..CHUNK_HEAD].copy_from_slice(&self.last.to_le_bytes());
        self.out.write_all(&self.chunk)?;
        self.length += self.chunk.len() as u64;
        self.begin();
        Ok(())
    }
}

/// Reads the chunks of an image, from [`BODY`] on, and gives each page. What is given is right; whether it is all, is
/// known when this returns.
///
/// # Errors
/// [`ReadError`].
pub fn read(
    mut body: impl Read,
    header: &Header,
    each: &mut dyn FnMut(u64, &Page) -> Result<(), DiskError>,
) -> Result<(), ReadError> {
    let codec = by_name(&header.codec).map_err(|_| ReadError::Damaged(0))?;
    let (mut scratch, mut payload, mut page) = (codec.scratch(), Vec::new(), [0; PAGE_SIZE]);
    let (mut at, mut last, mut pages, mut next) = (BODY, 0, 0, 0);
    while at < header.length {
        let damaged = || ReadError::Damaged(at);
        let records = next_chunk(&mut body, &mut payload, &mut last, at)?.filter(|records| *records > 0);
        let records = records.ok_or_else(damaged)?;
        let mut left = Fields(&payload);
        for _ in 0..records {
            let (number, holes) = record(&mut left, &*codec, &mut scratch, &mut page).ok_or_else(damaged)?;
            if holes > 0 || number < next || number >= header.size / PAGE_SIZE as u64 {
                return Err(damaged());
            }
            next = number + 1;
            each(number, &page)?;
        }
        if !left.0.is_empty() {
            return Err(damaged());
        }
        pages += u64::from(records);
        at += (CHUNK_HEAD + payload.len()) as u64;
    }
    if at != header.length || last != header.last || pages != header.pages {
        return Err(ReadError::Damaged(BODY));
    }
    Ok(())
}

/// The records of the chunk that follows, and how many they are; None if it is not what was written.
pub(super) fn next_chunk(
    body: &mut impl Read,
    payload: &mut Vec<u8>,
    last: &mut u128,
    at: u64,
) -> Result<Option<u32>, ReadError> {
    let whole = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => ReadError::Damaged(at),
        _ => ReadError::Io(error),
    };
    let mut head = [0; CHUNK_HEAD];
    body.read_exact(&mut head).map_err(whole)?;
    let mut fields = Fields(&head);
    let (Some(records), Some(bytes), Some(sum)) = (fields.u32(), fields.u32(), fields.take()) else {
        return Ok(None);
    };
    if records > CHUNK_RECORDS || bytes as usize > CHUNK_BYTES || (records == 0) != (bytes == 0) {
        return Ok(None);
    }
    payload.resize(bytes as usize, 0);
    body.read_exact(payload).map_err(whole)?;
    *last = chain(*last, records, payload);
    Ok((last.to_le_bytes() == sum).then_some(records))
}

/// The page of the next record, and its number; or from where on so many pages are holes.
pub(super) fn record(
    left: &mut Fields<'_>,
    codec: &dyn Codec,
    scratch: &mut Scratch,
    page: &mut Page,
) -> Option<(u64, u64)> {
    let number = left.u64()?;
    let [kind, len] = [left.take()?, left.take()?].map(u16::from_le_bytes);
    let (data, rest) = left.0.split_at_checked(usize::from(len))?;
    left.0 = rest;
    match kind {
        RAW => *page = data.try_into().ok()?,
        COMPRESSED => codec.decompress(scratch, data, page).ok()?,
        SAME => fill(page, u64::from_ne_bytes(data.try_into().ok()?)),
        HOLES => {
            let count = u64::from_le_bytes(data.try_into().ok()?);
            return (count > 0).then_some((number, count));
        }
        _ => return None,
    }
    Some((number, 0))
}

/// Adds a chunk of these records that follows on this sum.
pub(super) fn push_chunk(body: &mut Vec<u8>, last: &mut u128, records: u32, payload: &[u8]) {
    *last = chain(*last, records, payload);
    body.extend_from_slice(&records.to_le_bytes());
    body.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    body.extend_from_slice(&last.to_le_bytes());
    body.extend_from_slice(payload);
}

/// An image of these chunks, each the number of its records and their bytes: sums and lengths are right, whatever the
/// records are. For who tries the reader.
#[must_use]
pub fn sealed(size: u64, pages: u64, codec: &str, chunks: &[(u32, &[u8])]) -> (Header, Vec<u8>) {
    let (mut body, mut last) = (Vec::new(), 0);
    for (records, payload) in chunks {
        push_chunk(&mut body, &mut last, *records, payload);
    }
    let length = BODY + body.len() as u64;
    (Header { size, pages, length, saved: 0, codec: codec.to_owned(), last }, body)
}
