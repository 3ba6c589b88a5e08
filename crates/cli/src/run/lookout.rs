//! What the lookout of a budget does for the processes of all its runs.

use super::child::Tick;
use super::crowd::Crowd;
use super::lookers::Lookers;
use super::pace::Pace;
use super::uncounted::Uncounted;
use ramfold_budget::segment::Segment;

/// It leaves turns to newcomers, compares sums, and watches for who reads a process's memory.
#[derive(Debug)]
pub struct Lookout {
    uncounted: Uncounted,
    crowd: Crowd,
    lookers: Lookers,
    /// Of comparing.
    pace: Pace,
    not_counted: u64,
}

impl Lookout {
    pub fn new() -> Self {
        Self {
            uncounted: Uncounted::default(),
            crowd: Crowd::new(),
            lookers: Lookers::default(),
            pace: Pace::of(20),
            not_counted: 0,
        }
    }

    /// Before the run's first process: it need not wait for a turn.
    pub fn begin(&mut self, segment: &Segment) {
        self.crowd.look(segment);
    }

    /// To be called often. Bytes that no account has.
    pub fn look(&mut self, segment: &Segment, tick: Tick) -> u64 {
        let Self { uncounted, pace, not_counted, .. } = self;
        pace.look(|| *not_counted = uncounted.look(segment));
        self.crowd.look(segment);
        match tick {
            Tick::GoesOn => self.lookers.look(segment),
            Tick::Stops => self.lookers.pause(),
        }
        self.not_counted
    }
}
