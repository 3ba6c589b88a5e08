//! The other side of a control socket.

use super::Refusal;
use super::names::{NameError, connect};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// no server is found there
    #[error(transparent)]
    Name(#[from] NameError),
    /// the server refuses it
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// the server was not heard to the end
    #[error("the server does not answer: {0}")]
    Io(#[from] io::Error),
}

/// What was asked for; to be read to its end.
pub type Reply = BufReader<UnixStream>;

/// Sends a line to the server of this name, or at this socket.
///
/// # Errors
/// [`AskError`].
pub fn ask(server: &str, line: &str) -> Result<Reply, AskError> {
    if line.contains('\n') {
        return Err(Refusal::Wrong("a request is one line".to_owned()).into());
    }
    let mut stream = connect(server)?;
    // Who is hung up on at once may read why all the same.
    let sent = writeln!(stream, "{line}").and_then(|()| stream.shutdown(Shutdown::Write));
    let mut reply = BufReader::new(stream);
    let mut status = String::new();
    let heard = reply.read_line(&mut status)?;
    let status = status.trim_end();
    match status.split_once(' ') {
        _ if status == "ok" => Ok(reply),
        Some(("wrong", message)) => Err(Refusal::Wrong(message.to_owned()).into()),
        Some(("failed", message)) => Err(Refusal::Failed(message.to_owned()).into()),
        _ if heard == 0 => Err(sent.err().unwrap_or(io::ErrorKind::ConnectionReset.into()).into()),
        _ => Err(AskError::Io(io::Error::other("it is no control socket of ramfold"))),
    }
}
