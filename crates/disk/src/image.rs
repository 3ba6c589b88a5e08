//! The image: where a disk is kept from a clean stop to the next start.
//!
//! It is a file under a name ([`format`] tells its bytes). While a disk is served from it, it is locked, and its mark
//! says so: what is in it is then no longer what clients have read. A clean stop writes all pages to a new file
//! without a name, syncs it, and puts it in the place of the old one (`draft`). If nothing was changed, it only marks
//! the old one clean again. Of a disk that is durable ([`durable`]), the image has a log of what was flushed ([`log`]).
//!
//! Price: while it is written there are two. Nothing of it is encrypted. Guarantee: under the name there is one whole
//! image at any moment, whenever who serves it is killed or power fails; one that was served and not brought up to
//! date is told from one that is; no file is written over that was not read as an image or made here.

pub mod calls;
mod draft;
pub mod durable;
pub mod format;
pub mod log;

use crate::face::Disk;
use crate::pages::Pages;
use crate::volume::Volume;
use calls::{Calls, System};
use draft::Draft;
use format::{BLOCK, BODY, Block, Header, HeaderError, ReadError, Writer};
use log::{Change, Mark, Tail};
use ramfold::codec::by_name;
use ramfold::{PAGE_SIZE, Page};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a file is opened while another takes its place.
const TRIES: usize = 10;
/// Pages between two times that it is told how many.
const TOLD: u64 = 4096;
/// Read ahead of the parser.
const BUFFER: usize = 1 << 20;
/// No count of changes: the image is to be written anew.
const NEVER: u64 = u64::MAX;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// the path is none of a file
    #[error("there is no file and no directory for one")]
    NoDirectory,
    /// it is no regular file
    #[error("it is no regular file")]
    NotAFile,
    /// another disk is served from it
    #[error("another disk is served from it")]
    InUse,
    /// its header is none
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// it is shorter or longer than its header says
    #[error("the image is damaged: it has {found} bytes and should have {length}")]
    Length {
        /// Bytes that it should have.
        length: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// its log is of another version
    #[error("it has a log of version {0}, and this ramfold reads {reads}", reads = log::VERSION)]
    LogVersion(u32),
    /// the disk has another size
    #[error("it is the image of a disk of {0} bytes")]
    Size(u64),
    /// the disk was served from it since, and did not end in order
    #[error("a disk was served from it and did not end in order: what was written then is not in it")]
    Stale {
        /// How long ago the disk was as it is there.
        age: Duration,
    },
    /// the system refuses it
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Why a disk was not brought back, or not kept.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// a page could not be read
    #[error("page {0} could not be read")]
    Page(u64),
    /// another file lies there now
    #[error("another file was put in the place of the image")]
    Replaced,
    /// the image could not be written
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for SaveError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The image of one disk, locked as long as this lives.
#[derive(Debug)]
pub struct Image {
    /// Absolute, and of the file itself.
    path: PathBuf,
    file: File,
    header: Header,
    calls: Arc<dyn Calls>,
    /// It may have a log.
    log: Option<Mark>,
    /// Groups that were read of the log.
    groups: u64,
    is_stale: bool,
    /// It was made here, and nothing has been served yet.
    is_new: bool,
    /// What the disk had counted as changes when it was as the image is.
    changes: u64,
}

impl Image {
    /// The image at this path, for a disk of this size; where there is no file, one of a disk of zeros. One that is
    /// stale is taken if that is accepted.
    ///
    /// # Errors
    /// [`OpenError`]. Nothing was changed then.
    pub fn open(path: &Path, size: u64, accept_stale: bool) -> Result<Self, OpenError> {
        Self::open_with(Arc::new(System), path, size, accept_stale)
    }

    /// The same, changed by these calls.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(
        calls: Arc<dyn Calls>,
        path: &Path,
        size: u64,
        accept_stale: bool,
    ) -> Result<Self, OpenError> {
        let path = settle(path)?;
        for _ in 0..TRIES {
            let file = match open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
                Err(Errno::NOENT) => return Self::make(calls, path, size),
                file => File::from(file?),
            };
            if !file.metadata()?.is_file() {
                return Err(OpenError::NotAFile);
            }
            lock(&file)?;
            if is_there(&path, &file)? {
                return Self::take(calls, path, file, size, accept_stale);
            }
        }
        Err(OpenError::InUse)
    }

    fn make(calls: Arc<dyn Calls>, path: PathBuf, size: u64) -> Result<Self, OpenError> {
        let draft = Draft::new(&path)?;
        lock(draft.file())?;
        let writer = Writer::new(io::sink(), by_name("lz4").map_err(io::Error::other)?);
        let (_, header) = writer.finish(size, now())?;
        seal(&*calls, draft.file(), &header, &format::clean())?;
        let file = draft.appear().map_err(|errno| match errno {
            Errno::EXIST => OpenError::InUse,
            errno => errno.into(),
        })?;
        Ok(Self {
            path,
            file,
            header,
            calls,
            log: None,
            groups: 0,
            is_stale: false,
            is_new: true,
            changes: 0,
        })
    }

    fn take(
        calls: Arc<dyn Calls>,
        path: PathBuf,
        file: File,
        size: u64,
        accept_stale: bool,
    ) -> Result<Self, OpenError> {
        let mut front = Vec::new();
        (&file).take(BODY).read_to_end(&mut front)?;
        let header = Header::parse(&front)?;
        let found = file.metadata()?.len();
        let log = Mark::parse(&front[BLOCK..]);
        match Mark::version(&front[BLOCK..]) {
            Some(log::VERSION) if log.is_none() => return Err(HeaderError::Damaged.into()),
            Some(version) if log.is_none() => return Err(OpenError::LogVersion(version)),
            _ => {}
        }
        if found < header.length || found > header.length && log.is_none() {
            return Err(OpenError::Length { length: header.length, found });
        }
        if header.size != size {
            return Err(OpenError::Size(header.size));
        }
        let is_stale = log.is_none() && front[BLOCK..] != format::clean();
        if is_stale && !accept_stale {
            return Err(OpenError::Stale { age: age(&header) });
        }
        draft::clear(&path);
        Ok(Self { path, file, header, calls, log, groups: 0, is_stale, is_new: false, changes: 0 })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Pages in it.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.header.pages
    }

    /// Whether the disk was durable, and did not end in order: it is as it was when it was last flushed, or later.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.log.is_some()
    }

    /// Groups that its log had: so often was flushed what was changed since the image was written.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// How long ago the disk was as it is here, but for its log.
    #[must_use]
    pub fn age(&self) -> Duration {
        age(&self.header)
    }

    /// Whether the disk was changed after that, and what it was changed to is lost.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Gives a disk of zeros all pages; tells now and then how many of how many.
    ///
    /// # Errors
    /// [`ReadError`]. The disk is then of no use.
    pub fn restore(&mut self, disk: &Volume, mut tell: impl FnMut(u64, u64)) -> Result<(), ReadError> {
        let (mut worker, mut done, all) = (disk.worker(), 0, self.header.pages);
        let mut put = |number: u64, page: &Page| {
            done += 1;
            if done % TOLD == 0 {
                tell(done, all);
            }
            disk.write(number * PAGE_SIZE as u64, page, &mut worker)
        };
        let mut file = BufReader::with_capacity(BUFFER, &self.file);
        format::read(&mut file, &self.header, &mut put)?;
        if let Some(mark) = &self.log {
            let (start, pages) = (log::start(self.header.length), self.header.size / PAGE_SIZE as u64);
            let found = log::find(&mut file, start, mark)?;
            log::replay(&mut file, (start, found), mark, pages, &mut |change| match change {
                Change::Page(number, page) => disk.write(number * PAGE_SIZE as u64, page, &mut worker),
                Change::Holes(number, count) => {
                    disk.discard(number * PAGE_SIZE as u64, count * PAGE_SIZE as u64, &mut worker)
                }
            })?;
            self.groups = found.groups;
        }
        self.changes = if self.has_rest()? { NEVER } else { disk.changes() };
        Ok(())
    }

    /// Whether something lies behind the image: its log, or what never was one. That may be read from memory and not
    /// be on disk, so it is never written on: a new image is made.
    fn has_rest(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() != self.header.length)
    }

    /// Marks it as served. To be called before clients come. What its log has becomes an image first.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn serve(&mut self, disk: &Volume, compressor: &str) -> Result<(), SaveError> {
        if self.has_rest()? {
            self.save(disk, compressor, |_, _| ())?;
        }
        self.mark(&[0; BLOCK])?;
        self.is_new = false;
        Ok(())
    }

    /// Brings it up to date, from a disk that no client has any more; tells now and then how many pages of how many.
    /// The compressor is named as [`by_name`] has it.
    ///
    /// # Errors
    /// [`SaveError`]. The image is then as it was, and marked as served; or, if it could not be synced, marked clean.
    pub fn save(
        &mut self,
        disk: &Volume,
        compressor: &str,
        mut tell: impl FnMut(u64, u64),
    ) -> Result<(), SaveError> {
        let changes = disk.changes();
        if changes == self.changes {
            self.mark(&format::clean())?;
            return Ok(self.calls.sync_directory_of(&self.path)?);
        }
        let go_on = |done, all| {
            tell(done, all);
            true
        };
        let (draft, header) = write_draft(&self.calls, &self.path, disk.pages(), compressor, true, go_on)?;
        seal(&*self.calls, draft.file(), &header, &format::clean())?;
        self.put(draft, header)?;
        self.changes = changes;
        Ok(self.calls.sync_directory_of(&self.path)?)
    }

    /// Puts a draft that is whole and on disk in its place. The name may lead to either until the directory is synced.
    fn put(&mut self, draft: Draft, header: Header) -> Result<(), SaveError> {
        if !is_there(&self.path, &self.file)? && self.path.symlink_metadata().is_ok() {
            return Err(SaveError::Replaced);
        }
        self.file = draft.replace(&*self.calls)?;
        (self.header, self.is_new) = (header, false);
        Ok(())
    }

    fn mark(&self, mark: &Block) -> io::Result<()> {
        self.calls.write(&self.file, mark, BLOCK as u64)?;
        self.calls.sync_data(&self.file)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The path without links, of a file that may not be there yet.
fn settle(path: &Path) -> Result<PathBuf, OpenError> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return Ok(found?),
    }
    let name = path.file_name().ok_or(OpenError::NoDirectory)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize();
    Ok(directory.map_err(|_| OpenError::NoDirectory)?.join(name))
}

fn lock(file: &File) -> Result<(), OpenError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse),
        locked => Ok(locked?),
    }
}

/// Whether the file has this name.
fn is_there(path: &Path, file: &File) -> Result<bool, Errno> {
    let own = fstat(file)?;
    match stat(path) {
        Ok(found) => Ok((found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Writes the pages to a draft for this place. If `is_alone`, nobody changes any meanwhile; else each is as it is at
/// some moment. The header is still to be written. `tell` ends it by false.
fn write_draft(
    calls: &Arc<dyn Calls>,
    path: &Path,
    pages: &Pages,
    compressor: &str,
    is_alone: bool,
    mut tell: impl FnMut(u64, u64) -> bool,
) -> Result<(Draft, Header), SaveError> {
    let codec = by_name(compressor).map_err(io::Error::other)?;
    let draft = Draft::new(path)?;
    lock(draft.file()).map_err(io::Error::other)?;
    let mut writer = Writer::new(Tail::new(calls, draft.file(), BODY)?, codec);
    let (mut done, all) = (0, pages.stored());
    pages.each(0..pages.most(), is_alone, |number, page| {
        done += 1;
        if done % TOLD == 0 && !tell(done, all) {
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        let page = page.map_err(|_| SaveError::Page(number))?;
        writer.page(number, page).map_err(SaveError::Io)
    })?;
    let (mut out, header) = writer.finish(pages.most() * PAGE_SIZE as u64, now())?;
    out.flush()?;
    Ok((draft, header))
}

/// Makes a file whose pages are written an image that has this mark, and stays.
fn seal(calls: &dyn Calls, file: &File, header: &Header, mark: &Block) -> io::Result<()> {
    calls.write(file, &[header.block(), *mark].concat(), 0)?;
    calls.sync(file)
}

fn age(header: &Header) -> Duration {
    Duration::from_secs(now().saturating_sub(header.saved))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
