//! The other side of a control socket.

use super::names::{NameError, connect};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// no disk is found there
    #[error(transparent)]
    Name(#[from] NameError),
    /// the request is none
    #[error("{0}")]
    Wrong(String),
    /// it could not be done
    #[error("{0}")]
    Failed(String),
    /// the server was not heard to the end
    #[error("the server does not answer: {0}")]
    Io(#[from] io::Error),
}

/// What was asked for; to be read to its end.
pub type Answer = BufReader<UnixStream>;

/// Sends a line to the disk of this name, or at this socket.
///
/// # Errors
/// [`AskError`].
pub fn ask(disk: &str, line: &str) -> Result<Answer, AskError> {
    if line.contains('\n') {
        return Err(AskError::Wrong("a request is one line".to_owned()));
    }
    let mut stream = connect(disk)?;
    // Who is hung up on at once may read why all the same.
    let sent = writeln!(stream, "{line}").and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = BufReader::new(stream);
    let mut status = String::new();
    let heard = answer.read_line(&mut status)?;
    let status = status.trim_end();
    match status.split_once(' ') {
        _ if status == "ok" => Ok(answer),
        Some(("wrong", message)) => Err(AskError::Wrong(message.to_owned())),
        Some(("failed", message)) => Err(AskError::Failed(message.to_owned())),
        _ if heard == 0 => Err(sent.err().unwrap_or(io::ErrorKind::ConnectionReset.into()).into()),
        _ => Err(AskError::Io(io::Error::other("it is no control socket of a disk"))),
    }
}
