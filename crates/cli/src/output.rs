//! What commands that report give out: a report, the files that were asked for, and how far they are.

use crate::failure::Failure;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Prints a report. A reader that closed the pipe has seen enough.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes a file that `option` asked for.
pub fn write(option: &str, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| {
        Failure::failed(format!("{option} {}: {error} (give a place that can be written)", path.display()))
    })
}

/// One line on a terminal, written over by the next; an empty one clears it. Nothing where stderr is no terminal.
pub fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}
