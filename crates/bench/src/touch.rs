//! The synthetic workloads: private anonymous memory is filled with pages, then touched in some order.
//!
//! Each touch reads one word of one page and checks that it is what was last written there; a share of them writes
//! the next version of it. Filling and a third of the time more, at most [`SETTLING`], come before the measured
//! phase. A touch that took longer than [`SLOW_NS`] counts as a fault: a resident page's word comes in well under
//! that, timer included, and no way of bringing a page back is that fast.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ramfold::{PAGE_SIZE, Page};
use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::pages::Pages;
use crate::random::{Random, Zipf, mix};

/// Touches slower than this count as faults.
pub const SLOW_NS: u64 = 1_500;
/// No workload needs longer to settle.
const SETTLING: Duration = Duration::from_secs(30);

/// The order of touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every page with the same probability.
    Uniform,
    /// One page after another, over and over.
    Sequential,
    /// Zipfian with theta 0.99, the hot pages spread over the whole range.
    Zipf,
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The order of touches.
    pub order: Order,
    /// Bytes of memory.
    pub bytes: usize,
    /// How long the measured phase lasts,
    pub measured: Duration,
    /// unless it has had so many touches before.
    pub most: u64,
    /// The measured phase in parts of this length, each told on standard output when it ends; the last is what `run`
    /// returns.
    pub parts: Option<Duration>,
    /// How many touches of 100 write.
    pub write_percent: u64,
    /// Repeats the order.
    pub seed: u64,
}

/// Fills, settles, measures; the result is what is printed.
///
/// # Errors
/// No memory, no page file, or a page that is not what was written to it.
pub fn run(plan: &Plan, pages: &Pages) -> Result<Value> {
    let mut memory = Memory::filled(plan.bytes, pages)?;
    let mut cursor = Cursor::new(plan.order, memory.versions.len() as u64, plan.seed);
    let mut random = Random::new(plan.seed ^ 1);
    let mut phase = |duration, most| memory.touch_for((duration, most), plan, &mut cursor, &mut random);
    phase((plan.measured / 3).min(SETTLING), plan.most / 3)?;
    let (part, started) = (plan.parts.unwrap_or(plan.measured), Instant::now());
    while started.elapsed() + part < plan.measured {
        println!("{}", phase(part, plan.most)?.json());
    }
    Ok(phase(part, plan.most)?.json())
}

/// A mapping, and for each page how often it was written.
struct Memory {
    pages: *mut Page,
    versions: Vec<u32>,
}

/// What a phase gave.
#[derive(Debug, Default)]
struct Phase {
    elapsed: Duration,
    all: Histogram,
    slow: Histogram,
}

impl Memory {
    fn filled(bytes: usize, source: &Pages) -> Result<Self> {
        let count = bytes / PAGE_SIZE;
        // SAFETY: a fresh private anonymous mapping; nothing else is replaced.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        ensure!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        let mut memory = Self { pages: start.cast(), versions: vec![0; count] };
        for index in 0..count {
            // SAFETY: `index` is within the mapping, and nobody else refers to its pages.
            source.fill(index as u64, unsafe { &mut *memory.pages.add(index) })?;
            memory.write(index, 0);
        }
        Ok(memory)
    }

    /// For so long, or so many touches.
    fn touch_for(
        &mut self,
        (duration, most): (Duration, u64),
        plan: &Plan,
        cursor: &mut Cursor,
        random: &mut Random,
    ) -> Result<Phase> {
        let mut phase = Phase::default();
        let start = Instant::now();
        while phase.elapsed < duration && phase.all.total() < most {
            let index = cursor.next(random);
            let writes = random.below(100) < plan.write_percent;
            let version = self.versions[index];
            let before = Instant::now();
            let word = self.read(index);
            if writes {
                self.write(index, version + 1);
            }
            let after = Instant::now();
            if word != content(index, version) {
                bail!(
                    "page {index} version {version} holds {word:#x} instead of {:#x}",
                    content(index, version)
                );
            }
            self.versions[index] += u32::from(writes);
            phase.count(after - before);
            phase.elapsed = after - start;
        }
        Ok(phase)
    }

    /// The checked word is in the middle of the page, so that it does not help the page's first match.
    fn word(&self, index: usize) -> *mut u64 {
        assert!(index < self.versions.len());
        // SAFETY: within the mapping, as just asserted.
        unsafe { self.pages.add(index).cast::<u64>().add(PAGE_SIZE / 16) }
    }

    fn read(&self, index: usize) -> u64 {
        // SAFETY: `word` points into the mapping and is aligned.
        unsafe { self.word(index).read_volatile() }
    }

    fn write(&mut self, index: usize, version: u32) {
        // SAFETY: `word` points into the mapping and is aligned.
        unsafe { self.word(index).write_volatile(content(index, version)) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `filled` made; nothing refers to it any more.
        unsafe { libc::munmap(self.pages.cast(), self.versions.len() * PAGE_SIZE) };
    }
}

/// What page `index` holds in its checked word after `version` writes.
fn content(index: usize, version: u32) -> u64 {
    mix(index as u64 ^ u64::from(version) << 40)
}

impl Phase {
    fn count(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).expect("less than centuries");
        self.all.add(ns);
        if ns > SLOW_NS {
            self.slow.add(ns);
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn json(&self) -> Value {
        let seconds = self.elapsed.as_secs_f64();
        json!({
            "unit": "touches/s",
            "rate": self.all.total() as f64 / seconds,
            "seconds": seconds,
            "touches": self.all.total(),
            "faults_per_s": self.slow.total() as f64 / seconds,
            "touch_ns": self.all.json(),
            "latency_ns": self.slow.json(),
        })
    }
}

/// The next page's number.
struct Cursor {
    order: Order,
    count: u64,
    at: u64,
    zipf: Option<Zipf>,
}

impl Cursor {
    fn new(order: Order, count: u64, seed: u64) -> Self {
        let zipf = (order == Order::Zipf).then(|| Zipf::new(count, 0.99));
        Self { order, count, at: mix(seed) % count, zipf }
    }

    fn next(&mut self, random: &mut Random) -> usize {
        let index = match (self.order, &self.zipf) {
            (Order::Uniform, _) => random.below(self.count),
            (_, Some(zipf)) => mix(zipf.rank(random)) % self.count,
            (_, None) => {
                self.at = (self.at + 1) % self.count;
                self.at
            }
        };
        usize::try_from(index).expect("a page number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(order: Order) -> Plan {
        let measured = Duration::from_millis(60);
        Plan {
            order,
            bytes: 256 * PAGE_SIZE,
            measured,
            most: u64::MAX,
            parts: None,
            write_percent: 25,
            seed: 1,
        }
    }

    #[test]
    fn every_order_runs_and_counts() {
        for order in [Order::Uniform, Order::Sequential, Order::Zipf] {
            let result = run(&plan(order), &Pages::open(None).unwrap()).unwrap();
            assert!(result["touches"].as_u64().unwrap() > 1000, "{order:?}: {result}");
        }
    }

    #[test]
    fn a_changed_page_is_noticed() {
        let mut memory = Memory::filled(16 * PAGE_SIZE, &Pages::open(None).unwrap()).unwrap();
        memory.write(3, 1);
        let mut cursor = Cursor::new(Order::Sequential, 16, 1);
        let plan = Plan { write_percent: 0, ..plan(Order::Sequential) };
        let failed = memory.touch_for((plan.measured, plan.most), &plan, &mut cursor, &mut Random::new(1));
        assert!(failed.unwrap_err().to_string().contains("page 3 "));
    }
}
