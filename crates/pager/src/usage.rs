//! What this process takes of the limit, and when it has to give.
//!
//! The pager knows exactly how many managed pages are resident and what the pool holds. Everything else that
//! is anonymous memory (the program's own data and stacks, the pager's tables, memory that was allocated
//! before the pager began) is what the kernel counts beyond that: `RssAnon` less the two. It is read from
//! /proc/self/statm now and then (a few microseconds), not for each fault.
//!
//! Two marks steer eviction: over *low* (the limit less a small reserve) the evictor works until under it; over
//! *high* (the limit itself) a fault makes room before it takes a page.

use crate::engine::open_own;
use crate::segment::{Gauge, Segment, SlotId};
use crate::sys::PAGE;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// This process's account in the run's shared budget.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) segment: Segment,
    slot: AtomicUsize,
}

/// The account, and where the kernel tells what the process has.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) account: Arc<Account>,
    statm: OwnedFd,
}

impl Account {
    pub(crate) fn new(segment: Segment, slot: SlotId) -> Self {
        Self { segment, slot: AtomicUsize::new(slot.0) }
    }

    pub(crate) fn slot(&self) -> SlotId {
        SlotId(self.slot.load(Ordering::Relaxed))
    }
}

impl Usage {
    pub(crate) fn new(account: Arc<Account>) -> Result<Self, Errno> {
        Ok(Self { account, statm: open_own("/proc/self/statm")? })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.account.segment
    }

    pub(crate) fn slot(&self) -> SlotId {
        self.account.slot()
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.statm.as_raw_fd()
    }

    /// In a forked child: its own slot, and its own statm under the old descriptor's number.
    pub(crate) fn become_child(&self, slot: SlotId) -> Result<(), Errno> {
        self.account.slot.store(slot.0, Ordering::Relaxed);
        crate::fds::replace(self.raw_fd(), open_own("/proc/self/statm")?)
    }

    /// Enters what this process has now, in bytes.
    pub(crate) fn refresh(&self, resident: u64, pool: u64) {
        let own = self.anonymous().saturating_sub(resident + pool);
        let (segment, slot) = (self.segment(), self.slot());
        segment.publish(slot, Gauge::Own, own);
        segment.publish(slot, Gauge::Pool, pool);
        segment.publish(slot, Gauge::Resident, resident);
    }

    /// Bytes over the mark at which the evictor starts.
    pub(crate) fn over_low(&self, resident: u64) -> u64 {
        let limit = self.segment().limit();
        self.now(resident).saturating_sub(limit - reserve(limit))
    }

    /// Bytes over the limit that one more page would be.
    pub(crate) fn over_high(&self, resident: u64) -> u64 {
        (self.now(resident) + PAGE as u64).saturating_sub(self.segment().limit())
    }

    /// What the whole run uses, with this process's resident pages as they are now.
    fn now(&self, resident: u64) -> u64 {
        let entered = self.segment().gauge(self.slot(), Gauge::Resident);
        (self.segment().in_use() + resident).saturating_sub(entered)
    }

    /// RssAnon in bytes.
    fn anonymous(&self) -> u64 {
        let mut text = [0u8; 128];
        let len = rustix::io::pread(self.statm.as_fd(), &mut text, 0).unwrap_or(0);
        let mut fields = text[..len].split(|byte| *byte == b' ').skip(1).map(number);
        let resident = fields.next().unwrap_or(0);
        let shared = fields.next().unwrap_or(0);
        resident.saturating_sub(shared) * PAGE as u64
    }
}

/// Bytes kept free below the limit, so that a fault finds room without waiting for an eviction.
fn reserve(limit: u64) -> u64 {
    (limit / 64).clamp(256 << 10, 8 << 20)
}

fn number(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit.wrapping_sub(b'0')))
}
