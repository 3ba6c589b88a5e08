//! Eviction: cold blocks leave the program and go into the store.
//!
//! Blocks wait in a queue ([`crate::queue`]). The evictor takes the first, and with it those that follow both in the
//! queue and in memory (a *stretch*), and *detaches* the cold pages: one UFFDIO_MOVE for each run of them puts the
//! frames into a staging window, which is atomic for the program. Long runs matter: the kernel interrupts the other
//! processors once for each. The pages are then Evicting: compressed from the window without any lock, and a touch
//! meanwhile takes them back by a copy. The commit, under the group lock again, makes them Stored; what was taken
//! back is invalidated in the store. One MADV_DONTNEED empties the window for the whole batch.
//!
//! Second chance: a page that came back soon after an eviction has heat; each time the evictor passes it costs
//! one. There are no referenced bits in user space, so coming back is the only sign of use there is; the price is
//! that even a hot page leaves once before its heat is known.
//!
//! Where UFFDIO_MOVE is missing, or refuses a page, there are other ways to detach ([`crate::detach`]); the rest is
//! the same.
//!
//! Pages that are in common since a fork are first made the process's own. Until the last of those that have them
//! evicts them as well nothing is freed, and each has its own compressed copy: so over the limit they go last
//! ([`crate::guard`]).

use crate::detach::{
    Refused, detach, detach_by_copy, detach_readonly, detach_unlike, fill_holes, present, really_there,
};
use crate::engine::Engine;
use crate::mask::{Mask, STRETCH_BLOCKS, bits, ones, runs, spans};
use crate::pages::{BLOCK_PAGES, GROUP_PAGES, Group, State};
use crate::staging::Unstored;
use crate::sys::PAGE;
use ramfold::page::same_filled;
use ramfold::{Page, Scratch};
use ramfold_budget::door::Given;
use ramfold_budget::segment::Counter;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Pages of no more heat leave.
const COLD: u16 = 4;
/// Those of no more heat leave with a cold neighbour: what leaves side by side costs one TLB shootdown together, and
/// that costs more than bringing one of them back.
const LUKEWARM: u16 = 8;

/// One worker with its part of the staging window. Not shared between threads.
pub(crate) struct Evictor {
    places: Range<usize>,
    /// Nobody resolves this thread's faults: it is the one who does.
    alone: bool,
    scratch: Scratch,
    batch: Vec<Detached>,
}

/// Pages of a stretch in the staging window, each block of it in a place of its own, side by side.
struct Detached {
    blocks: Range<usize>,
    place: usize,
    /// Those that lie in the window.
    pages: Mask,
    /// Those that the store has.
    stored: Mask,
}

impl Evictor {
    pub(crate) fn new(engine: &Engine, places: Range<usize>) -> Self {
        Self { scratch: engine.scratch(), batch: Vec::with_capacity(places.len()), places, alone: false }
    }

    /// One for the thread that resolves faults.
    pub(crate) fn of_handler(engine: &Engine, places: Range<usize>) -> Self {
        Self { alone: true, ..Self::new(engine, places) }
    }

    /// Evicts the cold pages of the next blocks, as many blocks as the window has places and `blocks` allows. Over
    /// the limit, what other processes have as well stays as long as there is anything else. Called inside the gate.
    pub(crate) fn evict(&mut self, engine: &Engine, blocks: usize) -> Given {
        if engine.is_held() {
            return engine.give_uncounted(blocks);
        }
        let mut evicted = Given::default();
        let most = blocks.min(self.places.len());
        let mut taken = 0;
        if engine.member.usage.is_related() && engine.over_high() > 0 {
            taken = self.detach_next(engine, most, &mut evicted, |blocks| !engine.is_in_common(blocks));
        }
        if taken == 0 {
            taken = self.detach_next(engine, most, &mut evicted, |_| true);
        }
        for index in 0..self.batch.len() {
            self.store(engine, index);
        }
        let stored = self.batch.iter().map(|detached| u64::from(detached.stored.count_ones())).sum();
        engine.staging.note_stored(stored);
        for detached in &self.batch {
            commit(engine, detached, &mut evicted);
        }
        if taken > 0 {
            engine.staging.discard(self.places.start..self.places.start + taken, stored);
        }
        self.batch.clear();
        engine.count(Counter::EvictedPages, evicted.pages as u64);
        evicted
    }

    /// Detaches what may leave of the next stretches that are `wanted`. Returns how many places that takes.
    fn detach_next(
        &mut self,
        engine: &Engine,
        most: usize,
        evicted: &mut Given,
        wanted: impl Fn(&Range<usize>) -> bool,
    ) -> usize {
        // A pass over mostly hot blocks ends too.
        let patience = engine.queue().len().min(most * 64);
        let (mut taken, mut looked_at) = (0, 0);
        while taken < most && looked_at < patience {
            let Some(stretch) = next_stretch(engine, most - taken) else { break };
            looked_at += stretch.len().max(1);
            if stretch.is_empty() {
                continue;
            }
            if wanted(&stretch) {
                taken += self.detach_stretch(engine, stretch, self.places.start + taken);
            } else {
                requeue(engine, &engine.lock_group(stretch.start * BLOCK_PAGES), stretch);
            }
        }
        evicted.looked_at += looked_at;
        taken
    }

    /// Detaches what may leave of a stretch, whose eviction has begun. Returns how many places it takes, from `place`
    /// on.
    fn detach_stretch(&mut self, engine: &Engine, blocks: Range<usize>, place: usize) -> usize {
        let (first, count) = (blocks.start * BLOCK_PAGES, blocks.len() * BLOCK_PAGES);
        let staging = engine.staging.addr(place);
        // A move refuses by itself what is locked.
        let may_go = engine.moves && !engine.unlocked.load(Ordering::Relaxed);
        let staying = if may_go { 0 } else { engine.staying(first, count) };
        let group = engine.lock_group(first);
        for (at, block) in blocks.clone().enumerate() {
            engine.staging.hold(place + at, Some(block));
        }
        let (cold, absent) = choose(engine, &group, first, count);
        let cold = cold & !staying;
        let mut pages = 0;
        let mut refused = Refused::default();
        // A move goes over pages that are not there; a copy would bring them in.
        if engine.moves {
            for run in spans(cold, absent) {
                pages |= detach(engine, &group, (first, cold), run, staging, &mut refused);
            }
            let there = present(engine, staging, count);
            // Whatever else came along, and whyever: it is not lost.
            for bit in bits(there & !pages) {
                group.set(first + bit, State::Evicting);
            }
            fill_holes(engine, staging, pages & !there);
            pages |= there;
        } else {
            for run in runs(cold & really_there(engine, &group, first, count)) {
                pages |= detach_by_copy(engine, &group, first, run, staging);
            }
        }
        drop(group);
        if refused.unlike {
            pages |= detach_unlike(engine, (first, cold), count, staging);
            fill_holes(engine, staging, pages & !present(engine, staging, count));
        }
        // The kernel would tell the reader, and wait for it.
        if refused.unlike && !(self.alone && engine.uffd.tells_changes()) {
            pages |= detach_readonly(engine, first, count, staging);
        }
        let (detached, used) = (Detached { blocks, place, pages, stored: 0 }, count / BLOCK_PAGES);
        if pages == 0 {
            release(engine, &engine.lock_group(first), &detached);
            return 0;
        }
        self.batch.push(detached);
        used
    }

    fn store(&mut self, engine: &Engine, index: usize) {
        let detached = &mut self.batch[index];
        let mut zeros = 0;
        for bit in bits(detached.pages) {
            let page = staged_page(engine.staging.addr(detached.place) + bit * PAGE);
            let key = engine.key(detached.blocks.start * BLOCK_PAGES + bit);
            zeros += usize::from(same_filled(page) == Some(0));
            if engine.store().store(key, page, &mut self.scratch).is_ok() {
                detached.stored |= 1 << bit;
                engine.trace.iter().for_each(|trace| trace.left(key.index, engine.store().stored_len(key)));
            }
            // The pool grows, and the frames are still there: the other processes have to know.
            if bit % BLOCK_PAGES == BLOCK_PAGES - 1 {
                engine.enter_usage();
            }
        }
        engine.density.left(detached.pages.count_ones() as usize, zeros);
    }
}

/// The next blocks, at most `most`, that follow each other in the queue and in memory, as far as no other evictor
/// works on them: their eviction has begun. Where pages are copied it is one.
fn next_stretch(engine: &Engine, most: usize) -> Option<Range<usize>> {
    const GROUP_BLOCKS: usize = GROUP_PAGES / BLOCK_PAGES;
    let first = engine.queue().pop()?;
    let border = (first / GROUP_BLOCKS + 1) * GROUP_BLOCKS;
    let most = if engine.moves { most.min(STRETCH_BLOCKS).min(border - first) } else { 1 };
    let mut end = first;
    loop {
        if !engine.pages.block(end).try_begin_eviction() {
            engine.enqueue(end);
            return Some(first..end);
        }
        end += 1;
        if end == first + most || !engine.queue().pop_this(end) {
            return Some(first..end);
        }
    }
}

/// The commit point of an eviction.
fn commit(engine: &Engine, detached: &Detached, evicted: &mut Given) {
    let first = detached.blocks.start * BLOCK_PAGES;
    let group = engine.lock_group(first);
    let mut refused = 0;
    for bit in bits(detached.pages) {
        let page = first + bit;
        let stored = detached.stored >> bit & 1 != 0;
        match (group.state(page) == State::Evicting, stored) {
            (true, true) => {
                group.set(page, State::Stored);
                group.set_left(page, engine.clock());
                evicted.pages += 1;
            }
            (true, false) => refused |= 1 << bit,
            // Taken back or discarded meanwhile: what the store has is old.
            (false, true) => {
                engine.store().invalidate(engine.key(page));
            }
            (false, false) => {}
        }
    }
    let staged = engine.staging.addr(detached.place);
    let back = engine.give_back(Unstored { first, staged, pages: refused });
    for bit in bits(refused) {
        group.set(first + bit, if back >> bit & 1 != 0 { State::Resident } else { State::None });
    }
    evicted.refused += refused.count_ones() as usize;
    engine.evictions.fetch_add(detached.pages.count_ones().into(), Ordering::Relaxed);
    release(engine, &group, detached);
}

/// Ends the eviction of a stretch; its group is locked.
fn release(engine: &Engine, group: &Group<'_>, detached: &Detached) {
    for at in 0..detached.blocks.len() {
        engine.staging.hold(detached.place + at, None);
    }
    requeue(engine, group, detached.blocks.clone());
}

/// Nobody evicts these blocks any more; their group is locked. A block with resident pages is in the queue, one
/// without is not.
fn requeue(engine: &Engine, group: &Group<'_>, blocks: Range<usize>) {
    for block in blocks {
        engine.pages.block(block).end_eviction();
        let first = block * BLOCK_PAGES;
        if (first..first + BLOCK_PAGES).any(|page| group.state(page) == State::Resident) {
            engine.enqueue(block);
        } else {
            engine.pages.block(block).clear_queued();
        }
    }
}

/// The pages that shall leave (resident and cold, or lukewarm beside those; the others pay for being spared), and
/// those that are certainly not there.
fn choose(engine: &Engine, group: &Group<'_>, first: usize, count: usize) -> (Mask, Mask) {
    let (mut cold, mut lukewarm, mut absent, mut unknown) = (0, 0, 0, 0);
    let changed = engine.changed.load(Ordering::Relaxed);
    for bit in 0..count {
        let page = first + bit;
        if changed && group.state(page) == State::None {
            unknown |= 1 << bit;
        } else if group.state(page) != State::Resident {
            absent |= 1 << bit;
        } else if group.heat(page) <= COLD {
            cold |= 1 << bit;
        } else if group.heat(page) <= LUKEWARM {
            lukewarm |= 1 << bit;
        }
    }
    let leaving = with_neighbours(cold, lukewarm);
    for bit in bits(ones(0..count) & !leaving & !absent & !unknown) {
        let page = first + bit;
        group.set_heat(page, group.heat(page) - 1);
    }
    (leaving, absent)
}

/// `cold`, and what of `lukewarm` lies in one run with it.
fn with_neighbours(cold: Mask, lukewarm: Mask) -> Mask {
    runs(cold | lukewarm).map(ones).filter(|run| run & cold != 0).fold(0, |all, run| all | run)
}

fn staged_page(addr: usize) -> &'static Page {
    // SAFETY: the address is a page in the staging window, which only the evictor that owns the place writes, and
    // not while it holds pages; the frames stay until the same evictor discards them.
    unsafe { &*std::ptr::with_exposed_provenance::<Page>(addr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lukewarm_pages_leave_beside_cold_ones() {
        assert_eq!(with_neighbours(0b0000_0100, 0b1001_1010), 0b0001_1110);
        assert_eq!(with_neighbours(0, 0xffff), 0);
        assert_eq!(with_neighbours(0x8001, 0), 0x8001);
    }
}
