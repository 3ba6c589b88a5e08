//! Traces: what a program did to its pages, as text.
//!
//! ```text
//! ramfold-trace 1
//! # page 7 is read, page 8 written, and compresses to 1200 bytes from then on; 5000 ns pass; page 7 is given up
//! r 7
//! w 8 1200
//! t 5000
//! d 7
//! ```
//!
//! The first line names the format. Then a line an operation: `r PAGE`, a touch that reads; `w PAGE [BYTES]`, one
//! that writes, and how many bytes the page compresses to from then on (1 to 4096); `c PAGE BYTES`, no touch, it is
//! only known now to how many it compresses; `d PAGE [COUNT]`, the program gives up that page, or so many from it on;
//! `t NS`, the program works for so many nanoseconds without new pages. What a page compresses to before it is said,
//! is the first that is said of it later, or [`DEFAULT_BYTES`]. Pages are numbers below 2^48. Empty lines and lines
//! that begin with `#` say nothing.
//!
//! Several processes write one trace, and any of them may be killed while it writes. So a process begins what it
//! writes with `!`: the part of a line before a `!` is unfinished, and does not count. Nor does a last line without
//! its newline.
//!
//! A run of touches to one page is one touch: what matters is the order in which pages are needed. `ramfold run
//! --trace` writes what the pager sees: touches of pages that were away, with those that came along, and what pages
//! compressed to when they left.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, Read as _};

/// The first line.
pub const HEAD: &str = "ramfold-trace 1";
/// What a page compresses to if the trace does not say.
pub const DEFAULT_BYTES: u16 = 1500;
/// Bytes that a line has at most.
const LONGEST: u64 = 1 << 12;
/// Pages are below this.
const MOST_PAGES: u64 = 1 << 48;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A touch that reads.
    Read(u64),
    /// A touch that writes, and the bytes to which the page compresses then, if it is said.
    Write(u64, Option<u16>),
    /// The bytes to which the page compresses.
    Size(u64, u16),
    /// So many pages are given up, from this one on.
    Discard(u64, u64),
    /// So many nanoseconds of work.
    Work(u64),
}

/// Why a text is no trace.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// the first line is another
    #[error("the first line is not \"{HEAD}\" (give a trace of that format)")]
    Head,
    /// a line is no operation
    #[error(
        "line {line}: \"{text}\" is no operation (write r PAGE, w PAGE [BYTES], c PAGE BYTES, d PAGE [COUNT] or t NS)"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// The beginning of the line.
        text: String,
    },
    /// the trace cannot be read
    #[error("{0} (give a text file that can be read)")]
    Read(String),
}

/// Reads a trace.
///
/// # Errors
/// [`ParseError`], of the first line that is wrong.
pub fn parse(mut text: impl BufRead) -> Result<Vec<Operation>, ParseError> {
    let mut line = String::new();
    let mut next = |line: &mut String| {
        line.clear();
        text.by_ref().take(LONGEST).read_line(line).map_err(|error| ParseError::Read(error.to_string()))
    };
    next(&mut line)?;
    if line.trim_end() != HEAD {
        return Err(ParseError::Head);
    }
    let mut operations = Vec::new();
    for number in 2.. {
        next(&mut line)?;
        let wrong = |text: &str| ParseError::Line { line: number, text: text.chars().take(40).collect() };
        let Some(whole) = line.strip_suffix('\n') else {
            if line.len() as u64 == LONGEST {
                return Err(wrong(&line));
            }
            break;
        };
        let text = whole.rsplit('!').next().unwrap_or_default().trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        operations.push(operation(text).ok_or_else(|| wrong(text))?);
    }
    Ok(operations)
}

fn operation(text: &str) -> Option<Operation> {
    let mut words = text.split_whitespace();
    let (name, value) = (words.next()?, words.next()?.parse::<u64>().ok()?);
    let more = words.next();
    let is_page = value < MOST_PAGES;
    let operation = match name {
        "r" if is_page && more.is_none() => Operation::Read(value),
        "w" if is_page => match more {
            None => Operation::Write(value, None),
            Some(bytes) => Operation::Write(value, Some(size(bytes)?)),
        },
        "c" if is_page => Operation::Size(value, size(more?)?),
        "d" if is_page => Operation::Discard(value, more.map_or(Some(1), |count| count.parse().ok())?),
        "t" if more.is_none() => Operation::Work(value),
        _ => return None,
    };
    words.next().is_none().then_some(operation)
}

fn size(text: &str) -> Option<u16> {
    text.parse().ok().filter(|bytes| (1..=4096).contains(bytes))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(page) => write!(f, "r {page}"),
            Self::Write(page, None) => write!(f, "w {page}"),
            Self::Write(page, Some(bytes)) => write!(f, "w {page} {bytes}"),
            Self::Size(page, bytes) => write!(f, "c {page} {bytes}"),
            Self::Discard(page, 1) => write!(f, "d {page}"),
            Self::Discard(page, count) => write!(f, "d {page} {count}"),
            Self::Work(ns) => write!(f, "t {ns}"),
        }
    }
}

/// Those of the known pages that [`Operation::Discard`] gives up, which may name many more.
pub(crate) fn given_up<T>(from: u64, count: u64, known: &HashMap<u64, T>) -> Vec<u64> {
    let pages = from..from.saturating_add(count);
    if count <= known.len() as u64 {
        pages.filter(|page| known.contains_key(page)).collect()
    } else {
        known.keys().copied().filter(|page| pages.contains(page)).collect()
    }
}

/// The text of a trace.
#[must_use]
pub fn text(operations: &[Operation]) -> String {
    let lines = operations.iter().map(|operation| format!("{operation}\n"));
    format!("{HEAD}\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn any_operation() -> impl Strategy<Value = Operation> {
        let page = 0..MOST_PAGES;
        prop_oneof![
            page.clone().prop_map(Operation::Read),
            (page.clone(), prop::option::of(1..=4096u16))
                .prop_map(|(page, bytes)| Operation::Write(page, bytes)),
            (page.clone(), 1..=4096u16).prop_map(|(page, bytes)| Operation::Size(page, bytes)),
            (page, any::<u64>()).prop_map(|(page, count)| Operation::Discard(page, count)),
            any::<u64>().prop_map(Operation::Work),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(operations in prop::collection::vec(any_operation(), 0..50)) {
            prop_assert_eq!(parse(text(&operations).as_bytes()), Ok(operations));
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[b"ramfold-trace 1\n", &bytes[..]].concat()[..]);
        }
    }

    #[test]
    fn comments_and_sizes_may_be_left_out() {
        let trace = "ramfold-trace 1\n# a\n\n  r 7\nw 8\nw 9 4096\nc 8 700\nt 50\nd 7\nd 8 2\n";
        let expected = [
            Operation::Read(7),
            Operation::Write(8, None),
            Operation::Write(9, Some(4096)),
            Operation::Size(8, 700),
            Operation::Work(50),
            Operation::Discard(7, 1),
            Operation::Discard(8, 2),
        ];
        assert_eq!(parse(trace.as_bytes()), Ok(expected.into()));
    }

    #[test]
    fn what_a_killed_process_left_unfinished_does_not_count() {
        let pieces = ["!r 1\nr 2\n", "!w 3\nr 4", "!c 3 9\n", "!", "!r 5\nr", "!r 6\nr 70"];
        let trace = format!("{HEAD}\n{}", pieces.concat());
        let [one, two, five, six] = [1, 2, 5, 6].map(Operation::Read);
        let expected = vec![one, two, Operation::Write(3, None), Operation::Size(3, 9), five, six];
        assert_eq!(parse(trace.as_bytes()), Ok(expected));
    }

    #[test]
    fn the_first_wrong_line_is_told() {
        assert_eq!(parse(&b""[..]), Err(ParseError::Head));
        assert_eq!(parse(&b"r 1\n"[..]), Err(ParseError::Head));
        for wrong in [
            "x 1",
            "r",
            "r -1",
            "r 1 2",
            "w 1 0",
            "w 1 4097",
            "w 1 2 3",
            "c 1",
            "d 1 x",
            "r 281474976710656",
            "r 1e3",
        ] {
            let error = parse(format!("ramfold-trace 1\nr 1\n{wrong}\n").as_bytes()).unwrap_err();
            assert_eq!(error, ParseError::Line { line: 3, text: wrong.into() });
        }
        assert!(matches!(parse(&b"ramfold-trace 1\n\xff\n"[..]), Err(ParseError::Read(_))));
        let endless = b"ramfold-trace 1\n".chain(std::io::repeat(b'r'));
        assert_eq!(parse(BufReader::new(endless)), Err(ParseError::Line { line: 2, text: "r".repeat(40) }));
    }
}
