//! Single properties of managed memory, each proved by a small C program that was written for it, and the stress
//! program, which proves them together. `cargo test -- --ignored` runs the long ones.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use common::small::{MIB, SKIPPED, in_32_mib, in_limit, modes_of, program};
use common::{Finished, Program, Ramfold, compiled, need, run, within_limit};

macro_rules! properties {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            property(stringify!($name));
        }
    )*};
}

properties!(
    address_limit,
    altstack,
    atfork_early,
    brk,
    carried,
    closed_past_libc,
    coroutines,
    descriptors,
    differences,
    direct_io,
    few_descriptors,
    foreign,
    fork_advice,
    early_death,
    executable,
    exits,
    filter,
    flushes,
    fork_chain,
    fork_content,
    futexes,
    guests,
    heap,
    heirs,
    herd,
    insists,
    left_calls,
    libc_state,
    low_addresses,
    mappings,
    mdwe,
    memlock,
    mlock,
    mmap_rules,
    namespaces,
    other_clocks,
    own_malloc,
    own_stat,
    own_stacks,
    pinned,
    pinned_writes,
    protection_keys,
    raw_calls,
    raw_clone,
    realloc_big,
    reuse,
    rights,
    shared_table,
    streams,
    syscalls_evicted,
    threads,
    threads_exit,
    vfork_allocates,
    vmsplice,
    wrapped_malloc,
    zero_device
);

/// Blocks that cross between allocators, with a module beside the program or a library that it is linked with.
#[test]
fn crossings() {
    property_with("crossings", &["-rdynamic"], |directory| {
        common::compiled_module("crossings", directory, &[]);
    });
}

/// Timers and aio have a library of their own before glibc 2.34.
#[test]
fn libc_threads() {
    property_with("libc_threads", &["-lrt"], |_| {});
}

#[test]
fn stack_reuse() {
    property_with("stack_reuse", &[], |directory| {
        common::compiled_module("stack_reuse", directory, &[]);
    });
}

/// A library of the user's that wraps calls; ramfold's come before it.
#[test]
fn in_between() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    let module = common::compiled_module("in_between", scratch.path(), &[]);
    let program = program("in_between", scratch.path(), &["40"]);
    property_of("in_between", program.variable("LD_PRELOAD", module.to_str().unwrap()), scratch.path());
}

#[test]
fn library_malloc() {
    for definitions in [&[][..], &["-DOVER_NEXT"]] {
        property_linked("library_malloc", definitions);
    }
}

#[test]
fn constructor() {
    property_linked("constructor", &[]);
}

/// The break stays behind the image, as the program's own layout wants it.
#[test]
fn fixed_break() {
    property_with("fixed_break", &["-no-pie"], |_| {});
}

/// The main thread ends first: the process ends with the last of the program's own threads.
#[test]
fn threads_end_in_any_order() {
    under_limit("threads", &["exit"]);
}

/// Whatever environment a child is given, it is managed; without ramfold there is nothing to compare.
#[test]
fn exec() {
    under_limit("exec", &[]);
}

fn under_limit(name: &str, arguments: &[&str]) {
    in_32_mib(name, arguments, &[], |_, limited| {
        assert!(limited.status.success(), "{name} {arguments:?}: {} {}", limited.status, limited.stderr);
    });
}

/// A process that shares another's memory is counted twice from outside.
const COUNTED_TWICE: [&str; 3] = ["filter", "guests", "syscalls_evicted"];

fn property(name: &str) {
    property_with(name, &[], |_| ());
}

/// The program is linked with its module as a library.
fn property_linked(name: &str, definitions: &[&str]) {
    let scratch = common::scratch();
    if !need::programs(&["cc"]) {
        return;
    }
    let module = common::compiled_module(name, scratch.path(), definitions);
    property_with(name, &[module.to_str().unwrap()], |_| ());
}

/// Without ramfold first (the program itself must be right), then with pressure of more than the limit. `flags` are the
/// compiler's; what lies beside the program is made by `prepare`.
fn property_with(name: &str, flags: &[&str], prepare: impl FnOnce(&Path)) {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    prepare(scratch.path());
    let binary = common::compiled_with(name, scratch.path(), flags);
    property_of(name, Program::new(name, &[binary.to_str().unwrap(), "40"]), scratch.path());
}

fn property_of(name: &str, program: Program, scratch: &Path) {
    let plain = run(&program, None, &scratch.join("plain"));
    if plain.status.code() == Some(SKIPPED) {
        need::skip(&format!("{name}: {}", plain.stderr.trim()));
        return;
    }
    assert!(plain.status.success(), "{name} without ramfold: {} {}", plain.status, plain.stderr);
    let program = program.variable("EXPECT_EVICTED", "1");
    for mode in modes_of(name) {
        let ramfold = Ramfold::new(32 * MIB, &["--evict-mode", mode, "--swap-size", "1G"]);
        let limited = run(&program, Some(&ramfold), &scratch.join(mode));
        common::report(name, mode, &limited);
        assert!(limited.status.success(), "{name}, {mode}: {} {}", limited.status, limited.stderr);
        if !COUNTED_TWICE.contains(&name) {
            within_limit(name, &ramfold, &limited);
        }
    }
}

/// Who gives up root is held afterwards: a daemon that is small when it does, a server's worker that has threads
/// (Apache's), and a program that such a one starts (su). So is what root starts that gave up its capabilities
/// alone, or put itself under Landlock.
#[test]
fn dropped_user() {
    if !need::root() || !Path::new("/dev/userfaultfd").exists() {
        return;
    }
    for (how, mode) in ["user", "called", "effective", "server", "starts", "sheds", "bars", "locks"]
        .iter()
        .flat_map(|how| modes_of("dropped_user").iter().map(|mode| (*how, mode)))
    {
        in_32_mib("dropped_user", &[how], &["--evict-mode", mode], |ramfold, limited| {
            assert!(limited.status.success(), "{how}, {mode}: {} {}", limited.status, limited.stderr);
            assert_eq!(limited.stderr, "", "{how}, {mode}");
            within_limit("dropped_user", ramfold, limited);
        });
    }
}

/// The ways in which another user than root may be held, and root whom a filter refuses the system call; as nobody, in
/// a mount namespace with a device of its own.
#[test]
fn other_privileges() {
    const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let device = std::fs::metadata("/dev/userfaultfd");
    let Some(device) = device.ok().filter(|_| need::root() && need::programs(&["cc", "setpriv"])) else {
        return;
    };
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        need::skip("mount namespaces are not allowed here");
        return;
    }
    let scratch = common::scratch();
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let [worker, refused] = ["worker", "refused_call"].map(|name| compiled(name, scratch.path()));
    let ramfold = scratch.path().join("ramfold");
    std::fs::copy(common::binary(), &ramfold).unwrap();
    let device = format!(
        "mknod device c 10 {} && chmod 666 device && mount --bind device /dev/userfaultfd",
        libc::minor(device.rdev())
    );
    let ways = [
        ("permission", format!("{device} && exec {AS_NOBODY}")),
        ("capability", format!("exec {AS_NOBODY} --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace")),
        ("filter", format!("exec {}", refused.display())),
    ];
    for (way, start) in ways {
        let held = format!("{start} {} run -m 32M -- {} 64 0 1", ramfold.display(), worker.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", &held]).stdin(std::process::Stdio::null());
        let output = command.current_dir(scratch.path()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{way}: {output:?}");
    }
}

/// Who is small when it changes its root is held afterwards, where there is no /proc; who has it changed by a child
/// that shares it goes on, and says that it is not held.
#[test]
fn new_root() {
    if !need::root() {
        return;
    }
    for mode in modes_of("new_root") {
        let options = ["--evict-mode", mode];
        in_limit(256 * MIB, "new_root", &["300"], &options, |ramfold, limited| {
            assert!(limited.status.success(), "{mode}: {} {}", limited.status, limited.stderr);
            assert_eq!(limited.stderr, "", "{mode}");
            within_limit("new_root", ramfold, limited);
        });
        in_limit(256 * MIB, "new_root", &["40", "shared"], &options, |_, limited| {
            assert!(limited.status.success(), "{mode}: {} {}", limited.status, limited.stderr);
            let told = "ramfold: this process is not held under the limit any more: there is no /proc";
            assert!(limited.stderr.lines().all(|line| line.starts_with(told)), "{mode}: {}", limited.stderr);
            assert!(!limited.stderr.is_empty(), "{mode}");
        });
    }
}

/// A tracer that stops all threads of a program reads its memory, also where there is a filter of system calls: in a
/// third of what both want.
#[test]
fn traced() {
    if !(need::userfaultfd() && need::programs(&["cc", "strace"])) {
        return;
    }
    let scratch = common::scratch();
    let binary = compiled("traced", scratch.path());
    for (mode, arguments) in
        modes_of("traced").iter().flat_map(|mode| [(mode, &[][..]), (mode, &["filtered"])])
    {
        let strace =
            [&["strace", "-f", "-o", "/dev/null", binary.to_str().unwrap(), "72"], arguments].concat();
        let program = Program::new("traced", &strace).variable("EXPECT_EVICTED", "1");
        let ramfold = Ramfold::new(24 * MIB, &["--evict-mode", mode]);
        let limited = run(&program, Some(&ramfold), &scratch.path().join("limited"));
        assert!(limited.status.success(), "{mode}, {arguments:?}: {} {}", limited.status, limited.stderr);
    }
}

/// What the store refuses goes back, and what the program has dropped meanwhile is empty.
#[test]
fn refused() {
    for mode in modes_of("refused") {
        let stats = tempfile::NamedTempFile::new().unwrap();
        let options = ["--evict-mode", mode, "--stats", stats.path().to_str().unwrap()];
        in_limit(16 * MIB, "refused", &["0", "5000"], &options, |ramfold, limited| {
            assert!(limited.status.success(), "{mode}: {} {}", limited.status, limited.stderr);
            let stats: serde_json::Value = serde_json::from_reader(stats.as_file()).unwrap();
            assert!(stats["reject_reclaim_fail"].as_u64() > Some(0), "{mode}: nothing was refused: {stats}");
            within_limit("refused", ramfold, limited);
        });
    }
}

/// What a sanitizer or valgrind finds in a program it finds under a limit too, and what such a program starts is held.
#[test]
fn sanitized() {
    if !(need::userfaultfd() && need::programs(&["cc", "valgrind"])) {
        return;
    }
    let ways = [
        ("address", "-fsanitize=address", ""),
        ("thread", "-fsanitize=thread", ""),
        ("valgrind", "-g", "valgrind -q --error-exitcode=3"),
    ];
    for (sanitizer, flag, before) in ways {
        let scratch = common::scratch();
        let binary = common::compiled_with("sanitized", scratch.path(), &[flag]);
        // By a shell: `ramfold run --strict` would refuse it.
        let run = |arguments: &str, ramfold: Option<&Ramfold>, name: &str| {
            let line = format!("{before} {} {arguments}; exit $?", binary.display());
            let program = Program::new("sanitized", &["sh", "-c", &line]);
            run(&program, ramfold, &scratch.path().join(name))
        };
        let ramfold = Ramfold::new(512 * MIB, &[]);
        for how in ["none", "overflow", "race"] {
            let plain = run(how, None, &format!("{how}-plain"));
            let limited = run(how, Some(&ramfold), &format!("{how}-limited"));
            assert_eq!(limited.status, plain.status, "{sanitizer}, {how}: {}", limited.stderr);
            assert_eq!(limited.stdout(), plain.stdout(), "{sanitizer}, {how}");
            assert_eq!(
                limited.stderr.is_empty(),
                plain.stderr.is_empty(),
                "{sanitizer}, {how}: {}",
                limited.stderr
            );
        }
        if before.is_empty() {
            for (strict, code) in [(true, 125), (false, 0)] {
                let mut command = Command::new(common::binary());
                command.args(["run", "-m", "512M"]).args(strict.then_some("--strict"));
                let told = command.arg("--").arg(&binary).arg("none").output().unwrap();
                assert_eq!(told.status.code(), Some(code), "{sanitizer}: {told:?}");
                let said = String::from_utf8_lossy(&told.stderr);
                assert!(said.contains("linked with the library of a sanitizer"), "{sanitizer}: {said}");
            }
        }
        let held = run("start sh -c 'grep -q ramfold /proc/$$/maps'", Some(&ramfold), "held");
        assert!(held.status.success(), "{sanitizer}: {}", held.stderr);
    }
}

#[test]
fn sparse_swap() {
    for mode in modes_of("sparse_swap") {
        let options = ["--swap-size", "60M", "--evict-mode", mode];
        in_32_mib("sparse_swap", &["96"], &options, |ramfold, limited| {
            assert!(limited.status.success(), "{mode}: {} {}", limited.status, limited.stderr);
            within_limit("sparse_swap", ramfold, limited);
        });
    }
}

/// The most that the run had, by its statistics.
fn peak_bytes(stats: &Path) -> u64 {
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    told["peak_bytes"].as_u64().unwrap()
}

/// The account, which others make room for, has no memory twice.
#[test]
fn inherits() {
    let scratch = common::scratch();
    let stats = scratch.path().join("stats");
    in_limit(512 * MIB, "inherits", &["1"], &["--stats", stats.to_str().unwrap()], |_, ended| {
        assert!(ended.status.success(), "{}", ended.stderr);
        let peak = peak_bytes(&stats);
        // 96 MiB, and at most two for each of forty children: none may have been found to have ended.
        assert!(peak < 186 * MIB, "{} KiB", peak >> 10);
    });
}

/// Nor while parent and child give up what they have in common, and there is room for the child when it begins.
#[test]
fn a_child_that_writes_to_all_stays_within_the_limit() {
    let scratch = common::scratch();
    let stats = scratch.path().join("stats");
    for mode in modes_of("heirs") {
        let options = ["--swap-size", "1G", "--evict-mode", mode, "--stats", stats.to_str().unwrap()];
        in_limit(64 * MIB, "heirs", &["400", "1"], &options, |_, ended| {
            assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
            let peak = peak_bytes(&stats);
            assert!(peak < 68 * MIB, "{mode}: {} KiB", peak >> 10);
        });
    }
}

/// Nor while a process that was killed loses its memory, though what it had in common with its child is the child's
/// alone then.
#[test]
fn orphan() {
    let scratch = common::scratch();
    let stats = scratch.path().join("stats");
    for _ in 0..4 {
        in_limit(1024 * MIB, "orphan", &["150"], &["--stats", stats.to_str().unwrap()], |_, ended| {
            assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
            let peak = peak_bytes(&stats);
            assert!(peak < 200 * MIB, "{} KiB", peak >> 10);
        });
    }
}

/// Where pages leave by a copy, what a device writes into them could be lost: files are opened without O_DIRECT.
#[test]
fn opened_for_direct_io() {
    for (mode, how) in [("move", "direct"), ("wp", "buffered")] {
        in_32_mib("direct_io", &["40", "how"], &["--evict-mode", mode], |_, ended| {
            if ended.status.code() == Some(SKIPPED) {
                need::skip(ended.stderr.trim());
                return;
            }
            assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
            assert_eq!(ended.stdout().trim(), how, "{mode}");
        });
    }
}

/// A limit of address space that is set under ramfold is kept by ramfold, so those have none that it cannot manage.
#[test]
fn who_is_not_managed_has_no_limit_of_address_space() {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    for (flags, is_limited) in [(&[][..], true), (&["-static"], false)] {
        let binary = common::compiled_with("unmanaged", scratch.path(), flags);
        let line = format!("ulimit -v 65536; exec {} 64", binary.display());
        let program = Program::new("unmanaged", &["sh", "-c", &line]);
        let ended = run(&program, Some(&Ramfold::new(512 * MIB, &[])), &scratch.path().join("limited"));
        assert_eq!(ended.status.code(), Some(i32::from(is_limited)), "{flags:?}: {}", ended.stderr);
    }
}

/// What is shared with others, or of a file, is no memory of the run's.
#[test]
fn uncounted() {
    let scratch = common::scratch();
    let stats = scratch.path().join("stats");
    for mode in modes_of("uncounted") {
        let options = ["--stats", stats.to_str().unwrap(), "--evict-mode", mode];
        in_32_mib("uncounted", &["64"], &options, |_, ended| {
            assert!(ended.status.success(), "{mode}: {} {}", ended.status, ended.stderr);
            let peak = peak_bytes(&stats);
            assert!(peak < 36 * MIB, "{mode}: {} KiB", peak >> 10);
        });
    }
}

#[test]
fn stress() {
    for mode in modes_of("stress") {
        stress_for(64, 5, 2, &["--evict-mode", mode]);
    }
}

#[test]
#[ignore = "ten minutes"]
fn stress_long() {
    stress_for(512, 600, 2, &[]);
}

#[test]
#[ignore = "ten minutes"]
fn stress_long_in_a_quarter() {
    for mode in modes_of("stress_long_in_a_quarter") {
        // Forked children keep what the parent has written anew: the swap file has to hold it more than once.
        stress_for(512, 300, 4, &["--evict-mode", mode, "--swap-size", "4G"]);
    }
}

/// The stress program with `mib` of live data in a `share` of that, from a seed that differs each time.
fn stress_for(mib: u64, seconds: u64, share: u64, options: &[&str]) {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = common::scratch();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let arguments = [mib.to_string(), seconds.to_string(), seed.to_string()];
    let program = program("stress", scratch.path(), &arguments.each_ref().map(String::as_str));
    let program = program.patience(seconds * 3 + 600);
    let ramfold = Ramfold::new(mib * MIB / share, options);
    let ended: Finished = run(&program, Some(&ramfold), &scratch.path().join("run"));
    let output = ended.stdout();
    assert!(ended.status.success(), "{options:?}: {} {output}{}", ended.status, ended.stderr);
    eprint!("{options:?}: {output}");
    // It forks: see `property`.
}
