//! Kept: open files and directories of the source, for a kernel that opens them without asking.
//!
//! Such a kernel tells neither of an open nor of a close: a request names the node and nothing else. The first one that
//! reads or writes opens what the node stands for. The descriptor stays in the node for the next, and a thread closes
//! what was not used since it looked last. A file has one for reading and one for writing, so that nobody finds a file
//! busy that is only read.
//!
//! Price: opening and closing, some 10 us, for each burst of requests. Guarantee: a descriptor is closed within twice
//! [`LOOK`] after the last request that used it, and at once when its node goes, so that the source's space is free
//! then. What is opened is the node's own file, whatever has become of its name.
//!
//! Lock order: a node's descriptors, then the list.

use crate::entries::Listing;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Most nodes that have descriptors open.
const MOST: usize = 1024;

/// Something that is open.
#[derive(Debug)]
pub(crate) struct Source<T> {
    open: Arc<T>,
    /// Since the thread looked last.
    was_used: bool,
}

/// What is open of one node.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) to_read: Option<Source<OwnedFd>>,
    pub(crate) to_write: Option<Source<OwnedFd>>,
    pub(crate) listing: Option<Source<Listing>>,
    is_listed: bool,
}

/// One of them.
pub(crate) type Which<T> = fn(&mut Sources) -> &mut Option<Source<T>>;

/// The place in a node for what is open.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Sources>);

/// Closes it if it was not used. False if it is not open any more.
fn close_unused<T>(source: &mut Option<Source<T>>) -> bool {
    source.take_if(|source| !std::mem::take(&mut source.was_used));
    source.is_some()
}

impl Slots {
    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what was not used. False if nothing is left: then the node is not in the list any more.
    fn close_unused(&self) -> bool {
        let mut sources = self.sources();
        let left = [
            close_unused(&mut sources.to_read),
            close_unused(&mut sources.to_write),
            close_unused(&mut sources.listing),
        ];
        sources.is_listed = left.contains(&true);
        sources.is_listed
    }
}

#[derive(Debug, Default)]
struct List {
    nodes: Vec<Weak<Slots>>,
    /// How many more are being looked at.
    away: usize,
    has_ended: bool,
}

/// All nodes that have something open.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    list: Mutex<List>,
    more: Condvar,
}

impl Kept {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a node stands for, open for this. `open` opens it.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn get<T>(
        &self,
        slots: &Arc<Slots>,
        which: Which<T>,
        open: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<Arc<T>, Errno> {
        if let Some(source) = which(&mut slots.sources()) {
            source.was_used = true;
            return Ok(Arc::clone(&source.open));
        }
        // With nothing locked: the source may be slow.
        Ok(self.put(slots, which, open()?))
    }

    /// What a node stands for is open for this. What another thread has opened meanwhile goes when its request is over.
    pub(crate) fn put<T>(&self, slots: &Arc<Slots>, which: Which<T>, open: T) -> Arc<T> {
        let open = Arc::new(open);
        let mut sources = slots.sources();
        if !sources.is_listed {
            let mut list = self.list();
            if list.has_ended || list.nodes.len() + list.away >= MOST {
                return open;
            }
            list.nodes.push(Arc::downgrade(slots));
            sources.is_listed = true;
            if list.nodes.len() == 1 {
                self.more.notify_one();
            }
        }
        let before = which(&mut sources).replace(Source { open: Arc::clone(&open), was_used: true });
        // Closed with nothing locked.
        drop(sources);
        drop(before);
        open
    }

    /// Closes what is not used, until the end.
    pub(crate) fn close_unused(&self) {
        while let Some(nodes) = self.wait() {
            let has_more = |slots: &Weak<Slots>| slots.upgrade().is_some_and(|slots| slots.close_unused());
            let left: Vec<_> = nodes.into_iter().filter(has_more).collect();
            let mut list = self.list();
            list.away = 0;
            list.nodes.extend(left);
        }
    }

    /// Nodes, when it is time to look at them. None at the end.
    fn wait(&self) -> Option<Vec<Weak<Slots>>> {
        let is_idle = |list: &mut List| list.nodes.is_empty() && !list.has_ended;
        let list = self.more.wait_while(self.list(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let lasts = |list: &mut List| !list.has_ended;
        let waited = self.more.wait_timeout_while(list, LOOK, lasts);
        let (mut list, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let nodes = std::mem::take(&mut list.nodes);
        list.away = nodes.len();
        Some(nodes).filter(|_| !list.has_ended)
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.list().has_ended = true;
        self.more.notify_one();
    }
}
