//! A shared mapping of a file. The kernel copies to and from it, so that a page that cannot be had is an error, where
//! touching it would be a signal.

use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a length is waited for. That it comes soon is seen by reads.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mapping of a file that nobody makes shorter meanwhile.
pub struct Mapping {
    at: *mut u8,
    len: usize,
    beside: File,
}

impl Mapping {
    /// Asks for the length first, as whoever maps a file does: a touch behind the length that the kernel knows is
    /// SIGBUS. The kernel passes over an answer that it got while another came, and asks again.
    pub fn new(file: &File, len: usize, to_write: bool) -> std::io::Result<Self> {
        const TRIES: usize = 8;
        let begun = Instant::now();
        let is_there = || file.metadata().is_ok_and(|told| told.len() >= len as u64);
        let late = || {
            std::iter::from_fn(|| (begun.elapsed() < PATIENCE).then(|| std::thread::sleep(PATIENCE / 5000)))
        };
        if !late().chain([(); TRIES]).any(|()| is_there()) {
            return Err(std::io::Error::other(format!("it has less than {len} bytes")));
        }
        let beside = rustix::fs::memfd_create("beside", rustix::fs::MemfdFlags::CLOEXEC)?.into();
        let rights = if to_write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, at an address that nobody has.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at: at.cast(), len, beside })
    }

    pub fn read(&self, from: usize, len: usize) -> std::io::Result<Vec<u8>> {
        assert!(from + len <= self.len);
        // SAFETY: the mapping is this long; nothing but the kernel looks at the bytes, which others may change.
        self.beside.write_all_at(unsafe { std::slice::from_raw_parts(self.at.add(from), len) }, 0)?;
        let mut bytes = vec![0; len];
        self.beside.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    pub fn write(&mut self, from: usize, bytes: &[u8]) -> std::io::Result<()> {
        assert!(from + bytes.len() <= self.len);
        self.beside.write_all_at(bytes, 0)?;
        // SAFETY: as above; this range of the file has no other writer.
        self.beside
            .read_exact_at(unsafe { std::slice::from_raw_parts_mut(self.at.add(from), bytes.len()) }, 0)
    }

    pub fn sync(&self) -> std::io::Result<()> {
        // SAFETY: the mapping is this long.
        Ok(unsafe { rustix::mm::msync(self.at.cast(), self.len, rustix::mm::MsyncFlags::SYNC) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}
