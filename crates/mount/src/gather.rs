//! Gathering: pieces of a stretch of a file, asked for at the same time, are read from a slow source at once.
//!
//! Of a large read the kernel asks for what it does not have: for as many pieces as there are holes, one after the
//! other without waiting. To a disk each is a seek; a volume of a cloud counts its requests. So whoever comes first
//! waits a moment for others of the same stretch, reads from the first byte that one of them wants to the last, and all
//! take their parts.
//!
//! Price: [`MOMENT`] a read, of a source that takes at least [`SLOW`] for one; a quick source is read at once, each
//! piece by itself. Guarantee: the source is read after the last of them has asked, so each gets bytes that the file
//! had during its own request.

use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a stretch, at most: as many as the kernel asks for in one request.
const MOST: u64 = 128 << 10;
/// How long others are waited for.
const MOMENT: Duration = Duration::from_micros(30);
/// A source whose reads take so long is slow.
const SLOW: Duration = Duration::from_micros(500);
/// The mean is of about so many reads.
const WEIGHT: u64 = 8;

/// Who reads something at this moment, and how long reads take.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// What others may join: one a thread at most.
    open: Mutex<Vec<Open>>,
    /// Nanoseconds of a read, in the mean.
    mean: AtomicU64,
}

/// A stretch whose reader still waits for others.
#[derive(Debug)]
struct Open {
    /// The version that is read, as the store calls it.
    object: u64,
    /// Bytes that are wanted.
    wanted: Range<u64>,
    stretch: Arc<Stretch>,
}

/// What became of it.
#[derive(Debug, Default)]
struct Stretch {
    read: Mutex<Option<Result<Bytes, Errno>>>,
    done: Condvar,
}

/// Bytes of a file, from an offset on.
#[derive(Debug, Clone)]
struct Bytes {
    start: u64,
    bytes: Arc<[u8]>,
}

/// No thread panics while it has changed a half.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    /// Has these bytes read as well, if the stretch stays small enough.
    fn join(&mut self, object: u64, bytes: &Range<u64>) -> Option<Arc<Stretch>> {
        let all = self.wanted.start.min(bytes.start)..self.wanted.end.max(bytes.end);
        if self.object != object || all.end - all.start > MOST {
            return None;
        }
        self.wanted = all;
        Some(Arc::clone(&self.stretch))
    }
}

impl Stretch {
    /// Who waits gets it. What was told first holds.
    fn finish(&self, read: Result<Bytes, Errno>) {
        lock(&self.read).get_or_insert(read);
        self.done.notify_all();
    }

    /// Waits for the bytes from `start` on, and takes as many as there are.
    fn take(&self, start: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let read = self.done.wait_while(lock(&self.read), |read| read.is_none());
        let read = read.unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Err(Errno::IO))?;
        let skip = usize::try_from(start - read.start).unwrap_or(usize::MAX);
        let part = read.bytes.get(skip..).unwrap_or_default();
        let count = part.len().min(out.len());
        out[..count].copy_from_slice(&part[..count]);
        Ok(count)
    }
}

/// Nobody waits for a thread that has panicked.
struct Promise<'a>(&'a Stretch);

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.0.finish(Err(Errno::IO));
    }
}

impl Gather {
    /// Reads bytes of this version by `read`, which is given an offset and gives the number of bytes: less at the end
    /// of the file. Together with others who do so now.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn read(
        &self,
        object: u64,
        offset: u64,
        out: &mut [u8],
        read: impl FnOnce(u64, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        if out.len() as u64 >= MOST || !self.is_slow() {
            return self.timed(|| read(offset, out));
        }
        let stretch = match self.join_or_open(object, offset..offset + out.len() as u64) {
            Joined::Others(stretch) => return stretch.take(offset, out),
            Joined::Nobody(stretch) => stretch,
        };
        let promise = Promise(&stretch);
        std::thread::sleep(MOMENT);
        let wanted = self.close(&stretch);
        // Who has joined has it too.
        if Arc::strong_count(&stretch) == 1 {
            return self.timed(|| read(offset, out));
        }
        let mut bytes = vec![0; usize::try_from(wanted.end - wanted.start).unwrap_or_default()];
        let read = self.timed(|| read(wanted.start, &mut bytes)).map(|count| {
            bytes.truncate(count);
            Bytes { start: wanted.start, bytes: Arc::from(bytes) }
        });
        promise.0.finish(read);
        stretch.take(offset, out)
    }

    fn join_or_open(&self, object: u64, wanted: Range<u64>) -> Joined {
        let mut open = lock(&self.open);
        if let Some(stretch) = open.iter_mut().find_map(|open| open.join(object, &wanted)) {
            return Joined::Others(stretch);
        }
        let stretch = Arc::new(Stretch::default());
        open.push(Open { object, wanted, stretch: Arc::clone(&stretch) });
        Joined::Nobody(stretch)
    }

    /// Nobody joins this one from now on. Gives the bytes that are wanted.
    fn close(&self, stretch: &Arc<Stretch>) -> Range<u64> {
        let mut open = lock(&self.open);
        let place = open.iter().position(|open| Arc::ptr_eq(&open.stretch, stretch));
        place.map_or(0..0, |place| open.swap_remove(place).wanted)
    }

    fn is_slow(&self) -> bool {
        Duration::from_nanos(self.mean.load(Relaxed)) >= SLOW
    }

    fn timed<R>(&self, read: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let done = read();
        let taken = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mean = self.mean.load(Relaxed);
        self.mean.store(mean - mean / WEIGHT + taken / WEIGHT, Relaxed);
        done
    }
}

/// Whose stretch somebody is of.
enum Joined {
    /// That of somebody who reads for all.
    Others(Arc<Stretch>),
    /// His own, which others may join.
    Nobody(Arc<Stretch>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const PAGE: u64 = 4096;

    fn slow() -> Gather {
        Gather { mean: AtomicU64::new(10_000_000), ..Gather::default() }
    }

    /// A file in which each byte tells of its page, and that many pages long.
    fn read_file(pages: u64, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let end = pages * PAGE;
        let count = out.len().min(usize::try_from(end.saturating_sub(offset)).unwrap());
        for (at, byte) in (offset..).zip(&mut out[..count]) {
            *byte = u8::try_from(at / PAGE % 251).unwrap();
        }
        Ok(count)
    }

    /// Threads ask for these pages of objects at the same time: how many reads there were, and what each was given.
    fn ask(gather: &Gather, wanted: &[(u64, Range<u64>)]) -> (usize, Vec<Result<Vec<u8>, Errno>>) {
        let reads = AtomicUsize::new(0);
        let one = |(object, pages): &(u64, Range<u64>)| {
            let mut out = vec![0; usize::try_from((pages.end - pages.start) * PAGE).unwrap()];
            let count = gather.read(*object, pages.start * PAGE, &mut out, |offset, out| {
                reads.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(5));
                read_file(64, offset, out)
            })?;
            out.truncate(count);
            Ok(out)
        };
        let given = std::thread::scope(|scope| {
            let threads: Vec<_> = wanted.iter().map(|wanted| scope.spawn(|| one(wanted))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (reads.into_inner(), given)
    }

    fn check(wanted: &[(u64, Range<u64>)], given: &[Result<Vec<u8>, Errno>]) {
        for ((_, pages), given) in wanted.iter().zip(given) {
            let mut expected = vec![0; usize::try_from((pages.end - pages.start) * PAGE).unwrap()];
            let count = read_file(64, pages.start * PAGE, &mut expected).unwrap();
            expected.truncate(count);
            assert!(given.as_ref().unwrap() == &expected, "{pages:?}");
        }
    }

    #[test]
    fn pieces_of_a_stretch_are_read_together_and_each_gets_its_own() {
        let wanted: Vec<_> = (0..8).map(|at| (1, at * 4..at * 4 + 2)).collect();
        let fewest = (0..50)
            .map(|_| {
                let (reads, given) = ask(&slow(), &wanted);
                check(&wanted, &given);
                reads
            })
            .min();
        assert!(fewest < Some(5), "{fewest:?} reads");
    }

    #[test]
    fn other_files_and_far_places_are_read_apart() {
        let wanted = [(1, 0..1), (2, 1..2), (1, 33..34), (1, 62..70), (1, 63..66)];
        for _ in 0..20 {
            let (reads, given) = ask(&slow(), &wanted);
            check(&wanted, &given);
            assert!((4..=5).contains(&reads), "{reads} reads");
        }
    }

    #[test]
    fn a_quick_source_is_read_at_once() {
        let gather = Gather::default();
        let mut out = [0; 4096];
        for at in 0..100 {
            assert!(gather.read(1, at * PAGE, &mut out, |at, out| read_file(64, at, out)).is_ok());
            assert!(lock(&gather.open).is_empty());
        }
        assert!(!gather.is_slow());
    }

    #[test]
    fn who_joins_gets_the_error_and_nobody_waits_for_a_panic() {
        for panics in [false, true] {
            let gather = slow();
            let fail = |at: u64| {
                gather.read(1, at * PAGE, &mut [0; 4096], |_, _| {
                    assert!(!panics, "on purpose");
                    Err(Errno::NXIO)
                })
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|at| scope.spawn(move || fail(at))).collect();
                for thread in threads {
                    match thread.join() {
                        Ok(read) => assert_eq!(read, Err(if panics { Errno::IO } else { Errno::NXIO })),
                        Err(_) => assert!(panics),
                    }
                }
            });
        }
    }
}
