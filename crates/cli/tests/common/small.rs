//! Small C programs under small limits.

use std::path::Path;

use super::{Finished, Program, Ramfold, compiled, need, run, scratch};

pub const MIB: u64 = 1 << 20;
/// What a program exits with that found something missing.
pub const SKIPPED: i32 = 77;
/// The ways in which pages leave a program.
const MODES: [&str; 2] = ["move", "wp"];

/// Both ways out for a program or test of this name. Where all is run twice, RAMFOLD_TEST_MODE is `one` and `other` in
/// turn, and it is one of them each time.
pub fn modes_of(name: &str) -> &'static [&'static str] {
    let half = match std::env::var("RAMFOLD_TEST_MODE").as_deref() {
        Err(_) => return &MODES,
        Ok("one") => 0,
        Ok("other") => 1,
        Ok(asked) => panic!("RAMFOLD_TEST_MODE is {asked}: neither one nor other"),
    };
    let mode = (name.len() + half) % 2;
    &MODES[mode..=mode]
}

pub fn program(name: &str, directory: &Path, arguments: &[&str]) -> Program {
    let binary = compiled(name, directory);
    Program::new(name, &[&[binary.to_str().unwrap()], arguments].concat())
}

/// Where there is nothing to compare with: runs a program under 32 MiB, with these options of `ramfold run`.
pub fn in_32_mib(name: &str, arguments: &[&str], options: &[&str], check: impl FnOnce(&Ramfold, &Finished)) {
    in_limit(32 * MIB, name, arguments, options, check);
}

/// The same under a limit in bytes.
pub fn in_limit(
    limit: u64,
    name: &str,
    arguments: &[&str],
    options: &[&str],
    check: impl FnOnce(&Ramfold, &Finished),
) {
    if !(need::userfaultfd() && need::programs(&["cc"])) {
        return;
    }
    let scratch = scratch();
    let program = program(name, scratch.path(), arguments);
    let ramfold = Ramfold::new(limit, options);
    check(&ramfold, &run(&program, Some(&ramfold), &scratch.path().join("limited")));
}
