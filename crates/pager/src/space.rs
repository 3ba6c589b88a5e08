//! The address space inside the managed range: what is mapped where, and what is free.
//!
//! Plain bookkeeping, no system calls. Free ranges are taken best fit (the smallest that is large enough, the
//! lowest of those), which keeps use dense and so the pager's tables small.
//!
//! Invariants (`check`): free ranges and areas tile the range without gap or overlap; no two neighbouring free
//! ranges; no two neighbouring areas with the same attributes.

use crate::face::Prot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Whose pages an area holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Private anonymous memory: the pager's.
    Anonymous,
    /// Something else that the program put there at an address of its choice (a file, shared memory), or that the
    /// kernel put where such a thing was a moment ago: not touched.
    Foreign,
}

/// What a forked child gets of a range (`inherit.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OnFork {
    /// MADV_WIPEONFORK: zeros.
    pub(crate) wipe: bool,
    /// MADV_DONTFORK: nothing, whatever else is said.
    pub(crate) omit: bool,
}

/// Who made a range accessible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opener {
    Program,
    /// Malloc, piece by piece out of what it has reserved; what it frees stays accessible.
    Malloc,
}

/// The attributes of a mapped range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) prot: Prot,
    pub(crate) kind: Kind,
    /// mlock: never evicted.
    pub(crate) locked: bool,
    /// Never evicted either, which the program does not see ([`crate::keep`]).
    pub(crate) kept: bool,
    /// Inaccessible since it was mapped: no page of it has ever been used, and nobody made it so to catch an access.
    pub(crate) untouched: bool,
    pub(crate) opened_by: Opener,
    pub(crate) on_fork: OnFork,
    /// Its protection key; 0 is the one that all memory has (pkeys(7)).
    pub(crate) key: u8,
    /// Not MADV_DONTDUMP.
    pub(crate) in_dumps: bool,
}

impl Area {
    /// Private anonymous memory, not locked.
    pub(crate) fn new(prot: Prot) -> Self {
        let on_fork = OnFork::default();
        let opened_by = Opener::Program;
        let untouched = prot.0 == 0;
        let kind = Kind::Anonymous;
        Self { prot, kind, locked: false, kept: false, untouched, opened_by, on_fork, key: 0, in_dumps: true }
    }

    /// Nothing of it is evicted: it is locked in the kernel, but see [`Space::unlocked`].
    pub(crate) fn stays(&self) -> bool {
        self.locked || self.kept
    }

    /// What is not the pager's.
    pub(crate) fn foreign() -> Self {
        Self { kind: Kind::Foreign, untouched: false, ..Self::new(Prot(0)) }
    }
}

/// All areas and free ranges. Addresses and lengths are multiples of the page size.
#[derive(Debug)]
pub(crate) struct Space {
    #[cfg(test)]
    range: Range<usize>,
    areas: BTreeMap<usize, (usize, Area)>,
    free: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
    writable: usize,
    /// Shared memory that shmat put into the range: its length.
    pub(crate) attached: BTreeMap<usize, usize>,
    /// mlockall(MCL_FUTURE): what becomes accessible is locked.
    pub(crate) locks_new: bool,
    /// Some of what stays is not locked in the kernel ([`mod@crate::lock`]).
    pub(crate) unlocked: Arc<AtomicBool>,
}

impl Space {
    pub(crate) fn new(range: Range<usize>) -> Self {
        let mut space = Self {
            #[cfg(test)]
            range: range.clone(),
            areas: BTreeMap::new(),
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
            writable: 0,
            attached: BTreeMap::new(),
            locks_new: false,
            unlocked: Arc::default(),
        };
        space.add_free(range);
        space
    }

    /// Bytes in writable anonymous areas: as much memory as the program can make resident by touching.
    pub(crate) fn writable_bytes(&self) -> usize {
        self.writable
    }

    /// Bytes that the program can use: accessible anonymous areas and foreign ones, of malloc's what `held` says.
    pub(crate) fn bytes_in_use(&self, held: impl Fn(Range<usize>) -> usize) -> usize {
        let of = |(&start, &(end, area)): (&usize, &(usize, Area))| match area {
            Area { opened_by: Opener::Malloc, .. } => held(start..end),
            Area { kind: Kind::Anonymous, prot: Prot(0), .. } => 0,
            _ => end - start,
        };
        self.areas.iter().map(of).sum()
    }

    /// Where `len` bytes would fit; nothing is taken yet.
    pub(crate) fn find(&self, len: usize, align: usize) -> Option<usize> {
        self.by_size.range((len, 0)..).find_map(|&(size, start)| {
            let at = start.checked_next_multiple_of(align)?;
            (at + len <= start + size).then_some(at)
        })
    }

    /// Nothing is mapped in the range.
    pub(crate) fn is_free(&self, range: &Range<usize>) -> bool {
        self.areas_in(range).is_empty()
    }

    /// All of the range is mapped.
    pub(crate) fn is_mapped(&self, range: &Range<usize>) -> bool {
        self.areas_in(range).iter().map(|(part, _)| part.len()).sum::<usize>() == range.len()
    }

    /// The areas in the range, cut to it, in order.
    pub(crate) fn areas_in(&self, range: &Range<usize>) -> Vec<(Range<usize>, Area)> {
        let first = self.areas.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        self.areas
            .range(first..range.end)
            .map(|(&start, &(end, area))| (start.max(range.start)..end.min(range.end), area))
            .filter(|(part, _)| part.start < part.end)
            .collect()
    }

    /// The area at an address.
    pub(crate) fn area_at(&self, addr: usize) -> Option<(Range<usize>, Area)> {
        let (&start, &(end, area)) = self.areas.range(..=addr).next_back()?;
        (addr < end).then_some((start..end, area))
    }

    /// Maps the range with these attributes, over whatever was there.
    pub(crate) fn set(&mut self, range: Range<usize>, area: Area) {
        self.clear_areas(&range);
        self.take_free(&range);
        self.writable += writable_len(&range, area);
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &(before_end, other))) = self.areas.range(..start).next_back()
            && before_end == start
            && other == area
        {
            self.areas.remove(&before);
            start = before;
        }
        if let Some(&(after_end, other)) = self.areas.get(&end)
            && other == area
        {
            self.areas.remove(&end);
            end = after_end;
        }
        self.areas.insert(start, (end, area));
    }

    /// Unmaps the range; what is free stays free.
    pub(crate) fn clear(&mut self, range: &Range<usize>) {
        self.clear_areas(range);
        self.take_free(range);
        self.add_free(range.clone());
    }

    /// The program has nothing locked any more, and nothing will be.
    pub(crate) fn unlock_all(&mut self) {
        self.locks_new = false;
        let locked: Vec<_> =
            self.areas.iter().filter(|(_, (_, area))| area.locked).map(|(&at, &found)| (at, found)).collect();
        for (start, (end, area)) in locked {
            self.set(start..end, Area { locked: false, ..area });
        }
    }

    fn clear_areas(&mut self, range: &Range<usize>) {
        for (part, area) in self.areas_in(range) {
            self.writable -= writable_len(&part, area);
            let (&start, &(end, _)) = self.areas.range(..=part.start).next_back().expect("areas_in found it");
            self.areas.remove(&start);
            if start < part.start {
                self.areas.insert(start, (part.start, area));
            }
            if part.end < end {
                self.areas.insert(part.end, (end, area));
            }
        }
    }

    fn take_free(&mut self, range: &Range<usize>) {
        let first = self.free.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched: Vec<_> = self
            .free
            .range(first..range.end)
            .map(|(&start, &len)| start..start + len)
            .filter(|part| part.end > range.start)
            .collect();
        for part in touched {
            self.remove_free(&part);
            if part.start < range.start {
                self.insert_free(part.start..range.start);
            }
            if range.end < part.end {
                self.insert_free(range.end..part.end);
            }
        }
    }

    fn add_free(&mut self, mut range: Range<usize>) {
        if let Some((&before, &len)) = self.free.range(..range.start).next_back()
            && before + len == range.start
        {
            self.remove_free(&(before..range.start));
            range.start = before;
        }
        if let Some(&len) = self.free.get(&range.end) {
            let after = range.end..range.end + len;
            self.remove_free(&after);
            range.end = after.end;
        }
        self.insert_free(range);
    }

    fn insert_free(&mut self, range: Range<usize>) {
        self.free.insert(range.start, range.len());
        self.by_size.insert((range.len(), range.start));
    }

    fn remove_free(&mut self, range: &Range<usize>) {
        self.free.remove(&range.start);
        self.by_size.remove(&(range.len(), range.start));
    }

    /// Panics unless the invariants hold.
    #[cfg(test)]
    fn check(&self) {
        let mut parts: Vec<(usize, usize, Option<Area>)> =
            self.areas.iter().map(|(&start, &(end, area))| (start, end, Some(area))).collect();
        parts.extend(self.free.iter().map(|(&start, &len)| (start, start + len, None)));
        parts.sort_by_key(|part| part.0);
        assert_eq!(parts.first().map(|part| part.0), Some(self.range.start));
        assert_eq!(parts.last().map(|part| part.1), Some(self.range.end));
        for pair in parts.windows(2) {
            assert_eq!(pair[0].1, pair[1].0, "gap or overlap");
            assert_ne!(pair[0].2, pair[1].2, "neighbours that should be one");
        }
        assert_eq!(self.by_size.len(), self.free.len());
    }
}

fn writable_len(range: &Range<usize>, area: Area) -> usize {
    if area.kind == Kind::Anonymous && area.prot.writable() { range.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 64;

    fn area(id: u8) -> Area {
        Area::new(Prot(i32::from(id) & 7))
    }

    proptest! {
        /// The model: an array with one cell a page.
        #[test]
        fn agrees_with_an_array(
            operations in prop::collection::vec(
                (0usize..PAGES, 1usize..20, prop::option::of(0u8..3)), 1..80)
        ) {
            let mut space = Space::new(4096..4096 * (PAGES + 1));
            let mut model = [None; PAGES];
            for (at, len, what) in operations {
                let end = (at + len).min(PAGES);
                let range = (at + 1) * 4096..(end + 1) * 4096;
                match what {
                    Some(id) => space.set(range, area(id)),
                    None => space.clear(&range),
                }
                model[at..end].fill(what.map(area));
                space.check();
                for (page, cell) in model.iter().enumerate() {
                    prop_assert_eq!(space.area_at((page + 1) * 4096).map(|found| found.1), *cell);
                }
                let writable = model.iter().filter(|cell| cell.is_some_and(|area| area.prot.writable())).count();
                prop_assert_eq!(space.writable_bytes(), writable * 4096);
                let fits = model.windows(4).any(|window| window.iter().all(Option::is_none));
                prop_assert_eq!(space.find(4 * 4096, 4096).is_some(), fits);
            }
        }
    }
}
