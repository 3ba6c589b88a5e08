//! What a disk is to the protocols that serve it.
//!
//! A protocol checks a request against the size of the disk and its own rules, calls one function here, and turns the
//! answer into its own words. Ranges are in bytes, at any offset and of any length. Requests that overlap and run at
//! the same time may take effect in any order, each page of 4096 bytes as a whole.

/// Written where zeros may not be a hole.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A disk. All methods may be called from any thread, each with a worker of its own.
///
/// Contract of the caller: a range lies within [`Disk::size`].
pub trait Disk: Send + Sync {
    /// One thread's working memory.
    type Worker: Send;

    /// Working memory for one thread.
    fn worker(&self) -> Self::Worker;

    /// Bytes that the disk has room for.
    fn size(&self) -> u64;

    /// Reads `out.len()` bytes at `offset`. What was never written reads as zeros.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn read(&self, offset: u64, out: &mut [u8], worker: &mut Self::Worker) -> Result<(), DiskError>;

    /// Lends the bytes of the range to `with`, cut as they lie, if all of them lie in memory as they are. False if not:
    /// then nothing was lent, and [`Disk::read`] reads them or tells why not. `with` takes no longer than a copy of the
    /// range, and does not call the disk: others wait for it.
    fn lend(&self, _offset: u64, _len: u64, _with: &mut dyn FnMut(&[&[u8]])) -> bool {
        false
    }

    /// Has what lies in the range near, as far as there is room for that: it will be read soon.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn fetch(&self, offset: u64, len: u64, worker: &mut Self::Worker) -> Result<(), DiskError>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// [`DiskError`]. Each page of the range then has its old bytes or its new ones.
    fn write(&self, offset: u64, data: &[u8], worker: &mut Self::Worker) -> Result<(), DiskError>;

    /// Makes the range read as zeros, and gives back the memory of whole pages.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn zero(&self, offset: u64, len: u64, worker: &mut Self::Worker) -> Result<(), DiskError>;

    /// Writes zeros: the range reads as zeros, and has its pages.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn write_zeros(&self, offset: u64, len: u64, worker: &mut Self::Worker) -> Result<(), DiskError> {
        for at in (0..len).step_by(ZEROS.len()) {
            let here = ZEROS.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            self.write(offset + at, &ZEROS[..here], worker)?;
        }
        Ok(())
    }

    /// Gives back the memory of the pages that lie within the range as a whole; they read as zeros. What of the range
    /// is only a part of a page stays as it is.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn discard(&self, offset: u64, len: u64, worker: &mut Self::Worker) -> Result<(), DiskError>;

    /// Returns when all that was written before has the durability that the disk promises.
    ///
    /// # Errors
    /// [`DiskError::Io`].
    fn flush(&self) -> Result<(), DiskError>;

    /// Tells what the range consists of, piece by piece from its front, until it ends or `each` returns false. The
    /// pieces follow one another without a gap; two neighbours are of different kinds.
    fn extents(&self, offset: u64, len: u64, each: &mut dyn FnMut(Extent) -> bool);
}

/// A piece of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// What they are.
    pub kind: ExtentKind,
}

/// What a piece of a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Written.
    Data,
    /// Never written, or discarded: it reads as zeros.
    Hole,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// the disk has no room: its memory and its backing are full
    #[error("the disk has no room: its memory and its backing are full")]
    NoSpace,
    /// the data could not be read or written
    #[error("the data could not be read or written")]
    Io,
}
