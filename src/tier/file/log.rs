//! The end of the log: where the next record goes.
//!
//! A run is as many records as fit into the buffer and the open extent. It is sealed into the buffer, written
//! by one call, and only then its slots are published. Where a run failed, its place is not used again, since
//! its nonces may have been: the next run begins behind it.

use super::device::{self, BLOCK, Blocks};
use super::record::{self, Series};
use super::slots::Location;
use super::{EXTENT_BYTES, FileTier, position};
use crate::tier::{Slot, WriteError};

/// Most bytes of a run.
pub(super) const RUN_BYTES: usize = 256 << 10;

/// Where the log ends, and what is needed to go on.
#[derive(Debug)]
pub(super) struct Log {
    writer: u32,
    /// Extents that this writer has begun.
    begun: u64,
    pub(super) open: Option<Open>,
    /// An extent kept back for the cleaner, so that it has a place to move records to when there is no other.
    pub(super) spare: Option<u32>,
    buffer: Blocks,
}

/// The extent that is being filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) extent: u32,
    pub(super) series: Series,
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
    pub(super) fn new(writer: u32) -> Self {
        Self { writer, begun: 0, open: None, spare: None, buffer: Blocks::new(0) }
    }

    /// Goes on as another writer, with nothing open. Returns the spare extent.
    pub(super) fn become_writer(&mut self, writer: u32) -> Option<u32> {
        debug_assert!(self.open.is_none());
        (self.writer, self.begun) = (writer, 0);
        self.spare.take()
    }

    /// What a forked child finds in its memory.
    #[cfg(test)]
    pub(super) fn copy(&self) -> Self {
        Self { buffer: Blocks::new(0), ..*self }
    }

    pub(super) fn meta_bytes(&self) -> usize {
        self.buffer.meta_bytes()
    }

    /// A run at the end of the log; `None` if no extent is open.
    pub(super) fn begin_run(&mut self) -> Option<Run> {
        let open = self.open?;
        if self.buffer.as_ref().is_empty() {
            self.buffer = Blocks::new(RUN_BYTES);
        }
        Some(Run { open, most: RUN_BYTES.min(open.room()), length: 0, records: vec![] })
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
        self.sealer.seal(run.open.series, offset, slot, data, out);
        run.records.push((slot, Location { extent: run.open.extent, offset, length }));
        run.length += record::footprint(data.len());
    }

    /// Writes a run, padded to blocks. Whether or not it succeeds, the log ends behind it then.
    pub(super) fn write_run(&self, log: &mut Log, run: &Run) -> Result<(), WriteError> {
        let padded = run.length.next_multiple_of(BLOCK);
        log.buffer.as_mut()[run.length..padded].fill(0);
        let at = position(run.open.extent) + u64::from(run.open.end);
        let end = run.open.end + u32::try_from(padded).expect("a run is below an extent");
        log.open = Some(Open { end, ..run.open });
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
        if log.begun > 0 && log.spare.is_none() && !self.tables().is_empty() {
            log.spare = self.acquire();
            if log.spare.is_none() {
                // The last one there is. Filled, it would leave the cleaner without a place to begin.
                log.spare = Some(extent);
                return self.clean(log);
            }
        }
        self.open_extent(log, extent);
        Ok(())
    }

    /// Begins to fill an extent.
    pub(super) fn open_extent(&self, log: &mut Log, extent: u32) {
        let series = Series { writer: log.writer, number: log.begun };
        log.begun += 1;
        log.open = Some(Open { extent, series, end: 0 });
        self.tables().open(extent, series);
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
