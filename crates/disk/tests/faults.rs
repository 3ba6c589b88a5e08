//! A backing that fails, at each of its writes in turn: no write that was accepted is lost, and no byte is wrong.

mod random;

use ramfold::tier::{ReadError, Slot, Tier, WriteError};
use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::attributes::Attributes;
use ramfold_disk::attributes::request::{Chosen, Kind, Setting};
use ramfold_disk::face::{Disk, DiskError};
use ramfold_disk::volume::{LEAST_MEMORY, Settings, Volume, Worker};
use random::{bytes, random};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAGES: u64 = 192;
const PAGE: u64 = PAGE_SIZE as u64;
const THREADS: u64 = 2;

/// What a failing write says.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// EIO.
    Io,
    /// ENOSPC.
    Full,
}

/// Fails the nth write, or all from there on.
#[derive(Debug)]
struct Flaky {
    tier: Arc<dyn Tier>,
    fault: Fault,
    nth: u64,
    lasts: bool,
    writes: Arc<AtomicU64>,
}

impl Tier for Flaky {
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        let number = self.writes.fetch_add(1, Relaxed);
        let fails = number == self.nth || self.lasts && number > self.nth;
        match self.fault {
            Fault::Io if fails => Err(WriteError::Io(io::Error::from_raw_os_error(5))),
            Fault::Full if fails => Err(WriteError::Full),
            _ => self.tier.write(records),
        }
    }

    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        self.tier.read(slot, out)
    }

    fn discard(&self, slot: Slot) {
        self.tier.discard(slot);
    }

    fn used_bytes(&self) -> u64 {
        self.tier.used_bytes()
    }

    fn meta_bytes(&self) -> usize {
        self.tier.meta_bytes()
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    bytes(seed).take(len).collect()
}

/// One thread's half of the disk, and the bytes that it must have.
struct Half {
    first: u64,
    model: Vec<u8>,
    state: u64,
}

impl Half {
    fn new(thread: u64) -> Self {
        let pages = PAGES / THREADS;
        let model = vec![0; usize::try_from(pages * PAGE).unwrap()];
        Self { first: thread * pages * PAGE, model, state: thread + 1 }
    }

    fn range(&mut self) -> (usize, usize) {
        let len = self.model.len() as u64;
        let (at, most) = match random(&mut self.state) % 3 {
            0 => (random(&mut self.state) % len, 3 * PAGE),
            _ => (random(&mut self.state) % (len / PAGE) * PAGE, PAGE + 1),
        };
        let some = (random(&mut self.state) % most).min(len - at);
        let some = if most == PAGE + 1 { PAGE } else { some };
        (usize::try_from(at).unwrap(), usize::try_from(some).unwrap())
    }

    /// A page of a write that failed may have its old bytes or its new ones.
    fn write(&mut self, disk: &Volume, worker: &mut Worker) -> bool {
        let (at, len) = self.range();
        let data = noise(random(&mut self.state), len);
        match disk.write(self.first + at as u64, &data, worker) {
            Ok(()) => {
                self.model[at..at + len].copy_from_slice(&data);
                true
            }
            Err(DiskError::NoSpace) => {
                self.adopt(disk, at, &data, worker);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn adopt(&mut self, disk: &Volume, at: usize, data: &[u8], worker: &mut Worker) {
        let mut from = at;
        while from < at + data.len() {
            let to = ((from / PAGE_SIZE + 1) * PAGE_SIZE).min(at + data.len());
            let mut found = vec![0; to - from];
            disk.read(self.first + from as u64, &mut found, worker).unwrap();
            let new = &data[from - at..to - at];
            assert!(found == self.model[from..to] || found == new, "a page of {from} has other bytes");
            self.model[from..to].copy_from_slice(&found);
            from = to;
        }
    }

    fn forget(&mut self, disk: &Volume, worker: &mut Worker) {
        let page = usize::try_from(random(&mut self.state) % (PAGES / THREADS)).unwrap() * PAGE_SIZE;
        disk.discard(self.first + page as u64, PAGE, worker).unwrap();
        self.model[page..page + PAGE_SIZE].fill(0);
    }

    fn check(&self, disk: &Volume, worker: &mut Worker) {
        let mut found = vec![0xa5; self.model.len()];
        disk.read(self.first, &mut found, worker).unwrap();
        assert!(found == self.model, "the half from {}", self.first);
    }
}

/// A disk with little memory, and how often its backing was written to.
fn disk(fault: Fault, nth: u64, lasts: bool) -> (Arc<Volume>, Arc<AtomicU64>) {
    let backing = Some((tempfile::tempfile_in("/var/tmp").unwrap(), 16 << 20));
    let store = Config { duplicate_pages_enabled: false, ..Config::default() };
    let settings = Settings { size: PAGES * PAGE, mem_limit: Some(LEAST_MEMORY), store, backing };
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    let wrap = |tier| -> Arc<dyn Tier> { Arc::new(Flaky { tier, fault, nth, lasts, writes: counted }) };
    (Arc::new(Volume::with(settings, wrap).unwrap()), writes)
}

/// Gives the number of the backing's writes, and of the refused ones of the disk.
fn work(fault: Fault, nth: u64, lasts: bool) -> (u64, u64) {
    let (disk, writes) = disk(fault, nth, lasts);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (disk, refused) = (&disk, &refused);
            scope.spawn(move || {
                let (mut half, mut worker) = (Half::new(thread), disk.worker());
                for round in 0..200 {
                    let done = half.write(disk, &mut worker);
                    refused.fetch_add(u64::from(!done), Relaxed);
                    if round % 8 == 0 {
                        half.forget(disk, &mut worker);
                    }
                }
                half.check(disk, &mut worker);
            });
        }
    });
    (writes.load(Relaxed), refused.load(Relaxed))
}

#[test]
fn a_write_of_the_backing_that_fails_once_loses_nothing() {
    for fault in [Fault::Io, Fault::Full] {
        let (mut nth, mut reached) = (0, 1);
        while nth < reached.min(60) {
            reached = work(fault, nth, false).0;
            nth += 1;
        }
        assert!(nth > 5, "the backing was written to {nth} times");
    }
}

#[test]
fn a_backing_that_fails_for_good_makes_the_disk_full_and_loses_nothing() {
    for fault in [Fault::Io, Fault::Full] {
        for nth in [0, 1, 2, 3, 5, 8, 13] {
            // Many pages go by one write where the keeper comes late: all may be away before a late one.
            assert!(work(fault, nth, true).1 > 0 || nth > 5, "{fault:?} from write {nth} on");
        }
    }
}

#[test]
fn a_request_to_write_back_tells_of_a_fault() {
    for (fault, told) in [(Fault::Io, "could not be written"), (Fault::Full, "is full")] {
        let (disk, _) = disk(fault, 0, true);
        let mut worker = disk.worker();
        disk.write(0, &noise(1, 8 * PAGE_SIZE), &mut worker).unwrap();
        let attributes = Attributes::new(Arc::clone(&disk), "lz4", None);
        let error =
            attributes.set(Setting::Writeback(vec![Chosen::Kind(Kind::Huge)])).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
        let mut found = vec![0; 8 * PAGE_SIZE];
        disk.read(0, &mut found, &mut worker).unwrap();
        assert!(found == noise(1, 8 * PAGE_SIZE));
    }
}

/// Attributes that go through the pages, beside clients that write them.
#[test]
fn choosing_pages_beside_writers_changes_none() {
    let (disk, _) = disk(Fault::Io, u64::MAX, false);
    let attributes = Attributes::new(Arc::clone(&disk), "lz4", Some("zstd:1"));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let disk = &disk;
                scope.spawn(move || {
                    let (mut half, mut worker) = (Half::new(thread), disk.worker());
                    (0..400).for_each(|_| assert!(half.write(disk, &mut worker)));
                    half.check(disk, &mut worker);
                })
            })
            .collect();
        let set = |line: &[u8]| match ramfold_disk::attributes::request::Request::parse(line) {
            Ok(ramfold_disk::attributes::request::Request::Set(setting)) => attributes.set(setting).unwrap(),
            other => panic!("{other:?}"),
        };
        while writers.iter().any(|writer| !writer.is_finished()) {
            set(b"idle all");
            set(b"recompress type=idle");
            set(b"writeback type=idle");
            set(b"compact 1");
        }
    });
}
