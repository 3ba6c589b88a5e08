//! The pager's four threads: handler, evictor, keeper, thickener.

use crate::Host;
use crate::engine::{Engine, STAGING_BLOCKS};
use crate::evict::Evictor;
use crate::fault::Handler;
use crate::sys;
use ramfold::{Stats, Sweep};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks that the evictor takes in one batch: enough for its fixed costs to vanish, few enough that a fork or a
/// mremap, which waits for the batch, is not held up for more than about two milliseconds.
const EVICTOR_BLOCKS: usize = 8;
/// Places of the staging window that the handler uses when it has to make room itself.
const HANDLER_BLOCKS: usize = 2;

/// How long the evictor stays awake when it has done its work: a fault or two.
const AWAKE: Duration = Duration::from_micros(200);
/// How long after a look at what a forked child still shares the next one comes, in multiples of what it takes.
const REST: u64 = 50;
/// How often in turn, and how long, the evictor leaves it to a process with older pages to make room.
const OTHERS_TURNS: u32 = 5;
const OTHERS_TURN: Duration = Duration::from_micros(200);
/// How long the thickener rests when others want the processor.
const THICKENER_REST: Duration = Duration::from_millis(100);
/// Pages that it tries in one go, inside the gate: less than a millisecond.
const THICKENER_PAGES: usize = 16;

/// Starts the threads, the handler first: a thread that starts may need managed memory before its first line (libc
/// looks at the locale, which the program may have made with malloc). For the handler itself the caller stands in.
/// They end when the engine stops.
pub(crate) fn start(engine: &Arc<Engine>, host: &dyn Host) -> Result<(), Errno> {
    // A child that was forked while its parent's handler had rung and not yet silenced the bell.
    engine.staging.silence();
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
    Handler::new(engine, Evictor::of_handler(engine, EVICTOR_BLOCKS..EVICTOR_BLOCKS + HANDLER_BLOCKS))
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
    let mut awake = Duration::ZERO;
    while !engine.stopping.load(Ordering::Acquire) {
        let pressed = {
            let _inside = engine.gate.enter();
            engine.refresh_usage();
            engine.publish_oldest();
            engine.over_low() > 0 || engine.asked() > 0
        };
        if pressed && evict_until_low(engine, &mut evictor) {
            awake = AWAKE;
            continue;
        }
        engine.evictor().wait_awake(awake, Duration::from_millis(if pressed { 5 } else { 50 }));
        awake = Duration::ZERO;
    }
}

/// Works until under the mark, and until others have what they asked for; false if nothing can be evicted now.
fn evict_until_low(engine: &Engine, evictor: &mut Evictor) -> bool {
    let (mut in_vain, mut left_to_others) = (0, 0);
    while !engine.stopping.load(Ordering::Relaxed) {
        if left_to_others < OTHERS_TURNS && engine.asked() == 0 && engine.over_low() > 0 && engine.ask_older()
        {
            left_to_others += 1;
            std::thread::sleep(OTHERS_TURN);
            continue;
        }
        left_to_others = 0;
        let _inside = engine.gate.enter();
        if engine.over_low() == 0 && engine.asked() == 0 {
            engine.exhausted.store(false, Ordering::Relaxed);
            return true;
        }
        if engine.store.needs_shrink() {
            // What the store would refuse is not worth compressing.
            engine.shrink();
        }
        let evicted = evictor.evict(engine, EVICTOR_BLOCKS);
        engine.refresh_usage();
        engine.publish_oldest();
        engine.answer(Some(evicted.pages));
        if evicted.pages > 0 || (evicted.refused > 0 && engine.shrink()) {
            in_vain = 0;
            engine.exhausted.store(false, Ordering::Relaxed);
            continue;
        }
        in_vain += evicted.looked_at.max(1);
        if in_vain > 16 * engine.queue.len() {
            if engine.over_low() > 0 && engine.squeeze() {
                engine.refresh_usage();
                in_vain = 0;
                continue;
            }
            engine.exhausted.store(evicted.refused > 0 && engine.over_low() > 0, Ordering::Relaxed);
            engine.answer(None);
            return false;
        }
    }
    true
}

/// Writes back when the pool is full, shares the pool's bound with other processes, and publishes the counters.
fn keep(engine: &Engine) {
    if let Err(errno) = engine.usage.follow_thread() {
        engine.die(&format!("the memory in use cannot be told ({errno})"));
    }
    let mut next_look = 0;
    while !engine.stopping.load(Ordering::Acquire) {
        {
            let _inside = engine.gate.enter();
            if engine.store.needs_shrink() {
                engine.shrink();
            }
            let now = sys::now_ns();
            if now >= next_look {
                engine.usage.disinherit();
                next_look = now + (sys::now_ns() - now) * REST;
            }
            engine.refresh_usage();
            engine.guard_if_short();
            engine.share_pool();
            engine.publish_books();
            engine.nearly_full.store(engine.is_nearly_full(), Ordering::Relaxed);
        }
        if engine.over_low() > 0 {
            engine.evictor().call();
        }
        engine.keeper.wait(Duration::from_millis(20));
    }
}

/// Has pages that stay in the pool compressed anew. A sweep is due when a certain share of as many pages as lie in the pool
/// were evicted: what two sweeps in turn find there was not wanted when others were. No evictions, no sweeps.
///
/// It gives way to others, but not by being nice: a thread that hardly gets the processor cannot end either, and whoever
/// waits for the process spins meanwhile (`shrink_dcache_parent` in the kernel, over its entries in /proc).
fn thicken(engine: &Engine) {
    let mut sweep = Sweep::default();
    let mut pace = Pace::default();
    while !engine.stopping.load(Ordering::Acquire) {
        engine.thickener.wait(Duration::from_millis(100));
        if pace.is_due(engine.evictions.load(Ordering::Relaxed), &engine.store.stats()) {
            sweep_once(engine, &mut sweep);
        }
    }
}

fn sweep_once(engine: &Engine, sweep: &mut Sweep) {
    let mut swept = false;
    while !swept && !engine.stopping.load(Ordering::Relaxed) {
        let (start, ran) = (sys::now_ns(), sys::thread_ns());
        {
            let _inside = engine.gate.enter();
            swept = engine.store.recompress(THICKENER_PAGES, sweep).swept;
            engine.refresh_usage();
        }
        let (took, ran) = (sys::now_ns() - start, sys::thread_ns() - ran);
        if took > 2 * ran {
            engine.thickener.wait(THICKENER_REST);
        }
    }
}

/// How often to sweep. Pages that are wanted again soon after they were made denser were not cold: then the next sweeps
/// wait longer.
#[derive(Debug)]
struct Pace {
    /// Sixteenths of the pages in the pool that are to be evicted between two sweeps.
    sixteenths: u64,
    evictions: u64,
    loads: u64,
    dense_loads: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { sixteenths: *Self::RANGE.start(), evictions: 0, loads: 0, dense_loads: 0 }
    }
}

impl Pace {
    const RANGE: std::ops::RangeInclusive<u64> = 4..=64;
    /// Pages in the pool for which it is worth while to begin.
    const LEAST: u64 = 256;
    /// One dense load in so many loads is too much.
    const MOST_DENSE: u64 = 8;

    /// Whether a sweep is due now, after so many evictions in all.
    fn is_due(&mut self, evictions: u64, stats: &Stats) -> bool {
        let due = self.evictions + stats.stored_pages * self.sixteenths / 16;
        if stats.stored_pages < Self::LEAST || evictions < due {
            return false;
        }
        let (loads, dense) = (stats.loads - self.loads, stats.dense_loads - self.dense_loads);
        let next = if dense * Self::MOST_DENSE > loads { self.sixteenths * 2 } else { self.sixteenths / 2 };
        self.sixteenths = next.clamp(*Self::RANGE.start(), *Self::RANGE.end());
        (self.evictions, self.loads, self.dense_loads) = (evictions, stats.loads, stats.dense_loads);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_become_rare_when_dense_pages_come_back_and_frequent_when_they_stay() {
        let mut pace = Pace::default();
        let mut stats = Stats { stored_pages: 1600, ..Stats::default() };
        assert!(!pace.is_due(399, &stats) && pace.is_due(400, &stats));
        (stats.loads, stats.dense_loads) = (1000, 500);
        assert!(pace.is_due(800, &stats) && !pace.is_due(1599, &stats) && pace.is_due(1600, &stats));
        assert_eq!(pace.sixteenths, 4, "nothing dense came back");
    }
}
