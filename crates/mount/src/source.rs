//! Reading the source without filling its page cache.
//!
//! What is read is kept here, compressed, and by the kernel for the mount; a third copy would be one too many. Where
//! the kernel has reads that leave nothing behind (RWF_DONTCACHE, Linux 6.14, on file systems that take it), what
//! others have in the page cache stays there. Elsewhere the range is dropped after it was read (posix_fadvise), whoever
//! had it there.

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// RWF_DONTCACHE.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How this source is read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// It was refused once.
    has_no_dont_cache: AtomicBool,
}

/// Whoever reads has its read-ahead from the kernel's reads of the mount: the source needs none.
pub(crate) fn expect_no_order(file: BorrowedFd) {
    // Only advice.
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// Reads or writes `len` bytes by calls that may do less each: `some` goes on behind the bytes that are done. Gives the
/// number of bytes: less at an end, or before an error.
///
/// # Errors
/// That of the first call.
pub(crate) fn in_pieces(
    len: usize,
    mut some: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        match some(done) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Reading {
    /// Reads until `out` is full or the file ends. Gives the number of bytes.
    pub(crate) fn read(&self, file: BorrowedFd, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        in_pieces(out.len(), |done| self.read_some(file, offset + done as u64, &mut out[done..]))
    }

    fn read_some(&self, file: BorrowedFd, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        if !self.has_no_dont_cache.load(Relaxed) {
            match preadv2(file, &mut [IoSliceMut::new(out)], offset, DONT_CACHE) {
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.has_no_dont_cache.store(true, Relaxed);
                }
                read => return read,
            }
        }
        let read = pread(file, &mut *out, offset)?;
        if let Some(len) = NonZeroU64::new(read as u64) {
            let _ = fadvise(file, offset, Some(len), Advice::DontNeed);
        }
        Ok(read)
    }
}
