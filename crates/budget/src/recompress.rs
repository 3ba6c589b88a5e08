//! Making the pool denser: pages that stay in it are compressed anew by a denser codec, as zram's `recompress` does.
//!
//! It is what the evictor does while nobody calls it. That keeps its processor awake, which is worth having
//! ([`crate::event::Event::wait_awake`]), and evicting goes first without a word to the scheduler. A thread of its
//! own did worse in either way: nice, it hardly ran when its process was to end, and who waits for that spins
//! meanwhile (`shrink_dcache_parent` in the kernel, over the process's entries in /proc); not nice, it took from the
//! evictor.
//!
//! Price: a call may wait for the piece at hand, a tenth of a millisecond. Where others want the processor, it rests.

use crate::member::Member;
use crate::time::{now_ns, thread_ns};
use ramfold::{Stats, Sweep};

/// Pages in a piece of work, done inside the gate.
const PIECE: usize = 4;
/// How long it goes on, in nanoseconds, before the evictor looks again at what is used, uncalled.
const TURN: u64 = 20_000_000;
/// Between two looks whether a sweep is due, in nanoseconds.
const LOOK: u64 = 100_000_000;

/// The sweep under way, if there is one, and when to begin the next.
#[derive(Debug, Default)]
pub struct Recompressor {
    sweep: Sweep,
    sweeping: bool,
    pace: Pace,
    manners: Manners,
    /// By [`now_ns`], as all times here in nanoseconds.
    rests_until: u64,
}

impl Recompressor {
    /// Works until `is_called`, its turn is over or nothing is to be done. `given_up`: pages that the door has given
    /// up so far. Each piece is done between an `enter` and the drop of what that gives.
    pub fn work<Inside>(
        &mut self,
        member: &Member,
        given_up: u64,
        enter: impl Fn() -> Inside,
        is_called: impl Fn() -> bool,
    ) {
        let start = now_ns();
        if start < self.rests_until {
            return;
        }
        if !self.sweeping {
            let _inside = enter();
            self.sweeping = self.pace.is_due(given_up, &member.store().stats());
            if !self.sweeping {
                return self.rest_for(LOOK);
            }
        }
        while self.sweeping && !is_called() && now_ns() < start + TURN {
            let sweep = &mut self.sweep;
            let (done, rest) = self.manners.piece(|| {
                let _inside = enter();
                member.store().recompress(PIECE, sweep)
            });
            self.sweeping = !done.swept;
            if rest > 0 {
                return self.rest_for(rest);
            }
        }
    }

    fn rest_for(&mut self, ns: u64) {
        self.rests_until = now_ns() + ns;
    }
}

/// How long to rest when others want the processor: longer each time, until it is left alone again.
#[derive(Debug)]
pub struct Manners {
    /// Nanoseconds.
    rest: u64,
    /// Pieces since it was disturbed or the rest became shorter.
    undisturbed: u32,
}

impl Default for Manners {
    fn default() -> Self {
        Self { rest: *Self::RESTS.start(), undisturbed: 0 }
    }
}

impl Manners {
    const RESTS: std::ops::RangeInclusive<u64> = 10_000_000..=640_000_000;
    /// Pieces after which the next rest is half as long: some ten milliseconds of work.
    const LONG: u32 = 64;

    /// Does a piece of work. Gives what that gives, and how many nanoseconds to rest then: 0, unless others wanted the
    /// processor meanwhile.
    pub fn piece<R>(&mut self, work: impl FnOnce() -> R) -> (R, u64) {
        let (start, ran) = (now_ns(), thread_ns());
        let result = work();
        let (took, ran) = (now_ns() - start, thread_ns() - ran);
        if took > 2 * ran {
            return (result, self.disturbed());
        }
        self.undisturbed();
        (result, 0)
    }

    /// Nanoseconds to rest now.
    fn disturbed(&mut self) -> u64 {
        let rest = self.rest;
        *self = Self { rest: (rest * 2).min(*Self::RESTS.end()), undisturbed: 0 };
        rest
    }

    fn undisturbed(&mut self) {
        self.undisturbed += 1;
        if self.undisturbed == Self::LONG {
            *self = Self { rest: (self.rest / 2).max(*Self::RESTS.start()), undisturbed: 0 };
        }
    }
}

/// How often to sweep. A sweep is due when a certain share of as many pages as lie in the pool were evicted: what two
/// sweeps in turn find there was not wanted when others were. No evictions, no sweeps. Pages that are wanted again
/// soon after they were made denser were not cold: then the next sweeps wait longer.
#[derive(Debug)]
struct Pace {
    /// Sixteenths of the pages in the pool that are to be evicted between two sweeps.
    sixteenths: u64,
    evictions: u64,
    loads: u64,
    dense_loads: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { sixteenths: *Self::RANGE.start(), evictions: 0, loads: 0, dense_loads: 0 }
    }
}

impl Pace {
    const RANGE: std::ops::RangeInclusive<u64> = 4..=64;
    /// Pages in the pool for which it is worth while to begin.
    const LEAST: u64 = 256;
    /// One dense load in so many loads is too much.
    const MOST_DENSE: u64 = 8;

    /// Whether a sweep is due now, after so many evictions in all.
    fn is_due(&mut self, evictions: u64, stats: &Stats) -> bool {
        let due = self.evictions + stats.stored_pages * self.sixteenths / 16;
        if stats.stored_pages < Self::LEAST || evictions < due {
            return false;
        }
        let (loads, dense) = (stats.loads - self.loads, stats.dense_loads - self.dense_loads);
        let next = if dense * Self::MOST_DENSE > loads { self.sixteenths * 2 } else { self.sixteenths / 2 };
        self.sixteenths = next.clamp(*Self::RANGE.start(), *Self::RANGE.end());
        (self.evictions, self.loads, self.dense_loads) = (evictions, stats.loads, stats.dense_loads);
        true
    }
}

/// Rest counts as use, for a door whose pages are in the pool alone: what was stored once and is left alone is cold
/// too, though nothing else is used meanwhile.
#[derive(Debug, Default)]
pub struct Resting {
    uses: u64,
    /// When it had become so many, and when it was looked at last, by [`now_ns`].
    used: u64,
    seen: u64,
    /// Pages times nanoseconds.
    rested: u128,
}

impl Resting {
    /// In this time, in nanoseconds, rest comes to one use of each page.
    const TURNOVER: u64 = 64_000_000_000;
    /// What rests for longer has been swept many times.
    const LONGEST: u64 = 10 * Self::TURNOVER;

    /// Uses so far, and what rest stands for, of so many pages.
    pub fn uses(&mut self, uses: u64, pages: u64, now: u64) -> u64 {
        if self.seen == 0 {
            (self.used, self.seen) = (now, now);
        }
        if uses != self.uses {
            (self.uses, self.used) = (uses, now);
        }
        if now - self.used < Self::LONGEST {
            self.rested += u128::from(pages) * u128::from(now - self.seen);
        }
        self.seen = now;
        uses + u64::try_from(self.rested / u128::from(Self::TURNOVER)).unwrap_or(u64::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_use_for_a_time() {
        const SECOND: u64 = 1_000_000_000;
        let mut rest = Resting::default();
        assert_eq!(rest.uses(500, 0, SECOND), 500);
        for second in 2..=65 {
            rest.uses(500, 1000, second * SECOND);
        }
        assert_eq!(rest.uses(500, 1000, 65 * SECOND), 1500, "each page once");
        assert_eq!(rest.uses(501, 1000, 65 * SECOND), 1501);
        (66..2000).for_each(|second| _ = rest.uses(501, 1000, second * SECOND));
        let long = rest.uses(501, 1000, 2000 * SECOND);
        assert!((11_400..11_520).contains(&long), "{long}");
        assert_eq!(rest.uses(501, 1000, 3000 * SECOND), long, "no more");
    }

    #[test]
    fn sweeps_become_rare_when_dense_pages_come_back_and_frequent_when_they_stay() {
        let mut pace = Pace::default();
        let mut stats = Stats { stored_pages: 1600, ..Stats::default() };
        assert!(!pace.is_due(399, &stats) && pace.is_due(400, &stats));
        (stats.loads, stats.dense_loads) = (1000, 500);
        assert!(pace.is_due(800, &stats) && !pace.is_due(1599, &stats) && pace.is_due(1600, &stats));
        assert_eq!(pace.sixteenths, 4, "nothing dense came back");
    }

    #[test]
    fn rests_grow_while_it_is_disturbed_and_shrink_when_it_is_left_alone() {
        const MS: u64 = 1_000_000;
        let mut manners = Manners::default();
        let rests: Vec<u64> = (0..8).map(|_| manners.disturbed() / MS).collect();
        assert_eq!(rests, [10, 20, 40, 80, 160, 320, 640, 640]);
        (0..Manners::LONG - 1).for_each(|_| manners.undisturbed());
        assert_eq!(manners.disturbed() / MS, 640, "not yet left alone for long");
        (0..2 * Manners::LONG).for_each(|_| manners.undisturbed());
        assert_eq!(manners.disturbed() / MS, 160);
        (0..20 * Manners::LONG).for_each(|_| manners.undisturbed());
        assert_eq!(manners.disturbed() / MS, 10);
    }
}
