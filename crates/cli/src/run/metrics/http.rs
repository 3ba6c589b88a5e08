//! Answers over HTTP that no client can hold up.
//!
//! One thread and one poll(2) over a few connections, none of which blocks. Each gets one answer and is closed; who
//! has not asked and taken it within [`PATIENCE`] is closed too, and where all places are taken, the oldest
//! connection makes way for a new one. The price: no connection is kept alive. The guarantee: a client that asks at
//! once is answered at once, however many others say or read nothing, and the thread ends as soon as it is told to.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Connections at the same time.
const PLACES: usize = 32;
/// How long one may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that a request may have.
const LONGEST: usize = 8 << 10;
/// New connections that are taken before the others are looked at again.
const AT_ONCE: usize = PLACES / 2;
/// After a failure to take one (no descriptor is free).
const PAUSE: Duration = Duration::from_millis(50);

/// Where clients come in; it does not block.
#[derive(Debug)]
pub enum Door {
    /// ADDR:PORT
    Tcp(TcpListener),
    /// A path.
    Unix(UnixListener),
}

trait Stream: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Stream for S {}

impl Door {
    fn next(&self) -> Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(door) => {
                let (stream, _) = door.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(door) => {
                let (stream, _) = door.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream))
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(door) => door.as_fd(),
            Self::Unix(door) => door.as_fd(),
        }
    }
}

/// What is to be said: a status line's text, a content type, and a body.
pub struct Answer {
    pub status: &'static str,
    pub kind: &'static str,
    pub body: String,
}

/// A client.
struct Client {
    stream: Box<dyn Stream>,
    until: Instant,
    request: Vec<u8>,
    /// Empty as long as the request is not complete.
    answer: Vec<u8>,
    sent: usize,
}

/// Answers until the other end of `stop` is closed. `answer` gets the method and the path without a query.
pub fn serve(door: &Door, stop: &UnixStream, answer: &dyn Fn(&str, &str) -> Answer) {
    let mut clients: Vec<Client> = vec![];
    loop {
        let now = Instant::now();
        clients.retain(|client| client.until > now);
        let Some(ready) = wait(door, stop, &clients) else { return };
        let mut ready = ready.into_iter();
        let comes = ready.next() == Some(true);
        clients.retain_mut(|client| ready.next() != Some(true) || client.go_on(answer));
        for _ in 0..if comes { AT_ONCE } else { 0 } {
            let stream = match door.next() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    break;
                }
            };
            let mut client = Client::new(stream);
            if client.go_on(answer) {
                if clients.len() == PLACES {
                    clients.remove(0);
                }
                clients.push(client);
            }
        }
    }
}

/// Waits for something to do: whether the door has somebody, and which clients can go on. `None` at the end.
fn wait(door: &Door, stop: &UnixStream, clients: &[Client]) -> Option<Vec<bool>> {
    let mut all =
        vec![PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(door.as_fd(), PollFlags::IN)];
    all.extend(clients.iter().map(|client| {
        let wanted = if client.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(client.stream.as_fd(), wanted)
    }));
    let left = clients.iter().map(|client| client.until.saturating_duration_since(Instant::now())).min();
    let timeout = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
    let _ = poll(&mut all, timeout.as_ref());
    let ready: Vec<bool> = all.iter().map(|fd| !fd.revents().is_empty()).collect();
    (!ready[0]).then(|| ready[1..].to_vec())
}

impl Client {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, until: Instant::now() + PATIENCE, request: vec![], answer: vec![], sent: 0 }
    }

    /// Does what can be done without waiting. False when the connection is over.
    fn go_on(&mut self, answer: &dyn Fn(&str, &str) -> Answer) -> bool {
        if self.answer.is_empty() {
            let mut bytes = [0; 2048];
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(length) => self.request.extend(&bytes[..length]),
                Err(error) => return is_for_later(&error),
            }
            match parse(&self.request) {
                Some((method, path)) => self.answer = bytes_of(&answer(&method, &path), method == "HEAD"),
                None => return self.request.len() < LONGEST,
            }
        }
        match self.stream.write(&self.answer[self.sent..]) {
            Ok(length) => {
                self.sent += length;
                self.sent < self.answer.len()
            }
            Err(error) => is_for_later(&error),
        }
    }
}

fn is_for_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Method and path of a request whose head is complete.
fn parse(request: &[u8]) -> Option<(String, String)> {
    let text = String::from_utf8_lossy(request);
    let is_complete = text.contains("\r\n\r\n") || text.contains("\n\n");
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
    is_complete.then_some((method, path))
}

fn bytes_of(answer: &Answer, is_head_only: bool) -> Vec<u8> {
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if is_head_only { "" } else { body };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a server that says `body` to everybody.
    fn with_server(body: &str, work: impl FnOnce(&dyn Fn() -> UnixStream)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let door = UnixListener::bind(&path).unwrap();
        door.set_nonblocking(true).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let answer = |_: &str, _: &str| Answer { status: "200 OK", kind: "text/plain", body: body.into() };
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&Door::Unix(door), &stopped, &answer));
            work(&|| UnixStream::connect(&path).unwrap());
            drop(stop);
        });
    }

    fn ask(mut client: UnixStream) -> String {
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client.write_all(b"GET /x?y HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn who_says_nothing_or_reads_nothing_holds_up_nobody() {
        let long = "long ".repeat(1 << 20);
        with_server(&long, |connect| {
            let silent: Vec<_> = (0..100).map(|_| connect()).collect();
            let deaf: Vec<_> = (0..PLACES).map(|_| connect()).collect();
            deaf.iter().for_each(|mut client| client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap());
            assert!(ask(connect()).ends_with(&long));
            drop((silent, deaf));
        });
    }

    #[test]
    fn a_request_in_pieces_is_put_together_and_one_without_end_is_not() {
        with_server("body", |connect| {
            let mut client = connect();
            client.write_all(b"GET / HT").unwrap();
            assert!(ask(connect()).ends_with("\r\n\r\nbody"));
            client.write_all(b"TP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("body"));
            let mut endless = connect();
            while endless.write_all(&[b'x'; 1000]).is_ok() {}
        });
    }

    #[test]
    fn a_head_has_no_body() {
        let answer = Answer { status: "200 OK", kind: "text/plain", body: "body".into() };
        assert!(bytes_of(&answer, true).ends_with(b"close\r\n\r\n"));
        assert_eq!(parse(b"HEAD /metrics?a=b HTTP/1.1\r\n\r\n"), Some(("HEAD".into(), "/metrics".into())));
        assert_eq!(parse(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(parse(b"\xff\n\n"), Some(("\u{fffd}".into(), String::new())));
    }
}
