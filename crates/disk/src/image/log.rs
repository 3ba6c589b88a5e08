//! The log of an image: what was flushed since the image was written.
//!
//! An image has a log if its mark says so: [`MAGIC`]; version, u32; 0, u32; seed, 16 bytes; compressor, 16 bytes;
//! zeros. The log lies behind the chunks, from the next multiple of 4096 on, and consists of groups, each at a multiple
//! of 4096:
//!
//! - [`HEAD`], 8 bytes; the group's number, u64, from 1 on; the sum of the seed and these, 16 bytes;
//! - chunks as those of the image, the first of which follows on the sum of the head and of the group before (the seed,
//!   before the first). A record of kind 3 says that pages are holes: its 8 bytes tell how many, its number the first.
//!   Numbers need not ascend; what is later in the log counts;
//! - a chunk without records. With it the group is committed.
//!
//! What follows the last committed group was not acknowledged: it is dropped. A group that begins behind it, of a later
//! number, was begun when the one before was on disk, so then the log is damaged. The last group cannot be told from
//! one that was never whole, if it is damaged.
//!
//! Price: a group takes whole blocks, so that no block of an acknowledged group is ever written again. Guarantee: any
//! bytes may be read; each page that is given was in the sums. No page that a client wrote can look like a head, as
//! long as it cannot read the seed.

use super::calls::Calls;
use super::format::{BLOCK, Block, Fields, ReadError, SUM, Writer, next_chunk, push_chunk, record, sum_of};
use crate::face::DiskError;
use ramfold::codec::{Codec, by_name};
use ramfold::{PAGE_SIZE, Page};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// How the mark of an image begins that has a log.
pub const MAGIC: [u8; 16] = *b"log follows\r\n\x1a\n\0";
/// The version that is written, and read.
pub const VERSION: u32 = 1;
/// How a group begins.
pub const HEAD: [u8; 8] = *b"flushed\n";

const HEAD_BYTES: usize = 32;
const ALIGN: u64 = BLOCK as u64;
/// Written at once.
const BUFFER: usize = 1 << 20;

/// What the mark of an image with a log says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Known to nobody who cannot read the image.
    pub seed: u128,
    /// What compresses the pages of the log.
    pub codec: String,
}

impl Mark {
    /// The mark as a block. All that it says lies in one sector: it is there or not.
    #[must_use]
    pub fn block(&self) -> Block {
        let (mut block, mut name) = ([0; BLOCK], [0; SUM]);
        name[..self.codec.len()].copy_from_slice(self.codec.as_bytes());
        let fields: [&[u8]; 5] = [&MAGIC, &VERSION.to_le_bytes(), &[0; 4], &self.seed.to_le_bytes(), &name];
        let fields = fields.concat();
        block[..fields.len()].copy_from_slice(&fields);
        block
    }

    /// The mark that this block is; None if it is another, or of another version.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        let mut fields = Fields(block);
        let is_known =
            fields.take() == Some(MAGIC) && fields.u32() == Some(VERSION) && fields.u32() == Some(0);
        let (seed, name) = (u128::from_le_bytes(fields.take()?), fields.take::<16>()?);
        let codec = std::str::from_utf8(&name).ok()?.trim_end_matches('\0').to_owned();
        let mark = Self { seed, codec };
        (is_known && by_name(&mark.codec).is_ok() && block == mark.block()).then_some(mark)
    }

    /// The version of a mark of this kind.
    pub(super) fn version(block: &[u8]) -> Option<u32> {
        let mut fields = Fields(block);
        (fields.take() == Some(MAGIC)).then(|| fields.u32()).flatten()
    }
}

/// Where the log of an image begins that has so many bytes.
#[must_use]
pub fn start(length: u64) -> u64 {
    length.next_multiple_of(ALIGN)
}

/// Where a log goes on: the next group's number, and the sum that it follows on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    seed: u128,
    number: u64,
    last: u128,
}

impl Link {
    fn first(seed: u128) -> Self {
        Self { seed, number: 1, last: seed }
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&HEAD);
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        let sum = sum_of(&[&self.seed.to_le_bytes(), &head[..16]]);
        head[16..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// What the first chunk of the group follows on.
    fn before(&self) -> u128 {
        sum_of(&[&self.head(), &self.last.to_le_bytes()])
    }

    fn after(&self, last: u128) -> Self {
        Self { number: self.number + 1, last, ..*self }
    }

    /// Whether these bytes are the head of a group that follows a later one than this.
    fn is_passed_by(&self, head: &[u8; HEAD_BYTES]) -> bool {
        let mut fields = Fields(&head[8..]);
        let number = fields.u64().unwrap_or(0);
        number > self.number && Self { number, ..*self }.head() == *head
    }
}

/// A record of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// The page of this number.
    Page(u64, &'a Page),
    /// So many pages from this number on are holes.
    Holes(u64, u64),
}

/// A part of a file that is written from its front on.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) calls: Arc<dyn Calls>,
    pub(super) file: File,
    pub(super) at: u64,
    pub(super) buffer: Vec<u8>,
}

impl Tail {
    pub(super) fn new(calls: &Arc<dyn Calls>, file: &File, at: u64) -> io::Result<Self> {
        Ok(Self { calls: Arc::clone(calls), file: file.try_clone()?, at, buffer: Vec::new() })
    }

    fn begin(&mut self, at: u64) {
        self.buffer.clear();
        self.at = at;
    }
}

impl Write for Tail {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.calls.write(&self.file, &self.buffer, self.at)?;
            self.at += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// A log that is written.
#[derive(Debug)]
pub struct Log {
    writer: Writer<Tail>,
    link: Link,
    start: u64,
    /// Where the last group ends that was written.
    end: u64,
}

/// What a group is made of.
#[derive(Debug)]
pub struct Group<'a>(&'a mut Writer<Tail>);

impl Group<'_> {
    /// Adds a page.
    ///
    /// # Errors
    /// Those of the file.
    pub fn page(&mut self, number: u64, page: &Page) -> io::Result<()> {
        self.0.page(number, page)
    }

    /// Adds that so many pages are holes.
    ///
    /// # Errors
    /// Those of the file.
    pub fn holes(&mut self, number: u64, count: u64) -> io::Result<()> {
        self.0.holes(number, count)
    }
}

impl Log {
    /// The log behind an image of so many bytes, without a group.
    ///
    /// # Errors
    /// There is no descriptor.
    pub fn new(
        calls: &Arc<dyn Calls>,
        file: &File,
        length: u64,
        seed: u128,
        codec: Box<dyn Codec>,
    ) -> io::Result<Self> {
        let start = start(length);
        let writer = Writer::new(Tail::new(calls, file, start)?, codec);
        Ok(Self { writer, link: Link::first(seed), start, end: start })
    }

    /// Bytes of its groups.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Writes a group of what `fill` adds. It is not on disk before [`Log::sync`].
    ///
    /// # Errors
    /// Those of the file and of `fill`. The next group then takes this one's place.
    pub fn append<E: From<io::Error>>(
        &mut self,
        fill: impl FnOnce(&mut Group<'_>) -> Result<(), E>,
    ) -> Result<Written, E> {
        self.writer.go_on_after(self.link.before());
        self.writer.out().begin(self.end);
        self.writer.out().write_all(&self.link.head())?;
        fill(&mut Group(&mut self.writer))?;
        let last = self.writer.commit()?;
        let out = self.writer.out();
        let end = (out.at + out.buffer.len() as u64).next_multiple_of(ALIGN);
        // Up to a block, and the buffer holds what is not written.
        let padded = usize::try_from(end - out.at).unwrap_or(usize::MAX);
        out.buffer.resize(padded, 0);
        out.flush()?;
        Ok(Written { link: self.link.after(last), end })
    }

    /// Returns when all that was written is on disk.
    ///
    /// # Errors
    /// Those of the file: nothing may be written to it any more.
    pub fn sync(&mut self) -> io::Result<()> {
        let out = self.writer.out();
        out.calls.sync_data(&out.file)
    }

    /// Goes on behind a group.
    pub fn accept(&mut self, written: &Written) {
        (self.link, self.end) = (written.link, written.end);
    }
}

/// A group that was written.
#[derive(Debug)]
pub struct Written {
    link: Link,
    end: u64,
}

/// Takes a chunk: the number of its records, and their bytes.
type Each<'a> = &'a mut dyn FnMut(u32, &[u8]) -> Result<(), ReadError>;

/// Reads one group, and gives each chunk's records; None if it is not whole. Else its bytes, and where the log goes on.
fn group(body: &mut impl Read, link: &Link, each: Each<'_>) -> Result<Option<(u64, Link)>, ReadError> {
    let (mut head, mut payload, mut last) = ([0; HEAD_BYTES], Vec::new(), link.before());
    match body.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    if head != link.head() {
        return Ok(None);
    }
    let mut bytes = HEAD_BYTES as u64;
    loop {
        match next_chunk(body, &mut payload, &mut last, 0) {
            Ok(Some(0)) => return Ok(Some((bytes + CHUNK_HEAD, link.after(last)))),
            Ok(Some(records)) => each(records, &payload)?,
            Ok(None) | Err(ReadError::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        bytes += CHUNK_HEAD + payload.len() as u64;
    }
}

const CHUNK_HEAD: u64 = super::format::CHUNK_HEAD as u64;

/// What a log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Committed groups.
    pub groups: u64,
    /// Where the last ends; the start, if there is none.
    pub end: u64,
}

/// Looks how far a log is committed. `file` is the whole file, and the log begins at `start`.
///
/// # Errors
/// [`ReadError::Damaged`] if more was committed once; those of the file.
pub fn find(file: &mut (impl Read + Seek), start: u64, mark: &Mark) -> Result<Found, ReadError> {
    let (mut link, mut end) = (Link::first(mark.seed), start);
    file.seek(SeekFrom::Start(start))?;
    while let Some((bytes, next)) = group(file, &link, &mut |_, _| Ok(()))? {
        (link, end) = (next, skip_padding(file, end + bytes)?);
    }
    file.seek(SeekFrom::Start(end))?;
    let mut block = Vec::with_capacity(BLOCK);
    while file.by_ref().take(ALIGN).read_to_end(&mut block)? >= HEAD_BYTES {
        if block.first_chunk().is_some_and(|head| link.is_passed_by(head)) {
            return Err(ReadError::Damaged(end));
        }
        block.clear();
    }
    Ok(Found { groups: link.number - 1, end })
}

/// Goes on to the next group. Gives where that is.
fn skip_padding(file: &mut impl Read, at: u64) -> io::Result<u64> {
    let next = at.next_multiple_of(ALIGN);
    io::copy(&mut file.by_ref().take(next - at), &mut io::sink())?;
    Ok(next)
}

/// Gives what the committed groups say of a disk of so many pages, in order.
///
/// # Errors
/// [`ReadError`].
pub fn replay(
    file: &mut (impl Read + Seek),
    (start, found): (u64, Found),
    mark: &Mark,
    pages: u64,
    put: &mut dyn FnMut(Change<'_>) -> Result<(), DiskError>,
) -> Result<(), ReadError> {
    let codec = by_name(&mark.codec).map_err(|_| ReadError::Damaged(start))?;
    let (mut scratch, mut page) = (codec.scratch(), [0; PAGE_SIZE]);
    let (mut link, mut at) = (Link::first(mark.seed), start);
    file.seek(SeekFrom::Start(start))?;
    while at < found.end {
        let damaged = || ReadError::Damaged(at);
        let mut each = |records: u32, payload: &[u8]| {
            let mut left = Fields(payload);
            for _ in 0..records {
                let (number, holes) =
                    record(&mut left, &*codec, &mut scratch, &mut page).ok_or_else(damaged)?;
                if number.checked_add(holes.max(1)).is_none_or(|end| end > pages) {
                    return Err(damaged());
                }
                put(if holes > 0 { Change::Holes(number, holes) } else { Change::Page(number, &page) })?;
            }
            if left.0.is_empty() { Ok(()) } else { Err(damaged()) }
        };
        let (bytes, next) = group(file, &link, &mut each)?.ok_or_else(damaged)?;
        (link, at) = (next, skip_padding(file, at + bytes)?);
    }
    Ok(())
}

/// A log of these groups, each of one chunk: the number of its records and their bytes. Sums are right, whatever the
/// records are. For who tries the reader.
#[must_use]
pub fn sealed(seed: u128, groups: &[(u32, &[u8])]) -> Vec<u8> {
    let (mut log, mut link) = (Vec::new(), Link::first(seed));
    for (records, payload) in groups {
        log.extend_from_slice(&link.head());
        let mut last = link.before();
        push_chunk(&mut log, &mut last, *records, payload);
        push_chunk(&mut log, &mut last, 0, &[]);
        link = link.after(last);
        log.resize(log.len().next_multiple_of(BLOCK), 0);
    }
    log
}
