//! Sockets: who comes is served by a thread of his own, until he leaves or the server stops.
//!
//! Guarantee: a client that sends nothing, reads nothing or ends in the middle keeps nobody else waiting. There are at
//! most [`MOST_CLIENTS`] at a time; who comes beyond that is hung up on. What a client says is its protocol's business.

use crate::awake::{Awake, SOCKET};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};
use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clients at a time.
pub const MOST_CLIENTS: usize = 128;

/// Why a socket is not listened at.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// somebody serves there
    #[error("somebody serves there")]
    InUse,
    /// the file there is no socket
    #[error("the file there is no socket")]
    NotASocket,
    /// others than this machine could connect, and nothing that they send or read would be protected
    #[error("others than this machine could connect, and nothing that they send or read would be protected")]
    NotLoopback,
    /// the system refuses it
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A socket that clients come to.
#[derive(Debug)]
pub enum Listener {
    /// On this machine. The file goes when this is dropped.
    Unix(UnixListener, PathBuf),
    /// By the network's protocols.
    Tcp(TcpListener),
}

impl Listener {
    /// A socket at this path. One that a server has left behind is taken over.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn unix(path: &Path) -> Result<Self, BindError> {
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(BindError::NotASocket);
            }
            if UnixStream::connect(path).is_ok() {
                return Err(BindError::InUse);
            }
            std::fs::remove_file(path)?;
        }
        Ok(Self::Unix(UnixListener::bind(path)?, std::path::absolute(path)?))
    }

    /// A socket at this address. `for_others`: others than this machine may reach it.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn tcp(address: SocketAddr, for_others: bool) -> Result<Self, BindError> {
        if !for_others && !address.ip().is_loopback() {
            return Err(BindError::NotLoopback);
        }
        let listener = TcpListener::bind(address);
        let in_use = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse,
            _ => BindError::Io(error),
        };
        listener.map(Self::Tcp).map_err(in_use)
    }

    /// A socket at this path that its owner alone can connect to; else as [`Listener::unix`].
    ///
    /// # Errors
    /// [`BindError`].
    pub fn private(path: &Path) -> Result<Self, BindError> {
        let listener = Self::unix(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                notice_silence(&stream)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    fn wait(&self, stop: &OwnedFd) -> io::Result<bool> {
        let own = match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        };
        let mut both = [PollFd::from_borrowed_fd(own, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        // A signal that came to this thread is no client: nobody would end a wait for one.
        rustix::io::retry_on_intr(|| poll(&mut both, None))?;
        Ok(both[1].revents().is_empty())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a client is read from and written to.
pub trait Channel: Read + Write {
    /// Whether [`Channel::write_now`] does anything.
    const WRITES_NOW: bool = false;

    /// Writes of these pieces, in order, what goes out without a wait. Gives how many bytes went.
    fn write_now(&mut self, _pieces: &[IoSlice<'_>]) -> usize {
        0
    }
}

/// A client's socket.
#[derive(Debug)]
pub enum Stream {
    /// On this machine.
    Unix(UnixStream),
    /// By the network's protocols.
    Tcp(TcpStream),
}

impl Stream {
    /// The same socket once more.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn again(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    fn hang_up(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// How long a read or a write waits; None: for ever.
    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
        }
    }
}

/// Has the system ask a client that is silent for a minute whether it is still there, and end the connection if a
/// minute passes without an answer. A machine that has lost its power says nothing of it.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// A client's socket that has until some moment for all that it reads and writes; then that fails with `TimedOut`.
#[derive(Debug)]
pub struct Patient {
    stream: Stream,
    /// None: for ever.
    until: Option<Instant>,
    awake: Awake,
}

impl Patient {
    /// The socket, which has this long.
    #[must_use]
    pub fn new(stream: Stream, patience: Duration) -> Self {
        Self { stream, until: Some(Instant::now() + patience), awake: Awake::new(SOCKET) }
    }

    /// From now on it waits for ever.
    ///
    /// # Errors
    /// The system's.
    pub fn for_ever(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_patience(None)
    }

    fn wait(&self) -> io::Result<()> {
        let Some(until) = self.until else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_patience(Some(left))
    }
}

impl Read for Patient {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.until.is_none() {
            return self.awake.read(&mut self.stream, out);
        }
        self.wait()?;
        self.stream.read(out)
    }
}

impl Write for Patient {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.wait()?;
        self.stream.write(data)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait()?;
        self.stream.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Channel for Patient {
    const WRITES_NOW: bool = true;

    fn write_now(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Why nothing went is told to who writes the rest.
        sendmsg(&self.stream, pieces, &mut SendAncillaryBuffer::default(), flags).unwrap_or(0)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(out),
            Self::Tcp(stream) => stream.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(data),
            Self::Tcp(stream) => stream.write(data),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write_vectored(pieces),
            Self::Tcp(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that is served at a socket, until this is dropped: then all clients are hung up on.
#[derive(Debug)]
pub struct Server {
    /// Something is written there to stop.
    stop: OwnedFd,
    thread: Option<JoinHandle<Listener>>,
}

impl Server {
    /// Has each client served by `serve`, in a thread of its own, until it returns. It returns soon after the stream
    /// was shut down.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn start(
        listener: Listener,
        serve: impl Fn(Stream) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let clients = Clients { serve, open: Mutex::default() };
        let thread = std::thread::Builder::new().name("ramfold-listen".to_owned());
        let thread = thread.spawn(move || {
            Arc::new(clients).welcome(&listener, &stopped);
            listener
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Hangs up on all clients. When this returns none has a request under way. Who comes now waits until somebody
    /// serves at the listener again; None if its thread has panicked.
    #[must_use]
    pub fn stop(mut self) -> Option<Listener> {
        self.end()
    }

    fn end(&mut self) -> Option<Listener> {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The clients of a server.
struct Clients<F> {
    serve: F,
    open: Mutex<HashMap<u64, Stream>>,
}

impl<F: Fn(Stream) -> io::Result<()> + Send + Sync + 'static> Clients<F> {
    /// Lets clients in until the server is stopped; then hangs up on all, and waits for their threads.
    fn welcome(self: Arc<Self>, listener: &Listener, stop: &OwnedFd) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for number in 0.. {
            if !listener.wait(stop).unwrap_or(true) {
                break;
            }
            threads.retain(|thread| !thread.is_finished());
            // Out of descriptors or threads, this client is lost and the others stay.
            match listener.accept().and_then(|stream| self.admit(number, stream)) {
                Ok(thread) => threads.extend(thread),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        self.open().values().for_each(Stream::hang_up);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Stream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(self: &Arc<Self>, number: u64, stream: Stream) -> io::Result<Option<JoinHandle<()>>> {
        if self.open().len() >= MOST_CLIENTS {
            return Ok(None);
        }
        self.open().insert(number, stream.again()?);
        let clients = Arc::clone(self);
        let thread = std::thread::Builder::new().name("ramfold-client".to_owned());
        let thread = thread.spawn(move || {
            // How a client ends is its own business.
            let _ = (clients.serve)(stream);
            clients.open().remove(&number);
        });
        if thread.is_err() {
            self.open().remove(&number);
        }
        thread.map(Some)
    }
}
