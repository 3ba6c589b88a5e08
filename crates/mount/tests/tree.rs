//! The tree and its cache without FUSE: whatever is done through the tree and behind it, a read gives what the source
//! has.

use glob::Pattern;
use ramfold::{Config, PoorPages};
use ramfold_budget::service::{Server, Service, Settings};
use ramfold_mount::cache::Cache;
use ramfold_mount::tree::{Caller, Change, Excluded, Tree, Which};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

const ROOT: u64 = 1;
const PAGE: usize = 4096;
/// How long versions take to settle: two ticks of a clock of 100 Hz.
const TICK: Duration = Duration::from_millis(20);
static SERVER: Server = Server("test");

struct Fixture {
    tree: Tree,
    cache: Arc<Cache>,
    source: TempDir,
    _service: Service,
}

fn fixture(pool: u64, exclude: &[&str]) -> Fixture {
    let source = tempfile::tempdir().unwrap();
    let store = Config { max_pool_bytes: pool, poor: PoorPages::Refuse, ..Config::default() };
    let settings = Settings { host: &SERVER, limit: pool, whole_process: false, store, backing: None };
    let service = Service::open(settings, |tier| tier).unwrap();
    let cache = Arc::new(Cache::new(Arc::clone(service.member()), pool, 64, TICK));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, source.path(), flags, Mode::empty()).unwrap();
    let patterns = exclude.iter().map(|pattern| Pattern::new(pattern).unwrap()).collect();
    let real = fs::canonicalize(source.path()).unwrap();
    let tree = Tree::new(root, Arc::clone(&cache), Excluded::new(&real, patterns), 4).unwrap();
    Fixture { tree, cache, source, _service: service }
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.source.path().join(name)
    }

    fn open(&self, name: &str, flags: OFlags) -> (u64, u64) {
        let found = self.tree.lookup(ROOT, OsStr::new(name)).unwrap();
        (found.node.number, self.tree.open(found.node.number, flags, |_| unreachable!()).unwrap().handle)
    }

    fn read(&self, handle: u64, offset: u64, len: usize) -> Vec<u8> {
        self.tree.read(Which::Handle(handle), (offset, len), OFlags::empty(), <[u8]>::to_vec).unwrap()
    }

    fn hits(&self) -> u64 {
        self.cache.counts.hits.load(SeqCst)
    }

    fn stored(&self) -> u64 {
        self.cache.store().stats().stored_pages
    }
}

/// Longer than two writes may get the same time.
fn settle() {
    std::thread::sleep(Duration::from_millis(40));
}

/// Text that compresses, different for each seed.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let letter = |at: usize| b'0' + u8::try_from((seed * 31 + at as u64 / 64) % 61).unwrap();
    (0..len).map(letter).collect()
}

/// Numbers that look random (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

#[test]
fn what_was_read_is_found_again_and_a_change_is_seen() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), text(1, 10 * PAGE + 5)).unwrap();
    settle();
    let (_, handle) = it.open("file", OFlags::RDWR);
    assert_eq!(it.read(handle, 0, 1 << 20), text(1, 10 * PAGE + 5));
    assert_eq!(it.hits(), 0);
    assert_eq!(it.read(handle, 3, 5 * PAGE), text(1, 10 * PAGE + 5)[3..3 + 5 * PAGE]);
    assert_eq!((it.hits(), it.stored()), (6, 11));
    // Through the tree.
    assert_eq!(it.tree.write(Which::Handle(handle), PAGE as u64, b"new", OFlags::empty()).unwrap(), 3);
    assert!(it.stored() <= 10, "what may be old has gone");
    assert_eq!(it.read(handle, PAGE as u64, 4)[..3], *b"new");
    // Behind it, at once and with the old time of modification.
    settle();
    it.read(handle, 0, 1 << 20);
    let before = fs::metadata(it.path("file")).unwrap().modified().unwrap();
    let behind = File::options().write(true).open(it.path("file")).unwrap();
    behind.write_all_at(b"newer", PAGE as u64).unwrap();
    behind.set_modified(before).unwrap();
    assert_eq!(it.read(handle, PAGE as u64, 5), b"newer");
    behind.set_len(7).unwrap();
    assert_eq!(it.read(handle, 0, 1 << 20), text(1, 7));
    it.tree.close(handle);
    assert!(it.tree.read(Which::Handle(handle), (0, 1), OFlags::empty(), |_| ()).is_err());
}

/// What another process does to a file, by the shell.
fn elsewhere(it: &Fixture, command: &str) {
    let status =
        std::process::Command::new("sh").args(["-c", command]).current_dir(it.source.path()).status();
    assert!(status.unwrap().success(), "{command}");
}

#[test]
fn the_other_pages_of_a_file_that_is_written_stay_while_nobody_else_writes_it() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), text(1, 10 * PAGE)).unwrap();
    settle();
    let (_, handle) = it.open("file", OFlags::RDWR);
    let mut wanted = text(1, 10 * PAGE);
    it.read(handle, 0, 10 * PAGE);
    let mut write = |at: usize, bytes: &[u8]| {
        assert_eq!(it.tree.write(Which::Handle(handle), at as u64, bytes, OFlags::empty()), Ok(bytes.len()));
        wanted[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(it.read(handle, 0, 10 * PAGE), wanted);
    };
    write(PAGE, b"one");
    if it.cache.watch().is_none() {
        println!("skipped: what is watched (watching the changes of others wants root)");
        return;
    }
    let misses = || it.cache.counts.misses.load(SeqCst);
    for at in 1..8 {
        let before = misses();
        write(at * PAGE + 7, b"page");
        assert_eq!(misses() - before, 1, "the page that was written, and no other");
    }
    // A gap behind the end, and what was the last page.
    assert_eq!(it.tree.write(Which::Handle(handle), 12 * PAGE as u64, b"end", OFlags::empty()), Ok(3));
    assert_eq!(it.read(handle, 9 * PAGE as u64, 4 * PAGE), fs::read(it.path("file")).unwrap()[9 * PAGE..]);
    for command in
        ["printf X | dd of=file conv=notrunc status=none", "truncate -s 20000 file", "echo a >> file"]
    {
        assert_eq!(it.tree.write(Which::Handle(handle), 3, b"mine", OFlags::empty()), Ok(4));
        it.read(handle, 0, 20 * PAGE);
        let before = misses();
        elsewhere(&it, command);
        assert_eq!(it.read(handle, 0, 20 * PAGE), fs::read(it.path("file")).unwrap(), "{command}");
        assert!(misses() - before >= 5, "all its pages have gone after: {command}");
    }
}

#[test]
fn what_is_too_young_is_not_kept() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), text(1, PAGE)).unwrap();
    let (_, handle) = it.open("file", OFlags::RDONLY);
    // So that a test on a machine that pauses is a test all the same.
    File::options().write(true).open(it.path("file")).unwrap().set_len(PAGE as u64 - 1).unwrap();
    it.read(handle, 0, PAGE);
    let unsettled = it.cache.counts.unsettled.load(SeqCst);
    assert_eq!(it.stored() + unsettled, 1, "it is kept only if more than a tick has passed");
}

#[test]
fn what_is_excluded_or_does_not_compress_is_read_and_not_kept() {
    let it = fixture(8 << 20, &["*.iso"]);
    let mut random = Random(88_172_645_463_325_252);
    let noise: Vec<u8> = (0..PAGE).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
    for (name, bytes) in [("a.iso", text(1, PAGE)), ("noise", noise)] {
        fs::write(it.path(name), &bytes).unwrap();
        settle();
        let (_, handle) = it.open(name, OFlags::RDONLY);
        assert_eq!(it.read(handle, 0, PAGE), bytes);
        assert_eq!(it.stored(), 0, "{name}");
    }
    assert_eq!(it.cache.counts.refused.load(SeqCst), 1);
}

#[test]
fn the_kernels_pages_are_held_while_the_file_stays_as_it_was() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), "text").unwrap();
    settle();
    let number = it.tree.lookup(ROOT, OsStr::new("file")).unwrap().node.number;
    let is_held = || it.tree.open(number, OFlags::RDONLY, |_| unreachable!()).unwrap().is_held;
    assert!(!is_held(), "nobody knows what the kernel had before");
    assert!(is_held());
    fs::write(it.path("file"), "TEXT").unwrap();
    assert!(!is_held());
    settle();
    is_held();
    assert!(is_held());
}

#[test]
fn names_lead_nowhere_else() {
    let it = fixture(8 << 20, &[]);
    for name in ["", ".", "..", "a/b"] {
        assert!(it.tree.lookup(ROOT, OsStr::new(name)).is_err());
        assert!(it.tree.remove(ROOT, OsStr::new(name), true).is_err());
        let caller = Caller { uid: 0, gid: 0, thread: 0 };
        assert!(it.tree.make_directory(ROOT, OsStr::new(name), 0o755, 0, caller).is_err());
    }
}

/// One of the things that happen to a file.
fn change(it: &Fixture, random: &mut Random, name: &str, (number, handle): (u64, u64)) {
    let (offset, len) = (random.below(40 * PAGE) as u64, random.below(3 * PAGE) + 1);
    let data = text(random.below(1 << 20) as u64, len);
    // Behind the tree, but by this process: it is not told, and must get another time.
    let behind = || {
        settle();
        File::options().write(true).open(it.path(name)).unwrap()
    };
    match random.below(8) {
        0 | 1 => assert_eq!(it.tree.write(Which::Handle(handle), offset, &data, OFlags::empty()), Ok(len)),
        2 => {
            let change = Change { size: Some(offset), ..Change::default() };
            it.tree.change(number, &change, Some(handle)).unwrap();
        }
        // A hole, where the file system has them.
        3 => drop(it.tree.allocate(Which::Handle(handle), 3, offset, len as u64)),
        4 | 5 => behind().write_all_at(&data, offset).unwrap(),
        6 => behind().set_len(offset).unwrap(),
        _ => settle(),
    }
}

#[test]
fn a_read_gives_what_the_source_has_whatever_happened() {
    let it = fixture(48 << 10, &[]);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let names = ["a", "b", "c"];
    for name in names {
        fs::write(it.path(name), text(1, 30 * PAGE)).unwrap();
    }
    let open = names.map(|name| it.open(name, OFlags::RDWR));
    settle();
    for _ in 0..3000 {
        let which = random.below(3);
        let (name, open) = (names[which], open[which]);
        if random.below(4) == 0 {
            change(&it, &mut random, name, open);
        }
        let (offset, len) = (random.below(45 * PAGE) as u64, random.below(6 * PAGE));
        let mut wanted = vec![0; len];
        let has = File::open(it.path(name)).unwrap().read_at(&mut wanted, offset).unwrap();
        assert_eq!(it.read(open.1, offset, len), wanted[..has], "{name} at {offset}");
    }
    assert!(it.hits() > 100, "the cache took part: {} hits", it.hits());
    it.cache.store().check();
}

/// A writer counts up, in all bytes of a page; whoever reads later than a write has returned reads no less.
fn count_up(write: impl Fn(&[u8], u64) + Sync, read: impl Fn(u64) -> Vec<u8> + Sync) {
    const PAGES: u64 = 8;
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (written, over, read) = (&written, &over, &read);
            scope.spawn(move || {
                let mut page = first;
                while !over.load(SeqCst) {
                    page = (page + 1) % PAGES;
                    let least = written.load(SeqCst);
                    let bytes = read(page * PAGE as u64);
                    let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if found < least {
                        over.store(true, SeqCst);
                        panic!("page {page}: {found} was read after {least} had been written");
                    }
                }
            });
        }
        for count in 1..=400_u64 {
            let page: Vec<u8> = count.to_le_bytes().into_iter().cycle().take(PAGE).collect();
            (0..PAGES).for_each(|at| write(&page, at * PAGE as u64));
            written.store(count, SeqCst);
            if count % 16 == 0 {
                settle();
            }
        }
        over.store(true, SeqCst);
    });
}

#[test]
fn nobody_reads_what_was_there_before_a_write_through_the_tree() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), vec![0; 8 * PAGE]).unwrap();
    let (_, handle) = it.open("file", OFlags::RDWR);
    let write = |page: &[u8], at| {
        assert_eq!(it.tree.write(Which::Handle(handle), at, page, OFlags::empty()), Ok(PAGE));
    };
    count_up(write, |at| it.read(handle, at, PAGE));
    assert!(it.hits() > 0);
}

#[test]
fn nobody_reads_what_was_there_before_a_write_behind_the_tree() {
    let it = fixture(8 << 20, &[]);
    fs::write(it.path("file"), vec![0; 8 * PAGE]).unwrap();
    let (_, handle) = it.open("file", OFlags::RDONLY);
    let behind = File::options().write(true).open(it.path("file")).unwrap();
    count_up(|page, at| behind.write_all_at(page, at).unwrap(), |at| it.read(handle, at, PAGE));
    assert!(it.hits() > 0);
}

#[test]
fn a_directory_is_listed_whole_and_once_in_pieces() {
    let it = fixture(8 << 20, &[]);
    let mut wanted: Vec<String> = (0..3000).map(|number| format!("file-{number}")).collect();
    wanted.iter().for_each(|name| fs::write(it.path(name), "").unwrap());
    let handle = it.tree.open_directory(ROOT).unwrap().handle;
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let (mut room, before) = (7, names.len());
        let from = at;
        let listed = it.tree.list(Which::Handle(handle), from, |entry| {
            if room == 0 {
                return false;
            }
            room -= 1;
            at = entry.next;
            names.push(entry.name.to_str().unwrap().to_owned());
            true
        });
        listed.unwrap();
        if names.len() == before {
            break;
        }
    }
    wanted.extend([".".to_owned(), "..".to_owned()]);
    names.sort();
    wanted.sort();
    assert_eq!(names, wanted);
    it.tree.close_directory(handle);
}
