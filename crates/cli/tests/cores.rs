//! What a core dump has of a program of which most is away, by the small program `core`.

mod common;

use std::os::unix::process::ExitStatusExt;

use common::core::Core;
use common::small::{MIB, in_32_mib, modes_of, program};
use common::{Finished, Ramfold, need, run, within_limit};

/// A core holds what was away, as it holds it without ramfold, and is not larger for ramfold's tables.
#[test]
fn core() {
    const SIGNALS: [(&str, i32); 3] =
        [("abort", libc::SIGABRT), ("segv", libc::SIGSEGV), ("kill", libc::SIGQUIT)];
    if !(need::userfaultfd() && need::programs(&["cc"]) && need::core_files()) {
        return;
    }
    let scratch = common::scratch();
    for (how, signal) in SIGNALS {
        let program = program("core", scratch.path(), &["40", how]);
        let plain = run(&program, None, &scratch.path().join("plain"));
        assert_eq!(plain.status.signal(), Some(signal), "{}", plain.stderr);
        let expected = checked_core(&plain);
        let program = program.variable("EXPECT_EVICTED", "1");
        for mode in modes_of("core") {
            let ramfold = Ramfold::new(32 * MIB, &["--evict-mode", mode]);
            let limited = run(&program, Some(&ramfold), &scratch.path().join("limited"));
            assert_eq!(limited.status.code(), Some(128 + signal), "{mode}, {how}: {}", limited.stderr);
            let size = checked_core(&limited);
            assert!(size < expected + (64 << 20), "{mode}, {how}: {size} bytes, {expected} without ramfold");
            within_limit("core", &ramfold, &limited);
            std::fs::remove_dir_all(&limited.directory).unwrap();
        }
        std::fs::remove_dir_all(&plain.directory).unwrap();
    }
}

/// Bytes of the core that the test `core` left, which has what it must have.
fn checked_core(ended: &Finished) -> usize {
    let (core, texts) = core_and_texts(ended);
    let missing = texts.iter().filter(|(at, text)| core.memory(*at, text.len()) != text.as_bytes()).count();
    assert_eq!(missing, 0, "of {} texts", texts.len());
    core.len()
}

/// The core that the program `core` left, without its secret, and where its texts were.
fn core_and_texts(ended: &Finished) -> (Core, Vec<(u64, String)>) {
    const PAGE: u64 = 4096;
    let output = ended.stdout();
    let address = |text| u64::from_str_radix(text, 16).unwrap();
    let [texts, secret, count, apart] = output.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{output}")
    };
    let core = Core::in_directory(&ended.directory).expect("a core");
    assert!(core.memory(address(secret), 16).iter().all(|byte| *byte == 0), "a secret is in the core");
    let step = PAGE * apart.parse::<u64>().unwrap();
    let text = |page: u64, part: u64| {
        (address(texts) + page * step + part * 64, format!("in the core: {page}.{part}\0"))
    };
    (core, (0..count.parse().unwrap()).flat_map(|page| [text(page, 0), text(page, 63)]).collect())
}

/// What a core cannot have of what is away it leaves out; the rest is there, and nothing in it is wrong.
#[test]
fn cores_without_what_is_away() {
    // With how many texts at least: a seventh came back before it died, those of the first pieces are in the core, and
    // where no handler runs there is nothing that is managed.
    let ways: [(&str, &str, i32, &[&str], usize); 5] = [
        ("partial", "40", libc::SIGABRT, &[], 2 * 1000 / 7),
        ("blocked", "40", libc::SIGSEGV, &[], 0),
        ("deep", "40", libc::SIGSEGV, &[], 0),
        ("pieces", "40", libc::SIGABRT, &[], 2 * 32768),
        ("abort", "32", libc::SIGABRT, &["--swap", "none"], 2 * 1000 / 7),
    ];
    for (how, pressure, signal, options, least) in ways {
        let check = |_: &Ramfold, ended: &Finished| {
            assert_eq!(ended.status.code(), Some(128 + signal), "{how}: {}", ended.stderr);
            let (core, texts) = core_and_texts(ended);
            let is_there = |(at, text): &&(u64, String)| {
                let found = core.memory(*at, text.len());
                assert!(found == text.as_bytes() || found.iter().all(|byte| *byte == 0), "{how}: {found:?}");
                found == text.as_bytes()
            };
            let there = texts.iter().filter(is_there).count();
            assert!((least..texts.len()).contains(&there), "{how}: {there} of {}", texts.len());
        };
        if need::core_files() {
            in_32_mib("core", &[pressure, how], options, check);
        }
    }
}
