//! Work: what the kernel of the mount is to be told of nodes where telling it waits for answers.
//!
//! To have a name forgotten waits for whoever asks anything of its directory; to have pages dropped waits for whoever
//! reads them. So what is to be told is noted node by node, and several threads tell it: each takes all that is due of
//! one node. What comes for that node meanwhile waits until the thread has done. A node that is waited for delays no
//! other, and what is told of one node is told in order.
//!
//! Price: threads that sleep; some 20 bytes for each node, and 100 for each name, that waits. Guarantee: with as many
//! threads as there are threads that answer requests, what is due of a node waits for no other's answers as long as any
//! request is answered. Not more than [`MOST_NAMES`] names wait: who adds to them waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most names that wait. The kernel keeps as many events for those who may not have more.
const MOST_NAMES: usize = 16 << 10;
/// Nodes for which room is kept while nothing is due.
const MOST_KEPT: usize = 1 << 10;

/// What the kernel is to be told of a node, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// To drop its pages.
    pub(crate) pages: bool,
    /// To forget names in it.
    pub(crate) names: HashSet<OsString>,
    /// To drop its pages when what is being asked of it has been answered.
    pub(crate) answers: bool,
}

/// What is due, of which node: a node with nothing but pages takes little.
#[derive(Debug, Default)]
struct Nodes {
    pages: HashSet<u64>,
    names: HashMap<u64, HashSet<OsString>>,
    answers: HashSet<u64>,
    /// Those of which something is due and that nobody is busy with.
    ready: VecDeque<u64>,
    busy: HashSet<u64>,
    /// Names that are due, or being told.
    count: usize,
    has_ended: bool,
}

impl Nodes {
    fn is_due(&self, node: u64) -> bool {
        self.pages.contains(&node) || self.names.contains_key(&node) || self.answers.contains(&node)
    }

    /// All that is due of the next node that is ready.
    fn take(&mut self) -> Option<(u64, Due)> {
        let node = self.ready.pop_front()?;
        self.busy.insert(node);
        let (pages, answers) = (self.pages.remove(&node), self.answers.remove(&node));
        let due = Due { pages, names: self.names.remove(&node).unwrap_or_default(), answers };
        if self.ready.is_empty() {
            // Once, all nodes may have been due.
            self.ready.shrink_to(MOST_KEPT);
            self.pages.shrink_to(MOST_KEPT);
            self.answers.shrink_to(MOST_KEPT);
            self.names.shrink_to(MOST_KEPT);
        }
        Some((node, due))
    }
}

/// All that is due.
#[derive(Debug, Default)]
pub(crate) struct Work {
    nodes: Mutex<Nodes>,
    /// A node is ready.
    more: Condvar,
    /// Names were told.
    room: Condvar,
}

impl Work {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is about to be due of this node. One that becomes ready by that wakes a thread.
    fn begin(&self, nodes: &mut Nodes, node: u64) {
        if !nodes.is_due(node) && !nodes.busy.contains(&node) {
            nodes.ready.push_back(node);
            self.more.notify_one();
        }
    }

    /// The pages of these are to be dropped.
    pub(crate) fn drop_pages(&self, which: impl IntoIterator<Item = u64>) {
        let mut nodes = self.nodes();
        for node in which {
            self.begin(&mut nodes, node);
            nodes.pages.insert(node);
        }
    }

    /// The same, when what is being asked of them has been answered.
    pub(crate) fn drop_answers(&self, which: impl IntoIterator<Item = u64>) {
        let mut nodes = self.nodes();
        for node in which {
            self.begin(&mut nodes, node);
            nodes.answers.insert(node);
        }
    }

    /// These names, with the nodes of their directories, are to be forgotten. Waits while too many are.
    pub(crate) fn forget_names(&self, names: impl IntoIterator<Item = (u64, OsString)>) {
        let mut nodes = self.nodes();
        for (directory, name) in names {
            let is_full = |nodes: &mut Nodes| nodes.count >= MOST_NAMES && !nodes.has_ended;
            nodes = self.room.wait_while(nodes, is_full).unwrap_or_else(PoisonError::into_inner);
            self.begin(&mut nodes, directory);
            let is_new = nodes.names.entry(directory).or_default().insert(name);
            nodes.count += usize::from(is_new);
        }
    }

    /// Has what is due told, one node after the other, until the end.
    pub(crate) fn serve(&self, tell: impl Fn(u64, &Due)) {
        while let Some((node, due)) = self.take() {
            tell(node, &due);
            self.done(node, &due);
        }
    }

    /// All that is due of a node, which nobody else is given until it is done. None at the end.
    fn take(&self) -> Option<(u64, Due)> {
        let is_idle = |nodes: &mut Nodes| nodes.ready.is_empty() && !nodes.has_ended;
        let mut nodes = self.more.wait_while(self.nodes(), is_idle).unwrap_or_else(PoisonError::into_inner);
        if nodes.has_ended { None } else { nodes.take() }
    }

    fn done(&self, node: u64, done: &Due) {
        let mut nodes = self.nodes();
        nodes.busy.remove(&node);
        nodes.count -= done.names.len();
        if nodes.is_due(node) {
            nodes.ready.push_back(node);
            self.more.notify_one();
        }
        if !done.names.is_empty() {
            self.room.notify_all();
        }
    }

    /// Nobody waits any more.
    pub(crate) fn end(&self) {
        self.nodes().has_ended = true;
        self.more.notify_all();
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::scope;

    fn names(all: &[&str]) -> HashSet<OsString> {
        all.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_node_is_one_threads_until_it_is_done_and_keeps_no_other_waiting() {
        let work = Work::default();
        work.drop_pages([1]);
        let (node, due) = work.take().unwrap();
        assert_eq!((node, &due), (1, &Due { pages: true, ..Due::default() }));
        work.forget_names([(1, "a".into()), (2, "b".into()), (1, "a".into()), (1, "c".into())]);
        work.drop_answers([1]);
        let (other, of_other) = work.take().unwrap();
        assert_eq!((other, of_other), (2, Due { names: names(&["b"]), ..Due::default() }));
        assert!(work.nodes().ready.is_empty(), "1 is busy");
        work.done(1, &due);
        let all = Due { pages: false, names: names(&["a", "c"]), answers: true };
        assert_eq!(work.take(), Some((1, all)));
        work.end();
        assert_eq!(work.take(), None);
    }

    #[test]
    fn who_adds_too_many_names_waits_until_some_are_told() {
        let work = Work::default();
        let name = |number: usize| (1, OsString::from(number.to_string()));
        work.forget_names((0..MOST_NAMES).map(name));
        let (told, tells) = channel();
        scope(|scope| {
            let (work, told) = (&work, told);
            scope.spawn(move || {
                work.forget_names([name(MOST_NAMES)]);
                told.send(()).unwrap();
            });
            assert!(tells.try_recv().is_err());
            let (node, due) = work.take().unwrap();
            assert_eq!((node, due.names.len()), (1, MOST_NAMES));
            assert!(tells.try_recv().is_err(), "what is being told takes its room still");
            work.done(node, &due);
            tells.recv().unwrap();
        });
        assert_eq!(work.nodes().count, 1);
        work.forget_names((0..MOST_NAMES - 1).map(name));
        scope(|scope| {
            let waits = scope.spawn(|| work.forget_names([name(MOST_NAMES + 1)]));
            work.end();
            waits.join().unwrap();
        });
    }
}
