//! Pages that the kernel of the mount should not have any more: nodes, in queues for the threads that tell it.
//!
//! What is kept of a directory can be dropped while an answer with entries is on its way, which the kernel then keeps.
//! So it is dropped later as well, by who waits for such answers first. Guarantee: what was added is
//! taken by [`Pages::take_later`] between one and two [`TURN`]s after that, however often it is added, by who comes
//! back for more.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const TURN: Duration = Duration::from_millis(450);

#[derive(Debug, Default)]
struct Waiting {
    nodes: HashSet<u64>,
    has_ended: bool,
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
        let mut waiting = self.waiting();
        let was_idle = waiting.nodes.is_empty();
        waiting.nodes.extend(nodes);
        if was_idle && !waiting.nodes.is_empty() {
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
        let is_idle = |waiting: &mut Waiting| waiting.nodes.is_empty() && !waiting.has_ended;
        let waiting = self.more.wait_while(self.waiting(), is_idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut waiting.nodes)).filter(|_| !waiting.has_ended)
    }

    /// The same, a [`TURN`] after there were any: what comes meanwhile waits for the next.
    pub(crate) fn take_later(&self) -> Option<HashSet<u64>> {
        let nodes = self.take()?;
        let lasts = |waiting: &mut Waiting| !waiting.has_ended;
        let waited = self.more.wait_timeout_while(self.waiting(), TURN, lasts);
        let (waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(nodes).filter(|_| !waiting.has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_is_to_be_dropped_is_taken_once() {
        let pages = Pages::default();
        pages.add([1]);
        pages.add([2, 1]);
        assert_eq!(pages.take(), Some([1, 2].into()));
        pages.end();
        assert_eq!(pages.take(), None);
    }

    #[test]
    fn what_is_to_be_dropped_later_is_taken_once_and_later() {
        let pages = Pages::default();
        let begun = Instant::now();
        pages.add([1]);
        assert_eq!(pages.take_later(), Some([1].into()));
        assert!(begun.elapsed() >= TURN);
        pages.end();
        assert_eq!(pages.take_later(), None);
    }

    #[test]
    fn what_is_added_again_and_again_is_taken_all_the_same() {
        let pages = Pages::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| pages.take_later());
            while !taken.is_finished() {
                pages.add([1]);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(taken.join().unwrap(), Some([1].into()));
        });
        assert_eq!(pages.take(), Some([1].into()), "what was added last waits a turn of its own");
    }
}
