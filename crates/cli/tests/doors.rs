//! Two doors beside a run, under its limit: one over memory, as a disk is, and one over a directory, as a file cache
//! is. They use the store and the budget, and know nothing of the pager.

mod common;
#[path = "doors/directory.rs"]
mod directory;
#[path = "shared/growing.rs"]
mod growing;
#[path = "doors/memory.rs"]
mod memory_door;
#[path = "doors/open.rs"]
mod open;
#[path = "doors/run.rs"]
mod run_beside;

use common::memory::{self, Sampler};
use common::need;
use common::patience::wait_for;
use directory::Directory;
use growing::Run;
use memory_door::Memory;
use ramfold::PAGE_SIZE;
use run_beside::{Budget, block};
use std::fs;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;
const PAGES_OF_MIB: u64 = MIB / PAGE_SIZE as u64;

#[test]
fn doors_and_a_run_share_one_limit() {
    if !(need::userfaultfd() && need::programs(&["python3"])) {
        return;
    }
    let files = tempfile::tempdir_in("/var/tmp").unwrap();
    for file in 0..3 {
        fs::write(files.path().join(file.to_string()), directory::contents(file, 4 * MIB)).unwrap();
    }
    let mut run = Run::start(&["--strict", "-m", &LIMIT.to_string(), "--swap-size", "1G"]);
    let program = run.pid();
    let budget = Budget::of(program);
    let disk = Memory::open(budget.member());
    let cache = Directory::open(budget.member(), files.path());
    let held = [disk.held(), cache.held()];
    // What the run's processes have and what the doors hold, together.
    let doors = move || held.iter().map(|held| held()).sum();
    let together = Sampler::of(move || memory::with_beside(program, &doors, LIMIT));

    // The disk is busy: it has most of the memory.
    for number in 0..60 * PAGES_OF_MIB {
        disk.write(number, &block(number));
    }
    let busy = disk.resident();
    assert!(busy > LIMIT / 4, "{} MiB", busy / MIB);
    // It is idle while the run works, which takes twice the limit: its memory goes there.
    run.grow(128);
    wait_for("memory goes from the idle door to the run", || disk.resident() < busy / 4);
    // The cache works, and so does the disk again.
    for round in 0..3 {
        for file in 0..3 {
            for page in 0..4 * PAGES_OF_MIB {
                let expected = block(file << 32 | page);
                assert!(cache.read(file, page) == expected, "file {file}, page {page}, round {round}");
            }
        }
    }
    wait_for("memory comes back to who works", || {
        for number in 0..60 * PAGES_OF_MIB {
            assert!(disk.read(number) == block(number), "block {number}");
        }
        disk.resident() > busy / 4
    });
    run.grow(8);
    let most = together.stop();
    // The memory of `ramfold run` itself is in the sum.
    assert!(most <= LIMIT + 4 * MIB, "{} KiB of {}", most >> 10, LIMIT >> 10);
    drop((disk, cache));
    wait_for("doors give their slots back", || budget.members() == 1);
}
