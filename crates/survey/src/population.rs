//! All pages that a survey is about, and how some are chosen from them.
//!
//! Pages are kept as runs of neighbours, so 32 GiB of memory are some thousand runs. Every page has a rank, its number
//! in the order of sources and addresses; a sample is a set of ranks, each as likely as any other.

use crate::random::Random;
use ramfold::{PAGE_SIZE, Page};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is to be surveyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A live process.
    Process(u32),
    /// A raw page file, memory image or core dump.
    File(PathBuf),
}

impl Target {
    /// A number is a process, all else a file (a file whose name is a number is written `./123`).
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::File(Path::new(text).to_owned()), Self::Process)
    }
}

/// Why a target cannot be surveyed. One line, with what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// there is no such process
    #[error("process {0}: there is no such process (it has ended, or the number is wrong; a file is ./{0})")]
    NoProcess(u32),
    /// the process is a kernel thread
    #[error("process {0}: a kernel thread has no memory of its own (give the process of a program)")]
    KernelThread(u32),
    /// the process may not be read
    #[error(
        "process {0}: its memory may not be read (be root, or its owner where kernel.yama.ptrace_scope is 0)"
    )]
    Denied(u32),
    /// the process cannot be read
    #[error("process {pid}: {why} (try again)")]
    Process {
        /// The process.
        pid: u32,
        /// The system's words.
        why: String,
    },
    /// no page of the targets is resident
    #[error("there is no anonymous memory that is resident (give a program that runs, or a file)")]
    Nothing,
    /// the file is empty
    #[error("{0}: the file is empty (give raw pages, a memory image or a core dump)")]
    Empty(String),
    /// it is no regular file
    #[error("{0}: no regular file (give raw pages, a memory image or a core dump)")]
    NotAFile(String),
    /// the file is neither a core dump nor a whole number of pages
    #[error(
        "{path}: {bytes} bytes are neither a core dump nor whole pages of 4096 bytes (cut it to whole pages)"
    )]
    Odd {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// the file cannot be read
    #[error("{path}: {why} (give a file that can be read)")]
    File {
        /// The file.
        path: String,
        /// The system's words.
        why: String,
    },
}

/// How a source came to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// It is a target: that it has ended is an error.
    ByUser,
    /// It is a descendant of one: what has ended is left out.
    AsDescendant,
}

/// Where pages are read from.
#[derive(Debug)]
pub struct Source {
    /// For people: `process 123`, or the file's path.
    pub name: String,
    /// The process, if it is one.
    pub pid: Option<u32>,
    named: Named,
    file: File,
}

impl Source {
    pub(crate) fn process(pid: u32, named: Named, memory: File) -> Self {
        Self { name: format!("process {pid}"), pid: Some(pid), named, file: memory }
    }

    pub(crate) fn file(name: String, file: File) -> Self {
        Self { name, pid: None, named: Named::ByUser, file }
    }

    /// What was got from this source; `None` if that is a descendant which has ended.
    pub(crate) fn unless_ended<T>(&self, got: Result<T, OpenError>) -> Result<Option<T>, OpenError> {
        match got {
            Err(OpenError::NoProcess(_)) if self.named == Named::AsDescendant => Ok(None),
            got => got.map(Some),
        }
    }
}

/// Neighbours of one source and place.
#[derive(Debug)]
struct Run {
    source: u32,
    place: u32,
    offset: u64,
    /// Rank of its first page.
    rank: u64,
    pages: u64,
}

/// One page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageAt {
    /// Number of its source.
    pub source: u32,
    /// Number of its place.
    pub place: u32,
    /// Address in the process, or offset in the file.
    pub offset: u64,
}

/// The pages of all targets.
#[derive(Debug, Default)]
pub struct Population {
    sources: Vec<Source>,
    places: Vec<String>,
    runs: Vec<Run>,
    pages: u64,
    /// Pages that are swapped out: counted, and not looked at.
    pub swapped: u64,
}

impl Population {
    pub(crate) fn add_source(&mut self, source: Source) -> u32 {
        self.sources.push(source);
        u32::try_from(self.sources.len() - 1).expect("fewer processes than that")
    }

    /// The number of the place of this name.
    pub(crate) fn place(&mut self, name: &str) -> u32 {
        let known = self.places.iter().position(|place| place == name);
        let number = known.unwrap_or_else(|| {
            self.places.push(name.to_owned());
            self.places.len() - 1
        });
        u32::try_from(number).expect("fewer mappings than that")
    }

    /// Pages of one source come in the order of their offsets.
    pub(crate) fn add_page(&mut self, source: u32, place: u32, offset: u64) {
        let rank = self.pages;
        self.pages += 1;
        match self.runs.last_mut() {
            Some(run)
                if (run.source, run.place) == (source, place)
                    && run.offset + run.pages * PAGE_SIZE as u64 == offset =>
            {
                run.pages += 1;
            }
            _ => self.runs.push(Run { source, place, offset, rank, pages: 1 }),
        }
    }

    /// How many pages there are.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// What is surveyed.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Names of the places: `[heap]`, a library, `anonymous`.
    #[must_use]
    pub fn places(&self) -> &[String] {
        &self.places
    }

    /// Pages in each place.
    #[must_use]
    pub fn pages_of_places(&self) -> Vec<u64> {
        let mut pages = vec![0; self.places.len()];
        self.runs.iter().for_each(|run| pages[run.place as usize] += run.pages);
        pages
    }

    /// The page of this rank. Panics if there are not so many.
    #[must_use]
    pub fn at(&self, rank: u64) -> PageAt {
        assert!(rank < self.pages, "there are {} pages", self.pages);
        let run = &self.runs[self.runs.partition_point(|run| run.rank <= rank) - 1];
        PageAt {
            source: run.source,
            place: run.place,
            offset: run.offset + (rank - run.rank) * PAGE_SIZE as u64,
        }
    }

    /// The pages of the aligned group of `group` pages (a power of two) around the page of this rank that are there.
    #[must_use]
    pub fn group(&self, rank: u64, group: u64) -> Vec<PageAt> {
        let centre = self.at(rank);
        let number = |at: &PageAt| at.offset / (group * PAGE_SIZE as u64);
        let near = rank.saturating_sub(group - 1)..(rank + group).min(self.pages);
        let same = |at: &PageAt| at.source == centre.source && number(at) == number(&centre);
        near.map(|rank| self.at(rank)).filter(same).collect()
    }

    /// `count` ranks, or all if there are not more, ascending: every set of that size is as likely as any other
    /// (Algorithm S, Knuth, The Art of Computer Programming 2, 3.4.2).
    #[must_use]
    pub fn choose(&self, count: u64, seed: u64) -> Vec<u64> {
        let (mut random, mut wanted) = (Random::new(seed), count.min(self.pages));
        let mut chosen = Vec::with_capacity(usize::try_from(wanted).unwrap_or(0));
        for rank in 0..self.pages {
            if random.below(self.pages - rank) < wanted {
                chosen.push(rank);
                wanted -= 1;
            }
        }
        chosen
    }

    /// Says that the page will be read soon: a disk that is asked for many at a time is many times as fast.
    pub fn announce(&self, at: PageAt) {
        let source = &self.sources[at.source as usize];
        if source.pid.is_none() {
            let len = std::num::NonZeroU64::new(PAGE_SIZE as u64);
            // Only an announcement.
            let _ = rustix::fs::fadvise(&source.file, at.offset, len, rustix::fs::Advice::WillNeed);
        }
    }

    /// Reads the page. False: it has gone since the listing, or with a descendant that has ended.
    ///
    /// # Errors
    /// [`OpenError`]: the process has ended, or the file cannot be read.
    pub fn read(&self, at: PageAt, page: &mut Page) -> Result<bool, OpenError> {
        let source = &self.sources[at.source as usize];
        Ok(source.unless_ended(source.read(at.offset, page))?.unwrap_or(false))
    }
}

impl Source {
    fn read(&self, offset: u64, page: &mut Page) -> Result<bool, OpenError> {
        let Err(error) = self.file.read_exact_at(page, offset) else { return Ok(true) };
        match self.pid {
            // The memory of a process that has ended reads as empty.
            Some(pid) if error.kind() == ErrorKind::UnexpectedEof => Err(OpenError::NoProcess(pid)),
            Some(pid) if error.kind() == ErrorKind::PermissionDenied => Err(OpenError::Denied(pid)),
            Some(_) => Ok(false),
            None => Err(OpenError::File { path: self.name.clone(), why: error.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 pages at 0, 5 at 20, and 100 of another place at 40, in units of pages.
    fn population() -> Population {
        let mut population = Population::default();
        let source = population.add_source(Source::file("null".into(), File::open("/dev/null").unwrap()));
        for (name, range) in [("a", 0..10), ("a", 20..25), ("b", 40..140)] {
            let place = population.place(name);
            range.for_each(|page| population.add_page(source, place, page * PAGE_SIZE as u64));
        }
        population
    }

    #[test]
    fn ranks_name_pages_in_order() {
        let population = population();
        assert_eq!((population.pages(), population.runs.len()), (115, 3));
        assert_eq!(population.pages_of_places(), [15, 100]);
        for (rank, page, place) in
            [(0, 0, 0), (9, 9, 0), (10, 20, 0), (14, 24, 0), (15, 40, 1), (114, 139, 1)]
        {
            let at = population.at(rank);
            assert_eq!((at.offset / PAGE_SIZE as u64, at.place), (page, place));
        }
    }

    #[test]
    fn a_group_has_the_neighbours_that_are_there() {
        let population = population();
        let pages = |rank| {
            population.group(rank, 16).iter().map(|at| at.offset / PAGE_SIZE as u64).collect::<Vec<_>>()
        };
        assert_eq!(pages(3), (0..10).collect::<Vec<_>>());
        assert_eq!(pages(12), (20..25).collect::<Vec<_>>());
        assert_eq!(pages(15), (40..48).collect::<Vec<_>>());
        assert_eq!(pages(114), (128..140).collect::<Vec<_>>());
    }

    #[test]
    fn every_page_is_chosen_equally_often() {
        let population = population();
        let mut hits = [0u32; 115];
        for seed in 0..4000 {
            let chosen = population.choose(23, seed);
            assert_eq!(chosen.len(), 23);
            assert!(chosen.is_sorted_by(|a, b| a < b));
            chosen.iter().for_each(|rank| hits[usize::try_from(*rank).unwrap()] += 1);
        }
        // 800 expected, standard deviation 25.
        assert!(hits.iter().all(|hits| (680..920).contains(hits)), "{hits:?}");
        assert_eq!(population.choose(1000, 1).len(), 115);
    }

    #[test]
    fn numbers_are_processes() {
        assert_eq!(Target::parse("123"), Target::Process(123));
        assert_eq!(Target::parse("./123"), Target::File("./123".into()));
        assert_eq!(Target::parse("core.9"), Target::File("core.9".into()));
    }
}
