//! One limit for several runs: `ramfold run --budget` joins what `ramfold run --share` offers. Memory goes to the run
//! that works; each answers for its own processes, and ends alone.

mod command;
mod common;
#[path = "shared/growing.rs"]
mod growing;
#[path = "shared/limit.rs"]
mod limit;

use command::{command, one_line, ramfold};
use common::memory;
use common::patience::wait_for;
use growing::segment_of;
use limit::{LIMIT, MIB, Running, Shared, assert_within, can_run, members, watch_beside};
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

/// Memory goes to the run that works, and back; the first ends, in order or not, and the other goes on.
#[test]
fn two_runs_share_one_limit() {
    if !can_run() {
        return;
    }
    for signal in [None, Some(libc::SIGKILL)] {
        let mut shared = Shared::start();
        let mut joined = shared.join();
        let segment = segment_of(joined.pid());
        assert_eq!((segment.living(), segment.limit()), (2, LIMIT));
        let programs = [shared.pid(), joined.pid()].map(memory::only_child);
        let stop = watch_beside(programs[0], programs[1], segment_of(shared.pid()));
        shared.grow(100);
        let busy = shared.run.charged();
        assert!(busy > LIMIT / 2, "the first has most of the memory: {} MiB", busy / MIB);
        joined.grow(100);
        wait_for("memory goes to the run that joined", || {
            joined.grow(1);
            joined.charged() > LIMIT / 2
        });
        wait_for("memory comes back", || {
            shared.grow(1);
            shared.run.charged() > LIMIT / 2
        });
        assert_within(stop());
        assert_eq!(members(joined.pid()).len(), 2);
        if let Some(signal) = signal {
            let program = memory::only_child(shared.pid());
            for pid in [shared.pid(), program] {
                // SAFETY: a plain system call.
                unsafe { libc::kill(pid.cast_signed(), signal) };
            }
            drop(shared);
        } else {
            assert_eq!(shared.run.end(), Some(0));
        }
        wait_for("what the first had is taken back", || segment.living() == 1);
        joined.grow(30);
        assert!(joined.charged() > LIMIT * 3 / 4, "{} MiB", joined.charged() / MIB);
        assert!(segment.in_use() <= LIMIT + MIB);
        assert_eq!(joined.end(), Some(0));
        assert_eq!(segment.living(), 0);
    }
}

/// What a run that joined has past the pager counts until it is killed. It ends as its program.
#[test]
fn a_run_that_joined_answers_for_its_processes() {
    if !can_run() {
        return;
    }
    let shared = Shared::start();
    let (budget, segment) = (shared.path("budget"), segment_of(shared.pid()));
    let budget = budget.to_str().unwrap();
    wait_for("the program alone is there", || segment.unmanaged() == 0);
    let small = ["run", "--budget", budget, "--", "sleep", "1000"];
    let small = Running::start(&small, Stdio::null(), Stdio::null());
    wait_for("a process that is not managed counts", || segment.unmanaged() > 0);
    let sleeps = memory::only_child(small.pid());
    drop(small);
    wait_for("it does not any more", || segment.unmanaged() == 0);
    // SAFETY: a plain system call.
    unsafe { libc::kill(sleeps.cast_signed(), libc::SIGKILL) };
    let told = ramfold(&["run", "--budget", budget, "--stats", "-", "--", "sh", "-c", "exit 3"]);
    assert_eq!(told.code, Some(3), "{}", told.stderr);
    assert!(told.stderr.contains("at most, of 64.0 MiB"), "{}", told.stderr);
    assert_eq!(segment.living(), 1);
}

/// Without a swap file a run that joined ends as out of memory where the budget is full, with a line of its own.
#[test]
fn a_run_that_joined_is_killed_where_nothing_can_leave() {
    if !can_run() {
        return;
    }
    let place = common::scratch();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let share = ["run", "-m", "32M", "--swap", "none", "--share", &path("budget"), "--", "sleep", "1000"];
    let mut first = Running(command(&share).stderr(Stdio::piped()).spawn().unwrap());
    let mut others = first.0.stderr.take().unwrap();
    wait_for("it is shared", || Path::new(&path("budget")).exists());
    // Mapped at once: an allocation would fail while memory is short.
    let program = "
import mmap, random
memory, page = mmap.mmap(-1, 80 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), random.randbytes(4096)
for at in range(0, 80 << 20, 4096):
    memory[at:at + 4096] = page
    memory[at:at + 8] = at.to_bytes(8, 'little')
print('all')
";
    let second = ramfold(&["run", "--budget", &path("budget"), "--", "python3", "-c", program]);
    assert_eq!(second.code, Some(137), "{}", second.stderr);
    assert!(one_line(&second.stderr).starts_with("ramfold: out of memory"), "{}", second.stderr);
    first.signal(libc::SIGTERM);
    first.0.wait().unwrap();
    let mut told = String::new();
    others.read_to_string(&mut told).unwrap();
    assert_eq!(told, "", "the first tells nothing of it");
}
