//! The attributes of a disk: zram's words, zram's columns, and what they do.

mod random;

use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::attributes::request::{Attribute, Named, Request};
use ramfold_disk::attributes::{AttributeError, Attributes};
use ramfold_disk::face::{Disk, DiskError};
use ramfold_disk::volume::{Settings, Volume, Worker};
use random::bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PAGES: u64 = 512;
const SIZE: u64 = PAGES * PAGE_SIZE as u64;

struct Fixture {
    disk: Arc<Volume>,
    attributes: Attributes,
}

impl Fixture {
    /// With a backing of so many bytes, or none.
    fn new(backing: Option<u64>) -> Self {
        Self::of(PAGES, backing)
    }

    fn of(pages: u64, backing: Option<u64>) -> Self {
        let size = pages * PAGE_SIZE as u64;
        let backing = backing.map(|bytes| (tempfile::tempfile_in("/var/tmp").unwrap(), bytes));
        let store = Config { compressor: "lz4".to_owned(), ..Config::default() };
        let disk = Arc::new(Volume::open(Settings { size, mem_limit: None, store, backing }).unwrap());
        Self { attributes: Attributes::new(Arc::clone(&disk), "lz4", None), disk }
    }

    fn show(&self, name: &str) -> String {
        let Ok(Request::Show(attribute)) = Request::parse(name.as_bytes()) else { panic!("{name}") };
        let mut out = Vec::new();
        self.attributes.show(attribute, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        let text = self.show(name);
        text.lines().last().unwrap().split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn try_set(&self, line: &str) -> Result<(), AttributeError> {
        let Ok(Request::Set(setting)) = Request::parse(line.as_bytes()) else { panic!("{line}") };
        self.attributes.set(setting)
    }

    fn set(&self, line: &str) {
        self.try_set(line).unwrap();
    }

    fn write(&self, page: u64, data: &[u8]) {
        self.disk.write(page * PAGE_SIZE as u64, data, &mut self.disk.worker()).unwrap();
    }

    fn read(&self, page: u64) -> Vec<u8> {
        let mut data = vec![0xa5; PAGE_SIZE];
        self.disk.read(page * PAGE_SIZE as u64, &mut data, &mut self.disk.worker()).unwrap();
        data
    }

    /// The flags of each page that there is, by number.
    fn flags(&self) -> Vec<(u64, String)> {
        let state = self.show("block_state");
        let line = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (seconds, micros) = words[1].split_once('.').unwrap();
            assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6 && words[2].len() == 6, "{line}");
            (words[0].parse().unwrap(), words[2].to_owned())
        };
        state.lines().map(line).collect()
    }
}

/// A page that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    bytes(seed).take(PAGE_SIZE).collect()
}

/// A page in which zstd finds more than lz4.
fn text(seed: u64) -> Vec<u8> {
    letters(seed, PAGE_SIZE)
}

fn letters(seed: u64, len: usize) -> Vec<u8> {
    bytes(seed).take(len).map(|byte| b"etaoinsh"[usize::from(byte % 8)]).collect()
}

/// A page of lines that other pages have too, and a word of its own.
fn prose(seed: u64) -> Vec<u8> {
    let mut choice = bytes(seed);
    let mut page = seed.to_le_bytes().to_vec();
    while page.len() < PAGE_SIZE {
        let line = u64::from(choice.next().unwrap());
        page.extend(letters(line, 48 + usize::try_from(line % 32).unwrap()));
    }
    page.truncate(PAGE_SIZE);
    page
}

#[test]
fn pages_are_fresh_for_a_moment_unless_that_is_switched_off() {
    let fixture = Fixture::new(None);
    (0..100).for_each(|page| fixture.write(page, &if page % 4 == 0 { noise(page) } else { text(page) }));
    let [fresh, most, settled] = fixture.numbers("fresh_stat")[..] else { panic!("three columns") };
    assert!(fresh == 100 * PAGE_SIZE as u64 && most >= fresh && settled == 0, "{fresh} of {most}, {settled}");
    assert_eq!(fixture.numbers("mm_stat")[7], 0, "fresh is not huge");
    assert!(fixture.flags().iter().all(|(_, flags)| flags == "......"));
    let begun = Instant::now();
    while fixture.numbers("fresh_stat")[0] > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "they are compressed once they are left alone");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fixture.numbers("fresh_stat")[2], 100);
    assert_eq!(fixture.numbers("mm_stat")[7..], [25, 25]);
    fixture.set("fresh_enabled 0");
    (100..200).for_each(|page| fixture.write(page, &text(page)));
    assert_eq!(
        (fixture.show("fresh_enabled"), &fixture.numbers("fresh_stat")[..]),
        ("0\n".into(), &[0, 0, 100][..])
    );
    for page in 0..200 {
        assert!(fixture.read(page) == if page % 4 == 0 && page < 100 { noise(page) } else { text(page) });
    }
}

#[test]
fn statistics_have_zrams_columns() {
    let fixture = Fixture::new(Some(8 << 20));
    fixture.set("fresh_enabled 0");
    fixture.write(0, &text(1));
    fixture.write(1, &noise(2));
    fixture.write(2, &vec![7; PAGE_SIZE]);
    fixture.write(2, &vec![8; PAGE_SIZE]);
    let [orig, compr, used, limit, max, same, compacted, huge, huge_since] = fixture.numbers("mm_stat")[..]
    else {
        panic!("{}", fixture.show("mm_stat"));
    };
    assert_eq!((orig, limit, same, compacted, huge, huge_since), (3 * PAGE_SIZE as u64, 0, 1, 0, 1, 1));
    assert!(compr > PAGE_SIZE as u64 && compr < orig && used >= compr && max >= used);
    assert!(
        fixture.show("mm_stat").starts_with("   12288 "),
        "as wide as zram's: {}",
        fixture.show("mm_stat")
    );
    fixture.write(1, &text(3));
    assert_eq!(fixture.numbers("mm_stat")[7..], [0, 1], "one was huge once");
    fixture.disk.discard(0, 2 * PAGE_SIZE as u64, &mut fixture.disk.worker()).unwrap();
    assert_eq!(fixture.disk.write(SIZE, &[1], &mut fixture.disk.worker()), Err(DiskError::Io));
    assert_eq!(fixture.numbers("io_stat"), [0, 1, 1, 2]);
    assert_eq!(fixture.numbers("bd_stat"), [0, 0, 0]);
    assert_eq!(fixture.show("debug_stat"), "version: 1\n       0        0\n");
    assert_eq!((fixture.show("initstate"), fixture.show("disksize")), ("1\n".into(), format!("{SIZE}\n")));
}

#[test]
fn idle_pages_are_written_back_and_huge_ones() {
    let fixture = Fixture::new(Some(8 << 20));
    (0..40).for_each(|page| fixture.write(page, &text(page)));
    (40..50).for_each(|page| fixture.write(page, &noise(page)));
    fixture.write(50, &vec![0; PAGE_SIZE]);
    fixture.set("idle 3600");
    assert!(fixture.flags().iter().all(|(_, flags)| !flags.contains('i')), "all were used a moment ago");
    fixture.set("idle all");
    assert_eq!(fixture.flags()[50], (50, "s..i..".to_owned()));
    fixture.read(3);
    fixture.write(45, &noise(1000));
    fixture.set("writeback type=huge_idle");
    assert_eq!(fixture.numbers("bd_stat"), [9, 0, 9]);
    assert_eq!((fixture.flags()[44].1.as_str(), fixture.flags()[45].1.as_str()), (".whi..", "..h..."));
    fixture.set("writeback_batch_size 5");
    fixture.set("writeback type=idle");
    assert_eq!(fixture.numbers("bd_stat"), [48, 0, 48], "all but the two that were used");
    fixture.set("writeback page_index=3 page_indexes=44-46 page_index=100000");
    assert_eq!(fixture.numbers("bd_stat"), [50, 0, 50]);
    for page in 0..40 {
        assert!(fixture.read(page) == text(page), "page {page}");
    }
    assert_eq!(fixture.numbers("bd_stat")[1], 40, "each was read there");
    let [orig, compr, ..] = fixture.numbers("mm_stat")[..] else { panic!() };
    assert_eq!((orig, compr), (51 * PAGE_SIZE as u64, 0));
}

#[test]
fn giving_way_is_switched() {
    let fixture = Fixture::new(Some(8 << 20));
    for (line, told) in [("shrinker_enabled 0", "0\n"), ("shrinker_enabled 1", "1\n")] {
        fixture.set(line);
        assert_eq!(fixture.show("shrinker_enabled"), told);
    }
}

#[test]
fn writeback_keeps_its_limit() {
    let fixture = Fixture::new(Some(8 << 20));
    (0..100).for_each(|page| fixture.write(page, &text(page)));
    fixture.set("writeback_limit_enable 1");
    assert_eq!(fixture.try_set("writeback page_indexes=0-99"), Err(AttributeError::Limit));
    fixture.set("writeback_limit 42");
    assert_eq!(fixture.try_set("writeback page_indexes=0-99"), Err(AttributeError::Limit));
    assert_eq!((fixture.numbers("bd_stat")[0], fixture.show("writeback_limit")), (42, "0\n".to_owned()));
    // The disk itself may not write either.
    fixture.set("mem_limit 256K");
    let full = (0..PAGES).find_map(|page| {
        fixture.disk.write(page * PAGE_SIZE as u64, &noise(page), &mut fixture.disk.worker()).err()
    });
    assert_eq!((full, fixture.numbers("bd_stat")[2]), (Some(DiskError::NoSpace), 42));
    fixture.set("writeback_limit_enable 0");
    (0..PAGES).for_each(|page| fixture.write(page, &noise(page)));
    assert!((0..PAGES).all(|page| fixture.read(page) == noise(page)));
}

#[test]
fn memory_follows_its_limit() {
    let fixture = Fixture::new(Some(8 << 20));
    (0..PAGES).for_each(|page| fixture.write(page, &noise(page)));
    assert!(fixture.numbers("mm_stat")[2] >= SIZE);
    assert_eq!(fixture.try_set("mem_limit 4K"), Err(AttributeError::TooLittle));
    fixture.set("mem_limit 512K");
    let begun = Instant::now();
    while fixture.numbers("mm_stat")[2] > 512 << 10 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", fixture.show("mm_stat"));
        std::thread::sleep(Duration::from_millis(5));
    }
    fixture.set("mem_used_max 0");
    assert!(fixture.numbers("mm_stat")[4] <= 512 << 10);
    assert_eq!(fixture.numbers("mm_stat")[3], 512 << 10);
    assert!((0..PAGES).all(|page| fixture.read(page) == noise(page)));
    // Without a limit nothing is in the way again.
    fixture.set("mem_limit 0");
    (0..PAGES).for_each(|page| fixture.write(page, &noise(page + 1)));
    assert!(fixture.numbers("mm_stat")[2] >= SIZE);
}

#[test]
fn cold_pages_are_compressed_anew() {
    let fixture = Fixture::new(None);
    (0..64).for_each(|page| fixture.write(page, &text(page)));
    (64..70).for_each(|page| fixture.write(page, &noise(page)));
    assert_eq!(fixture.try_set("recompress type=idle"), Err(AttributeError::NoAlgorithm));
    fixture.set("recomp_algorithm algo=zstd:3 priority=2");
    assert_eq!(fixture.show("recomp_algorithm"), "#2: lz4 lz4hc [zstd:3] deflate lzo lzo-rle\n");
    let before = fixture.numbers("mm_stat")[1];
    fixture.set("idle all");
    fixture.read(9);
    fixture.set("recompress type=idle priority=2 max_pages=10");
    let dense = || fixture.flags().iter().filter(|(_, flags)| flags.contains('r')).count();
    assert_eq!(dense(), 10);
    fixture.set("recompress type=idle priority=2 threshold=4096");
    assert_eq!(dense(), 10, "the others take less than that");
    fixture.set("recompress type=idle algo=zstd");
    assert_eq!((dense(), fixture.flags()[9].1.as_str()), (63, "......"));
    assert!(fixture.numbers("mm_stat")[1] < before * 9 / 10);
    assert_eq!(fixture.flags()[64].1, "..hi.n", "nothing could compress it");
    for page in 0..70 {
        assert!(fixture.read(page) == if page < 64 { text(page) } else { noise(page) }, "page {page}");
    }
    fixture.set("comp_algorithm deflate");
    fixture.set("algorithm_params priority=0 level=9");
    assert_eq!(fixture.show("comp_algorithm"), "lz4 lz4hc zstd [deflate:9] lzo lzo-rle\n");
    assert!(matches!(fixture.try_set("comp_algorithm zip"), Err(AttributeError::Compressor(_))));
    fixture.write(0, &text(5000));
    assert!(fixture.read(0) == text(5000));
}

#[test]
fn a_reset_forgets_everything_when_nobody_is_there() {
    let fixture = Fixture::new(Some(8 << 20));
    (0..100).for_each(|page| fixture.write(page, &noise(page)));
    fixture.set("writeback type=huge");
    let client = fixture.disk.worker();
    assert_eq!(fixture.try_set("reset 1"), Err(AttributeError::Busy));
    assert_eq!(fixture.try_set("disksize 1M"), Err(AttributeError::HasSize));
    drop(client);
    assert!(fixture.read(5) == noise(5));
    fixture.set("reset 1");
    assert_eq!((fixture.show("initstate"), fixture.show("disksize")), ("0\n".into(), "0\n".into()));
    assert_eq!(fixture.disk.read(0, &mut [0], &mut fixture.disk.worker()), Err(DiskError::Io));
    assert_eq!(fixture.try_set("writeback type=huge"), Err(AttributeError::NoSize));
    assert_eq!(fixture.try_set(&format!("disksize {}", SIZE + 1)), Err(AttributeError::Size(SIZE)));
    fixture.set("disksize 1000000");
    assert_eq!((fixture.show("disksize"), fixture.disk.size()), ("1003520\n".into(), 1_003_520));
    assert_eq!(fixture.flags(), []);
    assert_eq!((fixture.read(5), fixture.numbers("bd_stat")), (vec![0; PAGE_SIZE], vec![0, 0, 0]));
    let numbers = fixture.numbers("mm_stat");
    assert_eq!((numbers[0], numbers[1], numbers[8]), (0, 0, 0), "{numbers:?}");
}

#[test]
fn what_cannot_be_is_told() {
    let fixture = Fixture::new(None);
    assert_eq!(fixture.show("backing_dev"), "none\n");
    assert_eq!(fixture.show("shrinker_enabled"), "0\n", "there is nowhere to give way to");
    for line in ["writeback type=idle", "writeback_limit 5", "writeback_limit_enable 1", "shrinker_enabled 1"]
    {
        assert_eq!(fixture.try_set(line), Err(AttributeError::NoBacking), "{line}");
    }
    assert_eq!(fixture.try_set("compressed_writeback 0"), Err(AttributeError::Compressed));
    assert_eq!(
        (fixture.show("compressed_writeback"), fixture.show("writeback_batch_size")),
        ("1\n".into(), "32\n".into())
    );
    assert!(Fixture::new(Some(1 << 20)).show("backing_dev").starts_with("/var/tmp/"));
}

/// A backing that is full is told; the pages stay.
#[test]
fn a_full_backing_loses_nothing() {
    let fixture = Fixture::new(Some(1 << 20));
    (0..PAGES).for_each(|page| fixture.write(page, &noise(page)));
    assert_eq!(fixture.try_set("writeback type=huge"), Err(AttributeError::BackingFull));
    assert!((0..PAGES).all(|page| fixture.read(page) == noise(page)));
}

#[test]
fn everything_can_be_asked_for() {
    let fixture = Fixture::new(None);
    for attribute in Attribute::ALL {
        if let Ok(Request::Show(attribute)) = Request::parse(attribute.name().as_bytes()) {
            fixture.attributes.show(attribute, &mut Vec::new()).unwrap();
        }
    }
}

#[test]
fn a_disk_makes_a_dictionary_of_its_own_when_that_pays() {
    const MANY: u64 = 3000;
    let fixture = Fixture::of(MANY, Some(64 << 20));
    (0..MANY).for_each(|page| fixture.write(page, &prose(page)));
    let used = || fixture.numbers("mm_stat")[1];
    fixture.set("recomp_algorithm algo=zstd:3 priority=1");
    fixture.set("recompress priority=1");
    let plain = used();
    fixture.set("algorithm_params priority=1 dict=auto");
    let params = "priority=0 algo=lz4 level=1\npriority=1 algo=zstd level=3 dict=auto";
    assert_eq!(fixture.show("algorithm_params"), format!("{params} dict_bytes=0 dict_made=0\n"));
    fixture.set("recompress priority=1");
    assert!(
        fixture.show("algorithm_params").ends_with(" dict_made=1\n"),
        "{}",
        fixture.show("algorithm_params")
    );
    assert!(used() < plain / 2, "{plain} to {}", used());
    assert!(fixture.flags().iter().all(|(_, flags)| flags.contains('r')));
    let all = |from: u64| (from..MANY).all(|page| fixture.read(page) == prose(page));
    assert!(all(0));
    // What lies in the backing was made with it, and what is chosen later is another compressor.
    fixture.set("idle all");
    fixture.set("writeback page_indexes=0-1499");
    assert_eq!(fixture.numbers("bd_stat")[0], 1500);
    fixture.set("algorithm_params priority=1 level=9 dict=none");
    fixture.set("recompress priority=1");
    assert!(all(0));
    fixture.set("algorithm_params priority=1 dict=auto");
    assert!(fixture.show("algorithm_params").ends_with(" dict_made=1\n"), "it has the one that there is");
    fixture.set("algorithm_params priority=0 level=1");
    (0..10).for_each(|page| fixture.write(page, &noise(page)));
    assert!(all(10) && (0..10).all(|page| fixture.read(page) == noise(page)));
    fixture.set("reset 1");
    fixture.set(&format!("disksize {}", MANY * PAGE_SIZE as u64));
    (0..MANY).for_each(|page| fixture.write(page, &prose(page)));
    fixture.set("recompress priority=1");
    assert!(used() < plain / 2, "{} of {plain}", used());
    assert!(all(0));
}

#[test]
fn a_dictionary_that_does_not_pay_is_not_made() {
    let fixture = Fixture::new(None);
    (0..PAGES).for_each(|page| fixture.write(page, &text(page)));
    fixture.set("recomp_algorithm algo=zstd:3 priority=1");
    fixture.set("algorithm_params priority=1 dict=auto");
    fixture.set("recompress priority=1");
    assert!(fixture.show("algorithm_params").ends_with(" dict_bytes=0 dict_made=0\n"));
}

#[test]
fn a_reset_that_is_refused_is_not_noticed() {
    let fixture = Fixture::new(None);
    let (disk, is_over) = (&*fixture.disk, AtomicBool::new(false));
    let reads =
        |times: usize, worker: &mut Worker| (0..times).all(|_| disk.read(0, &mut [0], worker).is_ok());
    let close = || disk.close().map(|size| disk.reopen(size)).is_some();
    std::thread::scope(|scope| {
        let mut client = disk.worker();
        let close_twice = [(); 2].map(|()| scope.spawn(|| (0..3_000_000).any(|_| close())));
        let is_served = reads(1_000_000, &mut client);
        let is_closed = close_twice.map(|closed| closed.join().unwrap());
        assert!(is_served && disk.size() == SIZE && is_closed == [false; 2], "a client that was there");
        drop(client);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                close();
            }
        });
        // Who comes after a reset that was not refused finds no disk.
        let is_served = (0..100_000).all(|_| {
            let mut client = disk.worker();
            disk.size() == 0 || reads(3, &mut client)
        });
        is_over.store(true, SeqCst);
        assert!(is_served, "a client that came meanwhile");
    });
}

#[test]
fn a_writeback_ends_while_a_client_writes() {
    const MANY: u64 = 16 << 10;
    let fixture = Fixture::of(MANY, Some(8 << 20));
    let is_over = AtomicBool::new(false);
    let text = prose(1);
    let is_done = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut worker, mut data) = (fixture.disk.worker(), text.clone());
            for page in (0..MANY).cycle().take_while(|_| !is_over.load(SeqCst)) {
                data[..8].copy_from_slice(&page.to_le_bytes());
                fixture.disk.write(page * PAGE_SIZE as u64, &data, &mut worker).unwrap();
            }
        });
        while fixture.numbers("fresh_stat")[0] < MANY * PAGE_SIZE as u64 / 2 {
            std::thread::yield_now();
        }
        let writeback = scope.spawn(|| fixture.set("writeback type=huge"));
        let (begun, most) = (Instant::now(), Duration::from_secs(20));
        while !writeback.is_finished() && begun.elapsed() < most {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, SeqCst);
        begun.elapsed() < most
    });
    assert!(is_done, "it went on for as long as the client did");
}

#[test]
fn a_dictionary_of_a_file_is_used_for_writes_and_for_recompression() {
    let fixture = Fixture::new(None);
    // What is written is compressed at once.
    fixture.set("fresh_enabled 0");
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("dict");
    let lines: Vec<u8> = (0..256).flat_map(|line| letters(line, 80)).collect();
    std::fs::write(&path, lines).unwrap();
    let used = || fixture.numbers("mm_stat")[1];
    let mut sizes = Vec::new();
    for params in ["level=3".to_owned(), format!("dict={}", path.display()), "dict=none".to_owned()] {
        fixture.set("comp_algorithm zstd:3");
        fixture.set(&format!("algorithm_params priority=0 {params}"));
        (0..PAGES).for_each(|page| fixture.write(page, &prose(page)));
        assert!((0..PAGES).all(|page| fixture.read(page) == prose(page)));
        sizes.push(used());
    }
    assert!(sizes[1] < sizes[0] / 2 && sizes[2] == sizes[0], "{sizes:?}");
    fixture.set("recomp_algorithm algo=zstd:3 priority=2");
    fixture.set(&format!("algorithm_params priority=2 dict={}", path.display()));
    std::fs::remove_file(&path).unwrap();
    fixture.set("recompress priority=2");
    assert_eq!(used(), sizes[1]);
    assert!((0..PAGES).all(|page| fixture.read(page) == prose(page)));
    let error = fixture.try_set(&format!("algorithm_params priority=2 dict={}", path.display()));
    assert!(matches!(error, Err(AttributeError::Dictionary(_))), "{error:?}");
    fixture.set("recomp_algorithm algo=lzo priority=3");
    assert_eq!(fixture.try_set("algorithm_params algo=lzo dict=auto"), Err(AttributeError::NoDictionaries));
}
