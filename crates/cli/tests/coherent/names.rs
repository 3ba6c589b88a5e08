//! Names that come and go: sixteen threads create, delete and rename files and directories, through the mount and
//! behind it, and look at names, those that are there and those that are not, and at whole directories.
//!
//! Whoever looks may see what was firm when he began, or anything later ([`history`]). Where more threads work than
//! there are processors, the bound may be passed now and then; but never by a second, and it is told how often.

mod history;

use super::clients::told;
use super::clock::Clock;
use super::random::Random;
use history::{Name, Thing};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DIRECTORIES: usize = 8;
const NAMES: usize = 24;
/// Every other directory is left alone for most of a time as long as this: what it lists may be kept then.
const PERIOD: u128 = 8000;
const BUSY: u128 = 1500;

/// How late a change may be seen at the very latest, by the clock.
const LATEST: Duration = Duration::from_secs(1);

type Outcome = Result<(), String>;
/// What was seen and may not be.
type Seen = Result<Option<String>, String>;

/// What is done wrong on purpose, to see that it is found: what was seen a little earlier is seen again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Of a name that was there.
    Positive,
    /// Of one that was not.
    Negative,
    /// Of what a directory listed.
    Listing,
    /// Of how long a file is said to be.
    Length,
}

/// All that the threads share.
pub struct Run {
    through: PathBuf,
    behind: PathBuf,
    bound: Duration,
    mistake: Option<Mistake>,
    names: Vec<Name>,
    begun: Instant,
    clock: Clock,
    ended: AtomicBool,
    next: AtomicU64,
    pub failures: Mutex<Vec<String>>,
    pub looks: AtomicU64,
    pub listings: AtomicU64,
    /// Changes that were seen later than the bound.
    pub late: AtomicU64,
    /// Milliseconds after it, at most.
    pub latest: AtomicU64,
    /// Created, deleted, renamed, replaced; through the mount and behind it.
    pub changes: [[AtomicU64; 4]; 2],
}

struct Client<'run> {
    run: &'run Run,
    random: Random,
    number: u64,
}

/// How long a file with this number is.
fn length(number: u64) -> usize {
    21 + usize::try_from(number % 1000).unwrap()
}

fn content(number: u64) -> Vec<u8> {
    format!("{number:<len$}\n", len = length(number) - 1).into_bytes()
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.trim_end().parse().ok()
}

/// Something was not there, or was something else.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory)
}

impl Run {
    pub fn new(behind: &Path, through: &Path, bound: Duration, mistake: Option<Mistake>) -> Self {
        let name = |at: usize| Name::new(format!("dir-{}/name-{}", at / NAMES, at % NAMES));
        (0..DIRECTORIES).for_each(|at| fs::create_dir(behind.join(format!("dir-{at}"))).unwrap());
        Self {
            through: through.to_owned(),
            behind: behind.to_owned(),
            bound,
            mistake,
            names: (0..DIRECTORIES * NAMES).map(name).collect(),
            begun: Instant::now(),
            clock: Clock::default(),
            ended: AtomicBool::new(false),
            next: AtomicU64::new(1),
            failures: Mutex::default(),
            looks: AtomicU64::new(0),
            listings: AtomicU64::new(0),
            late: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            changes: Default::default(),
        }
    }

    /// Sixteen threads, for so long or until one sees what must not be.
    pub fn work(&self, length: Duration) {
        let are_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.clock.go(&are_done));
            self.have_clients_work(length);
            are_done.store(true, Relaxed);
        });
    }

    fn have_clients_work(&self, length: Duration) {
        std::thread::scope(|scope| {
            for number in 1..=16_u64 {
                scope.spawn(move || {
                    let random = Random::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    let mut client = Client { run: self, random, number };
                    while self.begun.elapsed() < length && !self.ended.load(Relaxed) {
                        if let Err(why) = client.turn() {
                            self.failures.lock().unwrap().push(format!("thread {number}: {why}"));
                            self.ended.store(true, Relaxed);
                        }
                        self.clock.turn();
                    }
                });
            }
        });
    }

    /// All is quiet: every name is known, on both sides.
    pub fn audit(&self) -> Outcome {
        std::thread::sleep(self.bound);
        for (name, directory) in
            self.names.iter().flat_map(|name| [(name, &self.through), (name, &self.behind)])
        {
            let seen = see(&directory.join(&name.path)).map_err(|error| format!("{}: {error}", name.path))?;
            if seen != Some(name.now()) {
                return Err(format!("at the end, {}: {seen:?}, is {:?}", name.path, name.now()));
            }
        }
        Ok(())
    }

    fn is_quiet(&self, directory: usize) -> bool {
        let now = self.begun.elapsed().as_millis() + directory as u128 * 1000;
        directory % 2 == 1 && now % PERIOD > BUSY
    }
}

/// Where a directory was moved behind the mount, and others work at its old place, the kernel may for a moment refuse
/// to know it by the new one (`d_splice_alias`), as on NFS. Whoever asks again gets an answer.
fn again<T>(call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    until(call, is_stale)
}

/// The same of what is there, but may be seen late: not at all, as what had its name before, or with what is listed
/// there no more.
fn surely<T>(call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    use ErrorKind::{DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    let is_late = |kind| matches!(kind, NotFound | NotADirectory | IsADirectory | DirectoryNotEmpty);
    until(call, |error| is_stale(error) || is_late(error.kind()))
}

fn is_stale(error: &io::Error) -> bool {
    const STALE: i32 = 116;
    error.raw_os_error() == Some(STALE)
}

fn until<T>(call: impl Fn() -> io::Result<T>, is_to_end: impl Fn(&io::Error) -> bool) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(error) if is_to_end(&error) && begun.elapsed() < LATEST => {
                std::thread::sleep(Duration::from_millis(1));
            }
            answer => return answer,
        }
    }
}

/// What a path leads to. None if it changed on the way, or is being made.
fn see(path: &Path) -> io::Result<Option<Thing>> {
    match again(|| fs::read(path)) {
        Ok(bytes) => Ok(number(&bytes).map(Thing::File)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(Thing::Nothing)),
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            match again(|| fs::read(path.join("inside"))) {
                Ok(bytes) => Ok(number(&bytes).map(Thing::Directory)),
                Err(error) if is_gone(&error) => Ok(None),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

impl Client<'_> {
    fn errs(&mut self, mistake: Mistake) -> bool {
        self.run.mistake == Some(mistake) && self.random.below(5) == 0
    }

    /// So late that what was seen before must not be seen any more, if it has changed.
    fn wait(&self) {
        std::thread::sleep(self.run.bound + Duration::from_millis(20));
    }

    fn turn(&mut self) -> Outcome {
        let at = self.random.below(self.run.names.len());
        match self.random.below(100) {
            0..50 => self.insist(at, Self::look),
            50..65 => self.insist(at, Self::look_at_length),
            65..75 => self.insist(at / NAMES, Self::list),
            _ if self.run.is_quiet(at / NAMES) => self.insist(at, Self::look),
            75..83 => self.create(at),
            83..90 => self.delete(at),
            90..96 => self.rename(at),
            _ => self.replace(at),
        }
    }

    /// Looks until what is seen is right.
    fn insist(&mut self, at: usize, look: impl Fn(&mut Self, usize) -> Seen) -> Outcome {
        let (begun, start) = (Instant::now(), self.run.clock.now());
        let Some(first) = look(self, at)? else { return Ok(()) };
        self.run.late.fetch_add(1, Relaxed);
        while self.run.mistake.is_none() && self.run.clock.since(start) < LATEST {
            self.run.clock.turn();
            if look(self, at)?.is_none() {
                let late = u64::try_from(begun.elapsed().as_millis()).unwrap();
                self.run.latest.fetch_max(late, Relaxed);
                return Ok(());
            }
        }
        Err(first)
    }

    fn look(&mut self, at: usize) -> Seen {
        let name = &self.run.names[at];
        let path = self.run.through.join(&name.path);
        let (mut early, mut is_early) = (None, false);
        if self.errs(Mistake::Positive) || self.errs(Mistake::Negative) {
            early = see(&path).map_err(told("read", &path))?;
            let is_absent = early == Some(Thing::Nothing);
            is_early = is_absent == (self.run.mistake == Some(Mistake::Negative));
            self.wait();
        }
        let step = name.history().firm(self.run.bound);
        let seen = see(&path).map_err(told("read", &path))?;
        let Some(seen) = (if is_early { early } else { seen }) else { return Ok(None) };
        let Some(things) = name.since(step) else { return Ok(None) };
        self.run.looks.fetch_add(1, Relaxed);
        Ok((!things.contains(&seen)).then(|| format!("{}: {seen:?}, may be {things:?}", name.path)))
    }

    fn look_at_length(&mut self, at: usize) -> Seen {
        let name = &self.run.names[at];
        let path = self.run.through.join(&name.path);
        let look = || match again(|| fs::metadata(&path)) {
            Ok(told) if told.is_dir() => Ok(None),
            Ok(told) => Ok(Some(told.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("stat {}: {error}", name.path)),
        };
        let mut early = None;
        if self.errs(Mistake::Length) {
            early = look()?;
            self.wait();
        }
        let step = name.history().firm(self.run.bound);
        let now = look()?;
        let Some(seen) = early.or(now) else { return Ok(None) };
        let Some(things) = name.since(step) else { return Ok(None) };
        self.run.looks.fetch_add(1, Relaxed);
        // What has no bytes yet has no other things before it that are firm.
        let fits = |thing: &Thing| match thing {
            Thing::File(number) => seen == length(*number) as u64 || (seen == 0 && things.len() > 1),
            _ => false,
        };
        Ok((!things.iter().any(fits)).then(|| format!("{}: {seen} bytes, may be {things:?}", name.path)))
    }

    fn list(&mut self, directory: usize) -> Seen {
        let names = &self.run.names[directory * NAMES..(directory + 1) * NAMES];
        let path = self.run.through.join(format!("dir-{directory}"));
        let names_in = || {
            let names = fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name().into_string().unwrap()));
            names.collect::<io::Result<HashSet<String>>>()
        };
        let read = || again(names_in);
        let mut early = None;
        if self.errs(Mistake::Listing) {
            early = Some(read().map_err(told("list", &path))?);
            self.wait();
        }
        let steps: Vec<u64> = names.iter().map(|name| name.history().firm(self.run.bound)).collect();
        let now = read().map_err(told("list", &path))?;
        let seen = early.unwrap_or(now);
        self.run.listings.fetch_add(1, Relaxed);
        for (name, step) in names.iter().zip(steps) {
            let Some(things) = name.since(step) else { continue };
            let is_there = seen.contains(name.path.rsplit('/').next().unwrap());
            if !things.iter().any(|thing| (*thing == Thing::Nothing) != is_there) {
                return Ok(Some(format!(
                    "{} is listed: {is_there}, may be {things:?}; listed are {seen:?}",
                    name.path
                )));
            }
        }
        Ok(None)
    }

    /// Where a change of these names is made. Through the mount only what is known there.
    fn side(&mut self, names: &[&Name]) -> (&PathBuf, bool) {
        let behind = self.random.below(3) > 0 || !names.iter().all(|name| name.is_firm(self.run.bound));
        (if behind { &self.run.behind } else { &self.run.through }, behind)
    }

    fn changed(&self, behind: bool, kind: usize) {
        self.run.changes[usize::from(behind)][kind].fetch_add(1, Relaxed);
    }

    /// A new thing at a path.
    fn make(&self, thing: Thing, path: &Path) -> Outcome {
        let (file, number) = match thing {
            Thing::Nothing => return Ok(()),
            Thing::File(number) => (path.to_owned(), number),
            Thing::Directory(number) => {
                again(|| fs::create_dir(path)).map_err(told("mkdir", path))?;
                (path.join("inside"), number)
            }
        };
        let mut made = again(|| File::create_new(&file)).map_err(told("create", &file))?;
        made.write_all(&content(number)).map_err(told("write", &file))
    }

    fn create(&mut self, at: usize) -> Outcome {
        let name = &self.run.names[at];
        let _writer = name.writer.lock().unwrap();
        if name.now() != Thing::Nothing {
            return Ok(());
        }
        let number = self.run.next.fetch_add(1, Relaxed);
        let thing = if self.random.below(3) == 0 { Thing::Directory(number) } else { Thing::File(number) };
        let at_once = self.random.below(2) == 0;
        let beside = format!("beside-{}", self.number);
        let (directory, behind) = self.side(&[name]);
        let (path, beside) = (directory.join(&name.path), directory.join(beside));
        if !at_once {
            self.make(thing, &beside)?;
        }
        name.begin(thing, behind);
        if at_once {
            self.make(thing, &path)?;
        } else {
            surely(|| fs::rename(&beside, &path)).map_err(told("rename to", &path))?;
        }
        name.end();
        self.changed(behind, 0);
        Ok(())
    }

    fn delete(&mut self, at: usize) -> Outcome {
        let name = &self.run.names[at];
        let _writer = name.writer.lock().unwrap();
        let thing = name.now();
        let (directory, behind) = self.side(&[name]);
        let path = directory.join(&name.path);
        if thing == Thing::Nothing {
            return Ok(());
        }
        name.begin(Thing::Nothing, behind);
        match thing {
            Thing::Directory(_) => surely(|| fs::remove_dir_all(&path)),
            _ => surely(|| fs::remove_file(&path)),
        }
        .map_err(told("remove", &path))?;
        name.end();
        self.changed(behind, 1);
        Ok(())
    }

    fn rename(&mut self, at: usize) -> Outcome {
        let other = self.random.below(self.run.names.len());
        if other == at || self.run.is_quiet(other / NAMES) {
            return Ok(());
        }
        let (from, to) = (&self.run.names[at], &self.run.names[other]);
        let (first, second) = if at < other { (from, to) } else { (to, from) };
        let _writers = (first.writer.lock().unwrap(), second.writer.lock().unwrap());
        let thing = from.now();
        // A directory takes no file's place, nor one that is not empty.
        let is_plain = |thing| matches!(thing, Thing::File(_));
        if thing == Thing::Nothing || to.now() != Thing::Nothing && !(is_plain(thing) && is_plain(to.now())) {
            return Ok(());
        }
        let (directory, behind) = self.side(&[from, to]);
        from.begin(Thing::Nothing, behind);
        to.begin(thing, behind);
        let (old, new) = (directory.join(&from.path), directory.join(&to.path));
        surely(|| fs::rename(&old, &new)).map_err(told("rename", &old))?;
        from.end();
        to.end();
        self.changed(behind, 2);
        Ok(())
    }

    /// A new file takes an old one's place.
    fn replace(&mut self, at: usize) -> Outcome {
        let name = &self.run.names[at];
        let _writer = name.writer.lock().unwrap();
        if !matches!(name.now(), Thing::File(_)) {
            return Ok(());
        }
        let thing = Thing::File(self.run.next.fetch_add(1, Relaxed));
        let beside = format!("beside-{}", self.number);
        let (directory, behind) = self.side(&[name]);
        let (path, beside) = (directory.join(&name.path), directory.join(beside));
        self.make(thing, &beside)?;
        name.begin(thing, behind);
        surely(|| fs::rename(&beside, &path)).map_err(told("rename to", &path))?;
        name.end();
        self.changed(behind, 3);
        Ok(())
    }
}
