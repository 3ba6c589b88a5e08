//! A region holds what was written to it, whatever its budget.

use ramfold_pager::{Mode, Region, RegionOptions};
use std::collections::HashMap;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// userfaultfd is needed; in CI it must be there.
fn permitted() -> bool {
    match Region::new(PAGE, RegionOptions::new(16 << 20)) {
        Ok(_) => true,
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Contents of a page that compress to about 40 %, and tell page and version.
fn contents(page: usize, version: u64) -> [u8; PAGE] {
    let mut out = [0; PAGE];
    let tag = (page as u64 & 0xff) << 8 | (version & 0xff) << 32;
    let mut state = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    for (at, word) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = if at % 5 < 2 { state.to_ne_bytes() } else { tag.to_ne_bytes() };
    }
    out
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Random writes and reads, each read compared with what the model says.
fn exercise(region: &mut Region, rounds: usize, seed: u64) {
    eprintln!("seed {seed}");
    let pages = region.len() / PAGE;
    let mut rng = Rng(seed);
    let mut versions: HashMap<usize, u64> = HashMap::new();
    for round in 0..rounds {
        let run = 1 + rng.below(40);
        let first = rng.below(pages);
        let write = rng.below(3) != 0;
        for page in first..(first + run).min(pages) {
            let bytes = &mut region[page * PAGE..(page + 1) * PAGE];
            let before = versions.get(&page).map_or([0; PAGE], |version| contents(page, *version));
            assert!(bytes == before, "page {page} differs in round {round}");
            if write {
                bytes.copy_from_slice(&contents(page, round as u64));
                versions.insert(page, round as u64);
            }
        }
    }
}

fn held(mode: Mode, swap: bool) {
    if !permitted() {
        return;
    }
    let mut options = RegionOptions::new(24 << 20);
    options.mode = mode;
    options.swap_size = 256 << 20;
    let len = if swap {
        options.store.max_pool_bytes = 4 << 20;
        96 * MIB
    } else {
        options.swap = None;
        options.store.max_pool_bytes = 18 << 20;
        32 * MIB
    };
    let mut region = Region::new(len, options).unwrap();
    exercise(&mut region, 4000, 0x5eed_0001);
    let stats = region.stats();
    assert!(stats.stores > 1000, "nothing was evicted: {stats:?}");
    assert_eq!(stats.written_back_pages > 0, swap, "{stats:?}");
    assert_eq!((stats.decompress_fail, stats.checksum_fail), (0, 0));
}

#[test]
fn pages_come_back_after_a_move() {
    held(Mode::Auto, false);
}

#[test]
fn pages_come_back_after_write_protect_and_copy() {
    held(Mode::WriteProtect, false);
}

#[test]
fn pages_come_back_from_the_swap_file() {
    held(Mode::Auto, true);
}

#[test]
fn pages_come_back_from_the_swap_file_without_move() {
    held(Mode::WriteProtect, true);
}

/// A filled region of 56 MiB in 40, of which about 20 MiB are resident.
fn filled() -> Region {
    let mut options = RegionOptions::new(40 << 20);
    options.swap = None;
    options.store.max_pool_bytes = 32 << 20;
    options.store.recomp_algorithm = None;
    let mut region = Region::new(56 * MIB, options).unwrap();
    for (number, page) in region.chunks_exact_mut(PAGE).enumerate() {
        page.copy_from_slice(&contents(number, 0));
    }
    region
}

/// Reads the first pages in order; returns how many of them came back from the store.
fn loads_of_a_pass(region: &Region, pages: usize) -> u64 {
    let before = region.stats().loads;
    for (number, page) in region.chunks_exact(PAGE).take(pages).enumerate() {
        assert!(page == contents(number, 0), "page {number} differs");
    }
    region.stats().loads - before
}

#[test]
fn what_is_given_unasked_is_zeros_and_what_is_there_stays() {
    if !permitted() {
        return;
    }
    let mut options = RegionOptions::new(160 << 20);
    options.swap = None;
    let mut region = Region::new(64 * MIB, options).unwrap();
    let mut rng = Rng(0x5eed_0002);
    let mut model = vec![0u8; region.len() / PAGE];
    for _ in 0..3 * model.len() {
        let page = rng.below(model.len());
        let byte = &mut region[page * PAGE + page % PAGE];
        assert_eq!(*byte, model[page], "page {page}");
        model[page] = model[page].wrapping_add(1);
        *byte = model[page];
    }
    for (page, value) in model.into_iter().enumerate() {
        let bytes = &region[page * PAGE..][..PAGE];
        assert!(
            bytes.iter().enumerate().all(|(at, byte)| *byte == if at == page % PAGE { value } else { 0 })
        );
    }
}

#[test]
fn a_sequence_over_more_than_memory_finds_a_part_of_it_there() {
    if !permitted() {
        return;
    }
    let region = filled();
    let pages = region.len() / PAGE;
    let loads: Vec<u64> = (0..6).map(|_| loads_of_a_pass(&region, pages)).collect();
    // By age alone it would be all of them, every time.
    assert!(loads[2..].iter().all(|loads| *loads < pages as u64 * 9 / 10), "{loads:?} of {pages}");
}

#[test]
fn what_nobody_uses_makes_way_for_a_sequence_that_fits() {
    if !permitted() {
        return;
    }
    let region = filled();
    let pages = 14 * MIB / PAGE;
    let loads: Vec<u64> = (0..12).map(|_| loads_of_a_pass(&region, pages)).collect();
    assert!(loads[8..].iter().all(|loads| *loads < pages as u64 / 4), "{loads:?} of {pages}");
}

#[test]
fn threads_share_a_region() {
    if !permitted() {
        return;
    }
    let mut options = RegionOptions::new(24 << 20);
    options.swap_size = 256 << 20;
    let mut region = Region::new(64 * MIB, options).unwrap();
    std::thread::scope(|scope| {
        for (id, part) in region.chunks_mut(16 * MIB).enumerate() {
            scope.spawn(move || {
                let mut rng = Rng(id as u64 + 99);
                let mut versions = vec![None; part.len() / PAGE];
                for round in 0..12_000u64 {
                    let page = rng.below(versions.len());
                    let bytes = &mut part[page * PAGE..(page + 1) * PAGE];
                    let before = versions[page].map_or([0; PAGE], |version| contents(page, version));
                    assert!(bytes == before, "thread {id}, page {page}, round {round}");
                    bytes.copy_from_slice(&contents(page, round));
                    versions[page] = Some(round);
                }
            });
        }
    });
}

#[test]
fn a_region_leaves_no_thread_behind() {
    if !permitted() {
        return;
    }
    let threads = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
            .filter(|name| name.starts_with("ramfold-"))
            .count()
    };
    for _ in 0..5 {
        let mut region = Region::new(8 * MIB, RegionOptions::new(16 << 20)).unwrap();
        region.fill(1);
        assert!(region.iter().all(|byte| *byte == 1));
    }
    // Other tests of this file run regions of their own at the same time.
    if std::env::args().any(|arg| arg == "--test-threads=1") {
        let start = std::time::Instant::now();
        while threads() > 0 {
            assert!(start.elapsed().as_secs() < 60, "{} threads are left", threads());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
