//! NBD: the disk over a socket, for clients of the Network Block Device protocol.
//!
//! Read in this order: [`listen`] (sockets), `handshake` (what client and server agree on), `transmission` (requests).
//! Each client has a thread. Source of the protocol: `doc/proto.md` of github.com/NetworkBlockDevice/nbd.

mod handshake;
pub mod listen;
mod transmission;
mod wire;

pub use listen::{BindError, Listener, Server};

use crate::face::Disk;
use std::io::{Read, Write};

/// Serves one client, from its first byte to its end. `stream` and `again` are the same socket. `begun` is called when
/// the handshake is over.
///
/// # Errors
/// The stream's; `InvalidData` for a client that speaks something else.
pub fn serve_client<D: Disk>(
    disk: &D,
    name: &str,
    mut stream: impl Read + Write,
    again: impl Write,
    begun: impl FnOnce() -> std::io::Result<()>,
) -> std::io::Result<()> {
    let Some(agreed) = handshake::lead(&mut stream, name, disk.size())? else { return Ok(()) };
    begun()?;
    transmission::serve(disk, agreed, stream, again)
}
