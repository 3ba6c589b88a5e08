//! The cleaner: makes room when no extent is free, for this tier (`clean`) or for the others of the file (`tidy`).
//!
//! It reads the sparsest extent from its begin to its end, seals what is live in it anew into the spare extent,
//! and so gets an extent with room at its end and an empty one, which is the next spare. Records say which slot
//! they are of; whether they are live says the table. A header on disk is believed only as far as the table
//! confirms it.
//!
//! Price: to write `1 - u` new bytes of an extent, `u` are read and written, `u` being the live share of the
//! sparsest extent. Over 7/8, when it would be seven times what is asked for, the tier says that it is full.
//! To tidy, only extents of which at least 5/8 are dead are moved, one a call.
//! Guarantee: a record is at its old place until its copy is written. What cannot be read stays where it is,
//! and its extent is left alone from then on.

use super::device::{self, BLOCK, Blocks};
use super::log::{Log, Open, RUN_BYTES, Run};
use super::record::{HEADER, Header, footprint};
use super::slots::Location;
use super::{EXTENT_BYTES, FileTier, position};
use crate::tier::WriteError;

/// Most live bytes of an extent that is worth cleaning.
const WORTH: u32 = EXTENT_BYTES / 8 * 7;
/// Most bytes that the padding of the runs adds to one extent's records: a block and a record that did not fit
/// for each run.
const PADDING: usize = (EXTENT_BYTES as usize / RUN_BYTES + 1) * 3 * BLOCK;
/// Most live bytes of an extent that is emptied for others. An extent that was closed for want of room for such a one
/// holds more: so tidying comes to an end.
const SPARSE: u32 = EXTENT_BYTES / 8 * 3;
const _: () = assert!(2 * SPARSE as usize + PADDING <= EXTENT_BYTES as usize);
const _: () = assert!(WORTH as usize + PADDING <= EXTENT_BYTES as usize);

impl FileTier {
    /// Opens the spare extent with the records of the sparsest one in it.
    ///
    /// # Errors
    /// [`WriteError::Full`] if there is no spare or nothing worth cleaning.
    pub(super) fn clean(&self, log: &mut Log) -> Result<(), WriteError> {
        let sparsest = self.tables().sparsest(WORTH).ok_or(WriteError::Full)?;
        self.open_spare(log)?;
        let mut next = Some(sparsest);
        while let Some(extent) = next {
            if self.give_back(log, extent)? {
                return Ok(());
            }
            let room = log.open.as_ref().map_or(0, |open| open.room().saturating_sub(PADDING));
            next = self.tables().sparsest(WORTH.min(u32::try_from(room).unwrap_or(0)));
        }
        if log.open.as_ref().is_some_and(|open| open.end == 0) { self.take_back(log) } else { Ok(()) }
    }

    /// Moves what lives in the sparsest extent behind the end of the log, and gives the extent back to the source: for
    /// whoever shares the file with this tier and finds no room. False if nothing was given back.
    ///
    /// An extent that somebody else holds too stays: moved, its records would take up room twice.
    ///
    /// # Errors
    /// As [`crate::tier::Tier::write`]. What could not be moved is where it was.
    pub fn tidy(&self) -> Result<bool, WriteError> {
        let mut log = self.log();
        let sparse = self.tables().sparse(SPARSE);
        let sparse: Vec<_> =
            sparse.into_iter().filter(|(_, extent)| !self.source.is_shared(*extent)).collect();
        let Some(&(live, extent)) = sparse.iter().min() else { return Ok(false) };
        let room = log.open.as_ref().map_or(0, Open::room);
        if room < live as usize + PADDING {
            if sparse.len() < 2 {
                return Ok(false);
            }
            self.open_spare(&mut log)?;
        }
        self.keep_to_itself(&mut log)?;
        self.give_back(&mut log, extent)
    }

    /// Goes on in the spare extent.
    fn open_spare(&self, log: &mut Log) -> Result<(), WriteError> {
        let spare = log.spare.take().or_else(|| self.acquire()).ok_or(WriteError::Full)?;
        self.seal_open(log);
        self.open_extent(log, spare)
    }

    /// Empties an extent, which goes back to the source then, and sees to it that there is a spare. False if it
    /// cannot be emptied: it is left alone from then on.
    fn give_back(&self, log: &mut Log, extent: u32) -> Result<bool, WriteError> {
        self.empty(log, extent)?;
        if self.tables().extent(extent).is_some() {
            self.tables().set_stuck(extent);
            return Ok(false);
        }
        if log.spare.is_none() {
            // Another process may be quicker, or a discard that emptied it not done yet: then the next extent to be
            // had is the spare.
            log.spare = self.acquire();
        }
        Ok(true)
    }

    /// Nothing could be moved: the spare is kept for a better time.
    fn take_back(&self, log: &mut Log) -> Result<(), WriteError> {
        self.seal_open(log);
        log.spare = self.acquire();
        Err(WriteError::Full)
    }

    /// Moves what is live in `extent` to the open one, as far as it can be read.
    fn empty(&self, log: &mut Log, extent: u32) -> Result<(), WriteError> {
        let Some(end) = self.tables().extent(extent).map(|it| it.end) else {
            return Ok(());
        };
        let mut window = Window::new(extent, end);
        let mut run = log.begin_run().expect("the spare extent is open");
        let mut sources = vec![];
        let mut at = 0;
        while let Some(bytes) = window.bytes(self, at, HEADER) {
            let Some(header) = Header::from_bytes(bytes.try_into().expect("eight bytes")) else {
                at = (at + 1).next_multiple_of(BLOCK);
                continue;
            };
            let (offset, here) = (at, footprint(header.length));
            at += here;
            let place = self.tables().place(header.slot).filter(|place| {
                let found =
                    (place.location.extent, place.location.offset as usize, place.header(header.slot));
                found == (extent, offset, header)
            });
            let Some(place) = place else { continue };
            let Some(record) = window.bytes(self, offset, here) else { break };
            let Some(data) = place.sealer.open(place.location.offset, header, record) else {
                continue;
            };
            if !run.fits(header.length) {
                self.move_run(log, &run, &mut sources)?;
                run = log.begin_run().expect("the spare extent is open");
            }
            if !run.fits(header.length) {
                return Ok(());
            }
            self.add(log, &mut run, header.slot, data);
            sources.push(place.location);
        }
        self.move_run(log, &run, &mut sources)
    }

    /// Writes the copies and points their slots to them, where they were not discarded meanwhile.
    fn move_run(&self, log: &mut Log, run: &Run, sources: &mut Vec<Location>) -> Result<(), WriteError> {
        if run.records.is_empty() {
            return Ok(());
        }
        self.write_run(log, run)?;
        for ((slot, to), from) in run.records.iter().zip(sources.drain(..)) {
            let dead = self.tables().relocate(*slot, from, *to);
            self.release(dead);
        }
        Ok(())
    }
}

/// A part of an extent in memory.
struct Window {
    extent: u32,
    /// Where the extent's written part ends.
    end: usize,
    blocks: Blocks,
    start: usize,
    length: usize,
}

impl Window {
    fn new(extent: u32, end: u32) -> Self {
        Self { extent, end: end as usize, blocks: Blocks::new(RUN_BYTES), start: 0, length: 0 }
    }

    /// Bytes `at..at + count` of the extent, at most two blocks; `None` at its end or where it cannot be read.
    fn bytes(&mut self, tier: &FileTier, at: usize, count: usize) -> Option<&mut [u8]> {
        if at + count > self.end {
            return None;
        }
        if at < self.start || at + count > self.start + self.length {
            self.start = at - at % BLOCK;
            let wanted = RUN_BYTES.min(self.end - self.start);
            let blocks = &mut self.blocks.as_mut()[..wanted];
            let from = position(self.extent) + self.start as u64;
            self.length = device::fill(&*tier.device, blocks, from).unwrap_or(0);
        }
        let length = self.length;
        self.blocks.as_mut()[..length].get_mut(at - self.start..)?.get_mut(..count)
    }
}
