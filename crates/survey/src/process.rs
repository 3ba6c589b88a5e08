//! The anonymous memory of live processes, as /proc shows it.
//!
//! Nothing is stopped and nothing is written: `maps` has the mappings, `pagemap` which of their pages are there, and
//! `mem` their contents. The price: what changes meanwhile is seen as it is when it is read. The guarantee: pages that
//! are not in memory (swapped out, taken away by a userfaultfd handler) are not brought back for the survey, unless
//! the kernel swaps them out between the listing and the reading.
//!
//! A page that several processes share since a fork takes memory once and is listed once. That takes its frame
//! number, which the kernel shows to CAP_SYS_ADMIN only; for others such a page is listed in each process.

use crate::population::{Named, OpenError, Population, Source};
use ramfold::PAGE_SIZE;
use ramfold_budget::pagemap::next_with_contents;
use rustix::fd::AsFd;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;
const FRAME: u64 = (1 << 55) - 1;
/// In the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Entries of pagemap that are read at once.
const ENTRIES: usize = 1 << 15;

/// Frames of shared pages that are listed already.
pub type Frames = HashSet<u64>;

/// A mapping of private memory.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    name: &'a str,
}

/// Adds the anonymous pages of a process to the population.
///
/// # Errors
/// [`OpenError`]: there is no such process (any more), it may not be read, or it is a kernel thread.
pub fn list(
    pid: u32,
    named: Named,
    population: &mut Population,
    frames: &mut Frames,
) -> Result<(), OpenError> {
    let failed = |error: io::Error| explain(pid, &error);
    if is_kernel_thread(pid).map_err(failed)? {
        return Err(OpenError::KernelThread(pid));
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(failed)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(failed)?;
    let memory = open_memory(pid).map_err(failed)?;
    if maps.is_empty() {
        return Err(OpenError::NoProcess(pid));
    }
    let source = population.add_source(Source::process(pid, named, memory));
    for mapping in maps.lines().filter_map(parse) {
        let place = population.place(mapping.name);
        list_mapping(&pagemap, &mapping, frames, |address, swapped| {
            if swapped {
                population.swapped += 1;
            } else {
                population.add_page(source, place, address);
            }
        })
        .map_err(failed)?;
    }
    Ok(())
}

/// The memory of a process. By the name that it has for the first thread: who opens the other one of a process under
/// `ramfold run` has all brought back.
fn open_memory(pid: u32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/task/{pid}/mem"))
}

/// The process, its children, and theirs. Those that end meanwhile are missing.
#[must_use]
pub fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while next < all.len() {
        all.extend(children(all[next]));
        next += 1;
    }
    all
}

/// Those of all threads: each can have forked. None if the process has ended.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Why a file of /proc/PID could not be read.
pub(crate) fn explain(pid: u32, error: &io::Error) -> OpenError {
    const ESRCH: i32 = 3;
    match error.kind() {
        // The tables of a process that has ended read as empty.
        ErrorKind::NotFound | ErrorKind::UnexpectedEof => OpenError::NoProcess(pid),
        _ if error.raw_os_error() == Some(ESRCH) => OpenError::NoProcess(pid),
        ErrorKind::PermissionDenied => OpenError::Denied(pid),
        _ => OpenError::Process { pid, why: error.to_string() },
    }
}

fn is_kernel_thread(pid: u32) -> io::Result<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; the flags are the seventh field after it.
    let flags = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(6));
    Ok(flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & KERNEL_THREAD != 0))
}

/// A line of maps, if it is a private mapping that can hold anonymous pages.
fn parse(line: &str) -> Option<Mapping<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut fields = rest.splitn(5, ' ');
    let permissions = fields.next()?;
    let name = fields.nth(3).unwrap_or("").trim_start();
    let special = ["[vvar", "[vdso", "[vsyscall"].iter().any(|special| name.starts_with(special));
    (permissions.ends_with('p') && !special).then_some(())?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: address(start)?,
        end: address(end)?,
        name: if name.is_empty() { "anonymous" } else { name },
    })
}

/// Gives each anonymous page of the mapping, in order, and whether it is swapped out.
fn list_mapping(
    pagemap: &File,
    mapping: &Mapping<'_>,
    frames: &mut Frames,
    mut with: impl FnMut(u64, bool),
) -> io::Result<()> {
    let mut buffer = vec![0; ENTRIES * 8];
    let page = PAGE_SIZE as u64;
    let mut rest = mapping.start..mapping.end;
    // Much of a large mapping may never have been touched.
    while let Some(mut address) = next_with_contents(pagemap.as_fd(), &rest) {
        let count = usize::try_from((mapping.end - address) / page).unwrap_or(ENTRIES).min(ENTRIES);
        let bytes = &mut buffer[..count * 8];
        pagemap.read_exact_at(bytes, address / page * 8)?;
        for entry in bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)) {
            if entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0 && is_new(entry, frames) {
                with(address, entry & PRESENT == 0);
            }
            address += page;
        }
        rest.start = address;
    }
    Ok(())
}

/// Whether this page was not listed before.
fn is_new(entry: u64, frames: &mut Frames) -> bool {
    let shared = entry & PRESENT != 0 && entry & EXCLUSIVE == 0 && entry & FRAME != 0;
    !shared || frames.insert(entry & FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mappings_are_told_from_others() {
        let heap = "55d0-55f0 rw-p 00000000 00:00 0                  [heap]";
        assert_eq!(parse(heap), Some(Mapping { start: 0x55d0, end: 0x55f0, name: "[heap]" }));
        let plain = "7f00-7f10 rw-p 00000000 00:00 0 ";
        assert_eq!(parse(plain).map(|mapping| mapping.name), Some("anonymous"));
        let file = "7f00-7f10 r--p 00001000 fd:00 12345                      /usr/lib/a b.so";
        assert_eq!(parse(file).map(|mapping| mapping.name), Some("/usr/lib/a b.so"));
        for other in [
            "7f00-7f10 rw-s 00000000 00:01 7 /dev/shm/x",
            "7ffe-7fff r--p 00000000 00:00 0 [vvar]",
            "7ffe-7fff r-xp 00000000 00:00 0 [vdso]",
            "",
            "nonsense",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn shared_frames_are_listed_once_and_unknown_ones_always() {
        let mut frames = Frames::new();
        let shared = PRESENT | 77;
        assert!(is_new(shared, &mut frames) && !is_new(shared, &mut frames));
        assert!(is_new(PRESENT, &mut frames) && is_new(PRESENT, &mut frames));
        assert!(is_new(shared | EXCLUSIVE, &mut frames));
    }

    #[test]
    fn this_process_has_the_pages_that_it_wrote() {
        let bytes: Vec<u8> = (0..64 * PAGE_SIZE).map(|at| (at / 7).to_le_bytes()[0]).collect();
        let mut population = Population::default();
        list(std::process::id(), Named::ByUser, &mut population, &mut Frames::new()).unwrap();
        let start = (bytes.as_ptr().addr() as u64).next_multiple_of(PAGE_SIZE as u64);
        let (mut page, mut found) = ([0; PAGE_SIZE], 0);
        for rank in 0..population.pages() {
            let at = population.at(rank);
            if (start..start + 63 * PAGE_SIZE as u64).contains(&at.offset) {
                assert!(population.read(at, &mut page).unwrap());
                let from = usize::try_from(at.offset).unwrap() - bytes.as_ptr().addr();
                assert!(page == bytes[from..from + PAGE_SIZE]);
                found += 1;
            }
        }
        assert_eq!(found, 63);
    }

    #[test]
    fn pages_of_a_descendant_that_has_ended_are_gone_and_those_of_a_target_are_missed() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let listed = |named| {
            let mut population = Population::default();
            list(pid, named, &mut population, &mut Frames::new()).map(|()| population)
        };
        let [target, descendant] = [Named::ByUser, Named::AsDescendant].map(|named| listed(named).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let read = |population: &Population| population.read(population.at(0), &mut [0; PAGE_SIZE]);
        assert_eq!(read(&target), Err(OpenError::NoProcess(pid)));
        assert_eq!(read(&descendant), Ok(false));
        assert_eq!(listed(Named::AsDescendant).err(), Some(OpenError::NoProcess(pid)));
    }
}
