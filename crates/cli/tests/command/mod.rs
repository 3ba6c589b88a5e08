//! Running the command and looking at what it did.

#![allow(dead_code)] // each test binary uses its part

use std::process::{Command, Stdio};

/// The command under test.
pub const PATH: &str = env!("CARGO_BIN_EXE_ramfold");

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// `ramfold` with its first arguments.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PATH);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs `ramfold` with these arguments.
pub fn ramfold(arguments: &[&str]) -> Outcome {
    finish(&mut command(arguments))
}

/// Runs any command to its end.
pub fn finish(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The text, which has to be one line.
pub fn one_line(text: &str) -> &str {
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end()
}
