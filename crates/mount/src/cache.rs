//! The cache: reads of files, answered from compressed pages or from the source.
//!
//! A read looks at the version of its file, takes what the store has of that version, and reads the rest from the
//! source in one piece, with what lies between: a slow source has more to do with another request than with some pages
//! more ([`crate::gather`]). If the file still has that version afterwards, and the version is settled,
//! what was read is kept. If it has not, pages of two versions may have met, and the read begins anew; a file that
//! changes all the time is read from the source alone, as its other readers do. A change through the mount has the
//! pages that it may touch go before it is answered.
//!
//! Price of a read: one look at the file, two if the source is read. Guarantee: a read gives bytes that the source
//! would have given at some moment during the read, and no older ones.

use crate::admission::Admission;
use crate::gather::Gather;
use crate::known::{File, Files, Version};
use crate::parts::{Limited, PartError, PartId, Parts};
use crate::source::Reading;
use crate::stamp::{Identity, Stamp};
use crate::watch::{Told, Watch};
use ramfold::{Key, PAGE_SIZE, Page, PoolKind, Scratch, Store};
use ramfold_budget::member::Member;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PAGE: u64 = PAGE_SIZE as u64;
/// How often a read begins anew because the file changes under it.
const TRIES: usize = 3;

/// What became of pages that were asked for, and of bytes that were read for them.
#[derive(Debug, Default)]
pub struct Counts {
    /// Pages found in the cache.
    pub hits: AtomicU64,
    /// Pages that were not there.
    pub misses: AtomicU64,
    /// Pages that were kept after they were read.
    pub kept: AtomicU64,
    /// Pages that were not: they compress too poorly.
    pub refused: AtomicU64,
    /// Pages that were not: they would have pushed out better ones.
    pub passed_by: AtomicU64,
    /// Pages that were not: their version was not settled, or had gone.
    pub unsettled: AtomicU64,
    /// Bytes read from the source.
    pub source_bytes: AtomicU64,
    /// Reads of the source.
    pub source_reads: AtomicU64,
    /// Opens of files that the kernel reads and writes itself.
    pub passthrough_opens: AtomicU64,
}

/// The cache of a mount.
#[derive(Debug)]
pub struct Cache {
    pub(crate) member: Arc<Member>,
    pub(crate) parts: Parts,
    /// Held by who publishes them.
    published: Mutex<()>,
    files: Files,
    source: Reading,
    gather: Gather,
    pub(crate) admission: Admission,
    /// What became of pages.
    pub counts: Counts,
    /// Bytes that the process may have.
    limit: AtomicU64,
    /// Pages that do not compress may be kept, a few.
    keeps_poor: AtomicBool,
    /// It has less of them while others need memory.
    gives_way: AtomicBool,
    /// How long a version takes to settle.
    settled: Duration,
}

/// One thread's working memory.
#[derive(Debug)]
struct Worker {
    scratch: Scratch,
    /// What a request reads, from the start of its first page.
    bytes: Vec<u8>,
}

impl Worker {
    /// Room for so many bytes, with any bytes in it.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// What is read, and how.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What is known of the file.
    pub file: &'a Arc<File>,
    /// The file, open for reading.
    pub source: BorrowedFd<'a>,
    /// Bytes.
    pub offset: u64,
    /// Bytes; less are given at the end of the file.
    pub len: usize,
    /// The pages of this file are not to be kept.
    pub passing: bool,
}

impl Cache {
    /// A cache in the store of this member, in a process that may have so many bytes, of so many files at most, whose
    /// versions settle after so long.
    #[must_use]
    pub fn new(member: Arc<Member>, limit: u64, most_files: usize, settled: Duration) -> Self {
        let pool = member.store().create_pool(PoolKind::Ephemeral, None);
        let (parts, published, admission) = (Parts::new(pool), Mutex::new(()), Admission::new());
        let files = Files::new(most_files, settled);
        let (source, gather, counts) = (Reading::default(), Gather::default(), Counts::default());
        let limit = AtomicU64::new(limit);
        let (keeps_poor, gives_way) = (AtomicBool::new(false), AtomicBool::new(true));
        Self {
            member,
            parts,
            published,
            files,
            source,
            gather,
            admission,
            counts,
            limit,
            keeps_poor,
            gives_way,
            settled,
        }
    }

    /// Files that something may be known of.
    pub(crate) fn most_files(&self) -> usize {
        self.files.most()
    }

    /// Bytes that the process may have.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Bytes that the process has.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.member.charged()
    }

    /// Sets it. What is over it goes within some milliseconds. The limit of a budget that has other members stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
        if !self.member.is_shared() {
            self.member.segment().set_limit(bytes);
        }
        self.member.event().call();
    }

    /// The directory whose files are read.
    pub(crate) fn begin(&self, source: OwnedFd) {
        self.parts.begin(source);
    }

    /// Sets the limit of a directory below the source, within that of the mount; None: it has none of its own.
    ///
    /// # Errors
    /// [`PartError`].
    pub fn set_limit_of(&self, directory: &Path, limit: Option<u64>) -> Result<(), PartError> {
        let set = self.parts.set(self.store(), directory, limit);
        self.publish_parts();
        set
    }

    /// Tells who looks at the budget what directories with a limit have.
    pub(crate) fn publish_parts(&self) {
        let _one = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.limited();
        let parts = all.iter().map(|it| (it.path.as_os_str().as_bytes(), it.limit, it.bytes));
        self.member.segment().publish_parts(self.member.slot(), parts);
    }

    /// All directories with a limit.
    #[must_use]
    pub fn limited(&self) -> Vec<Limited> {
        self.parts.all(self.store())
    }

    /// Whether pages that do not compress may be kept, a few.
    #[must_use]
    pub fn keeps_poor(&self) -> bool {
        self.keeps_poor.load(Relaxed)
    }

    /// Sets it: they may unless some are too poor by the user's rule.
    pub fn set_keeps_poor(&self, it: bool) {
        self.keeps_poor.store(it, Relaxed);
    }

    /// Whether the cache has less while others need memory.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.gives_way.load(Relaxed)
    }

    /// Sets it.
    pub fn set_gives_way(&self, it: bool) {
        self.gives_way.store(it, Relaxed);
    }

    /// Enters the numbers as they are now.
    pub fn publish(&self) {
        self.member.refresh(0);
        self.member.publish_books();
    }

    /// What keeps the pages.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.member.store()
    }

    /// Files that something is known of.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.count()
    }

    /// What is known of the file with this identity.
    #[must_use]
    pub fn file(&self, identity: Identity) -> Arc<File> {
        self.files.file(identity, self.store())
    }

    /// Whether a version has settled.
    #[must_use]
    pub fn is_settled(&self, stamp: &Stamp) -> bool {
        stamp.is_settled(self.settled)
    }

    /// What the store calls the version of a file that has this stamp, while nobody but the mount has changed it.
    #[must_use]
    pub fn object(&self, file: &File, stamp: Stamp) -> Option<u64> {
        self.files.object(file, stamp)
    }

    /// What watches files, where that is to be had.
    #[must_use]
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.files.watch()
    }

    /// The file is watched from now on.
    pub fn watched(&self, file: &File, told: Arc<Told>) {
        self.files.watched(file, told, self.store());
    }

    /// Changes the bytes of a file by `change`: those of `touched`, or any if that is not known. When this returns,
    /// nobody reads what was there before.
    pub fn change<R>(
        &self,
        file: &File,
        source: BorrowedFd,
        touched: Option<Range<u64>>,
        change: impl FnOnce() -> R,
    ) -> R {
        let begun = self.files.begin(file, source, self.store());
        let done = change();
        let pages = touched.map(|bytes| bytes.start / PAGE..bytes.end.div_ceil(PAGE));
        self.files.end(file, source, &begun, pages, self.store());
        done
    }

    /// Gives `answer` the bytes that a request is for.
    ///
    /// # Errors
    /// What the source answers.
    pub fn read<R>(&self, request: &Request, answer: impl FnOnce(&[u8]) -> R) -> Result<R, Errno> {
        WORKER.with_borrow_mut(|worker| {
            let worker =
                worker.get_or_insert_with(|| Worker { scratch: self.store().scratch(), bytes: vec![] });
            let bytes = self.read_with(request, worker)?;
            Ok(answer(&worker.bytes[bytes]))
        })
    }

    /// Where in the worker's bytes the answer is.
    fn read_with(&self, request: &Request, worker: &mut Worker) -> Result<Range<usize>, Errno> {
        if !request.passing {
            for _ in 0..TRIES {
                let stamp = Stamp::now(request.source)?;
                let part = self.parts.of(&request.file.part, request.source);
                let version = self.files.version(request.file, stamp, part, self.store());
                let Some(version) = version else { break };
                if let Some(bytes) = self.read_version(request, version, worker)? {
                    return Ok(bytes);
                }
            }
        }
        let read = self.read_source(request.source, request.offset, worker.bytes(request.len))?;
        Ok(0..read)
    }

    /// Reads this version. None if the file has another one by the end.
    fn read_version(
        &self,
        request: &Request,
        version: Version,
        worker: &mut Worker,
    ) -> Result<Option<Range<usize>>, Errno> {
        let end = request.offset.saturating_add(request.len as u64).min(version.stamp.size);
        if request.offset >= end {
            return Ok(Some(0..0));
        }
        let pages = request.offset / PAGE..end.div_ceil(PAGE);
        let skip = in_memory(request.offset - pages.start * PAGE);
        let missing = self.load(version, &pages, worker);
        self.note(version, &pages);
        if !missing.is_empty() && !self.read_missing(request, version, &pages, &missing, worker)? {
            return Ok(None);
        }
        Ok(Some(skip..skip + in_memory(end - request.offset)))
    }

    /// Loads what the store has, and tells which pages it has not, counted from the first page of the request.
    fn load(&self, version: Version, pages: &Range<u64>, worker: &mut Worker) -> Vec<usize> {
        let mut missing = Vec::new();
        worker.bytes(in_memory(pages.end - pages.start) * PAGE_SIZE);
        let Worker { scratch, bytes } = worker;
        let (asked, _): (&mut [Page], _) = bytes.as_chunks_mut();
        for (number, page) in asked.iter_mut().take(in_memory(pages.end - pages.start)).enumerate() {
            let key = key(version, pages.start + number as u64);
            if self.store().load(key, page, scratch).is_err() {
                missing.push(number);
            }
        }
        let misses = missing.len() as u64;
        self.counts.misses.fetch_add(misses, Relaxed);
        self.counts.hits.fetch_add(pages.end - pages.start - misses, Relaxed);
        missing
    }

    /// Reads the missing pages from the source, and keeps them. False if they may be of another version.
    fn read_missing(
        &self,
        request: &Request,
        version: Version,
        pages: &Range<u64>,
        missing: &[usize],
        worker: &mut Worker,
    ) -> Result<bool, Errno> {
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return Ok(true) };
        let at = (pages.start + *first as u64) * PAGE;
        let out = &mut worker.bytes[first * PAGE_SIZE..(last + 1) * PAGE_SIZE];
        let wanted = out.len().min(in_memory(version.stamp.size - at));
        let read = |at, out: &mut [u8]| self.read_source(request.source, at, out);
        if self.gather.read(version.object, at, &mut out[..wanted], read)? < wanted {
            return Ok(false);
        }
        // Behind the end of a file its last page has zeros.
        out[wanted..].fill(0);
        if Stamp::now(request.source)? != version.stamp {
            return Ok(false);
        }
        let count = missing.len() as u64;
        if !version.is_own && !self.is_settled(&version.stamp) {
            self.counts.unsettled.fetch_add(count, Relaxed);
        } else if !self.admits(version.part) {
            self.counts.passed_by.fetch_add(count, Relaxed);
        } else {
            self.files
                .while_known(request.file, version, || self.keep(version, pages.start, missing, worker));
        }
        Ok(true)
    }

    fn note(&self, version: Version, pages: &Range<u64>) {
        let count = pages.end - pages.start;
        self.admission.note(version.object, pages.start, count);
        self.parts.note(version.part, version.object, pages.start, count);
    }

    fn admits(&self, part: PartId) -> bool {
        self.admission.admits() && self.parts.admits(self.store(), part)
    }

    fn keep(&self, version: Version, first: u64, numbers: &[usize], worker: &mut Worker) {
        let Worker { scratch, bytes } = worker;
        let (read, _): (&[Page], _) = bytes.as_chunks();
        for number in numbers {
            if self.member.is_shared() && !self.member.has_room(0) {
                self.counts.passed_by.fetch_add(1, Relaxed);
                continue;
            }
            let kept = self.store().store(key(version, first + *number as u64), &read[*number], scratch);
            let count = if kept.is_ok() { &self.counts.kept } else { &self.counts.refused };
            count.fetch_add(1, Relaxed);
            self.member.enter(0);
        }
    }

    fn read_source(&self, source: BorrowedFd, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let read = self.source.read(source, offset, out)?;
        self.counts.source_bytes.fetch_add(read as u64, Relaxed);
        self.counts.source_reads.fetch_add(1, Relaxed);
        Ok(read)
    }
}

fn key(version: Version, index: u64) -> Key {
    Key { pool: version.part.pool, object: version.object, index }
}

/// A number of bytes or pages of one request.
fn in_memory(count: u64) -> usize {
    usize::try_from(count).expect("a request fits into memory")
}
