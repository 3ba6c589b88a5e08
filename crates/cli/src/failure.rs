//! Failures of ramfold itself: one line on stderr and an exit status.

use ramfold_survey::population::OpenError;
use ramfold_survey::shelf::ShelfError;
use std::io::Write;
use std::process::ExitCode;

/// Why ramfold ends without having done what it was asked.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Wrong usage: 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into() }
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

    /// Prints the line and gives the status.
    pub fn report(&self) -> ExitCode {
        say(&self.message);
        ExitCode::from(self.status)
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

/// One line on stderr under ramfold's name. A stderr that takes nothing is no reason to fail.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "ramfold: {message}");
}
