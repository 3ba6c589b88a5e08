//! Later: directories whose entries the kernel of the mount should not keep, given some time after they were added.
//!
//! What is kept of a directory can be dropped while an answer with entries is on its way, which the kernel then keeps.
//! So it is dropped later as well, when such answers have arrived. Guarantee: what was added is taken between one and
//! two [`TURN`]s after that, however often it is added, by who comes back for more.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const TURN: Duration = Duration::from_millis(450);

#[derive(Debug, Default)]
struct Waiting {
    directories: HashSet<u64>,
    has_ended: bool,
}

/// Directories, by the numbers of their nodes.
#[derive(Debug, Default)]
pub(crate) struct Later {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Later {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are to be given.
    pub(crate) fn add(&self, directories: impl IntoIterator<Item = u64>) {
        let mut waiting = self.waiting();
        let was_idle = waiting.directories.is_empty();
        waiting.directories.extend(directories);
        if was_idle && !waiting.directories.is_empty() {
            self.more.notify_one();
        }
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.waiting().has_ended = true;
        self.more.notify_one();
    }

    /// Directories, a [`TURN`] after there were any: what comes meanwhile waits for the next. None at the end.
    pub(crate) fn take(&self) -> Option<HashSet<u64>> {
        let is_idle = |waiting: &mut Waiting| waiting.directories.is_empty() && !waiting.has_ended;
        let waiting = self.more.wait_while(self.waiting(), is_idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let directories = std::mem::take(&mut waiting.directories);
        let lasts = |waiting: &mut Waiting| !waiting.has_ended;
        let waited = self.more.wait_timeout_while(waiting, TURN, lasts);
        let (waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(directories).filter(|_| !waiting.has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_is_added_is_taken_once_and_later() {
        let later = Later::default();
        let begun = Instant::now();
        later.add([1]);
        later.add([2, 1]);
        assert_eq!(later.take(), Some([1, 2].into()));
        assert!(begun.elapsed() >= TURN);
        later.end();
        assert_eq!(later.take(), None);
    }

    #[test]
    fn what_is_added_again_and_again_is_taken_all_the_same() {
        let later = Later::default();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| later.take());
            while !taken.is_finished() {
                later.add([1]);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(taken.join().unwrap(), Some([1].into()));
        });
        later.add([1]);
        assert_eq!(later.take(), Some([1].into()), "what was added last waits a turn of its own");
    }
}
