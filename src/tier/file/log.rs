//! The end of the log: where the next record goes.
//!
//! A run is as many records as fit into the buffer and the open extent. It is sealed into the buffer, written
//! by one call, and only then its slots are published. Where a run failed, its place is not used again, since
//! its nonces may have been: the next run begins behind it.

use super::device::{self, BLOCK, Blocks};
use super::record::{self, Sealer};
use super::slots::Location;
use super::{EXTENT_BYTES, FileTier, position};
use crate::tier::{Slot, WriteError};
use std::sync::Arc;

/// Most bytes of a run.
pub(super) const RUN_BYTES: usize = 256 << 10;

/// Where the log ends, and what is needed to go on.
#[derive(Debug)]
pub(super) struct Log {
    /// This process has begun an extent.
    has_begun: bool,
    /// Somebody else knows what seals the open extent: a forked child.
    pub(super) is_known: bool,
    pub(super) open: Option<Open>,
    /// An extent kept back for the cleaner, so that it has a place to move records to when there is no other.
    pub(super) spare: Option<u32>,
    buffer: Blocks,
}

/// The extent that is being filled.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) extent: u32,
    pub(super) sealer: Arc<Sealer>,
    /// Where the next run begins: a multiple of [`BLOCK`].
    pub(super) end: u32,
}

impl Open {
    /// Bytes that are left.
    pub(super) fn room(&self) -> usize {
        (EXTENT_BYTES - self.end) as usize
    }
}

/// Records in the buffer, to be written at the end of the log.
pub(super) struct Run {
    open: Open,
    most: usize,
    length: usize,
    pub(super) records: Vec<(u64, Location)>,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { has_begun: false, is_known: false, open: None, spare: None, buffer: Blocks::new(0) }
    }

    /// Goes on in another process, with nothing open. Returns the spare extent.
    pub(super) fn become_child(&mut self) -> Option<u32> {
        debug_assert!(self.open.is_none());
        (self.has_begun, self.is_known) = (false, false);
        self.spare.take()
    }

    /// What a forked child finds in its memory.
    #[cfg(test)]
    pub(super) fn copy(&self) -> Self {
        let Self { has_begun, is_known, ref open, spare, .. } = *self;
        Self { has_begun, is_known, open: open.clone(), spare, buffer: Blocks::new(0) }
    }

    pub(super) fn meta_bytes(&self) -> usize {
        self.buffer.meta_bytes()
    }

    /// A run at the end of the log; `None` if no extent is open.
    pub(super) fn begin_run(&mut self) -> Option<Run> {
        let open = self.open.clone()?;
        if self.buffer.as_ref().is_empty() {
            self.buffer = Blocks::new(RUN_BYTES);
        }
        let most = RUN_BYTES.min(open.room());
        Some(Run { open, most, length: 0, records: vec![] })
    }
}

impl Run {
    /// Whether a record of `length` bytes still fits.
    pub(super) fn fits(&self, length: usize) -> bool {
        self.length + record::footprint(length) <= self.most
    }
}

impl FileTier {
    /// Writes as many of the records as make a run and adds their slots to `slots`. Adds nothing on an error.
    pub(super) fn append_run(
        &self,
        log: &mut Log,
        records: &[&[u8]],
        slots: &mut Vec<Slot>,
    ) -> Result<(), WriteError> {
        let run = log.begin_run().filter(|run| run.fits(records[0].len()));
        let mut run = match run {
            Some(run) => run,
            None => {
                self.next_extent(log)?;
                log.begin_run().expect("an extent was opened")
            }
        };
        for data in records {
            if !run.fits(data.len()) {
                break;
            }
            let Some(slot) = self.tables().reserve() else { break };
            self.add(log, &mut run, slot, data);
        }
        if run.records.is_empty() {
            return Err(WriteError::Full);
        }
        if let Err(error) = self.write_run(log, &run) {
            let mut tables = self.tables();
            run.records.iter().for_each(|(slot, _)| tables.unreserve(*slot));
            return Err(error);
        }
        // Commit point: nothing after this fails.
        let mut tables = self.tables();
        for (slot, location) in run.records {
            tables.commit(slot, location);
            slots.push(Slot::from_bits(slot));
        }
        Ok(())
    }

    /// Seals a record, which fits, into the run.
    pub(super) fn add(&self, log: &mut Log, run: &mut Run, slot: u64, data: &[u8]) {
        let offset = run.open.end + u32::try_from(run.length).expect("a run is below an extent");
        let length = u16::try_from(data.len()).expect("a record is at most 4096 bytes");
        let out = &mut log.buffer.as_mut()[run.length..];
        run.open.sealer.seal(offset, slot, data, out);
        run.records.push((slot, Location { extent: run.open.extent, offset, length }));
        run.length += record::footprint(data.len());
    }

    /// Writes a run, padded to blocks. Whether or not it succeeds, the log ends behind it then.
    pub(super) fn write_run(&self, log: &mut Log, run: &Run) -> Result<(), WriteError> {
        let padded = run.length.next_multiple_of(BLOCK);
        log.buffer.as_mut()[run.length..padded].fill(0);
        let at = position(run.open.extent) + u64::from(run.open.end);
        let end = run.open.end + u32::try_from(padded).expect("a run is below an extent");
        log.open = Some(Open { end, ..run.open.clone() });
        self.tables().wrote(run.open.extent, end);
        let written = device::write_all(&*self.device, &log.buffer.as_ref()[..padded], at);
        written.map_err(|error| if device::is_full(&error) { WriteError::Full } else { error.into() })
    }

    /// Closes the open extent, if there is one.
    pub(super) fn seal_open(&self, log: &mut Log) {
        if let Some(open) = log.open.take() {
            let dead = self.tables().seal(open.extent);
            self.release(dead);
        }
    }

    /// Opens the next extent: a new one, or when there is none, one that the cleaner has made room in.
    fn next_extent(&self, log: &mut Log) -> Result<(), WriteError> {
        self.seal_open(log);
        let Some(extent) = self.acquire() else { return self.clean(log) };
        // The spare is taken with the second extent: most processes never need one.
        if log.has_begun && log.spare.is_none() && !self.tables().is_empty() {
            log.spare = self.acquire();
            if log.spare.is_none() {
                // The last one there is. Filled, it would leave the cleaner without a place to begin.
                log.spare = Some(extent);
                return self.clean(log);
            }
        }
        self.open_extent(log, extent)
    }

    /// Begins to fill an extent.
    pub(super) fn open_extent(&self, log: &mut Log, extent: u32) -> Result<(), WriteError> {
        let sealer = Sealer::draw().inspect_err(|_| self.source.release(extent))?;
        (log.has_begun, log.is_known) = (true, false);
        log.open = Some(Open { extent, sealer: Arc::clone(&sealer), end: 0 });
        self.tables().open(extent, sealer);
        Ok(())
    }

    /// Sees to it that what is written from here on only this process can read, and children that it forks later.
    pub(super) fn keep_to_itself(&self, log: &mut Log) -> Result<(), WriteError> {
        if let Some(open) = log.open.as_mut().filter(|_| log.is_known) {
            open.sealer = Sealer::draw()?;
            self.tables().change_sealer(open.extent, Arc::clone(&open.sealer));
        }
        log.is_known = false;
        Ok(())
    }

    /// An extent of the source that locations can name.
    pub(super) fn acquire(&self) -> Option<u32> {
        let extent = self.source.acquire()?;
        if extent < Location::EXTENTS {
            return Some(extent);
        }
        self.source.release(extent);
        None
    }
}
