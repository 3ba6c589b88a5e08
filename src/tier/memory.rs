//! A tier in memory, which fails when it is told to: for the tests of the store and of the doors.
//!
//! It does what [`super::Tier`] promises in the most obvious way, and no more. What is put off by a real tier
//! (space, errors, damage) can be had here at a chosen call: the n-th write, the n-th read. It saves no memory, so
//! it is of no use as a tier.

use super::{ReadError, Slot, Tier, WriteError};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A tier in memory, with faults at will.
///
/// ```
/// use ramfold::tier::{MemoryTier, Tier, WriteError};
/// let tier = MemoryTier::new();
/// tier.fail_write(2);
/// assert!(tier.write(&[b"first"]).is_ok());
/// assert!(matches!(tier.write(&[b"second"]), Err(WriteError::Io(_))));
/// assert!(tier.write(&[b"third"]).is_ok());
/// ```
#[derive(Debug, Default)]
pub struct MemoryTier {
    /// Protects all there is; held over each call.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<u64, Vec<u8>>,
    next: u64,
    bound: Option<u64>,
    writes: Countdown,
    reads: Countdown,
    damages: Countdown,
}

/// Goes off at the n-th call from now on.
#[derive(Debug, Default)]
struct Countdown(u64);

impl Countdown {
    /// Counts a call; whether it is the one.
    fn goes_off(&mut self) -> bool {
        let last = self.0 == 1;
        self.0 = self.0.saturating_sub(1);
        last
    }
}

impl MemoryTier {
    /// An empty tier without bound.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty tier for at most `bytes` of records.
    #[must_use]
    pub fn bounded(bytes: u64) -> Self {
        let tier = Self::new();
        tier.set_bound(Some(bytes));
        tier
    }

    /// From now on takes at most `bytes` of records; those it has stay.
    pub fn set_bound(&self, bytes: Option<u64>) {
        self.state().bound = bytes;
    }

    /// Makes the `nth` write from now on, counted from 1, an I/O error. 0: none.
    pub fn fail_write(&self, nth: u64) {
        self.state().writes = Countdown(nth);
    }

    /// Makes the `nth` read from now on, counted from 1, an I/O error; the record is still there. 0: none.
    pub fn fail_read(&self, nth: u64) {
        self.state().reads = Countdown(nth);
    }

    /// Makes the `nth` read from now on, counted from 1, find a damaged record, which stays so. 0: none.
    pub fn corrupt_read(&self, nth: u64) {
        self.state().damages = Countdown(nth);
    }

    /// Records that are in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().records.len()
    }

    /// Whether no record is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn used(&self) -> u64 {
        self.records.values().map(|record| record.len() as u64).sum()
    }
}

impl Tier for MemoryTier {
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        if records.iter().any(|record| !(1..=4096).contains(&record.len())) {
            return Err(WriteError::Io(ErrorKind::InvalidInput.into()));
        }
        let mut state = self.state();
        if state.writes.goes_off() {
            return Err(WriteError::Io(Error::other("a write that was told to fail")));
        }
        let more: u64 = records.iter().map(|record| record.len() as u64).sum();
        if state.bound.is_some_and(|bound| state.used() + more > bound) {
            return Err(WriteError::Full);
        }
        let slots = records.iter().map(|record| {
            let slot = state.next;
            state.next += 1;
            state.records.insert(slot, record.to_vec());
            Slot::from_bits(slot)
        });
        Ok(slots.collect())
    }

    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        let mut state = self.state();
        if state.reads.goes_off() {
            return Err(ReadError::Io(Error::other("a read that was told to fail")));
        }
        if state.damages.goes_off() {
            // An empty record is one that was damaged: none was written so.
            state.records.insert(slot.to_bits(), vec![]);
        }
        let record = state.records.get(&slot.to_bits()).filter(|record| !record.is_empty());
        let record = record.ok_or(ReadError::Corrupt)?;
        let out = out.get_mut(..record.len()).ok_or(ReadError::Io(ErrorKind::InvalidInput.into()))?;
        out.copy_from_slice(record);
        Ok(record.len())
    }

    /// As [`Tier::discard`]. Panics if the slot is not in use: that is a fault of the caller, found by a test.
    fn discard(&self, slot: Slot) {
        let record = self.state().records.remove(&slot.to_bits());
        assert!(record.is_some(), "{slot:?} was discarded and is not in use");
    }

    fn used_bytes(&self) -> u64 {
        self.state().used()
    }

    fn meta_bytes(&self) -> usize {
        self.len() * size_of::<(u64, Vec<u8>)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    super::super::conformance::tier_suite!(|bytes| Box::new(MemoryTier::bounded(bytes)));

    #[test]
    fn faults_come_at_the_call_that_was_named_and_once() {
        let tier = MemoryTier::new();
        let slot = tier.write(&[b"one"]).unwrap()[0];
        let mut out = [0; 4096];
        tier.fail_read(2);
        assert!(tier.read(slot, &mut out).is_ok());
        assert!(matches!(tier.read(slot, &mut out), Err(ReadError::Io(_))));
        assert!(tier.read(slot, &mut out).is_ok());
        tier.corrupt_read(1);
        assert!(matches!(tier.read(slot, &mut out), Err(ReadError::Corrupt)));
        assert!(matches!(tier.read(slot, &mut out), Err(ReadError::Corrupt)));
        tier.discard(slot);
        assert!(tier.is_empty());
    }

    #[test]
    #[should_panic(expected = "was discarded and is not in use")]
    fn a_slot_discarded_twice_is_found() {
        let tier = MemoryTier::new();
        let slot = tier.write(&[b"one"]).unwrap()[0];
        tier.discard(slot);
        tier.discard(slot);
    }
}
