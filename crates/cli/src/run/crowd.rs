//! How many newcomers may begin. Where more processes work than there are processors, and memory is short or soon will
//! be, the others wait: nothing is lost by it, for no processor is idle, and what pages need not come back is won.
//!
//! A process is *at work* if it can run or has used a processor just now; one that sleeps, or waits for another, is
//! not. As many may be at work as there are processors, and two more; so who waits for a newcomer lets it in by
//! waiting. Fewer may be while much time goes into pages that come back. Beyond that, one more is let in after each
//! pause: processes that stay for long do not keep others out, and equals that begin together end at about the same
//! time. Those are forgotten again, slowly, or each newcomer beside them would wait.

use super::pace::Pace;
use ramfold_budget::process::Stat;
use ramfold_budget::segment::{Counter, Segment};
use std::collections::HashMap;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Who has used a processor so recently is at work: where twenty share one, each has it for a tick in this time.
const RECENTLY: Duration = Duration::from_millis(200);
/// How often to look while nobody waits.
const SELDOM: Duration = Duration::from_millis(100);

/// Watches who is at work, and leaves turns accordingly.
#[derive(Debug)]
pub struct Crowd {
    policy: Policy,
    pace: Pace,
    next: Instant,
    /// Newcomers of the run that are known.
    seen: u32,
    known: HashMap<u32, Known>,
}

/// A process that has begun.
#[derive(Debug)]
struct Known {
    since: Instant,
    /// Processor time that it has used.
    ran: Duration,
    /// When it was last at work.
    at_work: Instant,
}

impl Crowd {
    /// For this machine, as far as it may be used.
    pub fn new() -> Self {
        let now = Instant::now();
        let processors = available_parallelism().map_or(1, NonZero::get);
        let policy = Policy::new(processors, now);
        Self { policy, pace: Pace::new(Duration::ZERO), next: now, seen: 0, known: HashMap::new() }
    }

    /// To be called often.
    pub fn look(&mut self, segment: &Segment) {
        segment.beat();
        let (now, waiting) = (Instant::now(), segment.waiting() > 0);
        if waiting || now >= self.next {
            let Self { policy, pace, seen, known, .. } = self;
            pace.look(|| {
                let managed = segment.processes().into_iter().map(|process| process.pid);
                for pid in segment.newcomers(seen).into_iter().chain(managed) {
                    known.entry(pid).or_insert(Known { since: now, ran: Duration::ZERO, at_work: now });
                }
                let at_work = look_at_all(known, now, |lived| policy.note_end(lived));
                policy.look_at_memory(now, &Memory::of(segment));
                segment.leave_turns(policy.turns(now, waiting, at_work));
            });
            self.next = now + SELDOM;
        }
    }
}

/// How many are at work; of those that have ended it is told how long they lived.
fn look_at_all(known: &mut HashMap<u32, Known>, now: Instant, mut ended: impl FnMut(Duration)) -> usize {
    known.retain(|pid, process| {
        let Some(stat) = Stat::of(*pid).filter(|stat| !stat.has_ended()) else {
            ended(now - process.since);
            return false;
        };
        if stat.can_run() || stat.ran != process.ran {
            *process = Known { ran: stat.ran, at_work: now, ..*process };
        }
        true
    });
    known.values().filter(|process| now - process.at_work < RECENTLY).count()
}

/// So many more than there are processors may be at work: one may wait for a file, and that one has ended is seen late.
const SPARE: usize = 2;
/// Seconds of a processor that it takes to bring a page back, and to evict another one for it.
const REFAULT: f64 = 25e-6;
/// If more than this part of all processors goes into that, fewer may be at work; less than there are processors only
/// if it is more than this; and more again if it has been less than the last for so long, or no more of memory is in
/// use than this.
const MUCH: f64 = 0.1;
const VERY_MUCH: f64 = 0.5;
const LITTLE: f64 = 0.03;
const CALM: Duration = Duration::from_secs(1);
const AMPLE: u64 = 2;
/// How often that is looked at.
const SAMPLE: Duration = Duration::from_millis(250);
/// Between two that are let in beyond these while memory is not short.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// While it is: as long as processes live here, but not less or more than this; and at first, when none has ended yet.
const PAUSES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// What counts of those that have ended when one more has.
const FADING: f64 = 0.9;
/// How long it takes until one of those let in is forgotten.
const MEMORY: Duration = Duration::from_secs(5);
/// Memory is short if, as it grows, it will be full after so many seconds,
const AHEAD: u64 = 10;
/// or less than this part of it is left; and it stays short for so long after.
const MARGIN: u64 = 8;
const STAYS_SHORT: Duration = Duration::from_secs(2);

/// How many may be at work.
#[derive(Debug)]
struct Policy {
    processors: usize,
    /// So many, as far as nobody has waited for too long,
    places: usize,
    /// that came to be so many, or should not be more, at this time;
    changed: Instant,
    /// those let in beyond, and when the last of them was forgotten.
    extra: usize,
    forgotten: Instant,
    /// How long those lived that have ended: the sum, and that of the squares.
    lives: (f64, f64),
    /// When a turn was last there to be taken.
    left: Instant,
    /// What was seen of memory, and when.
    sample: (Instant, Memory),
    short_until: Instant,
}

/// What the run uses of its limit, in bytes, and the pages that have come back.
#[derive(Debug, Clone, Default)]
struct Memory {
    in_use: u64,
    limit: u64,
    refaults: u64,
}

impl Memory {
    fn of(segment: &Segment) -> Self {
        let refaults = segment.total(Counter::Refaults);
        Self { in_use: segment.in_use(), limit: segment.limit(), refaults }
    }
}

impl Policy {
    fn new(processors: usize, now: Instant) -> Self {
        let (lives, sample) = ((0.0, 0.0), (now, Memory::default()));
        let places = processors + SPARE;
        Self {
            processors,
            places,
            changed: now,
            extra: 0,
            forgotten: now,
            lives,
            left: now,
            sample,
            short_until: now,
        }
    }

    fn note_end(&mut self, lived: Duration) {
        let (lived, (sum, squares)) = (lived.as_secs_f64(), self.lives);
        self.lives = (sum * FADING + lived, squares * FADING + lived * lived);
    }

    /// How long one lives of those that are there at a moment.
    fn pause(&self) -> Duration {
        let (sum, squares) = self.lives;
        if sum == 0.0 {
            return FIRST_PAUSE;
        }
        Duration::from_secs_f64(squares / sum).clamp(*PAUSES.start(), *PAUSES.end())
    }

    /// Turns to leave, when so many processes are at work, and someone waits or nobody does.
    fn turns(&mut self, now: Instant, waiting: bool, at_work: usize) -> u32 {
        if self.extra > 0 && now - self.forgotten >= MEMORY {
            (self.extra, self.forgotten) = (self.extra - 1, now);
        }
        let mut turns = (self.places + self.extra).saturating_sub(at_work);
        let is_short = now < self.short_until;
        let pause = if is_short { self.pause() } else { SHORT_PAUSE };
        if turns == 0 && waiting && now - self.left >= pause {
            turns = 1;
            if is_short {
                (self.extra, self.forgotten) = (self.extra + 1, now);
            }
        }
        if turns > 0 || !waiting {
            self.left = now;
        }
        u32::try_from(turns).unwrap_or(u32::MAX)
    }

    fn look_at_memory(&mut self, now: Instant, memory: &Memory) {
        let (then, before) = &self.sample;
        let passed = now - *then;
        if passed < SAMPLE {
            return;
        }
        let a_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed.as_secs_f64();
        let growth = a_second(memory.in_use, before.in_use);
        let cost = a_second(memory.refaults, before.refaults) * REFAULT / self.processors as f64;
        let (in_use, limit) = (memory.in_use, memory.limit);
        if in_use as f64 + growth * AHEAD as f64 > limit as f64 || in_use > limit - limit / MARGIN {
            self.short_until = now + STAYS_SHORT;
        }
        let too_much = if self.places > self.processors { MUCH } else { VERY_MUCH };
        if cost > too_much {
            (self.places, self.changed) = ((self.places - 1).max(1), now);
        } else if cost > LITTLE {
            self.changed = now;
        } else if now - self.changed >= CALM || in_use < limit / AMPLE {
            (self.places, self.changed) = ((self.places + 1).min(self.processors + SPARE), now);
        }
        self.sample = (now, memory.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of two processors that has seen so much in use of a limit of 100, and the time after so many milliseconds.
    fn policy(in_use: u64) -> (Policy, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let mut policy = Policy::new(2, start);
        policy.look_at_memory(start + SAMPLE, &memory(in_use, 0));
        (policy, move |ms| start + Duration::from_millis(ms))
    }

    fn memory(in_use: u64, refaults: u64) -> Memory {
        Memory { in_use, limit: 100, refaults }
    }

    #[test]
    fn as_many_may_work_as_there_are_processors_and_two_more() {
        let (mut policy, at) = policy(99);
        assert_eq!(policy.turns(at(0), false, 0), 4);
        assert_eq!(policy.turns(at(300), false, 3), 1);
        assert_eq!(policy.turns(at(600), true, 4), 0);
        assert_eq!(policy.turns(at(700), true, 2), 2);
    }

    #[test]
    fn where_memory_is_ample_the_others_follow_one_by_one() {
        let (mut policy, at) = policy(1);
        assert_eq!(policy.turns(at(300), false, 4), 0);
        let turns = [310, 340, 351, 360, 402].map(|ms| policy.turns(at(ms), true, 4));
        assert_eq!(turns, [0, 0, 1, 0, 1]);
    }

    #[test]
    fn memory_that_will_soon_be_full_is_short() {
        let (mut policy, at) = policy(1);
        policy.look_at_memory(at(1250), &memory(12, 0));
        assert_eq!(policy.turns(at(1300), false, 4), 0);
        assert_eq!(policy.turns(at(2000), true, 4), 0, "eleven a second: full in eight");
        policy.look_at_memory(at(2250), &memory(12, 0));
        assert_eq!(policy.turns(at(3251), true, 4), 1, "it grows no more");
    }

    #[test]
    fn fewer_may_work_while_much_time_goes_into_what_comes_back() {
        let (mut policy, at) = policy(99);
        let mut refaults = 0;
        // So many a second, looked at from one time to another.
        let mut look = |policy: &mut Policy, from: u64, to: u64, rate: u64| {
            for ms in (from..to).step_by(250) {
                refaults += rate / 4;
                policy.look_at_memory(at(ms + 250), &memory(99, refaults));
            }
            policy.places
        };
        assert_eq!(look(&mut policy, 250, 500, 20_000), 3);
        assert_eq!(
            look(&mut policy, 500, 2500, 20_000),
            2,
            "a quarter of the time: as many as there are processors"
        );
        assert_eq!(look(&mut policy, 2500, 4500, 60_000), 1, "three quarters");
        assert_eq!(look(&mut policy, 4500, 6500, 5_000), 1);
        assert_eq!(look(&mut policy, 6500, 7500, 0), 2);
        assert_eq!(look(&mut policy, 7500, 20_000, 0), 4);
        assert_eq!(look(&mut policy, 20_000, 21_000, 60_000), 1);
        policy.look_at_memory(at(21_250), &memory(49, 1_000_000));
        policy.look_at_memory(at(21_500), &memory(49, 1_000_000));
        assert_eq!(policy.places, 2, "at once where memory is ample");
    }

    #[test]
    fn one_more_is_let_in_after_each_pause_and_forgotten_after_a_while() {
        let (mut policy, at) = policy(99);
        let turns = |policy: &mut Policy, ms, waiting, at_work| {
            policy.look_at_memory(at(ms), &memory(99, 0));
            policy.turns(at(ms), waiting, at_work)
        };
        assert_eq!(turns(&mut policy, 300, false, 4), 0);
        assert_eq!(turns(&mut policy, 1200, true, 4), 0);
        assert_eq!(turns(&mut policy, 1300, true, 4), 1, "nobody has ended: a second");
        assert_eq!(turns(&mut policy, 1400, true, 5), 0);
        assert_eq!(turns(&mut policy, 1500, true, 4), 1, "who takes its place does not wait");
        assert_eq!(turns(&mut policy, 1600, true, 7), 0, "more are at work than were let in");
        assert_eq!(turns(&mut policy, 2500, true, 7), 1, "one more");
        assert_eq!(turns(&mut policy, 2600, true, 6), 0, "and no more than one");
        assert_eq!(turns(&mut policy, 2700, true, 5), 1);
        assert_eq!(turns(&mut policy, 7400, false, 6), 0);
        assert_eq!(turns(&mut policy, 7500, true, 5), 0, "there is one place less");
    }

    #[test]
    fn the_pause_is_as_long_as_processes_live() {
        let (mut policy, _) = policy(99);
        let seconds = Duration::from_secs;
        assert_eq!(policy.pause(), FIRST_PAUSE);
        (0..50).for_each(|_| policy.note_end(Duration::from_millis(1)));
        assert_eq!(policy.pause(), *PAUSES.start());
        (0..50).for_each(|_| policy.note_end(seconds(3)));
        assert!(policy.pause().abs_diff(seconds(3)) < Duration::from_millis(100));
        policy.note_end(seconds(1000));
        assert_eq!(policy.pause(), *PAUSES.end());
    }
}
