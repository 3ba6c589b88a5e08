//! What is known of every file: each version of each cell, when its change began and when it returned.
//!
//! A cell is 512 bytes that tell which file, place and version they are, so a page can be written in part. A cell has
//! one change at a time, so its versions are numbers in a row, and whoever reads it may see any version from the last
//! that was done before the read to the last that was begun when the read ended. If that is one, each byte has to be
//! of it; if it is more, each word has to be of one of them. A file that another takes the place of is another body:
//! who has it open still reads the old one.
//!
//! Where changes may be seen later, a version is firm once every read has to know of it: when it is done, or so long
//! after. Whoever reads there may see any version from the last that was firm.

use super::random::Random;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

pub const CELL: usize = 512;
pub const WORDS: usize = CELL / 8;
/// Cells of the largest file.
pub const CELLS: usize = 1024;
/// Cells that have one writer at a time.
pub const RANGE: usize = 64;
/// Bodies of a name that are remembered.
const REMEMBERED: usize = 16;
const MAGIC: u64 = 0x6c6c_6563_646c_6f66;

/// Beyond the end of the file.
pub const ABSENT: u64 = 0;
/// Part of a hole.
pub const ZERO: u64 = 1;
/// Bytes that carry their version.
pub const DATA: u64 = 2;

/// A version and what the cell is in it.
pub fn state(version: u64, kind: u64) -> u64 {
    version << 2 | kind
}

/// What a cell holds in one of its versions: of some a part can be compressed, others not at all.
pub fn words(body: u32, index: usize, version: u64) -> [u64; WORDS] {
    let place = u64::from(body) << 32 | index as u64;
    let mut random = Random::new((place ^ version << 17).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let few = !index.is_multiple_of(5);
    let header = [MAGIC, place, version];
    std::array::from_fn(|at| {
        let word = random.word();
        match at {
            0..3 => header[at],
            _ if few && at % 4 != 0 => version,
            _ => word,
        }
    })
}

/// The same as bytes.
pub fn cell(body: u32, index: usize, version: u64) -> [u8; CELL] {
    let mut bytes = [0; CELL];
    let words = words(body, index, version);
    bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(to, from)| *to = from.to_le_bytes());
    bytes
}

#[derive(Default)]
struct Cell {
    firm: AtomicU64,
    done: AtomicU64,
    begun: AtomicU64,
}

/// The length in cells, before and after the change that was begun last.
#[derive(Clone, Copy, Default, Debug)]
pub struct Size {
    changes_done: u64,
    changes_begun: u64,
    pub done: usize,
    begun: usize,
}

/// One file, whatever its name is.
pub struct Body {
    pub id: u32,
    cells: Vec<Cell>,
    size: Mutex<Size>,
    firm_size: Mutex<Size>,
    /// When its length was last changed behind the mount, by the clock.
    pub moved: Mutex<Option<Duration>>,
    /// One writer for each range of cells.
    pub ranges: [Mutex<()>; CELLS / RANGE],
}

/// A change that was begun: which cells get which states.
pub struct Change {
    states: Vec<(usize, u64)>,
    size: Option<usize>,
    /// The number of the change of length.
    number: u64,
}

impl Change {
    pub fn is_of_length(&self) -> bool {
        self.size.is_some()
    }
}

impl Body {
    /// A new one, whose first cells are of version 1.
    pub fn new(len: usize) -> Arc<Self> {
        static MADE: AtomicU32 = AtomicU32::new(1);
        let cells = (0..CELLS).map(|index| {
            let state = if index < len { state(1, DATA) } else { 0 };
            Cell { firm: state.into(), done: state.into(), begun: state.into() }
        });
        let size = Size { done: len, begun: len, ..Size::default() };
        let (size, firm_size) = (Mutex::new(size), Mutex::new(size));
        let ranges = std::array::from_fn(|_| Mutex::new(()));
        let (id, cells, moved) = (MADE.fetch_add(1, SeqCst), cells.collect(), Mutex::default());
        Arc::new(Self { id, cells, size, firm_size, moved, ranges })
    }

    pub fn bytes(&self, from: usize, versions: &[u64]) -> Vec<u8> {
        (from..).zip(versions).flat_map(|(index, version)| cell(self.id, index, *version)).collect()
    }

    pub fn size(&self) -> Size {
        *self.size.lock().unwrap()
    }

    /// The states that are done.
    pub fn done(&self, from: usize, len: usize) -> Vec<u64> {
        self.cells[from..CELLS.min(from + len)].iter().map(|cell| cell.done.load(SeqCst)).collect()
    }

    /// The length that is firm.
    pub fn firm_size(&self) -> Size {
        *self.firm_size.lock().unwrap()
    }

    /// The states that are firm.
    pub fn firm(&self, from: usize, len: usize) -> Vec<u64> {
        self.cells[from..CELLS.min(from + len)].iter().map(|cell| cell.firm.load(SeqCst)).collect()
    }

    /// A change that has returned is firm.
    pub fn settle(&self, change: &Change) {
        for (index, state) in &change.states {
            self.cells[*index].firm.fetch_max(*state, SeqCst);
        }
        let mut firm = self.firm_size.lock().unwrap();
        if let Some(len) = change.size.filter(|_| firm.changes_done < change.number) {
            (firm.changes_done, firm.done) = (change.number, len);
        }
    }

    /// Begins a change that makes these cells of a kind, and the file so long: the change, and the cells' versions.
    pub fn begin(&self, cells: std::ops::Range<usize>, kind: u64, size: Option<usize>) -> (Change, Vec<u64>) {
        let next = |index: usize| {
            let version = (self.cells[index].done.load(SeqCst) >> 2) + 1;
            self.cells[index].begun.store(state(version, kind), SeqCst);
            version
        };
        let versions: Vec<u64> = cells.clone().map(next).collect();
        let mut number = 0;
        if let Some(len) = size {
            let mut size = self.size.lock().unwrap();
            (size.changes_begun, size.begun) = (size.changes_begun + 1, len);
            number = size.changes_begun;
        }
        let states = cells.zip(&versions).map(|(index, version)| (index, state(*version, kind))).collect();
        (Change { states, size, number }, versions)
    }

    /// The change has returned.
    pub fn end(&self, change: &Change) {
        for (index, state) in &change.states {
            self.cells[*index].done.store(*state, SeqCst);
        }
        if let Some(len) = change.size {
            let mut size = self.size.lock().unwrap();
            (size.changes_done, size.done) = (size.changes_begun, len);
        }
    }

    /// Whether a length, in bytes, may have been seen between then and now.
    pub fn judge_size(&self, before: Size, seen: u64) -> Result<(), String> {
        let after = self.size();
        let (a, b) = ((before.done * CELL) as u64, (after.begun * CELL) as u64);
        let fits = match after.changes_begun - before.changes_done {
            0 => seen == a,
            1 => (a.min(b)..=a.max(b)).contains(&seen),
            _ => seen <= (CELLS * CELL) as u64,
        };
        fits.then_some(())
            .ok_or_else(|| format!("body {}: {seen} bytes long, {before:?}, {after:?}", self.id))
    }

    /// Whether these bytes may have been read from the cell `from` on, where its cells were in the states `before`.
    pub fn judge(&self, from: usize, before: &[u64], seen: &[u8]) -> Result<(), String> {
        for (turn, before) in before.iter().enumerate() {
            let index = from + turn;
            let after = self.cells[index].begun.load(SeqCst);
            let piece = seen.get(turn * CELL..).unwrap_or_default();
            let piece = &piece[..CELL.min(piece.len())];
            if let Err(why) = self.judge_cell(index, *before, after, piece) {
                let told = |state: u64| {
                    format!("{} {}", state >> 2, ["absent", "zero", "data"][(state & 3) as usize])
                };
                let first = describe(piece);
                let (id, page) = (self.id, index * CELL / 4096);
                let (before, after) = (told(*before), told(after));
                return Err(format!(
                    "body {id}, page {page}, cell {index}: {why}; may be {before} to {after}, is {first}"
                ));
            }
        }
        Ok(())
    }

    fn judge_cell(&self, index: usize, before: u64, after: u64, seen: &[u8]) -> Result<(), &'static str> {
        let versions = (after >> 2) - (before >> 2);
        let (first, last) = (before & 3, after & 3);
        if seen.len() < CELL {
            return match versions {
                0 if !seen.is_empty() => Err("a part of a cell"),
                0 | 1 if first != ABSENT && last != ABSENT => Err("it is not there"),
                _ => Ok(()),
            };
        }
        match (versions, first) {
            (0, ABSENT) => return Err("it is beyond the end"),
            (0, ZERO) => return seen.iter().all(|byte| *byte == 0).then_some(()).ok_or("not zero"),
            (0, _) => {
                return (seen == cell(self.id, index, before >> 2)).then_some(()).ok_or("not the version");
            }
            (5.., _) => return Ok(()),
            _ => {}
        }
        let zero = versions > 1 || first != DATA || last != DATA;
        let is_data = |version: &u64| {
            versions > 1
                || (*version == before >> 2 && first == DATA)
                || (*version == after >> 2 && last == DATA)
        };
        let possible: Vec<_> =
            (before >> 2..=after >> 2).filter(is_data).map(|it| words(self.id, index, it)).collect();
        let words = seen.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).enumerate();
        let fits = |(at, word)| (zero && word == 0) || possible.iter().any(|version| version[at] == word);
        words.into_iter().all(fits).then_some(()).ok_or("a word of no version")
    }
}

/// What bytes say that they are.
fn describe(seen: &[u8]) -> String {
    let words: Vec<u64> = seen.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    match words.get(..3) {
        None => format!("{} bytes", seen.len()),
        Some([MAGIC, place, version]) => {
            let (body, index) = ((*place >> 32) as u32, (*place & 0xffff_ffff) as usize);
            let whole = seen == cell(body, index, *version);
            format!(
                "{} version {version} of body {body}, cell {index}",
                if whole { "all of" } else { "a part of" }
            )
        }
        Some(_) if words.iter().all(|word| *word == 0) => "zeros".to_owned(),
        Some(_) => "nothing that was written".to_owned(),
    }
}

struct Bodies {
    list: VecDeque<Arc<Body>>,
    /// The number of the first in the list.
    first: u64,
    /// Those that have to be known of through the mount, that are there for sure, and that may be.
    firm: u64,
    done: u64,
    begun: u64,
    /// When the last one was there for sure, by the clock.
    ended: Duration,
}

/// A name, and the bodies that it had.
pub struct Name {
    pub name: String,
    bodies: Mutex<Bodies>,
    /// Taken whole by what makes a body longer or shorter or replaces it.
    pub shape: RwLock<()>,
}

impl Name {
    pub fn new(name: String, body: Arc<Body>) -> Self {
        let list = VecDeque::from([body]);
        let bodies = Bodies { list, first: 0, firm: 0, done: 0, begun: 0, ended: Duration::ZERO };
        Self { name, bodies: Mutex::new(bodies), shape: RwLock::new(()) }
    }

    /// The number of the body that the name has for sure.
    pub fn done(&self) -> u64 {
        self.bodies.lock().unwrap().done
    }

    /// Whose body nobody replaces meanwhile.
    pub fn body(&self) -> Arc<Body> {
        let bodies = self.bodies.lock().unwrap();
        bodies.list.back().cloned().unwrap()
    }

    pub fn begin(&self, body: Arc<Body>) {
        let mut bodies = self.bodies.lock().unwrap();
        bodies.list.push_back(body);
        bodies.begun += 1;
        if bodies.list.len() > REMEMBERED {
            bodies.list.pop_front();
            bodies.first += 1;
        }
    }

    pub fn end(&self, behind: bool, now: Duration) {
        let mut bodies = self.bodies.lock().unwrap();
        bodies.done = bodies.begun;
        if !behind {
            bodies.firm = bodies.done;
        }
        bodies.ended = now;
    }

    /// The number of the body that has to be known of through the mount, where what is done behind it is so long after.
    pub fn firm(&self, bound: Duration, now: Duration) -> u64 {
        let mut bodies = self.bodies.lock().unwrap();
        if bodies.done == bodies.begun && now.saturating_sub(bodies.ended) >= bound {
            bodies.firm = bodies.done;
        }
        bodies.firm
    }

    /// The bodies that the name may have had between then and now; None if it was too long ago.
    pub fn since(&self, done: u64) -> Option<Vec<Arc<Body>>> {
        let bodies = self.bodies.lock().unwrap();
        let skipped = usize::try_from(done.checked_sub(bodies.first)?).unwrap();
        Some(bodies.list.iter().skip(skipped).cloned().collect())
    }
}
