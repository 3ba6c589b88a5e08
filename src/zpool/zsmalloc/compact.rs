//! Compaction of zsmalloc: sparse zspages are emptied into fuller ones.
//!
//! A step takes one zspage, the sparsest of its class, moves its objects into free slots of the fullest others
//! and, when those have no more, the rest down into its own lowest slots; then the zspage, or the pages at its
//! end that became empty, go back to the system. Steps go on while they give pages back; then all zspages of
//! the class but one are full and that one ends with its last object.
//!
//! The price is a copy of each object moved. The guarantee: a step holds one class's lock for the copies of at
//! most one zspage (64 KiB), and objects that are being read or written are left where they are.

use std::sync::atomic::Ordering;

use super::classes::Shape;
use super::zspage::NO_SLOT;
use super::{Class, LIVE, Place, State, Zsmalloc};
use crate::page::PAGE_SIZE;
use crate::zpool::lock;

/// Zspages that a step looks at in search of one that is worth it and not pinned.
const TRIES: usize = 16;

impl Zsmalloc {
    /// Compacts until `max_pages` pages have been given back or there is nothing more to gain, going on where
    /// the last call stopped. Returns the pages given back, at most 15 more than asked for. The arena's reserve
    /// stays.
    pub(super) fn empty_sparse(&self, max_pages: usize) -> usize {
        let mut freed = 0;
        for _ in 0..self.classes.len() {
            let at = self.compact_from.load(Ordering::Relaxed) % self.classes.len();
            while freed < max_pages {
                match self.compact_step(&self.classes[at]) {
                    0 => break,
                    pages => freed += pages,
                }
            }
            if freed >= max_pages {
                break;
            }
            self.compact_from.store(at + 1, Ordering::Relaxed);
        }
        freed
    }

    /// Empties one zspage of the class, or its end. Returns the pages given back.
    fn compact_step(&self, class: &Class) -> usize {
        let mut state = lock(&class.state);
        let mut sources = state.lists.sparsest(&self.zspages).take(TRIES);
        let source = sources.find(|source| {
            self.is_worth_moving(class, &state, *source) && self.zspages[*source].start_moving()
        });
        drop(sources);
        source.map_or(0, |source| self.evacuate(class, &mut state, source))
    }

    /// Whether at least one page would become empty.
    fn is_worth_moving(&self, class: &Class, state: &State, source: u32) -> bool {
        let zspage = &self.zspages[source];
        let (live, slots) = (usize::from(zspage.live.get()), usize::from(zspage.slots.get()));
        let elsewhere = state.slots - state.objects - (slots - live);
        let left = live.saturating_sub(elsewhere);
        class.shape.pages_for(left) < usize::from(zspage.pages.get())
    }

    /// Moves what can be moved out of `source`, which nobody has pinned or can pin.
    fn evacuate(&self, class: &Class, state: &mut State, source: u32) -> usize {
        let zspage = &self.zspages[source];
        state.lists.unlink(&self.zspages, source);
        let mut lowest = 0;
        for slot in (0..zspage.fresh.get()).rev() {
            let from = Place { zspage: source, slot };
            let tag = self.tag(&class.shape, from).load(Ordering::Relaxed);
            if tag & LIVE == 0 {
                continue;
            }
            let to = if let Some(fullest) = state.lists.fullest() {
                zspage.live.set(zspage.live.get() - 1);
                self.take_slot(class, state, fullest, tag & !LIVE)
            } else {
                while lowest < slot && self.is_live(&class.shape, source, lowest) {
                    lowest += 1;
                }
                if lowest == slot {
                    break;
                }
                let to = Place { zspage: source, slot: lowest };
                self.set_tag(&class.shape, to, tag);
                to
            };
            self.copy(&class.shape, from, to);
            self.handles.set(tag & !LIVE, to.to_bits());
        }
        self.close_up(class, state, source)
    }

    /// Gives back what `source` no longer needs: its objects are in its lowest slots now.
    fn close_up(&self, class: &Class, state: &mut State, source: u32) -> usize {
        let zspage = &self.zspages[source];
        let live = zspage.live.get();
        zspage.fresh.set(live);
        zspage.free.set(NO_SLOT);
        if live == 0 {
            let pages = self.forget(class, state, source);
            zspage.settle();
            return self.arena.release(source, pages);
        }
        let tail = self.arena.drop_tail(source);
        let pages = usize::from(zspage.pages.get());
        let needed = class.shape.pages_for(usize::from(live));
        let freed = self.arena.decommit(source, needed, pages);
        self.set_pages(class, state, source, pages - freed);
        zspage.settle();
        state.lists.refile(&self.zspages, source, class.shape.slots);
        freed + tail
    }

    fn is_live(&self, shape: &Shape, zspage: u32, slot: u16) -> bool {
        self.tag(shape, Place { zspage, slot }).load(Ordering::Relaxed) & LIVE != 0
    }

    /// Copies an object's bytes from slot to slot.
    fn copy(&self, shape: &Shape, from: Place, to: Place) {
        let len = shape.payload();
        let skip = shape.size - len;
        let bytes =
            |place: Place| self.arena.ptr(place.zspage, usize::from(place.slot) * shape.size + skip, len);
        debug_assert!(from != to && len <= PAGE_SIZE);
        self.arena.note_write(bytes(to), len);
        // SAFETY: both slots lie in committed pages and differ, so they do not overlap; nobody is in the source
        // (it is not pinned and cannot be), and nobody knows the target's place yet. Bytes the owner has not
        // written are zeros or old ones, both initialised.
        unsafe { bytes(to).copy_from_nonoverlapping(bytes(from), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zpool::{ArenaOptions, Handle, Zpool};

    /// Sizes as compressed pages have them: broad, 1700 bytes in the mean.
    fn size(number: u64) -> usize {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let part = |shift: u32| usize::try_from(mixed >> shift & 0xfff).unwrap();
        100 + (part(52) + part(40)) * 3200 / 8192
    }

    /// Bytes of pages for each byte of objects.
    fn overhead(pool: &Zsmalloc, objects: &[(Handle, usize)]) -> f64 {
        let bytes: usize = objects.iter().map(|(_, size)| size).sum();
        (pool.total_pages() * PAGE_SIZE) as f64 / bytes as f64
    }

    #[test]
    fn an_aged_pool_is_as_dense_as_a_fresh_one() {
        let pool = Zsmalloc::new(&ArenaOptions { bytes: 1 << 30, ..ArenaOptions::default() }).unwrap();
        let mut next = 0;
        let mut store = || {
            next += 1;
            (pool.malloc(size(next)).unwrap(), size(next))
        };
        let mut objects: Vec<_> = (0..16_000).map(|_| store()).collect();
        let fresh = overhead(&pool, &objects);
        for round in 0..10 {
            let mut kept: Vec<_> = Vec::new();
            for (number, object) in objects.into_iter().enumerate() {
                if (number + round) % 5 < 2 { pool.free(object.0) } else { kept.push(object) }
            }
            kept.extend((kept.len()..16_000).map(|_| store()));
            objects = kept;
            pool.compact(usize::MAX);
        }
        pool.check();
        let aged = overhead(&pool, &objects);
        assert!(fresh <= 1.035 && aged <= 1.035, "fresh {fresh:.4}, aged {aged:.4}");
    }

    #[test]
    fn bounded_compaction_gets_to_the_same_end() {
        let pool = Zsmalloc::new(&ArenaOptions { bytes: 1 << 30, ..ArenaOptions::default() }).unwrap();
        let objects: Vec<_> = (0..4000).map(|number| pool.malloc(size(number)).unwrap()).collect();
        for handle in objects.iter().step_by(2) {
            pool.free(*handle);
        }
        let mut calls = 0;
        loop {
            let held = pool.total_pages();
            let freed = pool.empty_sparse(4);
            assert_eq!(pool.total_pages(), held - freed);
            assert!(freed <= 4 + 15, "{freed}");
            pool.check();
            if freed == 0 {
                break;
            }
            calls += 1;
        }
        assert!(calls > 10, "{calls} calls");
        pool.compact(usize::MAX);
        assert_eq!(pool.compact(usize::MAX), 0);
        objects.iter().skip(1).step_by(2).for_each(|handle| pool.free(*handle));
        pool.compact(usize::MAX);
        assert_eq!(pool.total_pages(), 0);
    }
}
