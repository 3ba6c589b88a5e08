//! Parts: what some of a member's pages take of a limit of their own, for who looks at the run. A mount has one for
//! each directory with a limit.
//!
//! A record has its owner's slot and a path, whose first byte is written last and cleared first: without it there is
//! nothing. A member changes its own records alone; what a dead one has left goes with its slot. Price: a kilobyte a
//! record, touched when it is used. Guarantee: what is read has been written, but for numbers of two moments.
//!
//! Nothing follows from what is there but that it is shown.

use super::{Segment, SlotId, clean};
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Records; parts beyond are not shown.
pub(super) const MAX_PARTS: usize = 128;
/// Bytes of a path that are kept: the last.
const MAX_PATH: usize = 1000;

/// A part of a member's pages, and what they take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What has the limit.
    pub path: String,
    /// Bytes that the pages may take.
    pub limit: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Record {
    /// 0: free. Else the number of the slot, and one.
    owner: AtomicU32,
    limit: AtomicU64,
    bytes: AtomicU64,
    /// Up to the first 0.
    path: [AtomicU8; MAX_PATH],
}

fn owner(slot: SlotId) -> u32 {
    u32::try_from(slot.0 + 1).unwrap_or(u32::MAX)
}

impl Record {
    fn path(&self) -> &[AtomicU8] {
        let [first, ..] = &self.path;
        let is_end = |byte: &AtomicU8| byte.load(Relaxed) == 0;
        let len = if first.load(Acquire) == 0 { Some(0) } else { self.path.iter().position(is_end) };
        &self.path[..len.unwrap_or(MAX_PATH)]
    }

    fn is_of(&self, path: &[u8]) -> bool {
        let own = self.path();
        own.len() == path.len() && own.iter().zip(path).all(|(own, byte)| own.load(Relaxed) == *byte)
    }

    fn take(&self, slot: SlotId, path: &[u8]) -> bool {
        let is_taken = self.owner.compare_exchange(0, owner(slot), Acquire, Relaxed).is_ok();
        if is_taken {
            let bytes = path.iter().copied().chain(std::iter::repeat(0));
            self.path.iter().zip(bytes).skip(1).for_each(|(to, from)| to.store(from, Relaxed));
        }
        is_taken
    }

    fn free(&self) {
        self.path[0].store(0, Relaxed);
        self.owner.store(0, Release);
    }
}

/// Parts.
impl Segment {
    fn own_parts(&self, slot: SlotId) -> impl Iterator<Item = &Record> {
        self.records().iter().filter(move |record| record.owner.load(Acquire) == owner(slot))
    }

    /// These are the member's parts from now on: paths, limits, bytes. Called by one thread at a time.
    pub fn publish_parts<'path>(
        &self,
        slot: SlotId,
        parts: impl Iterator<Item = (&'path [u8], u64, u64)> + Clone,
    ) {
        let kept = |path: &'path [u8]| &path[path.len().saturating_sub(MAX_PATH)..];
        let parts = parts.map(|(path, limit, bytes)| (kept(path), limit, bytes));
        let has_gone = |record: &&Record| !parts.clone().any(|(path, ..)| record.is_of(path));
        self.own_parts(slot).filter(has_gone).for_each(Record::free);
        for (path, limit, bytes) in parts.clone().filter(|(path, ..)| !path.is_empty()) {
            let known = self.own_parts(slot).find(|record| record.is_of(path));
            let take = || self.records().iter().find(|record| record.take(slot, path));
            let Some(record) = known.or_else(take) else { return };
            record.limit.store(limit, Relaxed);
            record.bytes.store(bytes, Relaxed);
            record.path[0].store(path[0], Release);
        }
    }

    /// The member's parts, by their paths.
    #[must_use]
    pub fn parts(&self, slot: SlotId) -> Vec<Part> {
        let part = |record: &Record| {
            let (path, limit, bytes) = (record.path(), &record.limit, &record.bytes);
            Part { path: clean(path), limit: limit.load(Relaxed), bytes: bytes.load(Relaxed) }
        };
        let mut parts: Vec<Part> =
            self.own_parts(slot).map(part).filter(|part| !part.path.is_empty()).collect();
        parts.sort_by(|one, other| one.path.cmp(&other.path));
        parts
    }

    /// The owner has ended.
    pub(super) fn free_parts(&self, slot: SlotId) {
        self.own_parts(slot).for_each(Record::free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::segment;

    #[test]
    fn parts_are_their_owners_and_go_with_it() {
        let (_fd, segment) = segment(0);
        let (one, life) = segment.attach_mortal().unwrap();
        let other = segment.attach(&|_| ()).unwrap();
        let publish = |slot, parts: &[(&str, u64, u64)]| {
            let parts = parts.iter().map(|(path, limit, bytes)| (path.as_bytes(), *limit, *bytes));
            segment.publish_parts(slot, parts);
        };
        let told = |slot| {
            let parts = segment.parts(slot).into_iter();
            parts.map(|part| format!("{} {} {}", part.path, part.limit, part.bytes)).collect::<Vec<_>>()
        };
        publish(one, &[("b", 1, 2), ("a/c", 3, 4)]);
        publish(other, &[("b", 5, 6)]);
        assert_eq!(
            (told(one), told(other)),
            (vec!["a/c 3 4".into(), "b 1 2".into()], vec!["b 5 6".to_owned()])
        );
        publish(one, &[("b", 1, 7), ("a", 8, 9), ("\u{1b}[1m", 0, 0)]);
        assert_eq!(told(one), ["?[1m 0 0", "a 8 9", "b 1 7"]);
        let (long, longer) =
            ("x".repeat(MAX_PATH - 1) + "y", "z".to_owned() + &"x".repeat(MAX_PATH - 1) + "y");
        publish(other, &[(&longer, 1, 1)]);
        assert_eq!(told(other), [format!("{long} 1 1")]);
        drop(life);
        segment.reap(&|_| ());
        assert_eq!(told(one), [""; 0]);
        let many: Vec<String> = (0..MAX_PARTS + 9).map(|number| number.to_string()).collect();
        let many: Vec<(&str, u64, u64)> = many.iter().map(|path| (path.as_str(), 1, 1)).collect();
        publish(other, &many);
        assert_eq!(told(other).len(), MAX_PARTS);
        publish(other, &[]);
        assert!(segment.records().iter().all(|record| record.owner.load(Relaxed) == 0));
    }
}
