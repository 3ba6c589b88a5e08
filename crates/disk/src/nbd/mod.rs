//! NBD: the disk over a socket, for clients of the Network Block Device protocol.
//!
//! Read in this order: [`crate::listen`] (sockets), `handshake` (what client and server agree on), [`tls`] (in the
//! middle of that, where it is required), `transmission` (requests). A client that has not ended its handshake within
//! [`HANDSHAKE`], however slowly it goes on, is hung up on. One thread reads and writes a client's socket.
//! Source of the protocol: `doc/proto.md` of github.com/NetworkBlockDevice/nbd.

mod buffers;
mod handshake;
pub mod tls;
mod transmission;
mod wire;

use crate::face::Disk;
use crate::listen::{Channel, Listener, Patient, Server, Stream};
use handshake::{End, Offered};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tls::Certificates;

/// How long a handshake may take.
pub const HANDSHAKE: Duration = Duration::from_secs(30);

/// Where clients find a disk that is served here.
#[must_use]
pub fn uri(listener: &Listener, has_tls: bool) -> String {
    let scheme = if has_tls { "nbds" } else { "nbd" };
    match listener {
        Listener::Unix(_, path) => format!("{scheme}+unix:///?socket={}", path.display()),
        Listener::Tcp(listener) => listener
            .local_addr()
            .map_or_else(|_| format!("{scheme}://"), |address| format!("{scheme}://{address}")),
    }
}

/// Serves the disk under this name; the empty name leads to it too. With certificates TLS is required.
///
/// # Errors
/// The system gives no thread or descriptor.
pub fn serve<D: Disk + 'static>(
    listener: Listener,
    disk: Arc<D>,
    name: String,
    certificates: Option<Arc<Certificates>>,
) -> io::Result<Server> {
    Server::start(listener, move |stream: Stream| {
        let stream = Patient::new(stream, HANDSHAKE);
        serve_client(&*disk, &name, certificates.as_deref(), stream, Patient::for_ever)
    })
}

/// Serves one client, from its first byte to its end. `begun` is called when the handshake is over.
///
/// # Errors
/// The stream's; `InvalidData` for a client that speaks something else.
pub fn serve_client<D: Disk, S: Channel>(
    disk: &D,
    name: &str,
    certificates: Option<&Certificates>,
    mut stream: S,
    begun: impl FnOnce(&mut S) -> io::Result<()>,
) -> io::Result<()> {
    let offered = Offered { name, size: disk.size() };
    match (handshake::lead(&mut stream, offered, certificates.is_some())?, certificates) {
        (End::Agreed(agreed), _) => {
            begun(&mut stream)?;
            transmission::serve(disk, agreed, stream)
        }
        (End::StartTls(flags), Some(certificates)) => {
            let mut secured = certificates.accept(stream)?;
            if let End::Agreed(agreed) = handshake::go_on(&mut secured, offered, flags)? {
                begun(&mut secured.sock)?;
                transmission::serve(disk, agreed, &mut secured)?;
            }
            tls::close(&mut secured)
        }
        _ => Ok(()),
    }
}
