//! What breaks below a running program is never read as its memory: the program completes with the right contents, or
//! ramfold ends it and says why.

mod common;

use common::{Program, Ramfold, Running, compiled, need};
use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// What ramfold exits with for a program that it killed.
const KILLED: i32 = 137;
/// 128 and SIGABRT.
const ABORTED: i32 = 134;

/// How `verify` ended under `ramfold run`.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// It was killed before it could read anything wrong, with one line that says why.
    fn assert_killed_because(&self, why: &str) {
        assert_eq!(self.code, Some(KILLED), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("ramfold: ") && self.stderr.contains(why), "{self:?}");
    }

    fn assert_right(&self) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(0), "all as written\n"), "{self:?}");
    }
}

/// `verify` with `mib` of memory under `-m 32M`; `harm` is done to the process whose number it is given, when the
/// memory is filled.
fn verify(scratch: &Path, mib: u64, options: &[&str], harm: impl FnOnce(u32)) -> Ended {
    let program = compiled("verify", scratch);
    let ramfold = Ramfold::new(32 * MIB, options);
    let mut command =
        Program::new("verify", &[program.to_str().unwrap(), &mib.to_string()]).command(Some(&ramfold));
    finish(command.current_dir(scratch), harm)
}

fn finish(command: &mut Command, harm: impl FnOnce(u32)) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command);
    let mut stdout = BufReader::new(running.child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    if line == "filled\n" {
        harm(common::memory::only_child(running.child.id()));
        line.clear();
        // The program may be dead already.
        let _ = running.child.stdin.take().unwrap().write_all(b"\n");
    }
    let mut ended = Ended { code: None, stdout: line, stderr: String::new() };
    stdout.read_to_string(&mut ended.stdout).unwrap();
    running.child.stderr.take().unwrap().read_to_string(&mut ended.stderr).unwrap();
    ended.code = running.child.wait().unwrap().code();
    ended
}

/// Runs the test if the machine lets it.
fn with_scratch(test: impl FnOnce(&Path)) {
    if need::userfaultfd() && need::programs(&["cc", "prlimit"]) {
        test(tempfile::tempdir_in("/var/tmp").unwrap().path());
    }
}

/// Memory of the library's own, the pool among it: what is open of each reservation of 64 GiB.
fn reservations(pid: u32) -> Vec<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ranges: Vec<(u64, u64, &str)> = maps.lines().filter_map(range).collect();
    let open_and_rest = ranges.windows(2).filter(|pair| {
        let [(start, middle, open), (from, end, rest)] = pair else { return false };
        open.starts_with("rw-p") && rest.starts_with("---p") && middle == from && end - start == 64 << 30
    });
    open_and_rest.map(|pair| (pair[0].0, pair[0].1)).collect()
}

fn range(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, rest))
}

/// The first word of a page, as `verify.c` fills it. No codec finds it anywhere before, so it is in what it makes of
/// the page as it is.
fn first_word(page: u64) -> [u8; 8] {
    let x = (page << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).to_ne_bytes()
}

/// Turns a bit in the first word of each page of `mib` that is in the pool.
fn turn_bits_of_pool(pid: u32, mib: u64) {
    const CHUNK: usize = 1 << 20;
    let words: HashSet<[u8; 8]> = (1..mib << 8).map(first_word).collect();
    // By this name nothing comes back for it.
    let memory = format!("/proc/{pid}/task/{pid}/mem");
    let memory = OpenOptions::new().read(true).write(true).open(memory).unwrap();
    let mut turned = 0;
    let mut chunk = vec![0; CHUNK];
    for start in reservations(pid).into_iter().flat_map(|(start, end)| (start..end).step_by(CHUNK)) {
        // The process may notice at any time, and is gone then.
        let Ok(length) = memory.read_at(&mut chunk, start) else { break };
        for at in 0..length.saturating_sub(8) {
            if words.contains(&chunk[at..at + 8]) {
                turned += u64::from(memory.write_all_at(&[chunk[at] ^ 0x10], start + at as u64).is_ok());
            }
        }
    }
    assert!(turned > 100, "the words of only {turned} pages were found in a pool");
}

#[test]
fn turned_bits_in_the_pool() {
    with_scratch(|scratch| {
        verify(scratch, 40, &[], |pid| turn_bits_of_pool(pid, 40)).assert_killed_because("a page was lost");
    });
}

#[test]
fn turned_bits_in_the_swap_file() {
    with_scratch(|scratch| {
        let swap = scratch.join("swap");
        let ended = verify(scratch, 128, &["--swap", swap.to_str().unwrap()], |_| {
            let file = OpenOptions::new().read(true).write(true).open(&swap).unwrap();
            let len = file.metadata().unwrap().len();
            assert!(len > MIB, "{len} bytes in the swap file");
            for at in (0..len).step_by(512) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            }
        });
        ended.assert_killed_because("a page was lost");
    });
}

#[test]
fn a_swap_file_cut_short() {
    with_scratch(|scratch| {
        let swap = scratch.join("swap");
        let ended = verify(scratch, 128, &["--swap", swap.to_str().unwrap()], |_| {
            OpenOptions::new().write(true).open(&swap).unwrap().set_len(4096).unwrap();
        });
        ended.assert_killed_because("a page was lost");
    });
}

/// Every further write fails, and would signal the thread that tries.
#[test]
fn a_swap_file_that_cannot_be_written() {
    with_scratch(|scratch| {
        let refuse = |pid: u32| limit(pid, "--fsize=0");
        verify(scratch, 40, &[], refuse).assert_right();
        verify(scratch, 256, &[], refuse).assert_killed_because("out of memory");
    });
}

fn limit(pid: u32, limit: &str) {
    let limited = Command::new("prlimit").args([&format!("--pid={pid}"), limit]).status();
    assert!(limited.unwrap().success());
}

/// The system refuses the pool memory (its mappings are private and writable: RLIMIT_DATA counts them).
#[test]
fn no_memory_for_the_pool() {
    with_scratch(|scratch| {
        let ended = verify(scratch, 128, &[], |pid| limit(pid, "--data=1048576"));
        match ended.code {
            Some(0) => ended.assert_right(),
            // Where ramfold's own tables find no memory, it aborts.
            Some(KILLED | ABORTED) => {
                assert!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{ended:?}");
            }
            _ => panic!("{ended:?}"),
        }
    });
}
