//! A durable disk and power cuts: after each of the system calls by which its image changes, with any of the sectors on
//! disk that were written since the last sync, and after an error of any of these calls.

mod random;
#[path = "durable/world.rs"]
mod world;

use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::face::{Disk, DiskError};
use ramfold_disk::image::calls::{Calls, System};
use ramfold_disk::image::durable::{Durable, Settings};
use ramfold_disk::image::format::ReadError;
use ramfold_disk::image::{Image, OpenError};
use ramfold_disk::volume::{self, Volume};
use random::{bytes, random};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use world::cut_everywhere;

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 24;

/// A call as it was made.
#[derive(Debug, Clone)]
enum Call {
    Write {
        file: u64,
        at: usize,
        bytes: Vec<u8>,
    },
    Sync(u64),
    /// A sync that failed: what was written since the last is not synced by the next either.
    Doubt(u64),
    Rename(u64),
    SyncDirectory,
    /// The client was told that a flush has succeeded: what it flushed.
    Flushed(Versions),
    /// The client writes: each page may have this from now on.
    Wrote(u64, u64),
}

/// What each page has; 0: a hole.
type Versions = BTreeMap<u64, u64>;

/// Notes each call, and lets some fail.
#[derive(Debug)]
struct Recorder {
    calls: Mutex<Vec<Call>>,
    count: AtomicUsize,
    /// From which call on, how many fail, and how.
    fails: (usize, usize, i32),
    /// Held open, so that no two files have one number.
    files: Mutex<BTreeMap<u64, File>>,
}

impl Recorder {
    fn new(fails: (usize, usize, i32)) -> Arc<Self> {
        let (calls, files) = (Mutex::default(), Mutex::default());
        Arc::new(Self { calls, count: AtomicUsize::new(0), fails, files })
    }

    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn step(&self) -> io::Result<()> {
        let (first, count, errno) = self.fails;
        let number = self.count.fetch_add(1, SeqCst);
        if (first..first.saturating_add(count)).contains(&number) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(())
    }
}

fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

impl Calls for Recorder {
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let open = || File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        self.files.lock().unwrap().entry(inode(file)).or_insert_with(open);
        let failed = self.step();
        // A write that fails may have been made, in part.
        let bytes = if failed.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        let at_byte = usize::try_from(at).unwrap();
        self.note(Call::Write { file: inode(file), at: at_byte, bytes: bytes.to_vec() });
        System.write(file, bytes, at)?;
        failed
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.sync_data(file)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        let synced = self.step();
        self.note(if synced.is_ok() { Call::Sync(inode(file)) } else { Call::Doubt(inode(file)) });
        synced
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.note(Call::Rename(fs::metadata(from)?.ino()));
        System.rename(from, to)
    }

    fn sync_directory_of(&self, _: &Path) -> io::Result<()> {
        self.step()?;
        self.note(Call::SyncDirectory);
        Ok(())
    }
}

fn volume() -> Volume {
    let store = Config { recomp_algorithm: None, ..Config::default() };
    Volume::open(volume::Settings { size: PAGES * PAGE, mem_limit: None, store, backing: None }).unwrap()
}

/// A page of this version: some compress, some do not, some repeat a word; 0 is a hole.
fn page(number: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; PAGE_SIZE];
    }
    let mask = [0xff, 1, 0][usize::try_from(version % 3).unwrap()];
    let word = (number << 32 | version).to_le_bytes();
    let mut page: Vec<u8> = (0..PAGE_SIZE / 8).flat_map(|_| word).collect();
    page.iter_mut().skip(8).zip(bytes(version)).for_each(|(byte, noise)| *byte ^= noise & mask);
    page
}

fn settings(least_log: u64) -> Settings {
    let tell = Box::new(|_: &str| ());
    Settings { compressor: "lz4".to_owned(), least_log, patience: Duration::ZERO, tell }
}

/// A disk with a client that notes what it wrote and flushed.
struct Client {
    disk: Volume,
    recorder: Arc<Recorder>,
    now: Versions,
    next: u64,
    state: u64,
    flushes: (usize, usize),
}

impl Client {
    fn write(&mut self) {
        let number = random(&mut self.state) % PAGES;
        let mut worker = self.disk.worker();
        let kind = random(&mut self.state) % 8;
        let version = if kind < 2 { 0 } else { self.next };
        self.next += 1;
        // Noted first: the write may be on disk before it returns.
        self.recorder.note(Call::Wrote(number, version));
        match kind {
            0 => self.disk.discard(number * PAGE, PAGE, &mut worker).unwrap(),
            1 => self.disk.zero(number * PAGE, PAGE, &mut worker).unwrap(),
            _ => self.disk.write(number * PAGE, &page(number, version), &mut worker).unwrap(),
        }
        self.now.insert(number, version);
    }

    /// Discards all, by one request.
    fn trim(&mut self) {
        (0..PAGES).for_each(|number| self.recorder.note(Call::Wrote(number, 0)));
        self.disk.discard(0, PAGES * PAGE, &mut self.disk.worker()).unwrap();
        self.now = (0..PAGES).map(|number| (number, 0)).collect();
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let flushed = self.disk.flush();
        match flushed {
            Ok(()) => {
                self.flushes.0 += 1;
                self.recorder.note(Call::Flushed(self.now.clone()));
            }
            Err(_) => self.flushes.1 += 1,
        }
        flushed
    }

    fn work(&mut self, rounds: u64, trims: bool) {
        for round in 0..rounds {
            (0..1 + random(&mut self.state) % 6).for_each(|_| self.write());
            if trims && round == rounds / 2 {
                self.trim();
            }
            let _ = self.flush();
        }
        // What was never flushed.
        (0..4).for_each(|_| self.write());
    }
}

/// A disk that is served from an image of some pages, and its client.
fn serve(directory: &Path, fails: (usize, usize, i32), least_log: u64) -> (Client, Arc<Durable>, PathBuf) {
    let path = directory.join("image");
    let (disk, recorder) = (volume(), Recorder::new(fails));
    let image = Image::open(&path, PAGES * PAGE, false).unwrap();
    // An image that has something, of a clean stop.
    let mut now = Versions::new();
    let mut first = image;
    first.restore(&disk, |_, _| ()).unwrap();
    first.serve(&disk, "lz4").unwrap();
    for number in (0..PAGES).step_by(3) {
        now.insert(number, 1);
        disk.write(number * PAGE, &page(number, 1), &mut disk.worker()).unwrap();
    }
    first.save(&disk, "lz4", |_, _| ()).unwrap();
    drop((first, disk));
    let disk = volume();
    let mut image = Image::open_with(Arc::clone(&recorder) as _, &path, PAGES * PAGE, false).unwrap();
    image.restore(&disk, |_, _| ()).unwrap();
    let whole = fs::read(&path).unwrap();
    let file = fs::metadata(&path).unwrap().ino();
    recorder.note(Call::Write { file, at: 0, bytes: whole });
    recorder.note(Call::Sync(file));
    recorder.note(Call::Rename(file));
    recorder.note(Call::SyncDirectory);
    recorder.note(Call::Flushed(now.clone()));
    let durable = Durable::start(image, &disk, settings(least_log)).unwrap();
    (Client { disk, recorder, now, next: 2, state: 77, flushes: (0, 0) }, durable, path)
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn calls_of(client: &Client) -> Vec<Call> {
    client.recorder.calls.lock().unwrap().clone()
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut_at_any_call() {
    let directory = directory();
    let (mut client, durable, path) = serve(directory.path(), (usize::MAX, 0, 0), u64::MAX);
    client.work(12, true);
    assert_eq!((client.flushes, durable.counts().folds), ((12, 0), 0));
    let cuts = cut_everywhere(directory.path(), &calls_of(&client), 12, "a log");
    eprintln!("{cuts} cuts, {:?}", durable.counts());
    // Killed, it is read and made anew before it is served again; and a clean stop has no log.
    let now = client.now.clone();
    client.flush().unwrap();
    drop((client, durable));
    let (disk, mut image) = (volume(), Image::open(&path, PAGES * PAGE, false).unwrap());
    image.restore(&disk, |_, _| ()).unwrap();
    assert!(image.was_cut() && image.groups() == 13);
    let durable = Durable::start(image, &disk, settings(u64::MAX)).unwrap();
    assert_eq!(durable.counts().folds, 1);
    durable.stop(&disk, |_, _| ()).unwrap();
    assert_eq!(disk.flush(), Err(DiskError::Io), "nobody keeps it any more");
    drop((durable, disk));
    let (disk, mut image) = (volume(), Image::open(&path, PAGES * PAGE, false).unwrap());
    image.restore(&disk, |_, _| ()).unwrap();
    assert!(!image.was_cut());
    let mut found = vec![0; PAGE_SIZE];
    for number in 0..PAGES {
        disk.read(number * PAGE, &mut found, &mut disk.worker()).unwrap();
        assert!(found == page(number, now.get(&number).copied().unwrap_or(0)), "page {number}");
    }
}

#[test]
fn so_it_is_while_the_log_becomes_a_new_image() {
    let directory = directory();
    let (mut client, durable, _) = serve(directory.path(), (usize::MAX, 0, 0), 16 << 10);
    // A stop abandons a fold that is under way, so it is to come after one: the work goes on until then.
    let began = Instant::now();
    client.work(40, true);
    while durable.counts().folds == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", durable.counts());
        std::thread::sleep(Duration::from_millis(10));
        client.work(1, true);
    }
    durable.stop(&client.disk, |_, _| ()).unwrap();
    client.recorder.note(Call::Flushed(client.now.clone()));
    let cuts = cut_everywhere(directory.path(), &calls_of(&client), 4, "folds");
    eprintln!("{cuts} cuts, {:?}", durable.counts());
}

/// No flush is acknowledged falsely, and what was flushed before stays, whichever call fails and however.
#[test]
fn an_error_of_any_call_loses_nothing_that_was_flushed() {
    let (mut refused, mut cuts) = (0, 0);
    for (errno, count) in [(libc_eio(), 1), (libc_enospc(), 1), (libc_eio(), 9), (libc_enospc(), 9)] {
        for first in 3.. {
            let directory = directory();
            let (mut client, durable, _) = serve(directory.path(), (first, count, errno), 16 << 10);
            client.work(6, false);
            let made = client.recorder.count.load(SeqCst);
            // A call that works again is found out by itself.
            while made <= first + count && client.flush().is_err() {}
            refused += client.flushes.1;
            let what = format!("errno {errno}, {count} from call {first} on");
            let _ = durable.stop(&client.disk, |_, _| ());
            cuts += cut_everywhere(directory.path(), &calls_of(&client), 1, &what);
            if made < first {
                break;
            }
        }
    }
    eprintln!("{refused} flushes were refused; {cuts} cuts");
    assert!(refused > 0);
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

fn libc_enospc() -> i32 {
    rustix::io::Errno::NOSPC.raw_os_error()
}

/// A log with a group missing in its middle is told from one whose end was never whole.
#[test]
fn a_log_that_is_damaged_is_not_taken_for_a_shorter_one() {
    let directory = directory();
    let (mut client, durable, path) = serve(directory.path(), (usize::MAX, 0, 0), u64::MAX);
    let start = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap().next_multiple_of(4096);
    client.work(4, false);
    drop((client, durable));
    let whole = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let (disk, mut image) = (volume(), Image::open(&path, PAGES * PAGE, false).unwrap());
        image.restore(&disk, |_, _| ()).map(|()| image.groups())
    };
    assert!(matches!(read(&whole), Ok(4)));
    let mut damaged = whole.clone();
    for at in (start..start + 200).step_by(7) {
        damaged[at] ^= 4;
        assert!(matches!(read(&damaged), Err(ReadError::Damaged(_))), "byte {at}");
        damaged[at] ^= 4;
    }
    for cut in (start..whole.len() - 4096).step_by(611) {
        assert!(read(&whole[..cut]).is_ok_and(|groups| groups < 4), "{cut}");
    }
    damaged[4096 + 16] = 2;
    fs::write(&path, &damaged).unwrap();
    assert!(matches!(Image::open(&path, PAGES * PAGE, true), Err(OpenError::LogVersion(2))));
}

/// Flushes at the same time share groups, and none is lost.
#[test]
fn many_flush_at_once() {
    let directory = directory();
    let (client, durable, path) = serve(directory.path(), (usize::MAX, 0, 0), 64 << 10);
    let disk = &client.disk;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut worker = disk.worker();
                for round in 2..60 {
                    for number in (thread..PAGES).step_by(4).take(5) {
                        disk.write(number * PAGE, &page(number, round), &mut worker).unwrap();
                    }
                    disk.flush().unwrap();
                }
            });
        }
    });
    let counts = durable.counts();
    eprintln!("{counts:?}");
    assert!(counts.flushes == 4 * 58 && counts.groups <= counts.flushes);
    // The process is killed: nothing of it runs any more.
    durable.stop(&client.disk, |_, _| ()).unwrap();
    drop((durable, client));
    let (disk, mut image) = (volume(), Image::open(&path, PAGES * PAGE, false).unwrap());
    image.restore(&disk, |_, _| ()).unwrap();
    let mut found = vec![0; PAGE_SIZE];
    for number in 0..20 {
        disk.read(number * PAGE, &mut found, &mut disk.worker()).unwrap();
        assert!(found == page(number, 59), "page {number}");
    }
}
