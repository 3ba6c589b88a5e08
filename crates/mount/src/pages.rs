//! Pages that the kernel of the mount should not have any more: nodes, in a queue for the thread that tells it.
//!
//! What is kept of a directory can be dropped while an answer with entries is on its way, which the kernel then keeps.
//! So it is dropped later as well. Guarantee: what was added to be dropped later is taken between one and two [`TURN`]s
//! after that, however often it is added.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(450);

#[derive(Debug, Default)]
struct Waiting {
    now: HashSet<u64>,
    /// At the end of this turn, which ends then.
    soon: HashSet<u64>,
    turns: Option<Instant>,
    /// At the end of the next.
    later: HashSet<u64>,
    has_ended: bool,
}

impl Waiting {
    /// How long it is to the end of the turn; None if nobody waits for that.
    fn turn(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.turns.is_some_and(|end| end <= now) {
            self.now.extend(self.soon.drain());
            self.soon = std::mem::take(&mut self.later);
            self.turns = None;
        }
        if self.turns.is_none() && !(self.soon.is_empty() && self.later.is_empty()) {
            self.turns = Some(now + TURN);
        }
        self.turns.map(|end| end - now)
    }
}

/// Nodes whose pages are to be dropped.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Pages {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of these they are to be dropped.
    pub(crate) fn add(&self, nodes: impl IntoIterator<Item = u64>) {
        self.waiting().now.extend(nodes);
        self.more.notify_one();
    }

    /// Of these they are to be dropped when answers that are on their way have arrived.
    pub(crate) fn add_later(&self, nodes: impl IntoIterator<Item = u64>) {
        let mut waiting = self.waiting();
        waiting.later.extend(nodes);
        if waiting.turns.is_none() && !waiting.later.is_empty() {
            self.more.notify_one();
        }
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.waiting().has_ended = true;
        self.more.notify_one();
    }

    /// Nodes, as soon as there are any. None at the end.
    pub(crate) fn take(&self) -> Option<HashSet<u64>> {
        let mut waiting = self.waiting();
        loop {
            let turn = waiting.turn();
            if waiting.has_ended {
                return None;
            }
            if !waiting.now.is_empty() {
                return Some(std::mem::take(&mut waiting.now));
            }
            waiting = match turn {
                Some(turn) => self.more.wait_timeout(waiting, turn).unwrap_or_else(PoisonError::into_inner).0,
                None => self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_dropped_later_is_taken_once_and_later() {
        let pages = Pages::default();
        let begun = Instant::now();
        pages.add_later([1]);
        pages.add([2]);
        assert_eq!(pages.take(), Some([2].into()));
        assert_eq!(pages.take(), Some([1].into()));
        assert!(begun.elapsed() >= TURN);
        pages.end();
        assert_eq!(pages.take(), None);
    }

    #[test]
    fn what_is_added_again_and_again_is_taken_all_the_same() {
        let pages = Pages::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| pages.take());
            while !taken.is_finished() {
                pages.add_later([1]);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(taken.join().unwrap(), Some([1].into()));
        });
        assert_eq!(pages.take(), Some([1].into()), "what was added last waits a turn of its own");
    }
}
