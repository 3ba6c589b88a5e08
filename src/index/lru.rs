//! The LRU: second chance over leaves.
//!
//! Every shard of the index has one queue of leaves, oldest first, and a hand in the oldest leaf. A load sets
//! the entry's referenced bit; the hand takes the bit away and passes on, or finds none and the entry is a
//! victim. A leaf that the hand has crossed goes to the tail. That is CLOCK (Corbató 1968) with its ring cut
//! into leaves of 64 neighbours: the LRU costs two links and a stamp a leaf and one bit an entry, and a load
//! moves nothing. The price is that neighbours have one age; a page stored into a leaf that is no longer
//! recent gets its referenced bit at once, so that the hand passes it at least once.
//!
//! The stamp is drawn from a counter that all shards share whenever a leaf goes to a tail; taking the shard
//! whose head has the oldest stamp makes one queue of all of them.
//!
//! Invariant: a leaf is in the queue if and only if it holds an evictable entry.

use super::leaf::{Leaf, Links, NONE};

/// The queue of a shard.
#[derive(Debug)]
pub(crate) struct Lru {
    head: u32,
    tail: u32,
    /// Bit in the head leaf that is looked at next; 64 at its end.
    hand: u32,
}

impl Lru {
    pub(crate) const fn new() -> Self {
        Self { head: NONE, tail: NONE, hand: 0 }
    }

    /// The leaf at the head, if any.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The stamp of the head.
    pub(crate) fn oldest_stamp(&self, leaves: &[Leaf]) -> Option<u32> {
        self.oldest().map(|id| leaves[id as usize].links.stamp)
    }

    /// The next victim in the head leaf. None when the hand has crossed it.
    pub(crate) fn next_victim(&mut self, leaves: &mut [Leaf]) -> Option<u32> {
        let leaf = &mut leaves[self.oldest()? as usize];
        let (bit, hand) = leaf.second_chance(self.hand);
        self.hand = hand;
        bit
    }

    /// Whether there is a victim left in the head leaf; the hand stays at it.
    pub(crate) fn has_victim(&mut self, leaves: &mut [Leaf]) -> bool {
        let victim = self.next_victim(leaves);
        self.hand = victim.unwrap_or(self.hand);
        victim.is_some()
    }

    /// Puts a leaf that is in no queue at the tail.
    pub(crate) fn push(&mut self, leaves: &mut [Leaf], id: u32, stamp: u32) {
        leaves[id as usize].links = Links { prev: self.tail, next: NONE, stamp };
        match self.tail {
            NONE => {
                self.head = id;
                self.hand = 0;
            }
            tail => leaves[tail as usize].links.next = id,
        }
        self.tail = id;
    }

    /// Takes a leaf out.
    pub(crate) fn unlink(&mut self, leaves: &mut [Leaf], id: u32) {
        let Links { prev, next, .. } = leaves[id as usize].links;
        match prev {
            NONE => {
                self.head = next;
                self.hand = 0;
            }
            prev => leaves[prev as usize].links.next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => leaves[next as usize].links.prev = prev,
        }
        leaves[id as usize].links = Links::OUT;
    }

    /// The ids in the queue, oldest first.
    pub(crate) fn iter<'a>(&self, leaves: &'a [Leaf]) -> impl Iterator<Item = u32> + use<'a> {
        std::iter::successors(self.oldest(), |&id| {
            Some(leaves[id as usize].links.next).filter(|&next| next != NONE)
        })
    }
}
