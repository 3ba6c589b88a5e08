//! The pager's three threads: handler, evictor, keeper.

use crate::Host;
use crate::engine::{Engine, STAGING_BLOCKS};
use crate::evict::Evictor;
use crate::fault::Handler;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that the evictor takes in one batch: enough for its fixed costs to vanish, few enough that a fork or a
/// mremap, which waits for the batch, is not held up for more than about two milliseconds.
const EVICTOR_BLOCKS: usize = 8;
/// Places of the staging window that the handler uses when it has to make room itself.
const HANDLER_BLOCKS: usize = 2;

/// Starts the threads. They end when the engine stops.
pub(crate) fn start(engine: &Arc<Engine>, host: &dyn Host) -> Result<(), Errno> {
    const { assert!(EVICTOR_BLOCKS + HANDLER_BLOCKS <= STAGING_BLOCKS) };
    spawn(host, "ramfold-evict", engine, evict)?;
    spawn(host, "ramfold-keep", engine, keep)?;
    spawn(host, "ramfold-fault", engine, |engine| {
        let places = EVICTOR_BLOCKS..EVICTOR_BLOCKS + HANDLER_BLOCKS;
        Handler::new(engine, Evictor::new(engine, places)).run(engine);
    })
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
