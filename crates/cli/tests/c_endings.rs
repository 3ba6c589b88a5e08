//! Programs that ramfold cannot hold, or cannot go on with: how they end, and what their users are told.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;

use common::patience::wait_for_some;
use common::small::{MIB, SKIPPED, in_32_mib, modes_of, program};
use common::{Program, Ramfold, Running, compiled, need, run, within_limit};

/// How the line about what is not held begins.
const PASSED: &str = "the limit of 32 MiB is passed: programs that are not managed";

/// Who cannot be held after what it has given up goes on, and the line that it prints tells the true reason.
#[test]
fn given_up_unseen() {
    if !need::root() {
        return;
    }
    for (how, reason) in [("past", "gave up the user"), ("root", "chroot")] {
        in_32_mib("dropped_user", &[how], &[], |_, limited| {
            assert!(limited.status.success(), "{how}: {} {}", limited.status, limited.stderr);
            // How much it has is told too, if it has it for long enough.
            let lines: Vec<_> = limited.stderr.lines().filter(|line| !line.contains(PASSED)).collect();
            assert!(lines.len() == 1 && lines[0].contains(reason), "{how}: {}", limited.stderr);
        });
    }
}

/// The run may come to harm, `ramfold run` does not: it ends with the program, and tells it in whole lines.
#[test]
fn who_writes_nonsense_into_what_is_shared_does_not_end_the_run() {
    in_32_mib("hostile", &["40"], &[], |_, limited| {
        assert!(!limited.stderr.contains("panicked"), "{}", limited.stderr);
        assert!(matches!(limited.status.code(), Some(0 | 137)), "{} {}", limited.status, limited.stderr);
    });
}

/// Nor do the others: what dies within a change of the account leaves it too high, if wrong at all. (Below nothing, the
/// sum read as far over the limit, and everybody made room for ever.)
#[test]
fn who_unmaps_what_is_shared_harms_itself() {
    for mode in modes_of("who_unmaps_what_is_shared_harms_itself") {
        in_32_mib("unmaps_shared", &["40"], &["--evict-mode", mode], |ramfold, ended| {
            assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
            within_limit("unmaps_shared", ramfold, ended);
        });
    }
}

/// Nobody would bring the pages of a process whose keeper was killed: it ends too, at once.
#[test]
fn who_kills_the_keeper_kills_its_program() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    let program = program("filter", scratch.path(), &["100", "kept"]);
    let mut running = Running::start(&mut program.command(Some(&Ramfold::new(64 * MIB, &[]))));
    let run = &mut running.child;
    let its_own = scratch.path().join("filter");
    let keeper = wait_for_some("it has a keeper", || {
        assert!(run.try_wait().unwrap().is_none(), "it has ended before it had a keeper");
        // Who made the keeper was a child of the program's for a moment, and the keeper is none.
        let family = common::memory::children(run.id());
        let is_keeper = |pid: &u32| {
            let parent = common::memory::parent(*pid);
            !family.contains(pid) && parent.is_some_and(|parent| !family.contains(&parent))
        };
        processes_of(&its_own).into_iter().find(is_keeper).filter(|_| family.len() == 1)
    });
    kill(keeper);
    let ended = wait_for_some("it ends without its keeper", || run.try_wait().unwrap());
    assert_eq!(ended.code(), Some(128 + libc::SIGKILL));
}

/// A process of the test's.
fn kill(pid: u32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) }, 0);
}

/// The processes that run this program.
fn processes_of(program: &Path) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
        .collect()
}

/// When nothing more can be held, malloc says so or the program dies; it never goes on with wrong contents.
#[test]
fn exhaust() {
    for options in [["--swap", "none"], ["--swap-size", "64M"]] {
        in_32_mib("exhaust", &["512"], &options, |ramfold, ended| {
            let (code, output) = (ended.status.code(), ended.stdout());
            assert!(matches!(code, Some(0 | 137)), "{options:?}: {} {output}{}", ended.status, ended.stderr);
            if code == Some(137) {
                assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
            }
            within_limit("exhaust", ramfold, ended);
        });
    }
}

/// What is not managed fills the limit and more: nothing can be kept beside it, and nobody tries for ever. Nor does a
/// program stay over the limit that wants nothing more.
#[test]
fn unmanaged() {
    let arguments = [
        &["64"][..],
        &["64", "sleeps"],
        &["64", "alone"],
        &["64", "sleeps", "raw"],
        &["64", "sleeps", "file"],
        &["64", "sleeps", "stack"],
        &["64", "sleeps", "bss"],
        &["64", "sleeps", "namespace"],
    ];
    for (mode, arguments) in
        modes_of("unmanaged").iter().flat_map(|mode| arguments.map(|arguments| (mode, arguments)))
    {
        in_32_mib("unmanaged", arguments, &["--evict-mode", mode], |_, ended| {
            let told = &ended.stderr;
            assert_eq!(ended.status.code(), Some(137), "{mode}, {arguments:?}: {told}");
            assert!(told.contains("out of memory: the limit of 32 MiB"), "{mode}, {arguments:?}: {told}");
        });
    }
}

/// What the kernel holds (buffers registered with io_uring) stays in memory. The line tells it from a full swap file.
#[test]
fn held_by_the_kernel() {
    for mode in modes_of("pinned") {
        in_32_mib("pinned", &["64", "all"], &["--evict-mode", mode], |_, ended| {
            let told = &ended.stderr;
            if ended.status.code() == Some(SKIPPED) {
                need::skip(told.trim());
                return;
            }
            assert_eq!(ended.status.code(), Some(137), "{mode}: {told}");
            let why = "the limit of 32 MiB is full of what stays in memory (not managed, locked, or in use by the kernel;";
            assert!(told.contains(why) && told.ends_with("(give a larger -m)\n"), "{mode}: {told}");
        });
    }
}

/// What cannot be held is not ended, but passes the limit by a line.
#[test]
fn unmanageable() {
    passes_the_limit(|scratch| {
        let binary = common::compiled_with("unmanaged", scratch, &["-static"]);
        format!("exec {} 64 alone", binary.display())
    });
}

/// Who asks for memory where nothing is held (Go's race detector, Java's ZGC) is told so, once.
#[test]
fn heaps_that_lie_elsewhere() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    for (name, heap) in [("insists", "Go's race detector"), ("mmap_rules", "the heap of Java's ZGC")] {
        let program = program(name, scratch.path(), &["40"]).variable("EXPECT_EVICTED", "1");
        let ended = run(&program, Some(&Ramfold::new(32 * MIB, &[])), &scratch.path().join("limited"));
        assert!(ended.status.success(), "{name}: {} {}", ended.status, ended.stderr);
        let told = ended.stderr.lines().filter(|line| line.starts_with("ramfold: ") && line.contains(heap));
        assert_eq!(told.count(), 1, "{name}: {}", ended.stderr);
    }
}

/// Each child that shares its creator's table of descriptors takes a part of the numbers that ramfold may have.
#[test]
fn too_many_tables() {
    in_32_mib("shared_table", &["40", "alive"], &[], |_, ended| {
        assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr);
        assert!(ended.stderr.contains("too many descriptors"), "{}", ended.stderr);
    });
}

/// Nor is what a program starts in a user namespace that libc knows nothing of.
#[test]
fn userns_past_libc() {
    passes_the_limit(|scratch| {
        let [namespace, binary] = ["userns_past_libc", "unmanaged"].map(|name| compiled(name, scratch));
        // What the dynamic linker says is not for this test.
        format!("exec {} {} 64 alone 2>/dev/null", namespace.display(), binary.display())
    });
}

/// A line for the shell starts what cannot be held, which has 64 MiB and waits to be killed.
fn passes_the_limit(line: impl Fn(&Path) -> String) {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    let program = Program::new("unmanageable", &["sh", "-c", &line(scratch.path())]);
    let mut command = program.command(Some(&Ramfold::new(32 * MIB, &[])));
    let mut run = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    // It ends when it was told nothing for two minutes.
    BufReader::new(run.stderr.take().unwrap()).read_line(&mut told).unwrap();
    let rest = told.strip_prefix(&format!("ramfold: {PASSED} have ")).unwrap_or_else(|| panic!("{told}"));
    let bytes: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    // It may have been on its way.
    assert!((32..70).contains(&bytes), "{told}");
    common::memory::tree(run.id()).into_iter().skip(1).for_each(kill);
    assert_eq!(run.wait().unwrap().code(), Some(128 + libc::SIGKILL));
}

/// The swap file is written by the program's process, whose limit for the size of files holds for it: the line says so.
#[test]
fn limited_files() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    let line = format!("ulimit -f 64; exec {} 64", compiled("unmanaged", scratch.path()).display());
    let program = Program::new("limited_files", &["sh", "-c", &line]);
    let ended = run(&program, Some(&Ramfold::new(32 * MIB, &[])), &scratch.path().join("limited"));
    assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr);
    assert!(ended.stderr.contains("raise ulimit -f"), "{}", ended.stderr);
}

/// A filter that forbids what ramfold cannot do without ends the program with a line, and does not let it stand still.
#[test]
fn no_futex() {
    for mode in modes_of("no_futex") {
        in_32_mib("no_futex", &["64"], &["--evict-mode", mode], |_, ended| {
            assert_eq!(ended.status.code(), Some(137), "{mode}: {}", ended.stderr);
            assert!(ended.stderr.contains("forbids futex"), "{mode}: {}", ended.stderr);
        });
    }
}

/// strace would wait for ever in its first read of a page that is away, where it stops threads by a filter.
#[test]
fn traced_by_a_filter() {
    if !(need::userfaultfd() && need::programs(&["cc", "strace"])) {
        return;
    }
    let scratch = common::scratch();
    let binary = compiled("traced", scratch.path());
    let strace = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", binary.to_str().unwrap(), "40"];
    let ended = run(
        &Program::new("traced", &strace),
        Some(&Ramfold::new(32 * MIB, &[])),
        &scratch.path().join("run"),
    );
    assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("leave out --seccomp-bpf"), "{}", ended.stderr);
}

/// A program whose instructions have closed ramfold's numbers goes on; what it forks then ends with a line.
#[test]
fn forked_after_numbers_were_closed() {
    for mode in modes_of("forked_after_numbers_were_closed") {
        in_32_mib("closed_past_libc", &["40", "forks"], &["--evict-mode", mode], |_, ended| {
            assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
            let told = "memory cannot be held under the limit";
            assert!(ended.stderr.contains(told), "{mode}: {}", ended.stderr);
        });
    }
}

/// What locks all memory past libc locks ramfold's as well: the program goes on as it was, or a line says why not.
#[test]
fn locked_past_libc() {
    for mode in modes_of("locked_past_libc") {
        in_32_mib("locked_past_libc", &["40"], &["--evict-mode", mode], |_, ended| {
            let told = &ended.stderr;
            let is_told = ended.status.code() == Some(137) && told.contains("(mlockall)");
            assert!(is_told || ended.status.success(), "{mode}: {} {told}", ended.status);
        });
    }
}
