//! A disk against an array of bytes: any request at any offset, by several threads, with memory for all pages and with
//! little of it over a backing file that fails now and then.

mod random;

use proptest::prelude::*;
use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::attributes::{self, Attributes};
use ramfold_disk::face::{Disk, DiskError, Extent, ExtentKind};
use ramfold_disk::volume::{LEAST_MEMORY, Settings, Volume};
use random::bytes;
use std::fs::File;
use std::sync::{Arc, LazyLock};
use tempfile::TempDir;

const PAGES: usize = 256;
const SIZE: usize = PAGES * PAGE_SIZE;

#[derive(Debug, Clone)]
enum Request {
    Write {
        at: usize,
        len: usize,
        seed: u64,
    },
    Fill {
        at: usize,
        len: usize,
        byte: u8,
    },
    Zero {
        at: usize,
        len: usize,
    },
    Discard {
        at: usize,
        len: usize,
    },
    Read {
        at: usize,
        len: usize,
    },
    Fetch {
        at: usize,
        len: usize,
    },
    /// Lines that other pages have too.
    Text {
        at: usize,
        len: usize,
        seed: u64,
    },
    /// Compresses all pages anew, by the dictionary of this number.
    Recompress {
        dictionary: usize,
    },
    /// Writes pages back.
    WriteBack {
        first: usize,
        end: usize,
    },
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    let aligned = (0..PAGES, 0..80_usize).prop_map(|(at, len)| (at * PAGE_SIZE, len * PAGE_SIZE));
    let any = (0..SIZE, 0..3 * PAGE_SIZE);
    prop_oneof![aligned, any].prop_map(|(at, len)| (at, len.min(SIZE - at)))
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (range(), any::<u64>()).prop_map(|((at, len), seed)| Request::Write { at, len, seed }),
        (range(), any::<u8>()).prop_map(|((at, len), byte)| Request::Fill { at, len, byte }),
        range().prop_map(|(at, len)| Request::Zero { at, len }),
        range().prop_map(|(at, len)| Request::Discard { at, len }),
        range().prop_map(|(at, len)| Request::Read { at, len }),
        range().prop_map(|(at, len)| Request::Fetch { at, len }),
        (range(), any::<u64>()).prop_map(|((at, len), seed)| Request::Text { at, len, seed }),
        (0..3_usize).prop_map(|dictionary| Request::Recompress { dictionary }),
        (0..PAGES, 0..40_usize).prop_map(|(first, len)| Request::WriteBack { first, end: first + len }),
    ]
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    bytes(seed).take(len).collect()
}

/// Lines of a dozen.
fn lines(seed: u64, len: usize) -> Vec<u8> {
    let choice = noise(seed, len / 40 + 1);
    choice.iter().flat_map(|line| noise(u64::from(line % 12), 40)).take(len).collect()
}

/// Two files of lines, the second with half of them, and none.
static DICTIONARIES: LazyLock<(TempDir, [String; 3])> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, lines: u64| {
        let path = place.path().join(name);
        std::fs::write(&path, (0..lines).flat_map(|line| noise(line, 40)).collect::<Vec<u8>>()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let names = [file("all", 12), file("half", 6), "none".to_owned()];
    (place, names)
});

fn disk(mem_limit: Option<u64>, backing: Option<(File, u64)>) -> Arc<Volume> {
    let store = Config { accept_threshold_percent: 90, ..Config::default() };
    Arc::new(Volume::open(Settings { size: SIZE as u64, mem_limit, store, backing }).unwrap())
}

/// Asks for something by the disk's attributes.
fn set(disk: &Arc<Volume>, lines: &[&str]) {
    let attributes = Attributes::new(Arc::clone(disk), "lz4", Some("zstd:3"));
    for line in lines {
        let asked = attributes::request::Request::parse(line.as_bytes());
        let Ok(attributes::request::Request::Set(setting)) = asked else { panic!("{line}") };
        attributes.set(setting).unwrap();
    }
}

/// What a disk and its model have after a request.
fn apply(disk: &Arc<Volume>, model: &mut [u8], request: &Request) {
    let worker = &mut disk.worker();
    match *request {
        Request::Write { at, len, seed } => {
            let data = noise(seed, len);
            disk.write(at as u64, &data, worker).unwrap();
            model[at..at + len].copy_from_slice(&data);
        }
        Request::Fill { at, len, byte } => {
            disk.write(at as u64, &vec![byte; len], worker).unwrap();
            model[at..at + len].fill(byte);
        }
        Request::Zero { at, len } => {
            disk.zero(at as u64, len as u64, worker).unwrap();
            model[at..at + len].fill(0);
        }
        Request::Discard { at, len } => {
            disk.discard(at as u64, len as u64, worker).unwrap();
            let (first, end) = (at.next_multiple_of(PAGE_SIZE), (at + len) / PAGE_SIZE * PAGE_SIZE);
            model[first.min(end)..end].fill(0);
        }
        Request::Text { at, len, seed } => {
            let data = lines(seed, len);
            disk.write(at as u64, &data, worker).unwrap();
            model[at..at + len].copy_from_slice(&data);
        }
        Request::Recompress { dictionary } => {
            let name = &DICTIONARIES.1[dictionary];
            set(disk, &[&format!("algorithm_params priority=1 dict={name}"), "recompress priority=1"]);
        }
        Request::WriteBack { first, end } if disk.backing().is_some() => {
            set(disk, &[&format!("writeback page_indexes={first}-{end}")]);
        }
        Request::WriteBack { .. } => {}
        Request::Fetch { at, len } => disk.fetch(at as u64, len as u64, worker).unwrap(),
        Request::Read { at, len } => {
            let mut found = vec![0xa5; len];
            disk.read(at as u64, &mut found, worker).unwrap();
            assert!(found == model[at..at + len], "{request:?}");
        }
    }
}

fn check(disk: &Volume, model: &[u8]) {
    let mut found = vec![0xa5; SIZE];
    disk.read(0, &mut found, &mut disk.worker()).unwrap();
    assert!(found == model);
    let (mut at, mut last) = (0, None);
    disk.extents(0, SIZE as u64, &mut |Extent { len, kind }| {
        let (from, to) = (at, at + usize::try_from(len).unwrap());
        assert!(kind == ExtentKind::Data || model[from..to].iter().all(|byte| *byte == 0));
        assert!(len > 0 && last != Some(kind));
        (at, last) = (to, Some(kind));
        true
    });
    assert_eq!(at, SIZE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_disk_is_an_array_of_bytes(requests in prop::collection::vec(request(), 1..60)) {
        let (disk, mut model) = (disk(None, None), vec![0; SIZE]);
        requests.iter().for_each(|request| apply(&disk, &mut model, request));
        check(&disk, &model);
    }

    #[test]
    fn so_it_is_with_memory_for_a_quarter(requests in prop::collection::vec(request(), 1..60)) {
        let backing = (tempfile::tempfile_in("/var/tmp").unwrap(), 64 << 20);
        let (disk, mut model) = (disk(Some(LEAST_MEMORY), Some(backing)), vec![0; SIZE]);
        requests.iter().for_each(|request| apply(&disk, &mut model, request));
        check(&disk, &model);
    }
}

/// A page has its old bytes or its new ones, and the client is told.
#[test]
fn a_full_disk_refuses_and_keeps_what_it_has() {
    let disk = disk(Some(LEAST_MEMORY), None);
    let (mut model, worker) = (vec![0; SIZE], &mut disk.worker());
    let mut refused = 0;
    for page in 0..PAGES {
        let (at, data) = (page * PAGE_SIZE, noise(page as u64 + 1, PAGE_SIZE));
        match disk.write(at as u64, &data, worker) {
            Ok(()) => model[at..at + PAGE_SIZE].copy_from_slice(&data),
            Err(DiskError::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!((128..PAGES).contains(&refused), "{refused}");
    check(&disk, &model);
    // What is discarded makes room.
    disk.discard(0, SIZE as u64, worker).unwrap();
    disk.write((PAGES - 1) as u64 * PAGE_SIZE as u64, &noise(9, PAGE_SIZE), worker).unwrap();
    model.fill(0);
    model[SIZE - PAGE_SIZE..].copy_from_slice(&noise(9, PAGE_SIZE));
    check(&disk, &model);
}

/// A backing file that cannot be written takes no page with it.
#[test]
fn a_backing_file_that_fails_loses_nothing() {
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let disk = disk(Some(LEAST_MEMORY), Some((full, 64 << 20)));
    let (mut model, worker) = (vec![0; SIZE], &mut disk.worker());
    for page in 0..PAGES {
        let (at, data) = (page * PAGE_SIZE, noise(page as u64 + 1, PAGE_SIZE));
        if disk.write(at as u64, &data, worker).is_ok() {
            model[at..at + PAGE_SIZE].copy_from_slice(&data);
        }
    }
    check(&disk, &model);
}

/// Writers of parts of the same pages do not undo one another's work.
#[test]
fn parts_of_a_page_are_written_by_many_at_once() {
    const WRITERS: usize = 4;
    const PART: usize = PAGE_SIZE / WRITERS;
    let backing = (tempfile::tempfile_in("/var/tmp").unwrap(), 64 << 20);
    let disk = disk(Some(LEAST_MEMORY), Some(backing));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let disk = &disk;
            scope.spawn(move || {
                let worker = &mut disk.worker();
                for (round, page) in (0..20).flat_map(|round| (0..PAGES).map(move |page| (round, page))) {
                    let at = (page * PAGE_SIZE + writer * PART) as u64;
                    disk.write(at, &noise(round * 1000 + at, PART), worker).unwrap();
                }
            });
        }
    });
    let parts = (0..PAGES * WRITERS).map(|part| (part * PART) as u64);
    let model: Vec<u8> = parts.flat_map(|at| noise(19 * 1000 + at, PART)).collect();
    check(&disk, &model);
}

/// The memory of what is discarded is the system's within a second.
#[test]
fn discarded_memory_is_given_back() {
    let disk = disk(None, None);
    let worker = &mut disk.worker();
    disk.write(0, &noise(5, SIZE), worker).unwrap();
    let held = disk.store().pool_bytes();
    assert!(held >= SIZE as u64, "{held}");
    (0..PAGES as u64)
        .filter(|page| page % 8 != 0)
        .for_each(|page| disk.discard(page * 4096, 4096, worker).unwrap());
    let begun = std::time::Instant::now();
    while disk.store().pool_bytes() > held / 4 {
        assert!(begun.elapsed().as_secs() < 60, "{} of {held}", disk.store().pool_bytes());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
