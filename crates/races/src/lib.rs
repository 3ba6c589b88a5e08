//! The pager's gate, events, phases and fork in every order of their steps, under [loom](https://docs.rs/loom).
//!
//! The very files of the pager are compiled here with other neighbours: `futex` is a model, which never forgets a
//! sleeper and never wakes one early, and has no timeouts. A call that is lost is then a thread that sleeps for ever,
//! and loom says so; memory that two threads reach at once, or one before it sees what the other wrote, is found by
//! loom's cells.
//!
//! Price: three threads at most, and as few steps as can be.
#![cfg(test)]
#![allow(dead_code, unreachable_pub, reason = "the files have more than is tried here")]

#[path = "../../budget/src/event.rs"]
mod event;
mod futex;
#[path = "../../pager/src/gate.rs"]
mod gate;
#[path = "../../pager/src/mutex.rs"]
mod mutex;
#[path = "../../pager/src/phase.rs"]
mod phase;

/// What the files ask of the clock.
mod time {
    pub fn now_ns() -> u64 {
        0
    }
}

/// Nobody waits awake here.
mod crowd {
    pub struct Crowd;

    impl Crowd {
        pub fn make_way(&mut self) -> bool {
            false
        }

        pub fn is_there(&self) -> bool {
            true
        }
    }
}

use event::Event;
use gate::Gate;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use mutex::Mutex;
use phase::Phase;
use std::time::Duration;

/// Tries every order with up to three changes of thread where none is needed: errors need no more, as a rule
/// (Musuvathi and Qadeer, PLDI 2007).
fn model(steps: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(steps);
}

/// Memory that loom watches.
#[derive(Default)]
struct Watched(UnsafeCell<u32>);

// SAFETY: loom fails the test when two threads reach it without an order between them.
unsafe impl Sync for Watched {}

impl Watched {
    fn add(&self) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

#[test]
fn who_closes_the_gate_is_alone_and_sees_what_was_done_inside() {
    model(|| {
        let shared = Arc::new((Gate::default(), [Watched::default(), Watched::default()]));
        let workers = [0, 1].map(|own| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, watched) = &*shared;
                let _inside = gate.enter();
                watched[own].add();
            })
        });
        let (gate, watched) = &*shared;
        gate.close();
        watched.iter().for_each(Watched::add);
        gate.open();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!([watched[0].get(), watched[1].get()], [2, 2]);
    });
}

#[test]
fn two_who_close_the_gate_take_turns() {
    model(|| {
        let shared = Arc::new((Gate::default(), Watched::default()));
        let close = |shared: &(Gate, Watched)| {
            let _closed = shared.0.close_scoped();
            shared.1.add();
        };
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || close(&other));
        close(&shared);
        other.join().unwrap();
        let _inside = shared.0.enter();
        assert_eq!(shared.1.get(), 2);
    });
}

/// Who waits inside for what a closer does lets it in, and is inside again, alone with its memory, once it is done.
#[test]
fn who_steps_aside_lets_a_closer_in() {
    model(|| {
        let shared = Arc::new((Gate::default(), Watched::default()));
        let other = Arc::clone(&shared);
        let closer = thread::spawn(move || {
            let _closed = other.0.close_scoped();
            other.1.add();
        });
        let (gate, watched) = &*shared;
        {
            let _inside = gate.enter();
            let before = watched.get();
            let stepped = gate.step_aside(|| gate.enter());
            assert_eq!(watched.get() > before, stepped, "it was done meanwhile, or not at all");
        }
        closer.join().unwrap();
        let _closed = gate.close_scoped();
        assert_eq!(watched.get(), 1);
    });
}

#[test]
fn who_has_a_lock_is_alone_and_who_waits_gets_it() {
    model(|| {
        let shared = Arc::new((Mutex::default(), Watched::default()));
        let others = [0, 1].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let _locked = shared.0.lock();
                shared.1.add();
            })
        });
        // Here a wait ends when it is woken: somebody has given the lock back, and somebody else may have it.
        let mine = shared.0.lock_within(Duration::MAX);
        if mine.is_some() {
            shared.1.add();
        }
        let got = u32::from(mine.is_some());
        drop(mine);
        others.into_iter().for_each(|other| other.join().unwrap());
        let _locked = shared.0.lock();
        assert_eq!(shared.1.get(), 2 + got);
    });
}

/// Two callers leave work and call; who is called does work until it has done both.
#[test]
fn no_call_is_lost() {
    model(|| {
        let shared =
            Arc::new((Event::<false>::default(), [futex::AtomicU32::new(0), futex::AtomicU32::new(0)]));
        let callers = [0, 1].map(|own| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1[own].store(1, futex::Ordering::Relaxed);
                shared.0.call();
            })
        });
        let done = || shared.1.iter().all(|work| work.load(futex::Ordering::Relaxed) == 1);
        while !done() {
            shared.0.wait(Duration::MAX);
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn a_fork_and_the_beginning_of_management_exclude_each_other() {
    model(|| {
        let shared = Arc::new((Phase::default(), Watched::default()));
        let other = Arc::clone(&shared);
        let manager = thread::spawn(move || {
            let (phase, watched) = &*other;
            phase.set_due();
            if phase.begin() {
                watched.add();
                phase.finish();
            }
        });
        let (phase, watched) = &*shared;
        phase.hold();
        watched.get();
        phase.release();
        manager.join().unwrap();
    });
}

/// What a fork meets: a page that the forking thread touches, which may be away, and memory under locks.
#[derive(Default)]
struct Forked {
    phase: Phase,
    gate: Gate,
    /// That of the inbox, which the reader passes outside of the pager's.
    reading: Gate,
    called: Event<false>,
    page: futex::AtomicU32,
    /// Under the locks of the pager, and under those of the inbox.
    locked: Watched,
    early: Watched,
}

const AWAY: u32 = 0;
const HERE: u32 = 1;

impl Forked {
    /// The steps of `Pager::before_fork` and `stop_for_fork`, the copy, and those of `after_fork_parent`.
    fn fork(&self) {
        self.phase.hold();
        self.gate.close();
        while self.page.load(futex::Ordering::Relaxed) == AWAY {
            self.gate.open();
            self.touch();
            self.gate.close();
        }
        self.reading.close();
        assert_eq!(self.page.load(futex::Ordering::Relaxed), HERE, "the copy can touch it");
        self.locked.add();
        self.early.add();
        self.reading.open();
        self.gate.open();
        self.phase.release();
    }

    /// Waits in a fault while the page is away.
    fn touch(&self) {
        while self.page.load(futex::Ordering::Acquire) == AWAY {
            self.called.call();
            futex::wait::<false>(&self.page, AWAY, None);
        }
    }

    /// The handler serves one fault; it reads on first, as where it waits for the gate.
    fn serve(&self) {
        self.called.wait(Duration::MAX);
        if let Some(_inside) = self.reading.try_enter() {
            self.early.add();
        }
        let _inside = self.gate.enter();
        self.locked.add();
        self.page.store(HERE, futex::Ordering::Release);
        futex::wake::<false>(&self.page, futex::ALL);
    }
}

#[test]
fn a_fork_copies_a_quiet_process_and_its_own_faults_are_served() {
    model(|| {
        let shared = Arc::new(Forked::default());
        let handler = Arc::clone(&shared);
        let handler = thread::spawn(move || handler.serve());
        shared.fork();
        handler.join().unwrap();
    });
}

/// Nobody begins management meanwhile, and who works inside is out before the copy.
#[test]
fn a_fork_waits_for_those_inside() {
    model(|| {
        let shared = Arc::new(Forked { page: futex::AtomicU32::new(HERE), ..Forked::default() });
        let evictor = Arc::clone(&shared);
        let evictor = thread::spawn(move || {
            let _inside = evictor.gate.enter();
            evictor.locked.add();
        });
        let manager = Arc::clone(&shared);
        let manager = thread::spawn(move || {
            manager.phase.set_due();
            if manager.phase.begin() {
                if let Some(_inside) = manager.reading.try_enter() {
                    manager.early.add();
                }
                manager.phase.finish();
            }
        });
        shared.fork();
        evictor.join().unwrap();
        manager.join().unwrap();
    });
}

#[test]
fn two_forks_wait_for_each_other() {
    model(|| {
        let shared = Arc::new((Phase::default(), Watched::default()));
        let fork = |(phase, watched): &(Phase, Watched)| {
            phase.hold();
            watched.add();
            phase.release();
        };
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || fork(&other));
        fork(&shared);
        other.join().unwrap();
        assert_eq!(shared.1.get(), 2);
    });
}
