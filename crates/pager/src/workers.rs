//! The pager's three threads: handler, evictor, keeper.

use crate::engine::Engine;
use crate::evict::Evictor;
use crate::fault::Handler;
use crate::futex;
use crate::hold::Beat;
use crate::staging::{Bell, STAGING_BLOCKS};
use crate::sys;
use crate::trace::Trace;
use crate::uffd::own_tid;
use ramfold_budget::crowd::Crowd;
use ramfold_budget::door::Door as _;
use ramfold_budget::effort::until_low;
use ramfold_budget::overdrawn::Overdrawn;
use ramfold_budget::recompress::Recompressor;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks that the evictor takes in one batch: enough for its fixed costs to vanish, few enough that a fork or a
/// mremap, which waits for the batch, is not held up for more than about two milliseconds.
const EVICTOR_BLOCKS: usize = 8;
/// Places of the staging window that the handler uses when it has to make room itself.
const HANDLER_BLOCKS: usize = 2;

/// How many threads there are.
pub(crate) const THREADS: usize = 3;

/// How long the evictor stays awake when it has done its work: a fault or two.
const AWAKE: Duration = Duration::from_micros(200);
/// How often the keeper does its work, and how often where memory is short and in common with other processes.
const KEEPER: Duration = Duration::from_millis(20);
const KEEPER_OF_GUARDED: Duration = Duration::from_millis(5);
/// How often the keeper looks, where memory is short, whether what has ended still counts because `ramfold run` has
/// ended too.
const ORPHANED: Duration = Duration::from_millis(200);

/// Starts the threads, the handler first: a thread that starts may need managed memory before its first line (libc
/// looks at the locale, which the program may have made with malloc). The handler starts the others, which have
/// descriptors in common with it; until then the caller stands in for it. They end when the engine stops.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<(), Errno> {
    // A child that was forked while its parent's handler had rung and not yet silenced the bell.
    Bell::ALL.into_iter().for_each(|bell| engine.staging.silence(bell));
    engine.evictor_tid.store(0, Ordering::Relaxed);
    spawn(engine, "ramfold-fault", |engine| {
        let begun = begin(engine).err().map_or(0, Errno::raw_os_error);
        engine.failure.store(begun, Ordering::Release);
        engine.staging.ring(Bell::Threads);
        engine.staging.silence(Bell::Threads);
        handler(engine).run(engine);
    })?;
    handler(engine).stand_in(engine);
    match engine.failure.load(Ordering::Acquire) {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// What the handler does before it handles. The evictor has begun then: who handles may wait for room, and the evictor
/// for no page.
fn begin(engine: &Arc<Engine>) -> Result<(), Errno> {
    {
        let _closed = engine.gate.close_scoped();
        engine.member.usage.follow_thread()?;
    }
    engine.host.leave_program(&engine.descriptors());
    engine.workers.store(THREADS - 1, Ordering::Release);
    spawn(engine, "ramfold-evict", |engine| work(engine, evict))?;
    spawn(engine, "ramfold-keep", |engine| work(engine, keep))?;
    while engine.evictor_tid.load(Ordering::Acquire) == 0 {
        futex::wait::<false>(&engine.evictor_tid, 0, None);
    }
    Ok(())
}

/// A thread beside the handler. The last that ends tells it.
fn work(engine: &Engine, body: fn(&Engine)) {
    body(engine);
    if engine.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
        engine.staging.ring(Bell::Threads);
    }
}

fn handler(engine: &Engine) -> Handler {
    const { assert!(EVICTOR_BLOCKS + HANDLER_BLOCKS <= STAGING_BLOCKS) };
    Handler::new(engine, Evictor::of_handler(engine, EVICTOR_BLOCKS..EVICTOR_BLOCKS + HANDLER_BLOCKS))
}

fn spawn(engine: &Arc<Engine>, name: &'static str, body: fn(&Arc<Engine>)) -> Result<(), Errno> {
    let host = engine.host;
    let engine = Arc::clone(engine);
    let body = move || {
        let fatal = FatalPanic(&engine);
        sys::use_all_keys();
        {
            // As with all locks: a child is forked while nobody has one.
            let _inside = engine.gate.enter();
            engine.threads().push(own_tid());
        }
        body(&engine);
        std::mem::forget(fatal);
    };
    host.spawn(name, Box::new(body)).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
}

/// A thread of the pager that panics must not leave the program waiting for it.
struct FatalPanic<'a>(&'a Engine);

impl Drop for FatalPanic<'_> {
    fn drop(&mut self) {
        self.0.die("internal error: a thread of the pager panicked (please report it)");
    }
}

/// Keeps memory below the mark, so that faults find room; in between it makes the pool denser.
fn evict(engine: &Engine) {
    engine.evictor_tid.store(own_tid(), Ordering::Release);
    futex::wake::<false>(&engine.evictor_tid, futex::ALL);
    let mut evictor = Evictor::new(engine, 0..EVICTOR_BLOCKS);
    let mut recompressor = Recompressor::default();
    let mut overdrawn = Overdrawn::default();
    let (mut awake, mut crowd) = (Duration::ZERO, Crowd::default());
    while !engine.stopping.load(Ordering::Acquire) {
        let pressed = {
            let _inside = engine.gate.enter();
            engine.refresh_usage();
            engine.publish_oldest();
            engine.member.is_pressed(engine.resident())
        };
        if pressed && until_low(&engine.member, engine, || evictor.evict(engine, EVICTOR_BLOCKS)) {
            awake = AWAKE;
            continue;
        }
        if pressed && is_to_end(engine, &mut overdrawn) {
            engine.out_of_memory();
        }
        let (given_up, enter) = (engine.evictions.load(Ordering::Relaxed), || engine.gate.enter());
        recompressor.work(&engine.member, given_up, enter, || engine.evictor().is_called());
        engine.evictor().wait_awake(awake, Duration::from_millis(if pressed { 5 } else { 50 }), &mut crowd);
        awake = Duration::ZERO;
    }
}

fn is_to_end(engine: &Engine, overdrawn: &mut Overdrawn) -> bool {
    let _inside = engine.gate.enter();
    engine.refresh_usage();
    !engine.is_held() && !engine.stopping.load(Ordering::Acquire) && overdrawn.is_to_end(&engine.member)
}

/// Writes back when the pool is full, shares the pool's bound and the swap file with other processes, publishes the
/// counters, and tells the program's allocator whether memory is short.
fn keep(engine: &Engine) {
    let mut next_reap = Instant::now();
    let mut beat = Beat::new(engine);
    while !engine.stopping.load(Ordering::Acquire) {
        {
            let _inside = engine.gate.enter();
            engine.member.tick(engine);
            engine.lift_guard_if_alone();
            engine.guard_if_short();
            engine.trace.iter().for_each(Trace::flush);
            engine.nearly_full.store(engine.member.is_nearly_full(), Ordering::Relaxed);
            engine.host.note_room(engine.member.has_plenty(engine.resident()));
            if engine.over_low() > 0 && Instant::now() >= next_reap {
                engine.member.segment().reap_if_orphaned(&|_| ());
                next_reap = Instant::now() + ORPHANED;
            }
        }
        engine.dump_if_asked();
        beat.turn(engine);
        if engine.over_low() > 0 {
            engine.evictor().call();
        }
        engine.keeper.wait(if engine.is_guarded() { KEEPER_OF_GUARDED } else { KEEPER });
    }
}
