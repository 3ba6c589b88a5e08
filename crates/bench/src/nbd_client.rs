//! A client of the NBD protocol that keeps a number of requests under way, and nothing else: simple replies, a Unix
//! socket, no errors to live with. What arrived together is answered by new requests in one write.

use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const IHAVEOPT: &[u8; 8] = b"IHAVEOPT";
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Where requests go, and what is written.
#[allow(missing_debug_implementations, reason = "it has closures")]
pub struct Load<'a> {
    /// What they do.
    pub kind: Kind,
    /// Bytes of each.
    pub len: usize,
    /// Requests under way.
    pub depth: usize,
    /// The offset of the next.
    pub next: &'a mut dyn FnMut() -> u64,
    /// The data of the next.
    pub data: &'a mut dyn FnMut() -> &'a [u8],
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    input: BufReader<UnixStream>,
    output: UnixStream,
    cookie: u64,
}

impl Client {
    /// Connects, and asks for the export without a name. Waits until a server is there, ten seconds at most.
    ///
    /// # Errors
    /// There is none, or it speaks otherwise.
    pub fn connect(path: &Path) -> Result<Self> {
        let begun = Instant::now();
        let output = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(_) if begun.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error).context("no server comes"),
            }
        };
        let input = BufReader::with_capacity(1 << 20, output.try_clone()?);
        let mut client = Self { input, output, cookie: 0 };
        client.greet()?;
        Ok(client)
    }

    fn greet(&mut self) -> Result<()> {
        let hello: [u8; 18] = self.array()?;
        ensure!(&hello[..8] == b"NBDMAGIC" && &hello[8..16] == IHAVEOPT, "no NBD server");
        let go = [&3_u32.to_be_bytes()[..], IHAVEOPT, &7_u32.to_be_bytes(), &6_u32.to_be_bytes(), &[0; 6]];
        self.output.write_all(&go.concat())?;
        loop {
            let head: [u8; 20] = self.array()?;
            let (kind, len) = (number(&head[12..16]), number(&head[16..20]));
            let mut data = vec![0; len as usize];
            self.input.read_exact(&mut data)?;
            match kind {
                1 => return Ok(()),
                3 => {}
                _ => bail!("the server refuses: {kind:#x}"),
            }
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Makes requests until `ends`; the number of those that were answered.
    ///
    /// # Errors
    /// The server's.
    pub fn drive(&mut self, load: &mut Load, mut ends: impl FnMut(u64) -> bool) -> Result<u64> {
        let (mut open, mut done, mut out) = (HashMap::new(), 0, Vec::new());
        let mut buffer = vec![0; load.len];
        (0..load.depth).for_each(|_| self.ask(load, &mut open, &mut out));
        while !open.is_empty() {
            self.output.write_all(&out)?;
            out.clear();
            loop {
                self.reply(load, &mut open, &mut buffer)?;
                done += 1;
                if !ends(done) {
                    self.ask(load, &mut open, &mut out);
                }
                if open.is_empty() || self.input.buffer().is_empty() {
                    break;
                }
            }
        }
        Ok(done)
    }

    fn ask(&mut self, load: &mut Load, open: &mut HashMap<u64, Kind>, out: &mut Vec<u8>) {
        self.cookie += 1;
        out.extend(REQUEST.to_be_bytes());
        out.extend([0_u16, u16::from(load.kind == Kind::Write)].map(u16::to_be_bytes).as_flattened());
        out.extend([self.cookie, (load.next)()].map(u64::to_be_bytes).as_flattened());
        out.extend(u32::try_from(load.len).expect("short").to_be_bytes());
        if load.kind == Kind::Write {
            out.extend((load.data)());
        }
        open.insert(self.cookie, load.kind);
    }

    fn reply(&mut self, load: &Load, open: &mut HashMap<u64, Kind>, buffer: &mut [u8]) -> Result<()> {
        let head: [u8; 16] = self.array()?;
        ensure!(number(&head[..4]) == REPLY && number(&head[4..8]) == 0, "a reply that tells of an error");
        let cookie = u64::from_be_bytes(head[8..].try_into()?);
        ensure!(open.remove(&cookie).is_some(), "a reply to nothing");
        if load.kind == Kind::Read {
            self.input.read_exact(buffer)?;
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}
