//! Believed: attributes that the kernel of the mount may hold for long are looked at in its place.
//!
//! Most changes behind the mount are told ([`crate::watch`]), but not stores to a shared mapping, libaio's writes or a
//! loop device's. So each answer that is to be believed for long is noted with what watches the file, and a thread
//! ([`crate::doubt`]) looks at every such file once in [`LOOK`]: what is not as it was told is to be forgotten. A file
//! of which two things were told may be believed to be either, and is forgotten as well.
//!
//! Price: 24 bytes a file, and a look every 0.9 s, some two microseconds, while it may be believed; nothing when nobody
//! has asked for anything in a while. Guarantee: no attributes are believed for longer than about a second after they
//! have ceased to be true, whether that was told or not.

use crate::stamp::Stamp;
use crate::watch::Told;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
pub(crate) const LOOK: Duration = Duration::from_millis(900);
/// How long an answer may be on its way.
const WAY: Duration = Duration::from_secs(30);
/// What stands for no stamp, and for more than one.
const NOTHING: u64 = 0;
const TWO: u64 = 1;

#[derive(Debug, Default)]
struct List {
    files: Vec<Arc<Told>>,
    /// How many more are being looked at.
    away: usize,
    has_ended: bool,
}

/// All that is believed for long.
#[derive(Debug)]
pub(crate) struct Believed {
    list: Mutex<List>,
    more: Condvar,
    most: usize,
    begun: Instant,
}

/// Another one for nearly every stamp.
fn sum(stamp: Stamp) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(stamp).max(TWO + 1)
}

impl Believed {
    /// Room for so many files.
    pub(crate) fn new(most: usize) -> Self {
        Self { list: Mutex::default(), more: Condvar::new(), most, begun: Instant::now() }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, time: Duration) -> u64 {
        u64::try_from((self.begun.elapsed() + time).as_millis()).unwrap_or(u64::MAX)
    }

    /// The kernel is about to be told that a file is so, for so long. False if that is not to be: there are too many.
    pub(crate) fn tell(&self, file: &Arc<Told>, stamp: Stamp, hold: Duration) -> bool {
        let (stamp, until) = (sum(stamp), self.after(hold + WAY));
        let mut list = self.list();
        match file.belief.stamp.load(Relaxed) {
            NOTHING if list.files.len() + list.away >= self.most => return false,
            NOTHING => {
                file.belief.stamp.store(stamp, Relaxed);
                list.files.push(Arc::clone(file));
                if list.files.len() == 1 {
                    self.more.notify_one();
                }
            }
            before if before == stamp => {}
            _ => file.belief.stamp.store(TWO, Relaxed),
        }
        file.belief.until.store(until, Relaxed);
        true
    }

    /// Whether this file is believed to be as it is.
    pub(crate) fn is_right(&self, file: &Told, now: Option<Stamp>) -> bool {
        now.is_some_and(|now| file.belief.stamp.load(Relaxed) == sum(now))
    }

    /// The kernel is about to be told to forget what it believes of a file that was given to be looked at.
    pub(crate) fn forget(&self, file: &Told) {
        let mut list = self.list();
        list.away -= 1;
        file.belief.stamp.store(NOTHING, Relaxed);
    }

    /// A file that was given to be looked at is believed still.
    pub(crate) fn keep(&self, file: Arc<Told>) {
        let mut list = self.list();
        list.away -= 1;
        list.files.push(file);
    }

    /// The kernel did not know the file that it should forget: it may be about to believe anything of it.
    pub(crate) fn doubt(&self, file: &Arc<Told>) {
        let until = self.after(WAY);
        let mut list = self.list();
        if file.belief.stamp.swap(TWO, Relaxed) == NOTHING {
            file.belief.until.store(until, Relaxed);
            list.files.push(Arc::clone(file));
        }
    }

    /// What is to be looked at when it is time to. Each is to be kept or forgotten. None at the end.
    pub(crate) fn wait(&self) -> Option<Vec<Arc<Told>>> {
        let is_idle = |list: &mut List| list.files.is_empty() && !list.has_ended;
        let list = self.more.wait_while(self.list(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let lasts = |list: &mut List| !list.has_ended;
        let waited = self.more.wait_timeout_while(list, LOOK, lasts);
        let (mut list, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let now = self.after(Duration::ZERO);
        let mut all = std::mem::take(&mut list.files);
        all.retain(|file| {
            let lasts = file.belief.until.load(Relaxed) > now;
            if !lasts {
                file.belief.stamp.store(NOTHING, Relaxed);
            }
            lasts
        });
        list.away = all.len();
        Some(all).filter(|_| !list.has_ended)
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.list().has_ended = true;
        self.more.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(size: u64) -> Stamp {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        Stamp::now(file).unwrap()
    }

    #[test]
    fn what_was_told_last_is_looked_at_and_what_was_told_twice_is_nothing() {
        let (believed, hold) = (Believed::new(2), Duration::from_secs(1));
        let files = [7, 8, 9].map(|node| Told::new(node, Box::default()));
        let (one, other) = (stamp(1), stamp(2));
        assert!(believed.tell(&files[0], one, hold) && believed.tell(&files[1], one, hold));
        assert!(!believed.tell(&files[2], one, hold), "there are too many");
        assert!(believed.tell(&files[0], one, hold) && believed.tell(&files[1], other, hold));
        // Which of the nodes are right if all files are so.
        let look = |now: Stamp| {
            let all = believed.wait().unwrap();
            let right = |file: &Arc<Told>| believed.is_right(file, Some(now));
            let mut nodes: Vec<u64> = all.iter().filter(|file| right(file)).map(|file| file.node).collect();
            nodes.sort_unstable();
            all.into_iter().for_each(|file| believed.keep(file));
            nodes
        };
        assert_eq!((look(one), look(other)), (vec![7], vec![]));
        assert!(believed.tell(&files[1], other, hold));
        assert_eq!(look(other), [], "it may be believed to be either still");
        let away = believed.wait().unwrap();
        assert!(!believed.tell(&files[2], one, hold), "those that are looked at count");
        away.iter().for_each(|file| believed.forget(file));
        assert!(believed.tell(&files[1], other, hold) && believed.tell(&files[2], one, hold));
        assert_eq!((look(other), look(one)), (vec![8], vec![9]));
        believed.end();
        assert!(believed.wait().is_none());
    }
}
