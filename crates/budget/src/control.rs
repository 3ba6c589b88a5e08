//! The control socket of a server: a line with a request, an answer, the end.
//!
//! What a line means is known to who [`Answers`]; [`request`] and [`values`] help it to understand one. The answer
//! begins with a line: `ok`, and what was asked for follows; `wrong MESSAGE`, if the line is no request; `failed
//! MESSAGE`, if it could not be done. It ends with the connection.
//!
//! Only the server's owner, and root, can connect. All the same a client gets a thread of its own, a few seconds for
//! its line and for taking its answer, and there are at most [`MOST_CLIENTS`] at a time; who comes beyond that is
//! hung up on.

mod client;
mod names;
pub mod request;
pub mod values;

pub use client::{AskError, Reply, ask};
pub use names::{NameError, Socket};

use request::MOST_BYTES;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients at a time.
pub const MOST_CLIENTS: usize = 16;
/// How long a client may take for its line, and for each piece of its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server says to the lines that its control socket gets. Called from several threads at a time.
pub trait Answers: Send + Sync {
    /// Does what a line asks for, and tells the answer. The line has no end; its bytes may be any, and one more than
    /// [`MOST_BYTES`].
    ///
    /// # Errors
    /// [`Refusal`].
    fn answer(&self, line: &[u8]) -> Result<Answer<'_>, Refusal>;
}

type WriteAnswer<'a> = dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a;

/// What was asked for, not yet written.
pub struct Answer<'a>(Box<WriteAnswer<'a>>);

impl<'a> Answer<'a> {
    /// It is done, and there is nothing to tell.
    #[must_use]
    pub fn done() -> Self {
        Self::written(|_| Ok(()))
    }

    /// What `write` writes, in lines. Its reader may leave, or be slow: what is long is to be written with no
    /// lock held.
    pub fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a) -> Self {
        Self(Box::new(write))
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, out: &mut dyn Write) -> io::Result<()> {
        (self.0)(out)
    }
}

impl std::fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// Why a request was not done, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// the line is no request, or the value none that the attribute can have
    #[error("{0}")]
    Wrong(String),
    /// it could not be done
    #[error("{0}")]
    Failed(String),
}

/// A control socket that is served, until this is dropped.
#[derive(Debug)]
pub struct Control {
    /// Something is written there to stop.
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves this socket.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn start(socket: Socket, answers: Arc<dyn Answers>) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name("ramfold-control".to_owned());
        let thread = thread.spawn(move || welcome(&socket, &stopped, &answers))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Counts a client for as long as it lives.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let seat = Self(Arc::clone(taken));
        (taken.fetch_add(1, Relaxed) < MOST_CLIENTS).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Lets clients in until it is told to stop. Who is being served then is served to the end, or ends with the process.
fn welcome(socket: &Socket, stop: &OwnedFd, answers: &Arc<dyn Answers>) {
    let taken = Arc::new(AtomicUsize::new(0));
    loop {
        let mut both = [PollFd::new(socket.listener(), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // A signal that came to this thread is no client: nobody would end a wait for one.
        if poll(&mut both, None).is_err() {
            continue;
        }
        if !both[1].revents().is_empty() {
            return;
        }
        let admitted = socket.listener().accept().and_then(|(stream, _)| match Seat::take(&taken) {
            Some(seat) => admit(stream, seat, Arc::clone(answers)),
            None => Ok(()),
        });
        if admitted.is_err() {
            // Out of descriptors or threads: this client is lost, and others may be more lucky.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn admit(stream: UnixStream, seat: Seat, answers: Arc<dyn Answers>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("ramfold-ctl".to_owned());
    thread.spawn(move || {
        let _seat = seat;
        // How a client ends is its own business.
        let _ = serve(stream, &*answers);
    })?;
    Ok(())
}

/// One client, from its line to the end of its answer.
fn serve(mut stream: UnixStream, answers: &dyn Answers) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = read_line(&mut stream)?;
    let mut out = BufWriter::new(stream);
    match answers.answer(&line) {
        Ok(answer) => {
            writeln!(out, "ok")?;
            answer.write(&mut out)?;
        }
        Err(Refusal::Wrong(why)) => writeln!(out, "wrong {why}")?,
        Err(Refusal::Failed(why)) => writeln!(out, "failed {why}")?,
    }
    out.flush()
}

/// The bytes up to the end of a line, or of what the client sends; no more than one too many.
fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let (until, mut line) = (Instant::now() + PATIENCE, Vec::new());
    loop {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        let mut part = [0; 512];
        let len = stream.read(&mut part)?;
        let end = part[..len].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&part[..end.unwrap_or(len)]);
        if end.is_some() || len == 0 || line.len() > MOST_BYTES {
            line.truncate(MOST_BYTES + 1);
            return Ok(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it is told, or refuses it.
    struct Echo;

    impl Answers for Echo {
        fn answer(&self, line: &[u8]) -> Result<Answer<'_>, Refusal> {
            let line = String::from_utf8_lossy(line).into_owned();
            match line.as_str() {
                "" => Ok(Answer::done()),
                "wrong" => Err(Refusal::Wrong(line)),
                "failed" => Err(Refusal::Failed(line)),
                _ => Ok(Answer::written(move |out| write!(out, "{line}\n{line}"))),
            }
        }
    }

    #[test]
    fn a_line_is_answered_or_refused() {
        let place = tempfile::tempdir().unwrap();
        let socket = Socket::bind_in(place.path(), None, "test").unwrap();
        let path = place.path().join(format!("{}.ctl", socket.name()));
        let path = path.to_str().unwrap();
        let control = Control::start(socket, Arc::new(Echo)).unwrap();
        let told = |line: &str| {
            let mut text = String::new();
            ask(path, line).map(|mut reply| reply.read_to_string(&mut text).map(|_| text).unwrap())
        };
        assert_eq!(told("some words").unwrap(), "some words\nsome words");
        assert_eq!(told("").unwrap(), "");
        for refusal in [Refusal::Wrong("wrong".to_owned()), Refusal::Failed("failed".to_owned())] {
            assert!(matches!(told(&refusal.to_string()), Err(AskError::Refused(it)) if it == refusal));
        }
        drop(control);
        assert!(matches!(told("anybody"), Err(AskError::Name(NameError::Io { .. }))));
    }
}
