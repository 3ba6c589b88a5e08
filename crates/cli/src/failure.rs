//! Failures of ramfold itself: one line on stderr and an exit status.

use ramfold_budget::control::Refusal;
use ramfold_survey::population::OpenError;
use ramfold_survey::shelf::ShelfError;
use std::fmt::{Display, Formatter};
use std::io::Write;
use std::process::ExitCode;

const WRONG_USAGE: u8 = 2;

/// Why ramfold ends without having done what it was asked.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Wrong usage: 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { status: WRONG_USAGE, message: message.into() }
    }

    /// ramfold could not do it: 125.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { status: 125, message: message.into() }
    }

    /// The program is there and cannot be executed: 126.
    pub fn cannot_execute(message: impl Into<String>) -> Self {
        Self { status: 126, message: message.into() }
    }

    /// There is no such program: 127.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { status: 127, message: message.into() }
    }

    /// The same, of a part of what was asked.
    pub fn within(self, part: &str) -> Self {
        Self { message: format!("{part}: {}", self.message), ..self }
    }

    /// Prints the line and gives the status.
    pub fn report(&self) -> ExitCode {
        say(&self.message);
        ExitCode::from(self.status)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// What a control socket answers that was asked for it.
impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure.status {
            WRONG_USAGE => Self::Wrong(failure.message),
            _ => Self::Failed(failure.message),
        }
    }
}

impl From<ShelfError> for Failure {
    fn from(error: ShelfError) -> Self {
        match error {
            ShelfError::Name(message) => Self::usage(message),
            ShelfError::Refused(message) => Self::failed(message),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::failed(error.to_string())
    }
}

/// What is wrong with a command line, in one line.
pub fn line_of(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line on stderr under ramfold's name. A stderr that takes nothing is no reason to fail.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "ramfold: {message}");
}
