//! Reading ahead: records that were written one after the other are mostly wanted one after the other.
//!
//! Writeback goes through the pages in the order of their keys, so a program that walks through memory walks
//! through the log. A read that begins shortly behind the one before it therefore fetches 64 KiB, and what follows
//! is served from that copy. The price is one buffer, and up to 15 pages read in vain where a sequence ends; a
//! random reader pays nothing, since its reads do not follow one another.
//!
//! The copy may be older than the file. That is no danger: an extent that was filled again has another
//! key, and a record of the old one does not open; the caller then reads the file itself.

use super::device::{self, BLOCK, Device};
use std::io::Result;
use std::sync::Mutex;

/// Bytes fetched at once.
const WINDOW: usize = 64 << 10;

/// The copy of a part of the file, and where the last read was.
#[derive(Debug, Default)]
pub(super) struct ReadAhead(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    /// With a block more than the window, so that an aligned part of it can be used.
    buffer: Vec<u8>,
    /// Where in the buffer the copy begins.
    start: usize,
    /// The part of the file that the copy is of.
    at: u64,
    length: usize,
    /// Where the last read ended, if there was one.
    last: Option<u64>,
}

impl ReadAhead {
    /// Fills `blocks` from the copy, or from the file through the copy when reads are sequential. False if neither:
    /// the reads are not sequential, or another thread uses the copy.
    pub(super) fn read(&self, device: &dyn Device, blocks: &mut [u8], at: u64) -> Result<bool> {
        let Ok(mut window) = self.0.try_lock() else { return Ok(false) };
        let end = at + blocks.len() as u64;
        let sequential = window
            .last
            .replace(end)
            .is_some_and(|last| (last.saturating_sub(BLOCK as u64)..last + WINDOW as u64).contains(&at));
        if !window.holds(at, end) {
            if !sequential {
                return Ok(false);
            }
            window.fetch(device, at)?;
            if !window.holds(at, end) {
                return Ok(false);
            }
        }
        let Ok(skip) = usize::try_from(at - window.at) else { return Ok(false) };
        blocks.copy_from_slice(&window.buffer[window.start + skip..][..blocks.len()]);
        Ok(true)
    }

    /// Bytes of memory of the buffer.
    pub(super) fn meta_bytes(&self) -> usize {
        self.0.lock().map_or(0, |window| window.buffer.capacity())
    }
}

impl Window {
    fn holds(&self, at: u64, end: u64) -> bool {
        self.at <= at && end <= self.at + self.length as u64
    }

    fn fetch(&mut self, device: &dyn Device, at: u64) -> Result<()> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; WINDOW + BLOCK];
            self.start = self.buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
        }
        self.length = 0;
        let start = self.start;
        self.length = device::fill(device, &mut self.buffer[start..start + WINDOW], at)?;
        self.at = at;
        Ok(())
    }
}
