//! The control socket of a disk: a line with a request, an answer, the end.
//!
//! The request is one of [`crate::attributes::request`]. The answer begins with a line: `ok`, and what was asked for
//! follows; `wrong MESSAGE`, if the line is no request; `failed MESSAGE`, if it could not be done. It ends with the
//! connection.
//!
//! Only the disk's owner, and root, can connect. All the same a client gets a thread of its own, a few seconds for
//! its line and for taking its answer, and there are at most [`MOST_CLIENTS`] at a time; who comes beyond that is
//! hung up on.

mod client;
mod names;

pub use client::{Answer, AskError, ask};
pub use names::{NameError, Socket};

use crate::attributes::Attributes;
use crate::attributes::request::{MOST_BYTES, Request};
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

/// A control socket that is served, until this is dropped.
#[derive(Debug)]
pub struct Control {
    /// Something is written there to stop.
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves the attributes at this socket.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn start(socket: Socket, attributes: Arc<Attributes>) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name("ramfold-control".to_owned());
        let thread = thread.spawn(move || welcome(&socket, &stopped, &attributes))?;
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
fn welcome(socket: &Socket, stop: &OwnedFd, attributes: &Arc<Attributes>) {
    let taken = Arc::new(AtomicUsize::new(0));
    loop {
        let mut both = [PollFd::new(socket.listener(), PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut both, None).is_ok() && !both[1].revents().is_empty() {
            return;
        }
        let admitted = socket.listener().accept().and_then(|(stream, _)| match Seat::take(&taken) {
            Some(seat) => admit(stream, seat, Arc::clone(attributes)),
            None => Ok(()),
        });
        if admitted.is_err() {
            // Out of descriptors or threads: this client is lost, and others may be more lucky.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn admit(stream: UnixStream, seat: Seat, attributes: Arc<Attributes>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("ramfold-ctl".to_owned());
    thread.spawn(move || {
        let _seat = seat;
        // How a client ends is its own business.
        let _ = serve(stream, &attributes);
    })?;
    Ok(())
}

/// One client, from its line to the end of its answer.
fn serve(mut stream: UnixStream, attributes: &Attributes) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = read_line(&mut stream)?;
    let mut out = BufWriter::new(stream);
    match Request::parse(&line) {
        Err(error) => writeln!(out, "wrong {error}")?,
        Ok(Request::Show(attribute)) => {
            writeln!(out, "ok")?;
            attributes.show(attribute, &mut out)?;
        }
        Ok(Request::Set(setting)) => match attributes.set(setting) {
            Ok(()) => writeln!(out, "ok")?,
            Err(error) => writeln!(out, "failed {error}")?,
        },
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
