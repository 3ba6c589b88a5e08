//! Small C programs under small limits.

use std::path::Path;

use super::{Finished, Program, Ramfold, compiled, need, run, scratch};

pub const MIB: u64 = 1 << 20;
/// The ways in which pages leave a program.
const MODES: [&str; 2] = ["move", "wp"];

/// Both ways out for a program of this name. Where all is run twice, with RAMFOLD_TEST_MODE, it is one of them each
/// time: for `other`, the one that any other value leaves out.
pub fn modes_of(name: &str) -> &'static [&'static str] {
    let Some(asked) = std::env::var_os("RAMFOLD_TEST_MODE") else { return &MODES };
    let mode = (name.len() + usize::from(asked == "other")) % 2;
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
