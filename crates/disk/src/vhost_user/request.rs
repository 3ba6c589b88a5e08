//! A guest's request: a chain of descriptors in its memory.
//!
//! What the device reads comes first: a header of 16 bytes, then data. What it writes follows: data, and a last byte
//! for the status. How the bytes are cut into descriptors means nothing. Guarantee: every chain that has room for a
//! status gets one; no range that leaves the disk reaches it; memory is bounded by one buffer, whatever the guest asks
//! for.

use super::Memory;
use crate::face::{Disk, DiskError};
use std::io::{Read, Write};
use virtio_queue::{DescriptorChain, Reader, Writer};

/// Bytes of a sector: the unit of offsets and lengths.
pub const SECTOR: u64 = 512;
/// Bytes that one read or write has at most.
pub const MOST_BYTES: u64 = 32 << 20;
/// Bytes that one range of a discard or of write zeroes has at most.
pub const MOST_RANGE: u64 = 4 << 30;
/// Ranges that one such request has at most.
pub const MOST_RANGES: u32 = 64;
/// Bytes of a disk's serial number.
const ID: usize = 20;
/// Bytes copied at once.
const BUFFER: usize = 128 << 10;

/// What a request wants (5.2.6).
mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

impl From<DiskError> for Status {
    fn from(_: DiskError) -> Self {
        Self::IoError
    }
}

/// The guest's memory is gone under the request.
impl From<std::io::Error> for Status {
    fn from(_: std::io::Error) -> Self {
        Self::IoError
    }
}

/// What one thread carries requests out with.
#[derive(Debug)]
pub struct Hands<'a, D: Disk> {
    disk: &'a D,
    id: &'a str,
    worker: D::Worker,
    buffer: Vec<u8>,
}

impl<'a, D: Disk> Hands<'a, D> {
    /// Hands for a disk that guests call `id`.
    pub fn new(disk: &'a D, id: &'a str) -> Self {
        Self { disk, id, worker: disk.worker(), buffer: vec![0; BUFFER] }
    }

    /// Carries out a request. Gives the bytes that were written into the guest's memory.
    pub fn carry_out(&mut self, memory: &Memory, chain: DescriptorChain<&Memory>) -> u32 {
        let (Ok(mut input), Ok(mut output)) =
            (Reader::new(memory, chain.clone()), Writer::new(memory, chain))
        else {
            return 0;
        };
        let Some(room) = output.available_bytes().checked_sub(1) else { return 0 };
        let Ok(mut status) = output.split_at(room) else { return 0 };
        let done = self.request(&mut input, &mut output).err().unwrap_or(Status::Ok);
        let told = status.write(&[done as u8]).unwrap_or(0);
        // Data has at most `MOST_BYTES`.
        u32::try_from(output.bytes_written() + told).unwrap_or(u32::MAX)
    }

    fn request(&mut self, input: &mut Reader<'_>, output: &mut Writer<'_>) -> Result<(), Status> {
        let mut header = [0; 16];
        input.read_exact(&mut header)?;
        let (kind, sector) = (u32_at(&header, 0), u64_at(&header, 8));
        match kind {
            kind::IN => self.read(sector, output),
            kind::OUT => self.write(sector, input),
            kind::FLUSH => Ok(self.disk.flush()?),
            kind::GET_ID => {
                let mut id = [0; ID];
                let len = self.id.len().min(ID);
                id[..len].copy_from_slice(&self.id.as_bytes()[..len]);
                Ok(output.write_all(&id[..ID.min(output.available_bytes())])?)
            }
            kind::DISCARD | kind::WRITE_ZEROES => self.ranges(kind == kind::DISCARD, input),
            _ => Err(Status::Unsupported),
        }
    }

    fn read(&mut self, sector: u64, output: &mut Writer<'_>) -> Result<(), Status> {
        let mut offset = place(self.disk, sector, output.available_bytes() as u64, MOST_BYTES)?;
        while output.available_bytes() > 0 {
            let here = output.available_bytes().min(BUFFER);
            let buffer = &mut self.buffer[..here];
            self.disk.read(offset, buffer, &mut self.worker)?;
            output.write_all(buffer)?;
            offset += here as u64;
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, input: &mut Reader<'_>) -> Result<(), Status> {
        let mut offset = place(self.disk, sector, input.available_bytes() as u64, MOST_BYTES)?;
        while input.available_bytes() > 0 {
            let here = input.available_bytes().min(BUFFER);
            let buffer = &mut self.buffer[..here];
            input.read_exact(buffer)?;
            self.disk.write(offset, buffer, &mut self.worker)?;
            offset += here as u64;
        }
        Ok(())
    }

    /// Ranges of 16 bytes each: sector, sectors, flags. All are checked before the first is taken.
    fn ranges(&mut self, discards: bool, input: &mut Reader<'_>) -> Result<(), Status> {
        let len = input.available_bytes();
        if len == 0 || !len.is_multiple_of(16) || len / 16 > MOST_RANGES as usize {
            return Err(Status::IoError);
        }
        let mut ranges = [0; 16 * MOST_RANGES as usize];
        let ranges = &mut ranges[..len];
        input.read_exact(ranges)?;
        // A discard always unmaps, so the flag is not for it.
        let known = if discards { 0 } else { UNMAP };
        if ranges.chunks_exact(16).any(|range| u32_at(range, 12) & !known != 0) {
            return Err(Status::Unsupported);
        }
        let disk = self.disk;
        let place = |range: &[u8]| {
            let len = u64::from(u32_at(range, 8)) * SECTOR;
            place(disk, u64_at(range, 0), len, MOST_RANGE).map(|offset| (offset, len))
        };
        for range in ranges.chunks_exact(16) {
            place(range)?;
        }
        for range in ranges.chunks_exact(16) {
            let (offset, len) = place(range)?;
            match (discards, u32_at(range, 12) & UNMAP) {
                (true, _) => disk.discard(offset, len, &mut self.worker)?,
                (_, UNMAP) => disk.zero(offset, len, &mut self.worker)?,
                _ => disk.write_zeros(offset, len, &mut self.worker)?,
            }
        }
        Ok(())
    }
}

/// The offset of a range that lies on the disk.
fn place(disk: &impl Disk, sector: u64, len: u64, most: u64) -> Result<u64, Status> {
    let offset = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
    let end = offset.checked_add(len).filter(|end| *end <= disk.size());
    let is_right = end.is_some() && len.is_multiple_of(SECTOR) && len <= most;
    is_right.then_some(offset).ok_or(Status::IoError)
}

/// A range of write zeroes may become a hole.
const UNMAP: u32 = 1;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
