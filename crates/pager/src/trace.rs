//! A record of what the program does to its pages, as `ramfold replay` reads it (the format is told in the survey
//! crate's `trace.rs`).
//!
//! The pager sees a touch only of a page that is away. Written down are first touches and those of pages that had
//! left, with the pages that came along in a sequence; what a page compresses to when it leaves; what is given up;
//! and for how long the program worked between two faults. The smaller the limit, the more is seen.
//!
//! Price: a lock and about 20 bytes an operation, written every 64 KiB and when the keeper comes by. All processes of
//! a run append to one file, each some whole lines at a time. A process's pages have the number of its slot above
//! theirs; it begins by giving up whatever the one before it in that slot had. The last lines of a process that is
//! killed are lost; the line at which the kernel broke off its write is told from others by the `!` that begins each
//! piece.

use crate::sys;
use ramfold_budget::segment::SlotId;
use ramfold_budget::time::now_ns;
use ramfold_budget::usage::Account;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Text that is gathered before it is written.
const GATHERED: usize = 64 << 10;
/// Where a process's number stands in the number of a page: no range has so many pages.
const PROCESS_SHIFT: u32 = 32;

/// The record of this process. Its lock is taken alone or under any other, and holds nothing but the write.
#[derive(Debug)]
pub(crate) struct Trace {
    file: File,
    account: Arc<Account>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    text: String,
    /// The number of page 0.
    base: u64,
    /// When the last fault had been resolved; 0 before the first.
    served: u64,
    /// The file took no more.
    failed: bool,
}

impl Trace {
    /// A record for this process, at the end of the file, which is open for appending.
    pub(crate) fn new(file: File, account: &Arc<Account>) -> Self {
        let trace = Self { file, account: Arc::clone(account), lines: Mutex::default() };
        trace.begin(account.slot());
        trace
    }

    /// Begins anew: in a forked child, which has what its parent had not written yet.
    pub(crate) fn begin(&self, slot: SlotId) {
        let base = (slot.number() as u64) << PROCESS_SHIFT;
        let mut lines = self.lines();
        *lines = Lines { base, ..Lines::default() };
        lines.push(format_args!("d {base} {}", 1u64 << PROCESS_SHIFT));
    }

    /// Faults came at this time, by [`now_ns`]: until then the program has worked.
    pub(crate) fn came(&self, time: u64) {
        let mut lines = self.lines();
        if lines.served > 0 && time > lines.served {
            let worked = time - lines.served;
            lines.push(format_args!("t {worked}"));
        }
    }

    /// A fault brings these pages, of which the program wants the first.
    pub(crate) fn touched(&self, pages: Range<usize>, write: bool) {
        let mut lines = self.lines();
        for page in pages.clone() {
            let touch = if write && page == pages.start { 'w' } else { 'r' };
            let page = lines.base + page as u64;
            lines.push(format_args!("{touch} {page}"));
        }
        self.write_if(lines, GATHERED);
    }

    /// The faults are resolved.
    pub(crate) fn served(&self) {
        self.lines().served = now_ns();
    }

    /// A page leaves, and compresses to so many bytes.
    pub(crate) fn left(&self, page: u64, bytes: usize) {
        let mut lines = self.lines();
        let (page, bytes) = (lines.base + page, bytes.max(1));
        lines.push(format_args!("c {page} {bytes}"));
        self.write_if(lines, GATHERED);
    }

    /// The program gives pages up.
    pub(crate) fn given_up(&self, pages: &Range<usize>) {
        let mut lines = self.lines();
        let (first, count) = (lines.base + pages.start as u64, pages.len());
        lines.push(format_args!("d {first} {count}"));
        self.write_if(lines, GATHERED);
    }

    /// Writes what there is.
    pub(crate) fn flush(&self) {
        self.write_if(self.lines(), 1);
    }

    /// Writes the lines when there is so much text. When the file takes no more (a full disk), the record ends, and
    /// the segment tells `ramfold run`.
    fn write_if(&self, mut lines: MutexGuard<'_, Lines>, least: usize) {
        if lines.text.len() >= least && !lines.failed {
            let written = (&self.file).write_all(lines.text.as_bytes());
            lines.text.clear();
            if let Err(error) = written {
                lines.failed = true;
                self.account.segment.tell_trace_incomplete();
                if error.raw_os_error() == Some(libc::EFBIG) {
                    sys::take_signal(libc::SIGXFSZ);
                }
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn push(&mut self, line: std::fmt::Arguments<'_>) {
        use std::fmt::Write as _;
        if !self.failed {
            if self.text.is_empty() {
                self.text.push('!');
            }
            let _ = writeln!(self.text, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold_budget::segment::Segment;

    /// A record of a process of its own run.
    fn record(path: &std::path::Path) -> (Trace, Arc<Account>) {
        let (_, segment) = Segment::create(64 << 20, 0).unwrap();
        let slot = segment.attach(&|_| {}).unwrap();
        let account = Arc::new(Account::new(Arc::new(segment), slot));
        let file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        (Trace::new(file, &account), account)
    }

    #[test]
    fn lines_are_those_of_replay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (trace, account) = record(file.path());
        let base = (account.slot().number() as u64) << PROCESS_SHIFT;
        trace.came(5);
        trace.touched(7..9, true);
        trace.left(8, 0);
        trace.given_up(&(7..9));
        trace.flush();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let page = |page| base + page;
        let all = 1u64 << 32;
        let expected =
            format!("!d {base} {all}\nw {}\nr {}\nc {} 1\nd {} 2\n", page(7), page(8), page(8), page(7));
        assert_eq!(text, expected);
        trace.served();
        trace.came(u64::MAX);
        trace.flush();
        assert!(std::fs::read_to_string(file.path()).unwrap()[expected.len()..].starts_with("!t "));
        assert!(!account.segment.is_trace_incomplete());
    }

    #[test]
    fn a_full_disk_ends_the_record_and_is_told() {
        let (trace, account) = record(std::path::Path::new("/dev/full"));
        trace.flush();
        assert!(account.segment.is_trace_incomplete());
        trace.left(1, 1);
        assert!(trace.lines().text.is_empty(), "nothing is gathered any more");
    }
}
