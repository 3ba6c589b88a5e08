//! The order in which blocks leave the program.
//!
//! Blocks wait in the order in which they got their first page: the oldest leaves first. The exception is what a long
//! sequence passes over: such blocks leave as soon as it has left them behind, in the place of what waits. A program
//! that goes over more than its limit again and again then finds a part of it there each time; by age alone, each
//! page would leave just before it is wanted (`mm/workingset.c` keeps such pages on the inactive list for the same
//! reason). The price: a sequence that soon goes over the same pages again brings them back twice; the second time
//! they stay.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks that sequences have passed over last, which may still be in use: 4 MiB.
const IN_USE: usize = 64;

/// Blocks that wait for eviction. Its lock is taken alone or under a group lock, and holds nothing.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    waiting: VecDeque<Queued>,
    passed: VecDeque<Queued>,
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    block: u32,
    time: u64,
}

impl Queue {
    /// Puts a block at the end, with the time.
    pub(crate) fn push(&self, block: usize, time: u64) {
        self.lock().waiting.push_back(Queued { block: number(block), time });
    }

    /// Puts a block that a sequence passes over where it leaves soon.
    pub(crate) fn push_passed(&self, block: usize, time: u64) {
        self.lock().passed.push_back(Queued { block: number(block), time });
    }

    /// Takes the block that leaves next.
    pub(crate) fn pop(&self) -> Option<usize> {
        self.lock().pop()
    }

    /// Takes the block if it is the one that leaves next.
    pub(crate) fn pop_this(&self, block: usize) -> bool {
        let mut lists = self.lock();
        let there = lists.first() == Some(number(block));
        if there {
            lists.pop();
        }
        there
    }

    /// Blocks in the queue.
    pub(crate) fn len(&self) -> usize {
        let lists = self.lock();
        lists.waiting.len() + lists.passed.len()
    }

    /// Whether a sequence has left blocks behind.
    pub(crate) fn has_passed(&self) -> bool {
        self.lock().has_passed()
    }

    /// The time of the block that has waited for longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let lists = self.lock();
        lists.fronts().into_iter().flatten().map(|queued| queued.time).min()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lists {
    /// In a small queue fewer are left in use.
    fn has_passed(&self) -> bool {
        self.passed.len() > IN_USE.min(self.waiting.len() / 8)
    }

    fn fronts(&self) -> [Option<&Queued>; 2] {
        [self.waiting.front(), self.passed.front()]
    }

    /// Whether the next comes from `passed`. Where a sequence has ended, its last blocks leave when they are the
    /// oldest.
    fn is_passed_next(&self) -> bool {
        match self.fronts() {
            [Some(waiting), Some(passed)] => self.has_passed() || passed.time < waiting.time,
            [waiting, _] => waiting.is_none(),
        }
    }

    fn first(&self) -> Option<u32> {
        let [waiting, passed] = self.fronts();
        let next = if self.is_passed_next() { passed } else { waiting };
        next.map(|queued| queued.block)
    }

    fn pop(&mut self) -> Option<usize> {
        let next = if self.is_passed_next() { self.passed.pop_front() } else { self.waiting.pop_front() };
        next.map(|queued| queued.block as usize)
    }
}

fn number(block: usize) -> u32 {
    u32::try_from(block).expect("the range has fewer than 2^32 blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_first() {
        let queue = Queue::default();
        (0..5).for_each(|block| queue.push(block, 100 + block as u64));
        assert_eq!((queue.oldest(), queue.len()), (Some(100), 5));
        assert_eq!(queue.pop(), Some(0));
        assert!(!queue.pop_this(2) && queue.pop_this(1));
        assert_eq!((queue.pop(), queue.oldest()), (Some(2), Some(103)));
    }

    #[test]
    fn what_is_left_behind_leaves_before_what_waits() {
        let queue = Queue::default();
        (0..IN_USE * 8).for_each(|block| queue.push(block, 0));
        (1000..1000 + IN_USE).for_each(|block| queue.push_passed(block, 1));
        assert!(!queue.has_passed(), "these may be in use");
        assert_eq!(queue.pop(), Some(0));
        (2000..2003).for_each(|block| queue.push_passed(block, 1));
        assert_eq!((queue.pop(), queue.pop_this(1001)), (Some(1000), true));
    }

    #[test]
    fn the_end_of_a_sequence_leaves_when_it_is_the_oldest() {
        let queue = Queue::default();
        (0..IN_USE * 8).for_each(|block| queue.push(block, 10 + block as u64));
        queue.push_passed(1000, 12);
        assert_eq!([(); 4].map(|()| queue.pop()), [Some(0), Some(1), Some(2), Some(1000)]);
        queue.push_passed(1001, 5);
        assert_eq!(queue.oldest(), Some(5));
    }

    #[test]
    fn all_leave_in_the_end() {
        let queue = Queue::default();
        (0..9).for_each(|block| queue.push(block, 0));
        (9..20).for_each(|block| queue.push_passed(block, 7));
        let mut left: Vec<usize> = std::iter::from_fn(|| queue.pop()).collect();
        left.sort_unstable();
        assert_eq!(left, (0..20).collect::<Vec<_>>());
    }
}
