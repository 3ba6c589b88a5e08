//! Faults: a touched page is brought back, with its neighbours when use is sequential. What a long sequence brings back
//! it only passes over ([`crate::queue`]), unless it did so the last time, not so long ago that memory could not have
//! kept the page: then it stays.
//!
//! One thread reads the userfaultfd and resolves each fault before it reads the next. It runs on the core of the
//! thread that faults: that thread is about to sleep, so the hand-over is a context switch, while a core that has
//! gone idle would first have to be woken (20-50 us in a virtual machine).
//!
//! Order of a load: the page is loaded into a buffer of the handler's own, placed by UFFDIO_COPY (which also wakes
//! the program), and only then invalidated in the store. A page that cannot be loaded ends the program.

use crate::detach::{fill_holes, present};
use crate::engine::Engine;
use crate::evict::Evictor;
use crate::fresh;
use crate::inbox::{self, Changing, changes};
use crate::pages::{BLOCK_PAGES, GROUP_PAGES, Group, State};
use crate::staging::Bell;
use crate::streams::{Ahead, Streams};
use crate::sys::{self, PAGE};
use crate::trace::Trace;
use crate::uffd::{Fault, Message, Progress};
use ramfold::{LoadError, PAGE_SIZE, Page, Scratch};
use ramfold_budget::door::Given;
use ramfold_budget::effort::{Effort, Turn, Wait};
use ramfold_budget::segment::Counter;
use ramfold_budget::time::now_ns;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most pages that one fault brings.
const MAX_WINDOW: usize = 16;
const MESSAGES: usize = 16;
/// Heat for a page that comes back at once.
const HOTTEST: u16 = 12;
/// Faults between two looks at the memory beside managed pages and pool.
const REFRESH: u32 = 256;
/// The same where other processes share that since a fork: a load writes to the pool, and the kernel copies.
const REFRESH_OF_RELATED: u32 = 32;

/// The state of the thread that resolves faults.
pub(crate) struct Handler {
    /// Pages on their way into the program.
    buffer: Box<[Page; MAX_WINDOW]>,
    scratch: Scratch,
    streams: Streams,
    reclaim: Evictor,
    cpu: Option<usize>,
    served: u32,
    stands_in: bool,
}

impl Handler {
    /// `reclaim` makes room when the evictor does not keep up.
    pub(crate) fn new(engine: &Engine, reclaim: Evictor) -> Self {
        Self {
            buffer: Box::new([[0; PAGE_SIZE]; MAX_WINDOW]),
            scratch: engine.scratch(),
            streams: Streams::default(),
            reclaim,
            cpu: None,
            served: 0,
            stands_in: false,
        }
    }

    /// Resolves faults in the place of the handler's thread until that rings. Signals are blocked: nobody would serve a
    /// handler's faults. No room is made: the evictor, which would have to, may be the thread that waits for a page.
    /// The pages are the few that a thread touches before its first line.
    pub(crate) fn stand_in(&mut self, engine: &Engine) {
        self.stands_in = true;
        engine.uffd.become_reader();
        let mut messages = [Message::default(); MESSAGES];
        let mut rung = false;
        while !rung {
            let count = await_messages(engine, &mut messages);
            let _inside = engine.enter();
            for fault in faults(engine, &mut messages, count) {
                rung |= fault.addr & !(PAGE - 1) == engine.staging.bell(Bell::Threads);
                self.serve(engine, fault);
            }
        }
    }

    /// Resolves faults until the engine stops.
    pub(crate) fn run(&mut self, engine: &Engine) {
        engine.uffd.become_reader();
        let mut messages = [Message::default(); MESSAGES];
        while !(engine.stopping.load(Ordering::Acquire) && engine.workers.load(Ordering::Acquire) == 0) {
            let count = await_messages(engine, &mut messages);
            let start = now_ns();
            let _inside = engine.enter();
            engine.trace.iter().for_each(|trace| trace.came(start));
            for fault in faults(engine, &mut messages, count) {
                self.follow(engine, fault.tid);
                self.serve(engine, fault);
                engine.member.segment().record_fault_ns(engine.member.slot(), now_ns() - start);
            }
            engine.trace.iter().for_each(Trace::served);
        }
        // Who rings now finds nobody here, and must not wait.
        for bell in Bell::ALL {
            engine.uffd.zeropage(engine.staging.bell(bell), PAGE);
        }
    }

    /// Moves to the core of the thread that faulted.
    fn follow(&mut self, engine: &Engine, tid: u32) {
        if let Some(cpu) = engine.host.cpu_of(tid)
            && self.cpu != Some(cpu)
        {
            sys::run_on(cpu);
            self.cpu = Some(cpu);
        }
    }

    fn serve(&mut self, engine: &Engine, fault: Fault) {
        if engine.staging.contains(fault.addr) {
            engine.answer_evictor();
            // A hole in what an evictor moved: zeros.
            let addr = fault.addr & !(PAGE - 1);
            engine.put(&(addr..addr + PAGE), || engine.uffd.zeropage(addr, PAGE));
            return;
        }
        if !engine.pages.range().contains(&fault.addr) {
            return engine.let_go(fault.addr & !(PAGE - 1));
        }
        self.served = self.served.wrapping_add(1);
        let often = if engine.member.usage.is_related() { REFRESH_OF_RELATED } else { REFRESH };
        if self.served.is_multiple_of(often) {
            engine.member.usage.look_for_own();
            engine.refresh_usage();
        }
        self.make_room(engine);
        let page = engine.pages.number(fault.addr);
        let touched = loop {
            let group = Self::lock(engine, page);
            if let Ok(touched) = self.resolve(engine, &group, page, fault) {
                break touched;
            }
            drop(group);
            engine.read_on();
        };
        engine.trace.iter().for_each(|trace| trace.touched(page..page + touched, fault.write));
        engine.enter_usage();
        engine.count(Counter::Faults, 1);
        if engine.over_low() > 0 {
            engine.evictor().call();
        }
    }

    /// Locks the group of a page. All changes that have been read are taken up then.
    fn lock<'a>(engine: &'a Engine, page: usize) -> Group<'a> {
        loop {
            engine.take_up_changes();
            let group = engine.lock_group(page);
            if !engine.inbox.has_change() {
                return group;
            }
        }
    }

    /// Brings a page; its group is locked. How many were brought because they are touched.
    fn resolve(
        &mut self,
        engine: &Engine,
        group: &Group<'_>,
        page: usize,
        fault: Fault,
    ) -> Result<usize, Changing> {
        let touched = match group.state(page) {
            State::None => {
                fresh::fill(engine, group, fault, &mut self.streams)?;
                1
            }
            State::Stored => return self.bring_back(engine, group, page),
            State::Evicting => {
                rescue(engine, group, page)?;
                1
            }
            State::Resident => {
                settle(engine, group, page, fault);
                0
            }
        };
        Ok(touched)
    }

    /// Evicts, here and now, until one more page fits.
    fn make_room(&mut self, engine: &Engine) {
        if self.stands_in || engine.over_high() == 0 || engine.is_held() {
            return;
        }
        let mut wait = Wait::new(&engine.member);
        let mut effort = Effort::default();
        while engine.over_high() > 0 {
            engine.evictor().call();
            // The evictor cannot get on while the gate is closed, nor can it be closed while this thread is inside.
            if engine.gate.step_aside(|| engine.enter()) {
                wait = Wait::new(&engine.member);
            }
            engine.take_up_changes();
            // Where pages are copied the kernel tells the reader when they are dropped, and waits for it.
            let able = engine.moves || !engine.uffd.tells_changes();
            let (turn, _) = effort.turn(&engine.member, engine, || {
                if able { self.reclaim.evict(engine, 1) } else { Given::default() }
            });
            if turn == Turn::Made || (able && turn == Turn::Trying) {
                continue;
            }
            if (able || wait.is_stalled(&engine.member)) && effort.squeeze(&engine.member, engine) {
                wait = Wait::new(&engine.member);
                continue;
            }
            let is_at_work = !engine.stopping.load(Ordering::Acquire);
            let is_unheard = is_at_work && wait.is_unheard(&engine.member, engine, able);
            if !wait.goes_on(&engine.member, able) && !is_unheard {
                engine.out_of_memory();
            }
            engine.read_on();
            std::thread::sleep(if able { Duration::from_millis(1) } else { Duration::from_micros(50) });
        }
    }
    /// Loads a page, and those that follow it when use is sequential. Returns how many are there now.
    fn bring_back(&mut self, engine: &Engine, group: &Group<'_>, page: usize) -> Result<usize, Changing> {
        let addr = engine.pages.addr(page);
        let Ahead { pages: window, sustained } =
            self.ahead(engine, page, |page| group.state(page) == State::Stored);
        let away = engine.evictions_since(group.left(page));
        let passed = sustained && !(group.is_passed(page) && self.is_worth_keeping(engine, away));
        let loaded = self.load(engine, page, window);
        let Progress { bytes, stopped } = place(engine, addr, &self.buffer[..loaded]);
        let placed = bytes / PAGE;
        if placed == 0 && stopped == Some(Errno::AGAIN) {
            return Err(Changing);
        }
        for back in page..page + placed {
            engine.set_back(group, back, passed);
            engine.store().invalidate(engine.key(back));
        }
        self.streams.brought(page, window, placed.max(1));
        if passed {
            group.set_heat(page, 0);
        } else {
            warm(engine, group, page, away);
        }
        engine.count(Counter::Refaults, placed as u64);
        if placed == 0 {
            match stopped {
                Some(Errno::NOENT | Errno::SRCH) | None => engine.uffd.wake(addr, PAGE),
                Some(errno) => engine.lose("it cannot be put back", errno),
            }
        }
        Ok(placed)
    }

    /// Whether what a sequence passes over for the second time shall stay: if memory would clearly have held it since
    /// the last time, or now and then if it might have, so that what nobody uses any more does not stay in its place.
    fn is_worth_keeping(&self, engine: &Engine, away: u64) -> bool {
        const NOW_AND_THEN: u32 = 8;
        let resident = engine.pages.resident();
        away < resident / 4 || away < resident && self.served.is_multiple_of(NOW_AND_THEN)
    }

    /// Loads up to `window` pages into the buffer; at least the first, or the program ends.
    fn load(&mut self, engine: &Engine, page: usize, window: usize) -> usize {
        for ahead in 0..window {
            let result =
                engine.store().load(engine.key(page + ahead), &mut self.buffer[ahead], &mut self.scratch);
            match result {
                Ok(()) => {}
                Err(_) if ahead > 0 => return ahead,
                Err(LoadError::Miss) => engine.die("a page was lost: the store does not have it"),
                Err(error) => engine.die(&format!("a page was lost: {error}")),
            }
        }
        window
    }

    /// What of the pages from `page` on to bring: what the faults before suggest, as far as `wanted` goes, not over
    /// the border of the group, and not when memory is short.
    fn ahead(&mut self, engine: &Engine, page: usize, wanted: impl Fn(usize) -> bool) -> Ahead {
        let most = MAX_WINDOW.min(GROUP_PAGES - page % GROUP_PAGES);
        let suggested = self.streams.ahead(page, most, |page| engine.pages.seems_framed(page));
        let fitting = if engine.over_high() > 0 { 1 } else { to_border(page, suggested.pages) };
        let pages = (page..page + fitting).take_while(|page| wanted(*page)).count().max(1);
        self.streams.brought(page, suggested.pages, pages);
        Ahead { pages, ..suggested }
    }
}

/// Cuts a window at the last border of a block in it: blocks leave as a whole, and should come so.
fn to_border(page: usize, pages: usize) -> usize {
    let border = (page + pages) / BLOCK_PAGES * BLOCK_PAGES;
    if border > page { border - page } else { pages }
}

/// Copies pages into the program. Where not all of them lie in one mapping the kernel takes none: then fewer, and at
/// last the first alone, or its fault would come again for ever.
fn place(engine: &Engine, addr: usize, pages: &[Page]) -> Progress {
    let mut count = pages.len();
    loop {
        let len = count * PAGE;
        let progress = engine.put(&(addr..addr + len), || engine.uffd.copy(addr, pages.as_ptr().addr(), len));
        if progress.bytes > 0 || count == 1 || progress.stopped == Some(Errno::AGAIN) {
            return progress;
        }
        count /= 2;
    }
}

/// Waits for messages, unless some were read early; returns how many came.
fn await_messages(engine: &Engine, messages: &mut [Message]) -> usize {
    if !engine.inbox.is_empty() {
        return 0;
    }
    // All that was read is taken up.
    engine.inbox.forget_what_is_over();
    match engine.uffd.read(messages) {
        Ok(count) => {
            // First: whoever is helped or answered needs to know of the changes.
            engine.inbox.begin_outside(changes(messages[..count].iter()));
            // The gate may be closed by who waits until the evictor, which waits for a page, has left it.
            inbox::faults(&messages[..count]).for_each(|fault| engine.help_evictor(fault));
            count
        }
        Err(Errno::INTR | Errno::AGAIN) => 0,
        Err(errno) => engine.die(&format!("page faults can no longer be read ({errno})")),
    }
}

/// The faults among the messages that came, or else among those that were read early, once the changes are taken up.
fn faults<'a>(
    engine: &Engine,
    messages: &'a mut [Message],
    count: usize,
) -> impl Iterator<Item = Fault> + use<'a> {
    let count = if count == 0 { engine.inbox.take(messages) } else { count };
    let messages = &messages[..count];
    for change in changes(messages.iter()) {
        engine.take_up(&change);
    }
    inbox::faults(messages)
}

/// The page is on its way out: back with it.
fn rescue(engine: &Engine, group: &Group<'_>, page: usize) -> Result<(), Changing> {
    let Some(staged) = engine.staging.find(page) else {
        engine.die("a page was lost: it is in no staging window");
    };
    // The reader cannot wait for itself to fill a hole in the window.
    fill_holes(engine, staged, !present(engine, staged, 1) & 1);
    if !engine.put_in_place(page, staged) {
        group.set(page, State::None);
        return Err(Changing);
    }
    group.set(page, State::Resident);
    group.set_heat(page, group.heat(page) + HOTTEST);
    let addr = engine.pages.addr(page);
    engine.uffd.wake(addr, PAGE);
    Ok(())
}

/// The page is said to be there: the fault is an old one, or a write to a page that was protected.
fn settle(engine: &Engine, group: &Group<'_>, page: usize, fault: Fault) {
    let addr = engine.pages.addr(page);
    if fault.write_protected {
        engine.unguard(group, page);
    } else {
        // Discarded by a system call that the library did not see: zeros are what the program asked for.
        engine.uffd.zeropage(addr, PAGE);
    }
    engine.uffd.wake(addr, PAGE);
}

/// A page that comes back before as many were evicted as are resident is worth keeping (the refault distance of
/// `mm/workingset.c`): the sooner, the longer. Each unit of heat is one round of the evictor that it stays. In a
/// simulation of zipfian touches with room for half the pages this misses 13 % less often than one unit each time.
fn warm(engine: &Engine, group: &Group<'_>, page: usize, away: u64) {
    let resident = engine.pages.resident();
    let heat = group.heat(page);
    group.set_heat(
        page,
        match away {
            _ if away < resident / 16 => heat + HOTTEST,
            _ if away < resident / 8 => heat + 6,
            _ if away < resident / 4 => heat + 3,
            _ if away < resident => heat + 1,
            _ => heat / 2,
        },
    );
}
