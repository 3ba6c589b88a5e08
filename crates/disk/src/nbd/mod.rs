//! NBD: the disk over a socket, for clients of the Network Block Device protocol.
//!
//! Read in this order: [`crate::listen`] (sockets), `handshake` (what client and server agree on), `transmission`
//! (requests). A client that has not said what it wants within [`HANDSHAKE`] is hung up on. Source of the protocol:
//! `doc/proto.md` of github.com/NetworkBlockDevice/nbd.

mod buffers;
mod handshake;
mod transmission;
mod wire;

use crate::face::Disk;
use crate::listen::{Listener, Server, Stream};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// How long a handshake may take without a word.
pub const HANDSHAKE: Duration = Duration::from_secs(30);

/// Where clients find a disk that is served here.
#[must_use]
pub fn uri(listener: &Listener) -> String {
    match listener {
        Listener::Unix(_, path) => format!("nbd+unix:///?socket={}", path.display()),
        Listener::Tcp(listener) => {
            listener.local_addr().map_or_else(|_| "nbd://".to_owned(), |it| format!("nbd://{it}"))
        }
    }
}

/// Serves the disk under this name. The empty name leads to it too.
///
/// # Errors
/// The system gives no thread or descriptor.
pub fn serve<D: Disk + 'static>(listener: Listener, disk: Arc<D>, name: String) -> io::Result<Server> {
    Server::start(listener, move |stream: Stream| {
        stream.set_patience(Some(HANDSHAKE))?;
        let (again, patient) = (stream.again()?, stream.again()?);
        serve_client(&*disk, &name, stream, again, || patient.set_patience(None))
    })
}

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
    begun: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let Some(agreed) = handshake::lead(&mut stream, name, disk.size())? else { return Ok(()) };
    begun()?;
    transmission::serve(disk, agreed, stream, again)
}
