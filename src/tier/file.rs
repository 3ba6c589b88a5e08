//! The file tier: a log of sealed records in the extents of one file.
//!
//! Records are appended to an open extent in runs of up to 256 KiB, one system call each, and found again
//! through a table in memory (`slots`). Nothing is ever written over while it is live: a record that is
//! discarded leaves dead bytes, an extent with nothing live goes back to its [`ExtentSource`], and when the
//! source has none left, the `cleaner` moves the records of the sparsest extent together (Rosenblum and
//! Ousterhout, "The Design and Implementation of a Log-Structured File System", 1991). The keys live in memory
//! and die with their process, so there is no recovery and nothing is ever synced.
//!
//! Price: eight bytes of memory a slot and 24 to 31 on disk a record; the last run of a batch is padded to
//! blocks of 4 KiB, so batches should be large; a buffer of a run's size from the first write on.
//! Guarantee: a read gives what was written or an error (AES-256-GCM, `record`); a failed write changes no
//! record; nothing else waits for a running write or the cleaner.

mod ahead;
mod cleaner;
mod device;
mod extents;
mod log;
mod record;
mod slots;
mod tables;
#[cfg(test)]
mod tests;

pub use extents::{EXTENT_BYTES, ExtentSource, LocalExtents};

use super::{ReadError, Slot, Tier, WriteError};
use ahead::ReadAhead;
use device::{BLOCK, Device, Disk};
use log::Log;
use std::fs::File;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tables::{Place, Tables};

/// Blocks that a record can touch: it is shorter than two, and may begin in the last bytes of one.
const RECORD_BLOCKS: usize = 3;

/// A tier in one file, whose extents it may share with the tiers of other processes.
///
/// Lock order: `log`, then `tables`. The source is called with neither or with `log` held.
pub struct FileTier {
    device: Box<dyn Device>,
    source: Box<dyn ExtentSource>,
    /// Protects the position of writing and the write buffer. Held over a whole write, I/O and cleaning
    /// included; a reader never takes it.
    log: Mutex<Log>,
    /// Protects what is where. Held for single look-ups and changes, never over I/O.
    tables: Mutex<Tables>,
    /// Never waited for: who finds it in use reads the file.
    ahead: ReadAhead,
}

/// Both locks of a tier, held over a fork by the thread that forks. See [`FileTier::quiesce`].
#[derive(Debug)]
#[must_use = "the tier is quiet while this lives"]
pub struct Quiesced<'a> {
    _log: MutexGuard<'a, Log>,
    _tables: MutexGuard<'a, Tables>,
}

impl FileTier {
    /// A tier in `file`, in the extents that `source` gives.
    ///
    /// Sets `O_DIRECT` on the open file where its file system has it.
    #[must_use]
    pub fn new(file: File, source: Box<dyn ExtentSource>) -> Self {
        Self::on_device(Box::new(Disk::new(file)), source)
    }

    fn on_device(device: Box<dyn Device>, source: Box<dyn ExtentSource>) -> Self {
        let (log, tables) = (Mutex::new(Log::new()), Mutex::default());
        Self { device, source, log, tables, ahead: ReadAhead::default() }
    }

    /// Bytes of records that have not been discarded: what remains of [`Tier::used_bytes`] when all is cleaned.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.tables().live()
    }

    /// Waits for a running write and keeps others, reads too, from starting. To be held over a fork, so that the
    /// child does not inherit a lock of a thread that it does not have; dropped in both, in the child before
    /// [`Self::become_child`].
    pub fn quiesce(&self) -> Quiesced<'_> {
        Quiesced { _log: self.log(), _tables: self.tables() }
    }

    /// Before a fork: what the parent writes after it the child cannot read.
    pub fn before_fork(&self) {
        self.log().is_known = true;
    }

    /// In the child of a fork: from here on it writes into extents of its own. What was written before stays readable
    /// in both; the source must count both as holders of every extent, the spare and the open one included.
    pub fn become_child(&self) {
        let mut log = self.log();
        self.seal_open(&mut log);
        if let Some(spare) = log.become_child() {
            self.source.release(spare);
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back an extent that the tables have dropped.
    fn release(&self, dead: Option<u32>) {
        if let Some(extent) = dead {
            self.source.release(extent);
        }
    }

    /// Reads a record at its place; `copied`: a copy that was read ahead will do.
    fn read_at(&self, place: &Place, slot: u64, copied: bool, out: &mut [u8]) -> Result<usize, ReadError> {
        // Aligned within a block more, so that no unsafe code is needed to align it.
        let mut stack = [0; (RECORD_BLOCKS + 1) * BLOCK];
        let start = stack.as_ptr().align_offset(BLOCK).min(BLOCK);
        let header = place.header(slot);
        let at = place.location.offset as usize;
        let (first, end) = (at - at % BLOCK, at + record::footprint(header.length));
        let blocks = &mut stack[start..][..(end - first).next_multiple_of(BLOCK)];
        let from = position(place.location.extent) + first as u64;
        let length = if copied && self.ahead.read(&*self.device, blocks, from)? {
            blocks.len()
        } else {
            device::fill(&*self.device, blocks, from)?
        };
        let record = blocks[..length].get_mut(at - first..).ok_or(ReadError::Corrupt)?;
        let data = place.sealer.open(place.location.offset, header, record);
        let data = data.ok_or(ReadError::Corrupt)?;
        let Some(out) = out.get_mut(..data.len()) else {
            return Err(ReadError::Io(ErrorKind::InvalidInput.into()));
        };
        out.copy_from_slice(data);
        Ok(data.len())
    }
}

/// Where an extent begins in the file.
fn position(extent: u32) -> u64 {
    u64::from(extent) * u64::from(EXTENT_BYTES)
}

impl Tier for FileTier {
    /// As [`Tier::write`]; a record that is empty or over 4096 bytes is an `InvalidInput` error.
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        if records.iter().any(|record| !(1..=record::MAX_LENGTH).contains(&record.len())) {
            return Err(WriteError::Io(ErrorKind::InvalidInput.into()));
        }
        let mut slots = Vec::with_capacity(records.len());
        let mut log = self.log();
        self.keep_to_itself(&mut log)?;
        while slots.len() < records.len() {
            if let Err(error) = self.append_run(&mut log, &records[slots.len()..], &mut slots) {
                drop(log);
                slots.into_iter().for_each(|slot| self.discard(slot));
                return Err(error);
            }
        }
        Ok(slots)
    }

    /// As [`Tier::read`]; a slot that is not in use is [`ReadError::Corrupt`], an `out` that is too short an
    /// `InvalidInput` error.
    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        let mut failed: Option<Place> = None;
        loop {
            let place = self.tables().place(slot.to_bits()).ok_or(ReadError::Corrupt)?;
            match self.read_at(&place, slot.to_bits(), failed.is_none(), out) {
                // The cleaner may have moved the record meanwhile, or a fork come between (see `device`), or the copy
                // be old: an error counts when it comes twice from one place.
                Err(_) if !failed.as_ref().is_some_and(|failed| failed.is(&place)) => failed = Some(place),
                result => return result,
            }
        }
    }

    fn discard(&self, slot: Slot) {
        let dead = self.tables().discard(slot.to_bits());
        self.release(dead);
    }

    fn used_bytes(&self) -> u64 {
        self.tables().used()
    }

    /// Who writes has a buffer of a run, and is not waited for.
    fn meta_bytes(&self) -> usize {
        let log = self.log.try_lock().map_or(log::RUN_BYTES, |log| log.meta_bytes());
        size_of::<Self>() + self.ahead.meta_bytes() + log + self.tables().meta_bytes()
    }
}

impl std::fmt::Debug for FileTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTier")
            .field("device", &self.device)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
