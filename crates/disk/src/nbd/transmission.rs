//! Transmission: requests and their replies, one client after its handshake.
//!
//! All requests that have arrived are served in turn, and their replies go out by one write: a client that keeps many
//! requests under way costs one read and one write of the socket for all of them. Price: a request waits for those that
//! the client sent before it; a client that wants more has more connections.
//!
//! Guarantee: memory is bounded by one payload and the replies held back, whatever the client sends or does not read.
//! After an error that leaves unclear where the next request begins the connection ends.

use super::buffers::{Input, Replies};
use super::handshake::{Agreed, Framing};
use super::wire::{
    CONTEXT_ID, Error, Fields, HOLE_OF_ZEROS, REPLY_CHUNK, REPLY_EXTENDED, REPLY_SIMPLE, REQUEST,
    REQUEST_EXTENDED, chunk, command, flag,
};
use crate::face::{Disk, DiskError, Extent, ExtentKind};
use crate::listen::Channel;
use std::io;

/// Bytes of a request's or a reply's data.
pub const MOST_PAYLOAD: u32 = 32 << 20;
/// Bytes read of the socket at once.
const INPUT: usize = 512 << 10;
/// Bytes of replies, and requests, that are held back while more requests are there: the client works on these while
/// the server works on the next.
const MOST_HELD: usize = 64 << 10;
const BATCH: usize = 8;
/// Fewest bytes of a read that are sent from where they lie. Smaller replies go out sooner in one write with others.
const LENT: u64 = 64 << 10;
/// Bytes of memory kept for replies.
const BUFFER: usize = 256 << 10;
/// Pieces, and bytes of the disk, that one reply to BLOCK_STATUS tells of.
const MOST_PIECES: usize = 4096;
const MOST_LOOKED_AT: u64 = 64 << 30;

/// A request as it came.
#[derive(Debug, Clone, Copy)]
struct Request {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u64,
}

impl Request {
    /// Bytes of its header.
    fn size(framing: Framing) -> usize {
        if framing == Framing::Extended { 32 } else { 28 }
    }

    /// None if it is no request.
    fn parse(header: &[u8], framing: Framing) -> Option<Self> {
        let is_extended = framing == Framing::Extended;
        let mut fields = Fields(header);
        let magic = fields.u32()?;
        let (flags, kind, cookie, offset) = (fields.u16()?, fields.u16()?, fields.u64()?, fields.u64()?);
        let len = if is_extended { fields.u64()? } else { fields.u32()?.into() };
        let expected = if is_extended { REQUEST_EXTENDED } else { REQUEST };
        (magic == expected).then_some(Self { flags, kind, cookie, offset, len })
    }

    /// Whether data follows. None: it should, and does not say so.
    fn has_payload(&self, framing: Framing) -> Option<bool> {
        let says_so = self.flags & flag::PAYLOAD_LEN != 0;
        match (framing, self.kind) {
            (Framing::Extended, command::WRITE) => says_so.then_some(true),
            (Framing::Extended, _) => Some(says_so),
            (_, kind) => Some(kind == command::WRITE),
        }
    }

    /// Whether its flags are such as it may have.
    fn has_known_flags(&self, framing: Framing) -> bool {
        let own = match self.kind {
            command::READ => flag::DF,
            command::WRITE if framing == Framing::Extended => flag::PAYLOAD_LEN,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
        self.flags & !(own | flag::FUA) == 0
    }

    fn lies_within(&self, size: u64) -> bool {
        self.offset.checked_add(self.len).is_some_and(|end| end <= size)
    }
}

/// A client that sends requests.
struct Session<'a, D: Disk, S> {
    disk: &'a D,
    worker: D::Worker,
    agreed: Agreed,
    stream: Input<S>,
    /// Not yet sent, of so many requests.
    replies: Replies,
    held: usize,
    /// Data that the input has no room for.
    payload: Vec<u8>,
}

/// Serves requests until the client ends.
///
/// # Errors
/// The stream's; `InvalidData` for what is no request.
pub fn serve<D: Disk>(disk: &D, agreed: Agreed, stream: impl Channel) -> io::Result<()> {
    let stream = Input::new(stream, INPUT);
    let (worker, replies, payload) = (disk.worker(), Replies::default(), Vec::new());
    let mut session = Session { disk, worker, agreed, stream, replies, held: 0, payload };
    while let Some(request) = session.next()? {
        if request.kind == command::DISCONNECT {
            break;
        }
        session.request(request)?;
    }
    session.send()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<D: Disk, S: Channel> Session<'_, D, S> {
    fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(self.replies.as_slice())?;
        self.replies.clear(BUFFER);
        self.held = 0;
        Ok(())
    }

    /// Waits for so many bytes; false at the end. What is ready is sent before: a kernel that swaps may need what the
    /// replies free, to send more.
    fn wait_for(&mut self, bytes: usize) -> io::Result<bool> {
        if self.stream.buffer().len() < bytes {
            self.send()?;
        }
        self.stream.wait_for(bytes)
    }

    /// The next request. None at the end.
    fn next(&mut self) -> io::Result<Option<Request>> {
        let size = Request::size(self.agreed.framing);
        if self.replies.len() >= MOST_HELD || self.held >= BATCH {
            self.send()?;
        }
        if !self.wait_for(size)? {
            return Ok(None);
        }
        self.held += 1;
        let request = Request::parse(&self.stream.buffer()[..size], self.agreed.framing);
        self.stream.consume(size);
        request.map(Some).ok_or_else(|| invalid("no request"))
    }

    /// Serves a request whose header was read.
    fn request(&mut self, request: Request) -> io::Result<()> {
        let has_payload =
            request.has_payload(self.agreed.framing).ok_or_else(|| invalid("a write without data"))?;
        if has_payload && request.len > MOST_PAYLOAD.into() {
            return Err(invalid("a payload that is too large"));
        }
        // It is at most 32 MiB.
        #[allow(clippy::cast_possible_truncation)]
        let payload = if has_payload { request.len as usize } else { 0 };
        if !self.stream.has_room(payload) {
            // It is more than the buffer can have: it is waited for.
            self.send()?;
            self.payload.resize(payload, 0);
            self.stream.read_exact(&mut self.payload)?;
            let done = self.carry_out(request, false);
            self.payload.clear();
            self.payload.shrink_to(BUFFER);
            return done;
        }
        if !self.wait_for(payload)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let done = self.carry_out(request, true);
        self.stream.consume(payload);
        done
    }

    /// `is_buffered`: its data lies at the front of the buffer.
    fn carry_out(&mut self, request: Request, is_buffered: bool) -> io::Result<()> {
        let done = self.check(request).and_then(|()| match request.kind {
            command::READ => self.read(request),
            command::BLOCK_STATUS => self.block_status(request),
            _ => self.change(request, is_buffered).map(|()| self.head(request, chunk::NONE, 0)),
        });
        if let Err(error) = done {
            self.fail(request, error);
        }
        Ok(())
    }

    fn check(&self, request: Request) -> Result<(), Error> {
        let known = [
            command::READ,
            command::WRITE,
            command::FLUSH,
            command::TRIM,
            command::CACHE,
            command::WRITE_ZEROES,
            command::BLOCK_STATUS,
        ];
        if !known.contains(&request.kind) || !request.has_known_flags(self.agreed.framing) {
            return Err(Error::Invalid);
        }
        if request.kind == command::FLUSH {
            return Ok(());
        }
        if !request.lies_within(self.disk.size()) {
            let adds = [command::WRITE, command::WRITE_ZEROES].contains(&request.kind);
            return Err(if adds { Error::NoSpace } else { Error::Invalid });
        }
        match request.kind {
            command::READ if request.len > MOST_PAYLOAD.into() => Err(Error::Overflow),
            command::BLOCK_STATUS if !self.agreed.tells_allocation || request.len == 0 => Err(Error::Invalid),
            _ => Ok(()),
        }
    }

    /// What has no data in its reply.
    fn change(&mut self, request: Request, is_buffered: bool) -> Result<(), Error> {
        let Request { offset, len, .. } = request;
        let worker = &mut self.worker;
        match request.kind {
            command::WRITE => {
                let data = if is_buffered { self.stream.buffer() } else { &self.payload };
                // It was read, so it has this length.
                #[allow(clippy::cast_possible_truncation)]
                self.disk.write(offset, &data[..len as usize], worker)?;
            }
            command::TRIM => self.disk.discard(offset, len, worker)?,
            command::CACHE => self.disk.fetch(offset, len, worker)?,
            command::WRITE_ZEROES if request.flags & flag::NO_HOLE != 0 => {
                self.disk.write_zeros(offset, len, worker)?;
            }
            command::WRITE_ZEROES => self.disk.zero(offset, len, worker)?,
            _ => self.disk.flush()?,
        }
        if request.flags & flag::FUA != 0 {
            self.disk.flush()?;
        }
        Ok(())
    }

    fn read(&mut self, request: Request) -> Result<(), Error> {
        let begin = self.replies.len();
        if self.agreed.framing == Framing::Simple || request.len == 0 {
            // There is no chunk of data without any.
            self.head(request, chunk::NONE, 0);
        } else {
            self.head(request, chunk::OFFSET_DATA, 8 + request.len);
            self.replies.extend(request.offset.to_be_bytes());
        }
        if request.len >= LENT && self.lend(request) {
            return Ok(());
        }
        // It is at most 32 MiB.
        #[allow(clippy::cast_possible_truncation)]
        let data = self.replies.grow(request.len as usize);
        let read = self.disk.read(request.offset, data, &mut self.worker);
        if read.is_err() {
            self.replies.truncate(begin);
        }
        Ok(read?)
    }

    /// Sends the data of a read from where it lies, behind the replies that there are. False if it does not lie so.
    fn lend(&mut self, request: Request) -> bool {
        let (replies, stream) = (&mut self.replies, self.stream.get_mut());
        S::WRITES_NOW
            && self.disk.lend(request.offset, request.len, &mut |pages| replies.send_behind(pages, stream))
    }

    fn block_status(&mut self, request: Request) -> Result<(), Error> {
        let most = if request.flags & flag::REQ_ONE != 0 { 1 } else { MOST_PIECES };
        let mut pieces = Vec::new();
        self.disk.extents(request.offset, request.len.min(MOST_LOOKED_AT), &mut |piece: Extent| {
            pieces.push(piece);
            pieces.len() < most
        });
        let status = |piece: &Extent| match piece.kind {
            ExtentKind::Data => 0,
            ExtentKind::Hole => HOLE_OF_ZEROS,
        };
        let count = pieces.len() as u64;
        if self.agreed.framing == Framing::Extended {
            self.head(request, chunk::BLOCK_STATUS_EXTENDED, 8 + 16 * count);
            // There are at most 4096.
            #[allow(clippy::cast_possible_truncation)]
            self.replies.extend([CONTEXT_ID, count as u32].map(u32::to_be_bytes).as_flattened());
            for piece in &pieces {
                self.replies.extend([piece.len, status(piece).into()].map(u64::to_be_bytes).as_flattened());
            }
        } else {
            self.head(request, chunk::BLOCK_STATUS, 4 + 8 * count);
            self.replies.extend(CONTEXT_ID.to_be_bytes());
            for piece in &pieces {
                // No longer than what was asked for, in 32 bits.
                #[allow(clippy::cast_possible_truncation)]
                self.replies.extend([piece.len as u32, status(piece)].map(u32::to_be_bytes).as_flattened());
            }
        }
        Ok(())
    }

    fn fail(&mut self, request: Request, error: Error) {
        let number = error as u32;
        if self.agreed.framing == Framing::Simple {
            self.simple(request, number);
        } else {
            self.head(request, chunk::ERROR, 6);
            self.replies.extend(number.to_be_bytes());
            self.replies.extend(0_u16.to_be_bytes());
        }
    }

    fn simple(&mut self, request: Request, error: u32) {
        self.replies.extend([REPLY_SIMPLE, error].map(u32::to_be_bytes).as_flattened());
        self.replies.extend(request.cookie.to_be_bytes());
    }

    /// The head of a reply that has one chunk, or of a simple one without an error.
    fn head(&mut self, request: Request, kind: u16, len: u64) {
        let magic = match self.agreed.framing {
            Framing::Simple => return self.simple(request, 0),
            Framing::Chunks => REPLY_CHUNK,
            Framing::Extended => REPLY_EXTENDED,
        };
        self.replies.extend(magic.to_be_bytes());
        self.replies.extend([chunk::DONE, kind].map(u16::to_be_bytes).as_flattened());
        self.replies.extend(request.cookie.to_be_bytes());
        if self.agreed.framing == Framing::Extended {
            self.replies.extend([request.offset, len].map(u64::to_be_bytes).as_flattened());
        } else {
            // A payload is at most 32 MiB.
            #[allow(clippy::cast_possible_truncation)]
            self.replies.extend((len as u32).to_be_bytes());
        }
    }
}

impl From<DiskError> for Error {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::NoSpace => Self::NoSpace,
            DiskError::Io => Self::Io,
        }
    }
}
