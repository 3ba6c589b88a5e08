//! The pager's four threads: handler, evictor, keeper, thickener.

use crate::Host;
use crate::engine::{Engine, STAGING_BLOCKS};
use crate::evict::Evictor;
use crate::fault::Handler;
use ramfold::Sweep;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that the evictor takes in one batch: enough for its fixed costs to vanish, few enough that a fork or a
/// mremap, which waits for the batch, is not held up for more than about two milliseconds.
const EVICTOR_BLOCKS: usize = 8;
/// Places of the staging window that the handler uses when it has to make room itself.
const HANDLER_BLOCKS: usize = 2;

/// How nice the thickener is to others, as nice(1) counts.
const THICKENER_NICE: i32 = 15;
/// Pages that it tries in one go, inside the gate: less than a millisecond.
const THICKENER_PAGES: usize = 16;
/// Pages in the pool for which it is worth while to begin.
const THICKENER_LEAST: u64 = 256;

/// Starts the threads, the handler first: a thread that starts may need managed memory before its first line (libc
/// looks at the locale, which the program may have made with malloc). For the handler itself the caller stands in.
/// They end when the engine stops.
pub(crate) fn start(engine: &Arc<Engine>, host: &dyn Host) -> Result<(), Errno> {
    spawn(host, "ramfold-fault", engine, |engine| {
        engine.staging.ring();
        engine.staging.silence();
        handler(engine).run(engine);
    })?;
    handler(engine).stand_in(engine);
    spawn(host, "ramfold-evict", engine, evict)?;
    spawn(host, "ramfold-keep", engine, keep)?;
    spawn(host, "ramfold-dense", engine, thicken)
}

fn handler(engine: &Engine) -> Handler {
    const { assert!(EVICTOR_BLOCKS + HANDLER_BLOCKS <= STAGING_BLOCKS) };
    Handler::new(engine, Evictor::new(engine, EVICTOR_BLOCKS..EVICTOR_BLOCKS + HANDLER_BLOCKS))
}

fn spawn(host: &dyn Host, name: &'static str, engine: &Arc<Engine>, body: fn(&Engine)) -> Result<(), Errno> {
    let engine = Arc::clone(engine);
    let body = move || {
        let fatal = FatalPanic(&engine);
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

/// Keeps memory below the mark, so that faults find room.
fn evict(engine: &Engine) {
    let mut evictor = Evictor::new(engine, 0..EVICTOR_BLOCKS);
    while !engine.stopping.load(Ordering::Acquire) {
        let pressed = {
            let _inside = engine.gate.enter();
            engine.refresh_usage();
            engine.over_low() > 0
        };
        if pressed && evict_until_low(engine, &mut evictor) {
            continue;
        }
        engine.evictor.wait(Duration::from_millis(if pressed { 5 } else { 50 }));
    }
}

/// Works until under the mark; false if nothing can be evicted now.
fn evict_until_low(engine: &Engine, evictor: &mut Evictor) -> bool {
    let mut in_vain = 0;
    while !engine.stopping.load(Ordering::Relaxed) {
        let _inside = engine.gate.enter();
        if engine.over_low() == 0 {
            engine.exhausted.store(false, Ordering::Relaxed);
            return true;
        }
        if engine.store.needs_shrink() {
            // What the store would refuse is not worth compressing.
            engine.shrink(evictor.scratch());
        }
        let evicted = evictor.evict(engine, EVICTOR_BLOCKS);
        engine.refresh_usage();
        if evicted.pages > 0 || (evicted.refused > 0 && engine.shrink(evictor.scratch())) {
            in_vain = 0;
            engine.exhausted.store(false, Ordering::Relaxed);
            continue;
        }
        in_vain += evicted.looked_at.max(1);
        if in_vain > 16 * engine.queued() {
            engine.exhausted.store(evicted.refused > 0, Ordering::Relaxed);
            return false;
        }
    }
    true
}

/// Writes back when the pool is full, compacts it when it is sparse, and publishes the counters.
fn keep(engine: &Engine) {
    let mut scratch = engine.store.scratch();
    if let Err(errno) = engine.usage.follow_thread() {
        engine.die(&format!("the memory in use cannot be told ({errno})"));
    }
    while !engine.stopping.load(Ordering::Acquire) {
        {
            let _inside = engine.gate.enter();
            if engine.store.needs_shrink() {
                engine.shrink(&mut scratch);
            }
            engine.refresh_usage();
            engine.share_pool();
            engine.publish_books();
            engine.nearly_full.store(engine.is_nearly_full(), Ordering::Relaxed);
        }
        if engine.over_low() > 0 {
            engine.evictor.call();
        }
        engine.keeper.wait(Duration::from_millis(20));
    }
}

/// Has pages that stay in the pool compressed anew. A sweep is due whenever a quarter as many pages were evicted as lie in the
/// pool: what two sweeps in turn find there was not wanted when most others were. No evictions, no sweeps.
fn thicken(engine: &Engine) {
    let _ = rustix::process::setpriority_process(None, THICKENER_NICE);
    let mut sweep = Sweep::default();
    let mut last = engine.evictions.load(Ordering::Relaxed);
    while !engine.stopping.load(Ordering::Acquire) {
        engine.thickener.wait(Duration::from_millis(100));
        let stored = engine.store.stats().stored_pages;
        let now = engine.evictions.load(Ordering::Relaxed);
        if stored < THICKENER_LEAST || now - last < stored / 4 {
            continue;
        }
        last = now;
        let (mut swept, mut freed) = (false, 0);
        while !swept && !engine.stopping.load(Ordering::Relaxed) {
            let _inside = engine.gate.enter();
            let done = engine.store.recompress(THICKENER_PAGES, &mut sweep);
            (swept, freed) = (done.swept, freed + done.freed_bytes);
            if freed > engine.store.pool_bytes() / 32 {
                engine.store.compact();
                freed = 0;
            }
            engine.refresh_usage();
        }
    }
}
