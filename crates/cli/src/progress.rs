//! One line on a terminal, written over by the next.

use std::io::{IsTerminal, Write};

/// Shows `text`, or clears the line if it is empty. Says nothing where stderr is no terminal.
pub fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}
