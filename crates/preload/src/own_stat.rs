//! How many threads a program reads that it has: its own, without the pager's.
//!
//! CPython from 3.12 on warns at each fork of a process with several threads. It looks for them in field 20 of
//! /proc/self/stat (`warn_about_fork_with_threads` in `Modules/posixmodule.c`). So whoever opens this file as a stream,
//! to read it, gets a copy in which the pager's threads are not counted.
//!
//! Price: the copy is of the moment of the fopen, and stays so for who reads it again. Guarantee: whatever else is
//! opened, and what cannot be copied, is the file itself; so it is behind a filter of the program's. Not changed:
//! `open`, /proc/self/status, the directory of threads.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::{Resource, getrlimit};

use crate::pager::{internally, pager};
use crate::{filters, libc_threads};

const PATH: &CStr = c"/proc/self/stat";
/// Most bytes of the file.
const MOST: usize = 4096;
/// Which field after the name is the number of threads.
const THREADS: usize = 17;

/// For streams.c: a descriptor of a copy, for fopen with such a mode; -1 where the file itself is to be opened.
///
/// # Safety
/// Both are strings of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn ramfold_own_stat(path: *const c_char, mode: *const c_char) -> c_int {
    if path.is_null() || mode.is_null() || !pager().is_managed() || filters::is_filtered() {
        return -1;
    }
    // SAFETY: the caller's.
    let (path, mode) = unsafe { (CStr::from_ptr(path), CStr::from_ptr(mode).to_bytes()) };
    if path != PATH || !reads(mode) {
        return -1;
    }
    let is_closed_by_exec = mode.contains(&b'e');
    internally(move || copy(is_closed_by_exec)).map_or(-1, IntoRawFd::into_raw_fd)
}

/// Whether such a stream is only read, and bytes are bytes in it.
fn reads(mode: &[u8]) -> bool {
    mode.first() == Some(&b'r') && !mode.iter().any(|letter| b"+,".contains(letter))
}

/// Its number is one that the program would get for the file.
fn copy(is_closed_by_exec: bool) -> Option<OwnedFd> {
    let threads = Some(libc_threads::pagers()).filter(|threads| *threads > 0)?;
    let text = uncounted(&read()?, threads)?;
    // Beyond the limit on files a signal would come.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < text.len() as u64) {
        return None;
    }
    let flags = if is_closed_by_exec { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let copy = rustix::fs::memfd_create(c"stat", flags).ok()?;
    let written = rustix::io::pwrite(&copy, &text, 0);
    (written == Ok(text.len())).then_some(copy)
}

fn read() -> Option<Vec<u8>> {
    let file = rustix::fs::open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; MOST];
    let len = rustix::io::read(&file, &mut bytes).ok().filter(|len| *len < MOST)?;
    bytes.truncate(len);
    Some(bytes)
}

/// The text with so many threads less, if it has more.
fn uncounted(stat: &[u8], threads: usize) -> Option<Vec<u8>> {
    // The name is in parentheses, and may hold some.
    let name = stat.windows(2).rposition(|two| two == b") ")? + 2;
    let mut fields: Vec<&[u8]> = stat[name..].split(|byte| *byte == b' ').collect();
    let counted: usize = str::from_utf8(fields.get(THREADS)?).ok()?.parse().ok()?;
    let left = counted.checked_sub(threads).filter(|left| *left > 0)?.to_string();
    fields[THREADS] = left.as_bytes();
    Some([&stat[..name], &fields.join(&b' ')].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pagers_threads_are_taken_off_whatever_the_name_is() {
        let stat = |threads| {
            let fields = format!("S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 20 0 {threads} 0 99\n");
            [&b"12 (a) 1 \xff2) "[..], fields.as_bytes()].concat()
        };
        assert_eq!(uncounted(&stat(5), 3), Some(stat(2)));
        assert_eq!(uncounted(&stat(3), 3), None, "a process has a thread");
        assert_eq!((uncounted(b"12 (a) S 1", 1), uncounted(b"", 1)), (None, None));
    }

    #[test]
    fn a_stream_that_is_more_than_read_is_of_the_file_itself() {
        assert!([&b"r"[..], b"rb", b"re", b"rm"].into_iter().all(reads));
        assert!(![&b""[..], b"r+", b"w", b"a", b"r,ccs=UTF-8"].into_iter().any(reads));
    }
}
