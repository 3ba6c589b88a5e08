//! Who reads a process's memory by /proc/PID/mem finds all of it in place.
//!
//! The kernel does not wait for a page that is away when it is read there: it answers EIO. But it waits in open() while
//! somebody else has a lease on the file ([`OpenLease`]). So `ramfold run` has a lease on that of each process of which
//! something is away. Somebody opens the file: the process is asked for a hold (`segment/hold.rs`), the lease is given
//! up when all of its memory is in place, and the hold goes on until nobody has the file open.
//!
//! A process that has its own memory open, as some compilers at run time have for as long as they live, is not held:
//! the limit would not hold for it. A line on stderr tells of each process that was held.
//!
//! Price: a descriptor for each process, and a system call a tick; who opens waits for the memory. Guarantee: nobody
//! waits for a process that is stopped, that brings nothing back for [`PATIENCE`], or for whose memory the system has
//! no room: the file opens, and pages that are away are EIO.

use super::PRELOAD_NAME;
use crate::failure::say;
use ramfold_budget::open_lease::OpenLease;
use ramfold_budget::pressure::Pressure;
use ramfold_budget::process::Stat;
use ramfold_budget::segment::{Process, Segment, SlotId};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::fs::{self, File};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Most processes that are watched: each takes a descriptor, and all of them no more than one part in so many.
const MOST: usize = 256;
const PART_OF_FILES: u64 = 4;
/// A process that brings nothing back for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts to get a lease back; a hold outlasts several. And where the process itself is in the way.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(5);
/// One part in so many of what the system has to give is left to it.
const LEFT: u64 = 8;

/// The processes of a run whose memory somebody may want to read.
#[derive(Debug)]
pub struct Lookers {
    watched: HashMap<u32, Watched>,
    /// How many there may be.
    most: usize,
    /// Counts looks.
    now: u64,
}

#[derive(Debug)]
struct Watched {
    pid: u32,
    slot: SlotId,
    /// The last look that saw it in the segment.
    seen: u64,
    state: State,
    /// Whether it has been told of.
    is_told: bool,
}

#[derive(Debug)]
enum State {
    /// Its memory cannot be opened, or the kernel gives no lease there.
    Apart,
    /// Nobody has it open.
    Leased(OpenLease),
    /// Somebody waits, for the hold that this beat asked for.
    Asked { lease: OpenLease, beat: u32, progress: Progress },
    /// Somebody may have it open; when to look again.
    Open { lease: OpenLease, next: Instant },
}

/// The least that was away, in bytes, and since when.
#[derive(Debug)]
struct Progress {
    least: u64,
    since: Instant,
}

impl Default for Lookers {
    fn default() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / PART_OF_FILES;
        Self {
            watched: HashMap::new(),
            most: usize::try_from(files).map_or(MOST, |files| files.min(MOST)),
            now: 0,
        }
    }
}

impl Lookers {
    /// To be called often, and whenever a signal has come.
    pub fn look(&mut self, segment: &Segment) {
        self.now += 1;
        for Process { pid, slot } in segment.processes() {
            if !self.watched.contains_key(&pid) {
                if self.watched.len() >= self.most || segment.away(slot) == 0 {
                    continue;
                }
                self.watched.insert(pid, Watched::new(pid, slot));
            }
            if let Some(watched) = self.watched.get_mut(&pid) {
                (watched.slot, watched.seen) = (slot, self.now);
                watched.turn(segment);
            }
        }
        self.watched.retain(|_, watched| watched.seen == self.now);
    }

    /// Lets in who waits, and who comes until the next look.
    pub fn pause(&mut self) {
        self.watched.clear();
    }
}

impl Watched {
    fn new(pid: u32, slot: SlotId) -> Self {
        let file = File::open(memory_of(pid)).ok().filter(|_| is_managed(pid));
        let state = file.map_or(State::Apart, |file| lease(OpenLease::on(file)));
        Self { pid, slot, seen: 0, state, is_told: false }
    }

    fn turn(&mut self, segment: &Segment) {
        self.state = match std::mem::replace(&mut self.state, State::Apart) {
            State::Leased(lease) if lease.is_wanted() => self.ask(segment, lease),
            State::Asked { lease, beat, progress } => self.wait(segment, lease, beat, progress),
            State::Open { lease, next } if Instant::now() >= next => self.look_again(segment, lease),
            state => state,
        };
    }

    /// Somebody waits in open().
    fn ask(&mut self, segment: &Segment, lease: OpenLease) -> State {
        match self.beat(segment) {
            Some(beat) => {
                let progress = Progress { least: u64::MAX, since: Instant::now() };
                self.wait(segment, lease, beat, progress)
            }
            None => let_in(lease),
        }
    }

    fn wait(&self, segment: &Segment, lease: OpenLease, beat: u32, mut progress: Progress) -> State {
        let away = segment.away(self.slot);
        if away < progress.least {
            progress = Progress { least: away, since: Instant::now() };
        }
        let is_stopped = || Stat::of(self.pid).is_none_or(|stat| stat.is_stopped());
        if segment.is_held(self.slot, beat) || progress.since.elapsed() > PATIENCE || is_stopped() {
            return let_in(lease);
        }
        // What an evictor has added since the last beat comes back with the next.
        segment.beat_hold(self.slot);
        State::Asked { lease, beat, progress }
    }

    /// The lease is to be had when nobody has the file open any more.
    fn look_again(&mut self, segment: &Segment, lease: OpenLease) -> State {
        let again = self::lease(lease);
        match again {
            State::Open { lease, .. } if has_its_own(self.pid) => {
                State::Open { lease, next: Instant::now() + SELDOM }
            }
            State::Open { .. } => {
                self.beat(segment);
                again
            }
            _ => again,
        }
    }

    /// Asks for a hold, or that it goes on, if the system has room for what is away.
    fn beat(&mut self, segment: &Segment) -> Option<u32> {
        let away = segment.away(self.slot);
        let room = Pressure::new().available().map_or(u64::MAX, |room| room - room / LEFT);
        if away > room {
            let (away, room) = (away / MIB, room / MIB);
            self.tell(&format!("{away} MiB are away, and with room for {room} MiB reads of that fail"));
            return None;
        }
        self.tell("until that is over, all of it stays in place, whatever the limit");
        Some(segment.beat_hold(self.slot))
    }

    fn tell(&mut self, what: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            let pid = self.pid;
            say(&format!("process {pid}: its memory is being read ({}): {what}", memory_of(pid)));
        }
    }
}

/// With a lease, or without one for now.
fn lease(lease: OpenLease) -> State {
    match lease.take() {
        Ok(true) => State::Leased(lease),
        Ok(false) => State::Open { lease, next: Instant::now() + AGAIN },
        Err(_) => State::Apart,
    }
}

fn let_in(lease: OpenLease) -> State {
    lease.give_up();
    State::Open { lease, next: Instant::now() + AGAIN }
}

fn memory_of(pid: u32) -> String {
    format!("/proc/{pid}/mem")
}

/// Whether this is a managed process: not a disk or a mount under the same limit, nor one that has by chance here the
/// number that another is entered with from a container of its own.
fn is_managed(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(PRELOAD_NAME))
}

/// Whether the process has its own memory open.
fn has_its_own(pid: u32) -> bool {
    let memory = memory_of(pid);
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.into_iter()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == memory.as_str()))
}
