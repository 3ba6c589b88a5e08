//! What the threads do: read, and change through the mount and behind it ([`changes`]), and hold what they see against
//! the book.

mod changes;

use super::clock::Clock;
use super::mapping::Mapping;
use super::random::Random;
use crate::book::{Body, CELL, CELLS, Change, Name, Size};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The directory of each other file.
pub const HALF: &str = "half/";
/// How long a quarter of the files is changed. In the time of the others what was read of a file is kept: its version
/// has settled.
const QUARTER: Duration = Duration::from_secs(4);
/// How long a page of a mapping is asked for again that the kernel takes for one behind the end.
const AGAIN: Duration = Duration::from_secs(1);
/// Handles that a thread keeps open.
const KEPT: usize = 4;

/// What is done wrong on purpose, to see that it is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Some reads give what was there a little earlier than they may.
    Stale,
    /// Some reads give a word of another place.
    Mixed,
    /// Some writes are not done.
    LostWrite,
    /// Some truncations are not done.
    LostSize,
    /// Some new files do not take the place of old ones.
    LostName,
}

/// All that the threads share.
pub struct Run {
    pub through: PathBuf,
    pub behind: PathBuf,
    pub mistake: Option<Mistake>,
    /// How long after its return a change behind the mount may be seen through it.
    pub bound: Duration,
    /// Changes that have returned and are not firm, the oldest first.
    recent: Mutex<VecDeque<(Duration, Arc<Body>, Change)>>,
    pub clock: Clock,
    begun: Instant,
    pub names: Vec<Name>,
    pub ended: AtomicBool,
    pub failures: Mutex<Vec<String>>,
    pub checks: AtomicU64,
    pub cells: AtomicU64,
    /// Pages of mappings that were asked for again.
    pub again: AtomicU64,
    /// By kind: write, mapping, truncate, append, rename over, unlink and create.
    pub changes: [AtomicU64; 6],
}

type Outcome = Result<(), String>;
/// A file, and the bodies that it may be.
type Opened = (File, Vec<Arc<Body>>);

/// One thread.
pub struct Client<'run> {
    run: &'run Run,
    random: Random,
    number: u64,
    kept: Vec<(File, Arc<Body>)>,
}

pub fn told(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{what} {}: {error}", path.display())
}

/// A page of a mapping that is not to be had.
fn lost(file: &File, path: &Path, cells: usize) -> impl FnOnce(std::io::Error) -> String {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    move |error| {
        format!("{} mapped: {error}; it has {} bytes, and {size} are told", path.display(), cells * CELL)
    }
}

impl Run {
    /// With as many files as told, all of version 1.
    pub fn new(
        behind: &Path,
        through: &Path,
        files: usize,
        bound: Duration,
        mistake: Option<Mistake>,
    ) -> Self {
        let name = |number: usize| {
            let body = Body::new(CELLS);
            // A half of the files is of a directory that has a limit of its own now and then.
            let name = format!("{}file-{number}", if number.is_multiple_of(2) { "" } else { HALF });
            fs::write(behind.join(&name), body.bytes(0, &[1; CELLS])).unwrap();
            Name::new(name, body)
        };
        fs::create_dir(behind.join(HALF)).unwrap();
        let (behind, through) = (behind.to_owned(), through.to_owned());
        let names = (0..files).map(name).collect();
        let (ended, failures) = (AtomicBool::new(false), Mutex::new(vec![]));
        let ([checks, cells, again], changes) = (Default::default(), Default::default());
        let (recent, clock, begun) = (Mutex::default(), Clock::default(), Instant::now());
        Self {
            through,
            behind,
            mistake,
            bound,
            recent,
            clock,
            begun,
            names,
            ended,
            failures,
            checks,
            cells,
            again,
            changes,
        }
    }

    /// Sixteen threads, for so long or until one sees what must not be.
    pub fn work(&self, length: Duration) {
        self.ended.store(false, Relaxed);
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| self.clock.go(&self.ended));
            for number in 1..=16_u64 {
                scope.spawn(move || {
                    let random = Random::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    let mut client = Client { run: self, random, number, kept: vec![] };
                    while started.elapsed() < length && !self.ended.load(Relaxed) {
                        if let Err(why) = client.turn() {
                            self.failures.lock().unwrap().push(format!("thread {number}: {why}"));
                            self.ended.store(true, Relaxed);
                        }
                        self.clock.turn();
                    }
                    self.ended.store(true, Relaxed);
                });
            }
        });
    }

    /// A change has returned. What is made through the mount is seen there at once, a length as soon as the one before.
    fn end(&self, body: &Arc<Body>, change: Change, behind: bool) {
        body.end(&change);
        if behind && change.is_of_length() {
            *body.moved.lock().unwrap() = Some(self.clock.now());
        }
        if self.bound.is_zero() || (!behind && !change.is_of_length()) {
            body.settle(&change);
        } else {
            let mut recent = self.recent.lock().unwrap();
            recent.push_back((self.clock.now(), Arc::clone(body), change));
        }
    }

    /// What has to be seen by now is firm.
    fn settle(&self) {
        let mut recent = self.recent.lock().unwrap();
        while let Some((ended, body, change)) = recent.pop_front() {
            if self.clock.since(ended) < self.bound {
                return recent.push_front((ended, body, change));
            }
            body.settle(&change);
        }
    }

    /// The body of a name that has to be known of through the mount.
    fn firm(&self, name: &Name) -> u64 {
        name.firm(self.bound, self.clock.now())
    }

    /// The lengths and states that a read in this directory has to know of.
    fn known(&self, directory: &Path, body: &Body, from: usize, len: usize) -> (Size, Vec<u64>) {
        if directory == self.behind {
            return (body.size(), body.done(from, len));
        }
        self.settle();
        (body.firm_size(), body.firm(from, len))
    }

    /// All is quiet: every byte is known, on both sides.
    pub fn audit(&self) -> Outcome {
        self.clock.rest(self.bound);
        for name in &self.names {
            for directory in [&self.through, &self.behind] {
                let path = directory.join(&name.name);
                let body = name.body();
                let (size, before) = (body.size(), body.done(0, CELLS));
                let seen = fs::read(&path).map_err(told("read", &path))?;
                body.judge(0, &before, &seen)
                    .map_err(|why| format!("at the end, {}: {why}", path.display()))?;
                body.judge_size(size, seen.len() as u64)?;
            }
        }
        Ok(())
    }

    /// A file of the quarter that is changed now. The others come to rest, so that a mount keeps what is read of them.
    fn changed_now(&self, random: &mut Random) -> &Name {
        let quarter = self.names.len().div_ceil(4);
        let turn = usize::try_from(self.begun.elapsed().as_secs() / QUARTER.as_secs()).unwrap();
        &self.names[(turn * quarter + random.below(quarter)) % self.names.len()]
    }

    fn counted(&self, len: usize) {
        self.checks.fetch_add(1, Relaxed);
        self.cells.fetch_add(len as u64, Relaxed);
    }
}

impl<'run> Client<'run> {
    fn errs(&mut self, mistake: Mistake) -> bool {
        self.run.mistake == Some(mistake) && self.random.below(20) == 0
    }

    fn turn(&mut self) -> Outcome {
        let run = self.run;
        // Some files are read more than others.
        let at = self.random.below(run.names.len()).min(self.random.below(run.names.len()));
        let name = &run.names[at];
        let changed = run.changed_now(&mut self.random);
        let behind = self.random.below(2) == 0;
        let directory = if behind { &run.behind } else { &run.through };
        match self.random.below(100) {
            0..25 => self.read_new(name, &run.through),
            25..30 => self.read_new(name, &run.behind),
            30..50 => self.read_kept(),
            50..60 => self.read_whole(name),
            60..70 => self.read_mapping(name),
            70..86 => self.write(changed, directory),
            86..90 => self.write_mapping(changed, directory, behind),
            90..94 => self.truncate(changed, directory),
            94..97 => self.append(changed, directory),
            97..99 => self.rename_over(changed, directory),
            _ => self.unlink_and_create(changed, directory),
        }
    }

    /// Opens a name: the file, and the bodies that it may be. None if the name may have had none for a moment.
    fn open(&self, name: &Name, directory: &Path) -> Result<Option<Opened>, String> {
        let path = directory.join(&name.name);
        let before = if directory == self.run.behind { name.done() } else { self.run.firm(name) };
        let file = File::open(&path);
        let bodies = name.since(before);
        match (file, bodies) {
            (_, None) => Ok(None),
            (Ok(file), Some(bodies)) => Ok(Some((file, bodies))),
            (Err(error), Some(bodies)) if error.kind() == ErrorKind::NotFound && bodies.len() > 1 => Ok(None),
            (Err(error), _) => Err(format!("open {}: {error}", path.display())),
        }
    }

    /// Reads some cells of a file that is one of these bodies.
    fn read_at(&mut self, file: &File, bodies: &[Arc<Body>], directory: &Path, how: &str) -> Outcome {
        let from = self.random.below(CELLS);
        let len = (1 + self.random.below(64)).min(CELLS - from);
        // Not all of them: the clock goes while others work.
        let early = match self.number.is_multiple_of(2) && self.errs(Mistake::Stale) {
            false => None,
            true => {
                let mut bytes = vec![0; len * CELL];
                let read =
                    file.read_at(&mut bytes, (from * CELL) as u64).map_err(|error| error.to_string())?;
                bytes.truncate(read);
                self.run.clock.wait(self.run.bound, &self.run.ended);
                Some(bytes)
            }
        };
        let before: Vec<(Size, Vec<u64>)> =
            bodies.iter().map(|body| self.run.known(directory, body, from, len)).collect();
        let size = file.metadata().map_err(|error| format!("{how}, its size: {error}"))?.len();
        let mut bytes = vec![0; len * CELL];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], (from * CELL + filled) as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) => return Err(format!("{how} at {}: {error}", from * CELL + filled)),
            }
        }
        bytes.truncate(filled);
        let mut bytes = early.unwrap_or(bytes);
        if bytes.len() >= CELL && self.errs(Mistake::Mixed) {
            bytes[200..208].copy_from_slice(&[0x5a; 8]);
        }
        let judged = bodies.iter().zip(&before).map(|(body, (size_before, before))| {
            body.judge(from, before, &bytes)?;
            body.judge_size(*size_before, size)
        });
        self.run.counted(len);
        one_of(judged).map_err(|why| format!("{how}: {why}"))
    }

    fn read_new(&mut self, name: &Name, directory: &Path) -> Outcome {
        let Some((file, bodies)) = self.open(name, directory)? else { return Ok(()) };
        self.read_at(&file, &bodies, directory, &format!("{} opened in {}", name.name, directory.display()))?;
        if let ([body], true) = (&bodies[..], directory == self.run.through) {
            self.kept.push((file, Arc::clone(body)));
            if self.kept.len() > KEPT {
                let out = self.random.below(self.kept.len());
                self.kept.swap_remove(out);
            }
        }
        Ok(())
    }

    fn read_kept(&mut self) -> Outcome {
        let Some(last) = self.kept.len().checked_sub(1) else { return Ok(()) };
        let at = self.random.below(last + 1);
        let (file, body) = self.kept.swap_remove(at);
        self.read_at(&file, std::slice::from_ref(&body), &self.run.through, "a file that was open")?;
        self.kept.push((file, body));
        Ok(())
    }

    /// From the first to the last byte, as `cat` does.
    fn read_whole(&mut self, name: &Name) -> Outcome {
        let Some((mut file, bodies)) = self.open(name, &self.run.through)? else { return Ok(()) };
        let known = |body: &Arc<Body>| self.run.known(&self.run.through, body, 0, CELLS).1;
        let before: Vec<Vec<u64>> = bodies.iter().map(known).collect();
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).map_err(|error| format!("{} whole: {error}", name.name))?;
        let judged = bodies.iter().zip(&before).map(|(body, before)| body.judge(0, before, &bytes));
        self.run.counted(CELLS);
        one_of(judged).map_err(|why| format!("{} whole: {why}", name.name))
    }

    /// A mapping made by the next open shows what was there when it was opened, or newer.
    fn read_mapping(&mut self, name: &Name) -> Outcome {
        let _shape = name.shape.read().unwrap();
        let body = name.body();
        let size = body.size().done;
        if size == 0 || !self.is_known(name, &self.run.through) {
            return Ok(());
        }
        let from = self.random.below(size);
        let len = (1 + self.random.below(64)).min(size - from);
        let (_, before) = self.run.known(&self.run.through, &body, from, len);
        let path = self.run.through.join(&name.name);
        let file = File::open(&path).map_err(told("open", &path))?;
        let mapping = Mapping::new(&file, size * CELL, false).map_err(told("map", &path))?;
        let read = || mapping.read(from * CELL, len * CELL);
        let bytes = self.surely(&file, read).map_err(lost(&file, &path, size))?;
        self.run.counted(len);
        body.judge(from, &before, &bytes).map_err(|why| format!("{} mapped: {why}", name.name))
    }

    /// While a file grows behind the mount, the kernel may take one of its pages for one behind the end, though it has
    /// told the length, until it is asked for it again (docs/mount.md).
    fn surely<T>(&self, file: &File, read: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
        let begun = Instant::now();
        loop {
            match read() {
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) && begun.elapsed() < AGAIN => {
                    self.run.again.fetch_add(1, Relaxed);
                    file.metadata()?;
                }
                done => return done,
            }
        }
    }

    /// Whether the name leads to its last body in this directory for sure.
    fn is_known(&self, name: &Name, directory: &Path) -> bool {
        directory == self.run.behind || self.run.firm(name) == name.done()
    }
}

/// Fine if one of them is.
fn one_of(judged: impl Iterator<Item = Outcome>) -> Outcome {
    let mut last = Err("of no body".to_owned());
    for outcome in judged {
        if outcome.is_ok() {
            return outcome;
        }
        last = outcome;
    }
    last
}
