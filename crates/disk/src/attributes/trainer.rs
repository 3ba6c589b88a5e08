//! The disk's own dictionary: made of a sample of its pages, when it pays, and anew when they have changed.
//!
//! A thread looks now and then whether enough was stored since the last time. It reads a sample of what is in memory
//! (which makes no page younger), trains a dictionary from most of it, and compresses the rest of the sample with what
//! is in use and with the new one. The new one is taken if it makes pages smaller by a thirty-second at least, and all
//! pages in memory together by twice what it takes of memory itself. Old pages keep theirs until they are compressed
//! anew or written, so a disk has [`MOST_MADE`] in its life at most.
//!
//! Price: a second of a thread of low priority and some twelve MiB for it, each time as many pages were stored
//! as there are twice over, and rarer each time that it was in vain; a dictionary takes about one MiB. Guarantee: what
//! a dictionary was used for stays readable, for the store keeps it as long as itself.

use super::State;
use super::compressors::with_dictionary;
use crate::volume::Volume;
use ramfold::codec::{Codec, Dictionary, by_name, train};
use ramfold::{PAGE_SIZE, Page, PagePlace, Stats, Sweep};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Dictionaries that a disk has in its life.
pub(super) const MOST_MADE: usize = 4;
/// Pages for which a dictionary pays, if they are as others are.
const LEAST_PAGES: u64 = 8192;
/// The most bytes of a dictionary: `zstd --train`'s own choice.
const SIZE: usize = 110 << 10;
/// A sample has so many times the bytes of its dictionary.
const SAMPLE: usize = 48;
/// One page in so many of a sample is not trained from but compressed to see what the dictionary does.
const CHECKED: usize = 8;
/// Pages of a sample at least.
const LEAST_SAMPLE: usize = 64;
/// Not the lowest: on a busy machine the thread would hardly run, whoever ends the disk waits for it, and requests wait
/// for the locks of pages that it reads.
const NICENESS: i32 = 5;
/// How often the thread looks.
const LOOK: Duration = Duration::from_secs(1);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Trainer {
    /// Hung up to have the thread end.
    asked: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Trainer {
    pub(super) fn start(disk: Arc<Volume>, state: Arc<Mutex<State>>) -> std::io::Result<Self> {
        let (asked, ended) = channel();
        let work = move || look_on(&disk, &state, &ended);
        let thread = Builder::new().name("trainer".to_owned()).spawn(work)?;
        Ok(Self { asked: Some(asked), thread: Some(thread) })
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        drop(self.asked.take());
        // It has nothing to give back that would matter if it had panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn look_on(disk: &Volume, state: &Mutex<State>, ended: &Receiver<()>) {
    // Where it is not allowed it is done like anything else.
    let _ = setpriority_process(Some(gettid()), NICENESS);
    let mut pace = Pace::default();
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let stats = disk.store().stats();
        if pace.is_due(&stats) {
            let is_new = make(disk, state);
            pace.note(&stats, is_new);
        }
    }
}

/// When to try, in pages stored.
#[derive(Debug)]
struct Pace {
    next: u64,
    /// So many times all pages are to be stored before the next time.
    times: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { next: 0, times: Self::FIRST }
    }
}

impl Pace {
    const FIRST: u64 = 2;

    fn is_due(&self, stats: &Stats) -> bool {
        stats.stored_pages >= LEAST_PAGES && stats.stores >= self.next
    }

    fn note(&mut self, stats: &Stats, is_new: bool) {
        self.times = if is_new { Self::FIRST } else { self.times.saturating_mul(2) };
        self.next = stats.stores.saturating_add(stats.stored_pages.saturating_mul(self.times));
    }
}

/// Makes a dictionary of the disk's pages and puts it to use, if that pays. Whether it did. What that took of memory is
/// the system's again: the C library would keep some MiB of it, more than a dictionary may save.
pub(super) fn make(disk: &Volume, state: &Mutex<State>) -> bool {
    let is_new = try_make(disk, state);
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    unsafe {
        libc::malloc_trim(0)
    };
    is_new
}

fn try_make(disk: &Volume, state: &Mutex<State>) -> bool {
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let (name, old) = {
        let state = lock();
        match state.compressors.own() {
            Some((name, old)) if state.compressors.made() < MOST_MADE => (name.to_owned(), old.cloned()),
            _ => return false,
        }
    };
    let (pages, sample) = sample(disk);
    if sample.len() < LEAST_SAMPLE {
        return false;
    }
    let (checked, trained) = sample.split_at(sample.len() / CHECKED);
    let Ok(bytes) = train(trained, (trained.len() * PAGE_SIZE / SAMPLE).min(SIZE)) else { return false };
    let Ok(new) = Dictionary::new(bytes).map(Arc::new) else { return false };
    let in_use: Option<Box<dyn Codec>> = match &old {
        Some(old) => with_dictionary(&name, old).ok().map(|codec| Box::new(codec) as _),
        None => by_name(&name).ok(),
    };
    let (Some(in_use), Ok(better)) = (in_use, with_dictionary(&name, &new)) else { return false };
    let (before, after) = (packed(&*in_use, checked), packed(&better, checked));
    let saved = before.saturating_sub(after) * pages / checked.len() as u64;
    if !pays(before, after, saved, better.meta_bytes()) {
        return false;
    }
    // What has been chosen since has what it asks for.
    lock().compressors.adopt(disk.store(), new).is_ok()
}

/// Whether `after` bytes for `before` are worth a dictionary that takes so much and saves so much in all.
fn pays(before: u64, after: u64, saved: u64, takes: usize) -> bool {
    after + before / 32 <= before && saved >= 2 * takes as u64
}

/// Bytes of the pages as the codec makes them, or as they are.
fn packed(codec: &dyn Codec, pages: &[Page]) -> u64 {
    let (mut scratch, mut out) = (codec.scratch(), [0; PAGE_SIZE]);
    let mut bytes = |page| codec.compress(&mut scratch, page, &mut out).unwrap_or(PAGE_SIZE) as u64;
    pages.iter().map(&mut bytes).sum()
}

/// How many pages are compressed in memory, and the contents of some of them, in no order.
fn sample(disk: &Volume) -> (u64, Vec<Page>) {
    let most = SIZE * SAMPLE / PAGE_SIZE * CHECKED / (CHECKED - 1);
    let (mut count, mut chosen, mut random) = (0, Vec::new(), Random(disk.store().stats().stores));
    disk.look(disk.numbers(), &mut |page, state| {
        if state.place == PagePlace::Memory && state.compressor.is_some() {
            count += 1;
            // Of all that were seen each is among them with the same chance.
            if chosen.len() < most {
                chosen.push(page);
            } else if let Some(place) = chosen.get_mut(random.below(count)) {
                *place = page;
            }
        }
        true
    });
    for last in (1..chosen.len()).rev() {
        chosen.swap(last, random.below(last as u64 + 1));
    }
    // Of a small disk not all, so that the sample takes no share of memory that would be felt.
    chosen.truncate(usize::try_from(count / 4).unwrap_or(usize::MAX).max(4 * LEAST_SAMPLE));
    let mut sweep = Sweep::default();
    let mut read = |page: &u64| {
        let mut content = [0; PAGE_SIZE];
        disk.store().sample_page(disk.key(*page), &mut content, &mut sweep).then_some(content)
    };
    (count, chosen.iter().filter_map(&mut read).collect())
}

/// A small generator (SplitMix64).
struct Random(u64);

impl Random {
    /// Some number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((z ^ z >> 27) % bound).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_made_when_it_pays() {
        assert!(pays(1000, 900, 2 << 20, 1 << 20));
        assert!(!pays(1000, 900, (2 << 20) - 1, 1 << 20), "it takes more than it gives");
        assert!(!pays(1000, 970, 2 << 20, 1 << 20), "too little is gained");
        assert!(!pays(1000, 1100, 0, 1 << 20));
    }

    #[test]
    fn what_was_in_vain_is_tried_less_often() {
        let (mut pace, mut stats) = (Pace::default(), Stats { stored_pages: 10_000, ..Stats::default() });
        stats.stores = 10_000;
        assert!(pace.is_due(&stats) && !pace.is_due(&Stats { stored_pages: 8191, ..stats }));
        let mut waits = |is_new, stats: &mut Stats| {
            pace.note(stats, is_new);
            let begun = stats.stores;
            while !pace.is_due(stats) {
                stats.stores += 10_000;
            }
            (stats.stores - begun) / 10_000
        };
        let all = [true, false, false, true].map(|is_new| waits(is_new, &mut stats));
        assert_eq!(all, [2, 4, 8, 2]);
    }

    #[test]
    fn chance_is_below_its_bound_and_reaches_all_of_it() {
        let (mut random, mut seen) = (Random(7), [0; 10]);
        (0..1000).for_each(|_| seen[random.below(10)] += 1);
        assert!(seen.iter().all(|times| *times > 50), "{seen:?}");
    }
}
