//! The handshake: what a client and the server agree on before the first request (fixed newstyle).
//!
//! The client sends options, one after the other, each answered before the next. Guarantee: an option takes bounded
//! memory, whatever its length says; what the server does not know is refused by name, and the client may go on.
//!
//! Where TLS is required nothing else is answered before it, and nothing that was sent before it counts after it: an
//! option is read to its last byte and no further, and the agreement begins anew.

use super::transmission::MOST_PAYLOAD;
use super::wire::{
    CONTEXT, CONTEXT_ID, FIXED_NEWSTYLE, Fields, IHAVEOPT, NBDMAGIC, NO_ZEROES, OPTION_REPLY, answer, can,
    info, option,
};
use std::io::{self, Read, Write};

/// Bytes of an option that is read; a name has 4096 at most, and few belong to one option.
const MOST_OPTION: u32 = 64 << 10;
/// What the server can do with the disk.
const CAN: u16 = can::HAS_FLAGS
    | can::FLUSH
    | can::FUA
    | can::TRIM
    | can::WRITE_ZEROES
    | can::DF
    | can::MULTI_CONN
    | can::CACHE
    | can::FAST_ZERO;

/// How replies are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Framing {
    /// One header and the data.
    #[default]
    Simple,
    /// Chunks (structured replies).
    Chunks,
    /// Chunks, and 64 bits for lengths (extended headers).
    Extended,
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreed {
    /// How replies are framed.
    pub framing: Framing,
    /// The client asked for [`CONTEXT`].
    pub tells_allocation: bool,
}

/// What is offered to a client.
#[derive(Debug, Clone, Copy)]
pub struct Offered<'a> {
    /// The export's name.
    pub name: &'a str,
    /// Bytes of the disk.
    pub size: u64,
}

/// The flags that a client has said.
#[derive(Debug, Clone, Copy)]
pub struct Flags {
    no_zeroes: bool,
}

/// How the handshake ended.
#[derive(Debug)]
pub enum End {
    /// With requests to follow.
    Agreed(Agreed),
    /// With TLS to follow, and then [`go_on`].
    StartTls(Flags),
    /// The client has left.
    Left,
}

/// Where a connection stands with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    Unknown,
    Required,
    Begun,
}

/// A client that has come, and what it was told.
struct Handshake<'a, S> {
    stream: S,
    offered: Offered<'a>,
    tls: Tls,
    flags: Flags,
    agreed: Agreed,
}

/// What comes after an option.
enum Next {
    Option,
    Tls,
    Transmission,
    End,
}

/// Leads the handshake.
///
/// # Errors
/// The stream's; `InvalidData` for a client that speaks something else.
pub fn lead(mut stream: impl Read + Write, offered: Offered<'_>, needs_tls: bool) -> io::Result<End> {
    let mut hello = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()].concat();
    hello.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 {
        return Err(invalid("unknown flags"));
    }
    let flags = Flags { no_zeroes: flags & u32::from(NO_ZEROES) != 0 };
    let tls = if needs_tls { Tls::Required } else { Tls::Unknown };
    Handshake { stream, offered, tls, flags, agreed: Agreed::default() }.options()
}

/// Leads the rest of a handshake, over a stream that TLS protects.
///
/// # Errors
/// As [`lead`].
pub fn go_on(stream: impl Read + Write, offered: Offered<'_>, flags: Flags) -> io::Result<End> {
    Handshake { stream, offered, tls: Tls::Begun, flags, agreed: Agreed::default() }.options()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<S: Read + Write> Handshake<'_, S> {
    fn options(mut self) -> io::Result<End> {
        loop {
            match self.option()? {
                Next::Option => {}
                Next::Tls => return Ok(End::StartTls(self.flags)),
                Next::Transmission => return Ok(End::Agreed(self.agreed)),
                Next::End => return Ok(End::Left),
            }
        }
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads an option and answers it.
    fn option(&mut self) -> io::Result<Next> {
        if u64::from_be_bytes(self.array()?) != IHAVEOPT {
            return Err(invalid("no option"));
        }
        let (number, len) = (u32::from_be_bytes(self.array()?), u32::from_be_bytes(self.array()?));
        if len > MOST_OPTION {
            let skipped = io::copy(&mut (&mut self.stream).take(len.into()), &mut io::sink())?;
            if skipped < len.into() || number == option::EXPORT_NAME {
                return Ok(Next::End);
            }
            return self.answer(number, answer::TOO_BIG, &[]);
        }
        let mut data = Vec::new();
        (&mut self.stream).take(len.into()).read_to_end(&mut data)?;
        if data.len() < len as usize {
            return Ok(Next::End);
        }
        match number {
            option::ABORT => self.answer(number, answer::ACK, &[]).map(|_| Next::End),
            option::STARTTLS if self.tls != Tls::Unknown => self.start_tls(&data),
            // It knows no errors.
            option::EXPORT_NAME if self.tls == Tls::Required => Ok(Next::End),
            _ if self.tls == Tls::Required => self.answer(number, answer::TLS_REQUIRED, b"TLS comes first"),
            option::EXPORT_NAME => self.export_name(&data),
            option::LIST if data.is_empty() => self.list(),
            option::INFO | option::GO => self.info(number, &data),
            option::STRUCTURED_REPLY if data.is_empty() => self.frame(number, Framing::Chunks),
            option::EXTENDED_HEADERS if data.is_empty() => self.frame(number, Framing::Extended),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(number, &data),
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.answer(number, answer::INVALID, b"the option has no data")
            }
            _ => self.answer(number, answer::UNSUPPORTED, &[]),
        }
    }

    fn answer(&mut self, number: u32, kind: u32, data: &[u8]) -> io::Result<Next> {
        let mut reply = OPTION_REPLY.to_be_bytes().to_vec();
        reply.extend(
            [number, kind, u32::try_from(data.len()).expect("short")].map(u32::to_be_bytes).as_flattened(),
        );
        reply.extend(data);
        self.stream.write_all(&reply)?;
        Ok(Next::Option)
    }

    fn start_tls(&mut self, data: &[u8]) -> io::Result<Next> {
        let why: &[u8] = match self.tls {
            Tls::Begun => b"TLS has begun",
            _ if !data.is_empty() => b"the option has no data",
            _ => return self.answer(option::STARTTLS, answer::ACK, &[]).map(|_| Next::Tls),
        };
        self.answer(option::STARTTLS, answer::INVALID, why)
    }

    fn is_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.offered.name.as_bytes()
    }

    /// The old way to begin, which knows no errors.
    fn export_name(&mut self, name: &[u8]) -> io::Result<Next> {
        if !self.is_name(name) {
            return Ok(Next::End);
        }
        let mut reply = self.offered.size.to_be_bytes().to_vec();
        reply.extend(CAN.to_be_bytes());
        reply.resize(reply.len() + if self.flags.no_zeroes { 0 } else { 124 }, 0);
        self.stream.write_all(&reply)?;
        Ok(Next::Transmission)
    }

    fn list(&mut self) -> io::Result<Next> {
        let mut entry = u32::try_from(self.offered.name.len()).expect("short").to_be_bytes().to_vec();
        entry.extend(self.offered.name.as_bytes());
        self.answer(option::LIST, answer::SERVER, &entry)?;
        self.answer(option::LIST, answer::ACK, &[])
    }

    fn info(&mut self, number: u32, data: &[u8]) -> io::Result<Next> {
        let mut fields = Fields(data);
        let parsed = fields.text().and_then(|name| Some((name, fields.u16()?)));
        // What the client wishes to know it is told in any case.
        let Some((name, _)) = parsed.filter(|(_, count)| fields.0.len() == 2 * usize::from(*count)) else {
            return self.answer(number, answer::INVALID, b"the option is not well-formed");
        };
        if !self.is_name(name) {
            return self.answer(number, answer::UNKNOWN, b"there is no such export");
        }
        let mut export = info::EXPORT.to_be_bytes().to_vec();
        export.extend(self.offered.size.to_be_bytes());
        export.extend(CAN.to_be_bytes());
        self.answer(number, answer::INFO, &export)?;
        let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
        sizes.extend([1, 4096, MOST_PAYLOAD].map(u32::to_be_bytes).as_flattened());
        self.answer(number, answer::INFO, &sizes)?;
        self.answer(number, answer::ACK, &[])?;
        Ok(if number == option::GO { Next::Transmission } else { Next::Option })
    }

    /// What is more than was agreed on stays.
    fn frame(&mut self, number: u32, framing: Framing) -> io::Result<Next> {
        if framing < self.agreed.framing {
            return self.answer(number, answer::EXTENDED_NEEDED, b"extended headers have been agreed on");
        }
        // A client asks for contexts in the framing that it will have.
        self.agreed = Agreed { framing, tells_allocation: false };
        self.answer(number, answer::ACK, &[])
    }

    fn contexts(&mut self, number: u32, data: &[u8]) -> io::Result<Next> {
        let is_set = number == option::SET_META_CONTEXT;
        if is_set {
            self.agreed.tells_allocation = false;
        }
        let Some((name, queries)) = queries(data) else {
            return self.answer(number, answer::INVALID, b"the option is not well-formed");
        };
        if is_set && self.agreed.framing == Framing::Simple {
            return self.answer(number, answer::INVALID, b"structured replies come first");
        }
        if !self.is_name(name) {
            return self.answer(number, answer::UNKNOWN, b"there is no such export");
        }
        let all = !is_set && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if all || queries.contains(&CONTEXT.as_bytes()) {
            self.agreed.tells_allocation |= is_set;
            let mut context = CONTEXT_ID.to_be_bytes().to_vec();
            context.extend(CONTEXT.as_bytes());
            self.answer(number, answer::META_CONTEXT, &context)?;
        }
        self.answer(number, answer::ACK, &[])
    }
}

/// The export's name and what is asked of it.
fn queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let (name, count) = (fields.text()?, fields.u32()?);
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(fields.text()?);
    }
    fields.0.is_empty().then_some((name, queries))
}
