//! How often to look at what costs more the more there is of it: at most so often, and for a bounded share of one
//! processor. That is counted in processor time: where the machine is busy a look is interrupted, and is needed most.

use ramfold_survey::shelf::thread_time;
use std::time::{Duration, Instant};

/// However long a look takes, the next one comes after this.
const LONGEST: Duration = Duration::from_secs(5);

/// When to look again.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    shortest: Duration,
    /// Between two looks, in multiples of what one takes.
    rest: u32,
}

impl Pace {
    /// At once, and then at distances of at least `shortest`; looks have a fiftieth of the time.
    pub fn new(shortest: Duration) -> Self {
        Self { next: Instant::now(), shortest, rest: 50 }
    }

    /// As often as it is asked; looks have a part of the time.
    pub fn of(part: u32) -> Self {
        Self { rest: part, ..Self::new(Duration::ZERO) }
    }

    /// Looks if it is time.
    pub fn look(&mut self, look: impl FnOnce()) {
        let start = Instant::now();
        if start >= self.next {
            let before = thread_time();
            look();
            let took = thread_time().saturating_sub(before);
            self.next = start + (took * self.rest).min(LONGEST).max(self.shortest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_looks_are_rare_and_short_ones_not_too_frequent() {
        let mut looks = 0;
        let mut pace = Pace::new(Duration::ZERO);
        let begun = thread_time();
        pace.look(|| while thread_time() - begun < Duration::from_millis(20) {});
        pace.look(|| looks += 1);
        assert_eq!(looks, 0, "the next is due after a second");
        let mut pace = Pace::new(Duration::from_secs(3600));
        (0..3).for_each(|_| pace.look(|| looks += 1));
        assert_eq!(looks, 1);
    }
}
