//! A hold: all of the process's memory comes back and stays, while somebody outside wants to look at it who cannot
//! wait for a page. The kernel does not wait for a page that is away when a debugger reads it (/proc/PID/mem, ptrace):
//! it answers EIO.
//!
//! The keeper sees that a hold is wanted ([`ramfold_budget::segment`], hold), brings in what the store has, and
//! tells when all is there. Meanwhile nothing leaves: what an evictor would give up stays, and counts no more.
//!
//! Price: the process counts with what it had when the hold began, less what it had to give since, whatever it has;
//! the system must have room for the rest. Guarantee: the limit holds again, by ordinary eviction, within [`PATIENCE`]
//! of the last beat, or with the next turn of the keeper. What the program itself may not read (PROT_NONE) stays away.

use crate::engine::Engine;
use crate::pages::{BLOCK_PAGES, State};
use crate::space::Kind;
use crate::sys::{self, PAGE};
use ramfold_budget::door::{Door as _, Given};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long there is no beat before a hold is over. While a debugger has stopped the process nobody looks; the next
/// turn sees at once whether the beat went on.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most that is asked for at once, in bytes.
const PIECE: usize = 1 << 20;

/// What the keeper knows of the beat.
pub(crate) struct Beat {
    last: u32,
    heard: Instant,
}

impl Beat {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { last: engine.member.segment().hold_beat(engine.member.slot()), heard: Instant::now() }
    }

    /// A turn of the keeper, outside of the gate.
    pub(crate) fn turn(&mut self, engine: &Engine) {
        let beat = engine.member.segment().hold_beat(engine.member.slot());
        if beat != self.last {
            (self.last, self.heard) = (beat, Instant::now());
            engine.begin_hold(beat);
        } else if engine.is_held() && self.heard.elapsed() > PATIENCE {
            engine.end_hold();
        }
    }
}

impl Engine {
    /// Whether nothing leaves now.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    fn begin_hold(&self, beat: u32) {
        if !self.held.swap(true, Ordering::Relaxed) {
            let _inside = self.gate.enter();
            self.member.count_no_more(self.resident());
        }
        // An evictor that had begun may add to it: the next beat looks again.
        let away = self.away();
        for run in &away {
            for piece in run.clone().step_by(PIECE) {
                // What was unmapped meanwhile is none of anybody's.
                let _ = sys::populate_read(piece, PIECE.min(run.end - piece));
            }
        }
        let complete = away.is_empty() || self.away().is_empty();
        self.member.segment().set_held(self.member.slot(), complete.then_some(beat));
    }

    /// What an evictor does instead of taking so many blocks.
    pub(crate) fn give_uncounted(&self, blocks: usize) -> Given {
        let bytes = self.member.count_less((blocks * BLOCK_PAGES * PAGE) as u64);
        Given { pages: usize::try_from(bytes).unwrap_or(0) / PAGE, ..Given::default() }
    }

    fn end_hold(&self) {
        self.held.store(false, Ordering::Relaxed);
        self.member.segment().set_held(self.member.slot(), None);
        self.member.count_all();
        self.evictor().call();
    }

    /// Addresses of what is not in place and may be read by the program.
    fn away(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let _inside = self.gate.enter();
        let space = self.lock_space();
        for (range, area) in space.areas_in(&self.pages.range()) {
            if area.kind != Kind::Anonymous || area.prot.0 & libc::PROT_READ == 0 {
                continue;
            }
            for part in self.page_groups(&range) {
                let group = self.lock_group(part.start);
                if group.is_empty(part.start) {
                    continue;
                }
                let is_away = |page: &usize| matches!(group.state(*page), State::Stored | State::Evicting);
                for page in part.filter(is_away) {
                    let addr = self.pages.addr(page);
                    match runs.last_mut() {
                        Some(run) if run.end == addr => run.end += PAGE,
                        _ => runs.push(addr..addr + PAGE),
                    }
                }
            }
        }
        runs
    }
}
