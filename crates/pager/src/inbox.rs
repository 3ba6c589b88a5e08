//! Messages of the userfaultfd that were read early, and the changes that are the pager's own.
//!
//! A thread that changes the registered range by a system call (madvise, munmap, mremap) waits in the kernel until
//! somebody has read what it does. It may hold a lock of the pager's meanwhile. So wherever the reader would wait for
//! another thread it goes on reading, and keeps here what it cannot take up yet.
//!
//! The pager's own calls are told as well, where they cannot be made unseen. Whoever makes one says so before it does,
//! and what is told of it is passed over. A message does not tell whose call it is of. So where contents would be lost
//! if one were taken for the program's, a call is made of which there can be no more than one ([`crate::detach`]).
//!
//! The locks here are taken inside the gate, but for those of the reader, which reads outside of it. They wait for a
//! gate of their own: [`Inbox::hold_still`].
//!
//! Price: two locks that nobody else wants, taken only where something was changed.

use crate::gate::Gate;
use crate::uffd::{Change, Fault, Message, Told};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The program changes its memory past the pager: a fault is resolved after that ([`crate::changes`]).
#[derive(Debug)]
pub(crate) struct Changing;

/// What was read and not taken up, and what is expected.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    early: Mutex<VecDeque<Message>>,
    count: AtomicUsize,
    expected: Mutex<Vec<Expected>>,
    /// Changes that were read, while they are taken up.
    underway: Mutex<Vec<Change>>,
    /// How many.
    begun: AtomicUsize,
    /// Some of it is over.
    over: AtomicBool,
    /// Closed while a process is copied: the reader, which reads outside of the pager's gate, takes no lock then that
    /// the copy would have locked.
    reading: Gate,
}

/// A change of the pager's own.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// So many bytes of the range are still to be told: one message for each mapping of the kernel's in it.
    Removal {
        range: Range<usize>,
        bytes: usize,
        /// The call has returned: what was told of it has been read.
        over: bool,
    },
    Other(Change),
}

impl Inbox {
    /// Runs `read` unless a fork is under way. For the reader.
    pub(crate) fn read_on(&self, read: impl FnOnce()) {
        let inside = self.reading.try_enter();
        if inside.is_some() {
            read();
        }
    }

    /// From now on nobody holds a lock here. The pager's gate is closed.
    pub(crate) fn hold_still(&self) {
        self.reading.close();
    }

    /// Ends `hold_still`, in the parent.
    pub(crate) fn go_on(&self) {
        self.reading.open();
    }

    /// Keeps messages for later, in their order.
    pub(crate) fn keep(&self, messages: &[Message]) {
        let mut early = lock(&self.early);
        early.extend(messages);
        self.count.store(early.len(), Ordering::Relaxed);
    }

    /// Takes the oldest of them, as many as fit.
    pub(crate) fn take(&self, messages: &mut [Message]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut early = lock(&self.early);
        let count = early.len().min(messages.len());
        self.begin(changes(early.iter().take(count)));
        messages.iter_mut().zip(early.drain(..count)).for_each(|(to, message)| *to = message);
        self.count.store(early.len(), Ordering::Relaxed);
        count
    }

    /// Takes the oldest change out of what is kept.
    pub(crate) fn take_change(&self) -> Option<Change> {
        if self.is_empty() {
            return None;
        }
        let mut early = lock(&self.early);
        let (at, found) = early.iter().enumerate().find_map(|(at, message)| Some((at, change(message)?)))?;
        // Underway before it is early no more: nobody is to miss it.
        self.begin(std::iter::once(found.clone()));
        early.remove(at);
        self.count.store(early.len(), Ordering::Relaxed);
        Some(found)
    }

    /// Whether a change is among them.
    pub(crate) fn has_change(&self) -> bool {
        !self.is_empty() && changes(lock(&self.early).iter()).next().is_some()
    }

    /// Whether one of them takes the contents of pages in this range away, or changes it in another way.
    pub(crate) fn concerns(&self, range: &Range<usize>) -> bool {
        let concerns = |change: Change| match change {
            Change::Moved { from, to, len } => {
                meet(range, &(from..from + len)) || meet(range, &(to..to + len))
            }
            change => empties(&change, range),
        };
        !self.is_empty() && changes(lock(&self.early).iter()).any(concerns)
    }

    /// These were read outside of the pager's gate, and are about to be taken up. Waits while a process is copied.
    pub(crate) fn begin_outside(&self, changes: impl Iterator<Item = Change>) {
        let mut changes = changes.peekable();
        if changes.peek().is_some() {
            let _inside = self.reading.enter();
            self.begin(changes);
        }
    }

    /// These were read, and are about to be taken up.
    fn begin(&self, changes: impl Iterator<Item = Change>) {
        let mut changes = changes.peekable();
        if changes.peek().is_some() {
            let mut underway = lock(&self.underway);
            underway.extend(changes);
            self.begun.store(underway.len(), Ordering::Relaxed);
        }
    }

    /// One of them was taken up.
    pub(crate) fn end(&self, change: &Change) {
        let mut underway = lock(&self.underway);
        if let Some(at) = underway.iter().position(|begun| begun == change) {
            underway.swap_remove(at);
        }
        self.begun.store(underway.len(), Ordering::Relaxed);
    }

    /// Whether the program has dropped or unmapped this page, as was read and not taken up yet. Who drops it for the
    /// pager has said so.
    pub(crate) fn takes(&self, page: &Range<usize>) -> bool {
        self.known(|change| empties(change, page).then_some(())).is_some() && !self.expects_removal(page)
    }

    /// Where this address has been moved to, as was read and not taken up yet.
    pub(crate) fn moves(&self, addr: usize) -> Option<usize> {
        self.known(|change| match change {
            Change::Moved { from, to, len } if (*from..from + len).contains(&addr) => {
                Some(to + (addr - from))
            }
            _ => None,
        })
    }

    /// What `of` finds first among the changes that were read and not taken up yet.
    fn known<T>(&self, of: impl Fn(&Change) -> Option<T>) -> Option<T> {
        // In the order in which a change goes through them: none is missed on its way.
        let early = || changes(lock(&self.early).iter()).find_map(|change| of(&change));
        let underway = || lock(&self.underway).iter().find_map(&of);
        let early = if self.is_empty() { None } else { early() };
        early.or_else(|| if self.begun.load(Ordering::Relaxed) > 0 { underway() } else { None })
    }

    /// Whether nothing was read early.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Runs `remove`, which drops the contents of the range. The caller has seen to its pages: as many bytes as there
    /// are in the range are passed over when they are told.
    ///
    /// When the call returns all that was told of it has been read, but may not have been taken up. And what was not
    /// dropped may have been told or not: so what is expected stays until the reader has taken up what it has read.
    pub(crate) fn removing<T>(&self, range: Range<usize>, remove: impl FnOnce() -> T) -> T {
        let bytes = range.len();
        lock(&self.expected).push(Expected::Removal { range: range.clone(), bytes, over: false });
        let removed = remove();
        for expected in lock(&self.expected).iter_mut() {
            if let Expected::Removal { range: it, over: over @ false, .. } = expected
                && *it == range
            {
                *over = true;
                self.over.store(true, Ordering::Relaxed);
                break;
            }
        }
        removed
    }

    /// Whether a removal of this range was not told, or not taken up, so far.
    pub(crate) fn expects_removal(&self, removed: &Range<usize>) -> bool {
        let is_of =
            |expected: &Expected| matches!(expected, Expected::Removal { range, .. } if range == removed);
        lock(&self.expected).iter().any(is_of)
    }

    /// For the reader, outside of the pager's gate, when it has taken up all that it has read: what was to be told of
    /// calls that are over was. Waits while a process is copied.
    pub(crate) fn forget_what_is_over(&self) {
        if self.over.load(Ordering::Relaxed) {
            let _inside = self.reading.enter();
            let mut all = lock(&self.expected);
            all.retain(|expected| !matches!(expected, Expected::Removal { over: true, .. }));
            self.over.store(false, Ordering::Relaxed);
        }
    }

    /// The caller is about to make this change, and sees to the pages.
    pub(crate) fn expect(&self, change: Change) {
        lock(&self.expected).push(Expected::Other(change));
    }

    /// It was not made.
    pub(crate) fn expect_no_more(&self, change: &Change) {
        let mut all = lock(&self.expected);
        if let Some(at) =
            all.iter().position(|expected| matches!(expected, Expected::Other(it) if it == change))
        {
            all.swap_remove(at);
        }
    }

    /// Whether the change is the pager's own; it is not expected again then.
    pub(crate) fn was_expected(&self, change: &Change) -> bool {
        let mut all = lock(&self.expected);
        for at in 0..all.len() {
            let done = match (&mut all[at], change) {
                (Expected::Removal { range, bytes, .. }, Change::Removed(part))
                    if range.start <= part.start && part.end <= range.end && *bytes >= part.len() =>
                {
                    *bytes -= part.len();
                    *bytes == 0
                }
                (Expected::Other(expected), change) if expected == change => true,
                _ => continue,
            };
            if done {
                all.swap_remove(at);
            }
            return true;
        }
        false
    }

    /// Forgets all: in a forked child, whose userfaultfd is another.
    pub(crate) fn reset(&self) {
        self.reading.reset();
        lock(&self.early).clear();
        self.count.store(0, Ordering::Relaxed);
        lock(&self.underway).clear();
        self.begun.store(0, Ordering::Relaxed);
        lock(&self.expected).clear();
    }
}

fn change(message: &Message) -> Option<Change> {
    if let Some(Told::Change(change)) = message.told() { Some(change) } else { None }
}

/// The changes among messages.
pub(crate) fn changes<'a>(messages: impl Iterator<Item = &'a Message>) -> impl Iterator<Item = Change> {
    messages.filter_map(change)
}

/// The faults among messages.
pub(crate) fn faults(messages: &[Message]) -> impl Iterator<Item = Fault> {
    let fault =
        |message: &Message| if let Some(Told::Fault(fault)) = message.told() { Some(fault) } else { None };
    messages.iter().filter_map(fault)
}

fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Whether the change leaves pages of the range empty.
fn empties(change: &Change, range: &Range<usize>) -> bool {
    matches!(change, Change::Removed(other) | Change::Unmapped(other) if meet(range, other))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_passed_over_once() {
        let inbox = Inbox::default();
        let removed = Change::Removed;
        assert!(!inbox.was_expected(&removed(0..8)));
        inbox.removing(0..16, || {
            assert!(!inbox.was_expected(&removed(8..24)), "more than that");
            assert!(inbox.was_expected(&removed(0..4)));
        });
        assert!(inbox.was_expected(&removed(4..16)), "read before the call was over, taken up later");
        assert!(!inbox.was_expected(&removed(4..16)), "all of it was told");
        let moved = Change::Moved { from: 0, to: 64, len: 16 };
        inbox.expect(moved.clone());
        assert!(!inbox.was_expected(&Change::Moved { from: 0, to: 64, len: 8 }));
        assert!(inbox.was_expected(&moved) && !inbox.was_expected(&moved));
        inbox.expect(moved.clone());
        inbox.expect_no_more(&moved);
        assert!(!inbox.was_expected(&moved));
    }

    #[test]
    fn what_is_over_is_expected_until_the_reader_has_done() {
        let inbox = Inbox::default();
        inbox.removing(0..16, || {
            inbox.removing(16..32, || ());
            assert!(inbox.expects_removal(&(0..16)) && inbox.expects_removal(&(16..32)));
            inbox.forget_what_is_over();
            assert!(inbox.expects_removal(&(0..16)) && !inbox.expects_removal(&(16..32)));
        });
        assert!(inbox.expects_removal(&(0..16)), "it may have been told");
        inbox.forget_what_is_over();
        assert!(!inbox.was_expected(&Change::Removed(0..16)), "it was not");
    }

    #[test]
    fn what_was_dropped_is_known_until_it_is_taken_up() {
        let inbox = Inbox::default();
        let removal = Message::of(0x15, [4, 8, 0]);
        assert!(!inbox.takes(&(4..5)));
        inbox.keep(&[removal]);
        assert!(inbox.takes(&(4..5)) && inbox.takes(&(7..9)) && !inbox.takes(&(8..9)));
        let change = inbox.take_change().unwrap();
        assert!(inbox.takes(&(4..5)), "it is being taken up");
        inbox.end(&change);
        assert!(!inbox.takes(&(4..5)));
        inbox.keep(&[removal]);
        let mut messages = [Message::default(); 4];
        assert_eq!(inbox.take(&mut messages), 1);
        assert!(inbox.takes(&(4..5)), "taken, not taken up");
        inbox.removing(4..5, || assert!(!inbox.takes(&(4..5)) && inbox.takes(&(5..6)), "the pager's own"));
        let moved = Message::of(0x14, [64, 128, 16]);
        inbox.keep(&[moved]);
        assert_eq!([63, 64, 79, 80].map(|addr| inbox.moves(addr)), [None, Some(128), Some(143), None]);
        assert!(inbox.take_change().is_some() && inbox.moves(64).is_some());
    }

    #[test]
    fn the_reader_takes_no_lock_while_a_process_is_copied() {
        let inbox = Inbox::default();
        inbox.hold_still();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| inbox.begin_outside(std::iter::once(Change::Removed(4..8))));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished() && inbox.underway.try_lock().is_ok_and(|it| it.is_empty()));
            inbox.go_on();
        });
        assert!(inbox.takes(&(4..5)));
        inbox.removing(0..16, || ());
        inbox.hold_still();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| inbox.forget_what_is_over());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished() && inbox.expected.try_lock().is_ok_and(|it| it.len() == 1));
            inbox.go_on();
        });
        assert!(!inbox.expects_removal(&(0..16)));
    }

    #[test]
    fn changes_are_taken_before_faults_and_faults_in_their_order() {
        let inbox = Inbox::default();
        let message = Message::of;
        let removal = |page: u64| message(0x15, [page, page + 1, 0]);
        inbox.keep(&[message(0x12, [0, 1, 0]), removal(5), message(0x12, [0, 2, 0]), removal(6)]);
        assert!(inbox.concerns(&(0..6)) && inbox.concerns(&(6..9)) && !inbox.concerns(&(0..5)));
        assert_eq!(inbox.take_change(), Some(Change::Removed(5..6)));
        assert_eq!(inbox.take_change(), Some(Change::Removed(6..7)));
        assert_eq!(inbox.take_change(), None);
        let mut messages = [Message::default(); 8];
        assert_eq!(inbox.take(&mut messages), 2);
        let addrs = messages[..2].iter().map(|message| match message.told() {
            Some(Told::Fault(fault)) => fault.addr,
            other => panic!("{other:?}"),
        });
        assert_eq!(addrs.collect::<Vec<_>>(), [1, 2]);
        assert_eq!(inbox.take(&mut messages), 0);
    }
}
