//! The file under the log: whole blocks past the page cache.
//!
//! What is written back is cold, and what is read goes to the program, so a copy of either in the page cache
//! would only take the memory that writeback was to free (and in a container, count against its limit).
//! Where the file system can, the file is therefore read and written with `O_DIRECT`. Elsewhere each access is
//! followed by `POSIX_FADV_DONTNEED`, which starts writing dirty pages and drops clean ones.
//!
//! Measured on ext4 and a virtual disk, two busy cores, records of 1300 bytes and runs of 256 KiB: a read takes
//! 50-80 us at the median both ways. Beside a writer its 99th percentile is 0.3-5 ms with `O_DIRECT`, and 4-13 ms
//! through the page cache. Runs go out at 0.8-1.1 GB/s with `O_DIRECT`; 1.3-2 GB/s through the page cache, but as
//! dirty pages, which are the memory that was to be freed. Allocating an extent in advance made no difference
//! that could be told from chance.
//!
//! `O_DIRECT` and fork: a page that is being read into while the process forks may, before Linux 6.5, end up in
//! the child only. The tag then does not fit, and [`super::FileTier`] reads once more before it says so.

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, pread, pwrite};
use std::fmt::Debug;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::num::NonZeroU64;

/// Unit and alignment of every transfer, in the file and in memory.
pub(super) const BLOCK: usize = 4096;

/// Single transfers at places of a file, each possibly short. Offsets, lengths and buffers are aligned to
/// [`BLOCK`].
pub(super) trait Device: Send + Sync + Debug {
    /// Reads into the front of `buffer`; 0 at the end of the file.
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<usize>;

    /// Writes the front of `bytes`.
    fn write(&self, bytes: &[u8], at: u64) -> Result<usize>;
}

/// Reads until `buffer` is full or the file ends. Returns the bytes read.
pub(super) fn fill(device: &dyn Device, buffer: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match device.read(&mut buffer[done..], at + done as u64) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(length) if length.is_multiple_of(BLOCK) && length > 0 => done += length,
            // Less than a block more is the end of the file, or not to be continued there with O_DIRECT.
            Ok(length) => return Ok(done + length),
        }
    }
    Ok(done)
}

/// Writes all `bytes`. After an error any of them may have been written.
pub(super) fn write_all(device: &dyn Device, bytes: &[u8], at: u64) -> Result<()> {
    let (mut done, mut stalls) = (0, 0);
    while done < bytes.len() {
        match device.write(&bytes[done..], at + done as u64) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            // What a short write did of its last block is written again, for the next must begin at a block.
            Ok(length) => {
                done += length / BLOCK * BLOCK;
                stalls = if length < BLOCK { stalls + 1 } else { 0 };
                if stalls == 8 {
                    return Err(Error::from(ErrorKind::WriteZero));
                }
            }
        }
    }
    Ok(())
}

/// A file, past the page cache as far as its file system can.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    direct: bool,
}

impl Disk {
    /// Takes the file over and finds out how it can be used.
    pub(super) fn new(file: File) -> Self {
        let direct = enable_direct(&file);
        if !direct {
            // One record is wanted, not those around it. A hint: without it the system reads more.
            let _ = fadvise(&file, 0, None, Advice::Random);
        }
        Self { file, direct }
    }

    /// Drops the pages of a transfer from the page cache. A hint.
    fn forget(&self, at: u64, length: usize) {
        if !self.direct {
            let _ = fadvise(&self.file, at, NonZeroU64::new(length as u64), Advice::DontNeed);
        }
    }
}

/// Sets `O_DIRECT` if the file takes transfers of a block: some file systems accept the flag and refuse these.
fn enable_direct(file: &File) -> bool {
    let Ok(flags) = fcntl_getfl(file) else { return false };
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let works = pread(file, Blocks::new(BLOCK).as_mut(), 0).is_ok();
    if !works {
        let _ = fcntl_setfl(file, flags);
    }
    works
}

impl Device for Disk {
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let wanted = buffer.len();
        let length = pread(&self.file, buffer, at)?;
        self.forget(at, wanted);
        Ok(length)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<usize> {
        match pwrite(&self.file, bytes, at) {
            Ok(length) => {
                // From the extent's begin: what was dirty when its own turn came is clean by now.
                let start = at - at % u64::from(super::EXTENT_BYTES);
                let written = usize::try_from(at - start).unwrap_or(0) + length;
                self.forget(start, written);
                Ok(length)
            }
            Err(errno) => Err(Error::from(errno)),
        }
    }
}

/// Whether the error says that there is no more space.
pub(super) fn is_full(error: &Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}

/// Memory aligned to [`BLOCK`] on the heap: a whole number of blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Blocks {
    /// At least `length` bytes, rounded up to blocks.
    pub(super) fn new(length: usize) -> Self {
        let length = length.next_multiple_of(BLOCK);
        let memory = vec![0; if length == 0 { 0 } else { length + BLOCK }];
        let start = memory.as_ptr().align_offset(BLOCK).min(memory.len() - length);
        Self { memory, start, length }
    }

    pub(super) fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    /// Bytes of memory.
    pub(super) fn meta_bytes(&self) -> usize {
        self.memory.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Does little at a time, and is interrupted at every other call.
    #[derive(Debug)]
    struct Halting {
        disk: Disk,
        calls: AtomicUsize,
        most: usize,
    }

    impl Halting {
        fn call(&self) -> Result<()> {
            let odd = self.calls.fetch_add(1, Relaxed) % 2 == 1;
            if odd { Err(Error::from(ErrorKind::Interrupted)) } else { Ok(()) }
        }
    }

    impl Device for Halting {
        fn read(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
            self.call()?;
            let most = self.most.min(buffer.len());
            self.disk.read(&mut buffer[..most], at)
        }

        fn write(&self, bytes: &[u8], at: u64) -> Result<usize> {
            self.call()?;
            // A short write that ends within a block: the rest of the block is still to come.
            self.disk.write(&bytes[..(self.most / BLOCK * BLOCK).min(bytes.len())], at)?;
            Ok(self.most.min(bytes.len()))
        }
    }

    fn temporary() -> Disk {
        Disk::new(tempfile::tempfile_in("/var/tmp").unwrap())
    }

    #[test]
    fn interrupted_and_short_transfers_are_continued() {
        let device = Halting { disk: temporary(), calls: AtomicUsize::new(0), most: BLOCK + 100 };
        let mut blocks = Blocks::new(5 * BLOCK);
        for (at, byte) in blocks.as_mut().iter_mut().enumerate() {
            *byte = (at % 251).to_le_bytes()[0];
        }
        write_all(&device, blocks.as_ref(), 8192).unwrap();
        let device = Halting { most: BLOCK, ..device };
        let mut read = Blocks::new(6 * BLOCK);
        assert_eq!(fill(&device, read.as_mut(), 8192).unwrap(), 5 * BLOCK);
        assert_eq!(read.as_ref()[..5 * BLOCK], *blocks.as_ref());
        assert_eq!(fill(&device, read.as_mut(), 1 << 30).unwrap(), 0);
    }

    #[test]
    fn a_device_that_takes_nothing_is_an_error() {
        let device = Halting { disk: temporary(), calls: AtomicUsize::new(0), most: 0 };
        let error = write_all(&device, Blocks::new(BLOCK).as_ref(), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WriteZero);
    }

    #[test]
    fn blocks_are_aligned() {
        for length in [0, 1, BLOCK, 5 * BLOCK + 1] {
            let mut blocks = Blocks::new(length);
            assert_eq!(blocks.as_ref().len(), length.next_multiple_of(BLOCK));
            assert!(length == 0 || blocks.as_mut().as_ptr().addr().is_multiple_of(BLOCK));
        }
    }
}
