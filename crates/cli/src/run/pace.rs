//! How often to look at what costs more the more there is of it: at most so often, and for a bounded share of the time.

use std::time::{Duration, Instant};

/// Between two looks, in multiples of what one takes: they have a fiftieth of the time.
const REST: u32 = 50;
/// However long a look takes, the next one comes after this.
const LONGEST: Duration = Duration::from_secs(5);

/// When to look again.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    shortest: Duration,
}

impl Pace {
    /// At once, and then at distances of at least `shortest`.
    pub fn new(shortest: Duration) -> Self {
        Self { next: Instant::now(), shortest }
    }

    /// Looks if it is time.
    pub fn look(&mut self, look: impl FnOnce()) {
        let start = Instant::now();
        if start >= self.next {
            look();
            self.next = start + (start.elapsed() * REST).min(LONGEST).max(self.shortest);
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
        pace.look(|| std::thread::sleep(Duration::from_millis(2)));
        pace.look(|| looks += 1);
        assert_eq!(looks, 0, "the next is due after a tenth of a second");
        let mut pace = Pace::new(Duration::from_secs(3600));
        (0..3).for_each(|_| pace.look(|| looks += 1));
        assert_eq!(looks, 1);
    }
}
