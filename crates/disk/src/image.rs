//! The image: where a disk is kept from a clean stop to the next start.
//!
//! It is a file under a name ([`format`] tells its bytes). While a disk is served from it, it is locked, and its mark
//! says so: what is in it is then no longer what clients have read. A clean stop writes all pages to a new file
//! without a name, syncs it, and puts it in the place of the old one (`draft`). If nothing was changed, it only marks
//! the old one clean again.
//!
//! Price: while it is written there are two. Nothing of it is encrypted. Guarantee: under the name there is one whole
//! image at any moment, whenever who serves it is killed or power fails; one that was served and not brought up to
//! date is told from one that is; no file is written over that was not read as an image or made here.

mod draft;
pub mod format;

use crate::face::Disk;
use crate::volume::Volume;
use draft::Draft;
use format::{BLOCK, BODY, Block, Header, HeaderError, ReadError, Writer};
use ramfold::codec::by_name;
use ramfold::{PAGE_SIZE, Page};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a file is opened while another takes its place.
const TRIES: usize = 10;
/// Pages between two times that it is told how many.
const TOLD: u64 = 4096;
/// Read ahead of the parser.
const BUFFER: usize = 1 << 20;

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
        let path = settle(path)?;
        for _ in 0..TRIES {
            let file = match open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
                Err(Errno::NOENT) => return Self::make(path, size),
                file => File::from(file?),
            };
            if !file.metadata()?.is_file() {
                return Err(OpenError::NotAFile);
            }
            lock(&file)?;
            if is_there(&path, &file)? {
                return Self::take(path, file, size, accept_stale);
            }
        }
        Err(OpenError::InUse)
    }

    fn make(path: PathBuf, size: u64) -> Result<Self, OpenError> {
        let draft = Draft::new(&path)?;
        lock(draft.file())?;
        let writer = Writer::new(io::sink(), by_name("lz4").map_err(io::Error::other)?);
        let (_, header) = writer.finish(size, now())?;
        seal(draft.file(), &header)?;
        let file = draft.appear().map_err(|errno| match errno {
            Errno::EXIST => OpenError::InUse,
            errno => errno.into(),
        })?;
        Ok(Self { path, file, header, is_stale: false, is_new: true, changes: 0 })
    }

    fn take(path: PathBuf, file: File, size: u64, accept_stale: bool) -> Result<Self, OpenError> {
        let mut front = Vec::new();
        (&file).take(BODY).read_to_end(&mut front)?;
        let header = Header::parse(&front)?;
        let found = file.metadata()?.len();
        if found != header.length {
            return Err(OpenError::Length { length: header.length, found });
        }
        if header.size != size {
            return Err(OpenError::Size(header.size));
        }
        let is_stale = front[BLOCK..] != format::clean();
        if is_stale && !accept_stale {
            return Err(OpenError::Stale { age: age(&header) });
        }
        draft::clear(&path);
        Ok(Self { path, file, header, is_stale, is_new: false, changes: 0 })
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

    /// How long ago the disk was as it is here.
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
        format::read(BufReader::with_capacity(BUFFER, &self.file), &self.header, &mut put)?;
        self.changes = disk.changes();
        Ok(())
    }

    /// Marks it as served. To be called before clients come.
    ///
    /// # Errors
    /// Those of the file.
    pub fn serve(&mut self) -> io::Result<()> {
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
        tell: impl FnMut(u64, u64),
    ) -> Result<(), SaveError> {
        let changes = disk.changes();
        if changes == self.changes {
            self.mark(&format::clean())?;
            return Ok(draft::sync_directory(&self.path)?);
        }
        let draft = Draft::new(&self.path)?;
        lock(draft.file()).map_err(io::Error::other)?;
        let header = write(disk, compressor, draft.file(), tell)?;
        seal(draft.file(), &header)?;
        if !is_there(&self.path, &self.file)? && self.path.symlink_metadata().is_ok() {
            return Err(SaveError::Replaced);
        }
        self.file = draft.replace()?;
        (self.header, self.changes) = (header, changes);
        Ok(draft::sync_directory(&self.path)?)
    }

    fn mark(&self, mark: &Block) -> io::Result<()> {
        self.file.write_all_at(mark, BLOCK as u64)?;
        self.file.sync_data()
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

/// Writes the pages to a file that is empty.
fn write(
    disk: &Volume,
    compressor: &str,
    file: &File,
    mut tell: impl FnMut(u64, u64),
) -> Result<Header, SaveError> {
    let codec = by_name(compressor).map_err(io::Error::other)?;
    let mut out = file;
    io::Seek::seek(&mut out, io::SeekFrom::Start(BODY))?;
    let mut writer = Writer::new(out, codec);
    let (mut done, all) = (0, disk.store().stats().stored_pages);
    disk.each_page(|number, page| {
        done += 1;
        if done % TOLD == 0 {
            tell(done, all);
        }
        let page = page.map_err(|_| SaveError::Page(number))?;
        writer.page(number, page).map_err(SaveError::Io)
    })?;
    Ok(writer.finish(disk.most(), now())?.1)
}

/// Makes a file whose pages are written an image that is clean, and stays.
fn seal(file: &File, header: &Header) -> io::Result<()> {
    let front = [header.block(), format::clean()].concat();
    file.write_all_at(&front, 0)?;
    file.sync_all()
}

fn age(header: &Header) -> Duration {
    Duration::from_secs(now().saturating_sub(header.saved))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
