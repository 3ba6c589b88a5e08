//! The budget of a run: one of its own, or one that it has in common with others (`--share`, `--budget`).
//!
//! What the processes of a run have past the pager counts in the budget's own sum where the run is alone, and in a slot
//! of the run's where others may join. Runs of one budget have one lookout, which does for all their processes what two
//! would spoil for each other: it leaves turns to newcomers, compares sums, and watches for who reads a process's
//! memory.

use super::options::Checked;
use super::swap;
use crate::failure::Failure;
use ramfold_budget::extents::punch;
use ramfold_budget::segment::{Segment, SlotId};
use ramfold_budget::share::Joined;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;

/// The budget, and this run's part in it.
#[derive(Debug)]
pub struct Budget {
    pub segment: Arc<Segment>,
    /// For the processes of the run.
    pub segment_fd: OwnedFd,
    pub swap: Option<OwnedFd>,
    /// Of the runs that the budget has had, this one.
    pub run: u32,
    /// Of a run that may not be alone.
    slot: Option<SlotId>,
    is_lookout: bool,
    is_keeper: bool,
}

impl Budget {
    /// One of the run's own, which others may join if it `is_shared`.
    pub fn make(checked: &Checked<'_>, is_shared: bool) -> Result<Self, Failure> {
        let swap = swap::open(&checked.swap)?;
        let made = Segment::create(checked.limit, checked.swap_size());
        let (segment_fd, segment) = made.map_err(|error| refused(&error))?;
        let mut budget = Self::over(segment, segment_fd, swap);
        budget.is_keeper = true;
        if is_shared {
            budget.take_slot()?;
        }
        Ok(budget)
    }

    /// One that was joined.
    pub fn join(joined: Joined) -> Result<Self, Failure> {
        let (segment, swap) = joined.into_parts();
        let segment_fd = segment.open_again().map_err(|error| refused(&error))?;
        let mut budget = Self::over(segment, segment_fd, swap.map(OwnedFd::from));
        budget.take_slot()?;
        Ok(budget)
    }

    fn over(segment: Segment, segment_fd: OwnedFd, swap: Option<OwnedFd>) -> Self {
        let (run, is_lookout) = (segment.begin_run(), segment.is_lookout());
        Self { segment: Arc::new(segment), segment_fd, swap, run, slot: None, is_lookout, is_keeper: false }
    }

    fn take_slot(&mut self) -> Result<(), Failure> {
        let slot = self.segment.attach_run(&|extent| self.give_back(extent));
        self.slot = Some(slot.map_err(|error| refused(&error))?);
        Ok(())
    }

    /// Whether this run looks after the processes of all.
    pub fn is_lookout(&mut self) -> bool {
        self.is_lookout = self.is_lookout || self.segment.is_lookout();
        self.is_lookout
    }

    /// Lets another run be the lookout: this one is about to be stopped.
    pub fn pause(&mut self) {
        if self.slot.is_some() && self.is_lookout {
            self.segment.leave_lookout();
            self.is_lookout = false;
        }
    }

    /// Enters what this run's processes have past the pager; and, of the lookout, what no account of any has.
    pub fn enter(&self, not_managed: u64, not_counted: u64) {
        match self.slot {
            None => self.segment.set_unmanaged(not_managed + not_counted),
            Some(slot) => {
                self.segment.set_unmanaged_of(slot, not_managed);
                if self.is_lookout {
                    self.segment.set_unmanaged(not_counted);
                }
            }
        }
    }

    /// Takes back what processes that ended without a word still hold. Looks after the budget, if nobody does.
    pub fn reap(&mut self) {
        self.is_keeper = self.is_keeper || self.segment.take_over();
        self.segment.reap(&|extent| self.give_back(extent));
    }

    fn give_back(&self, extent: u32) {
        if let Some(swap) = &self.swap {
            punch(swap, extent);
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.segment.release(slot, &|extent| self.give_back(extent));
        }
    }
}

fn refused(error: &io::Error) -> Failure {
    Failure::failed(format!("the run's shared memory cannot be made: {error}"))
}
