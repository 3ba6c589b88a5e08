//! vhost-user-blk: the disk as a virtio block device, for virtual machine monitors such as QEMU.
//!
//! The monitor (the front end) connects to a Unix socket and hands over its guest's memory. From then on the guest's
//! driver and this process (the back end) share rings in that memory: no copy goes through the monitor or the kernel.
//! Read in this order: `device` (what the front end says), `ring` (a queue and its thread), `request` (what a guest
//! asks for). Each client has a thread for the messages and one for each ring that the guest has started.
//!
//! Price: the guest's memory is mapped here, and each request is copied once, because the guest may change its memory
//! while the page is compressed. Guarantee: whatever a guest puts into its memory, the worst that comes of it is an
//! error for that guest. The front end is trusted further: one that cuts short the memory it has handed over ends this
//! process (SIGBUS), so its socket is its owner's alone.
//!
//! The messages are parsed by the crate vhost, the rings are read by virtio-queue. vhost-user-backend, which would join
//! the two, loses a descriptor with each ring of each client, and a queue is dead after a kick that was already read.
//! Sources: "Vhost-user Protocol" in QEMU's documentation; "Virtual I/O Device (VIRTIO) Version 1.2", 2.7 and 5.2.

mod device;
pub mod request;
mod ring;

use crate::face::Disk;
use crate::listen::{Listener, Server, Stream};
use device::Device;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use vhost::vhost_user::{BackendReqHandler, Error};
use vm_memory::GuestMemoryMmap;

/// The guest's memory.
pub type Memory = GuestMemoryMmap<()>;

/// Where clients find a disk that is served here.
#[must_use]
pub fn uri(listener: &Listener) -> String {
    match listener {
        Listener::Unix(_, path) => format!("vhost-user:{}", path.display()),
        // Memory can be handed over on this machine only.
        Listener::Tcp(_) => String::new(),
    }
}

/// Serves the disk; guests see `id` as its serial number, up to 20 bytes of it.
///
/// # Errors
/// The system gives no thread or descriptor.
pub fn serve<D: Disk + 'static>(listener: Listener, disk: Arc<D>, id: String) -> io::Result<Server>
where
    D::Worker: 'static,
{
    Server::start(listener, move |stream| match stream {
        Stream::Unix(stream) => serve_client(&disk, &id, stream),
        Stream::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
    })
}

/// Serves one client, until it hangs up or says what cannot be. Then no request of it is under way.
///
/// # Errors
/// What the client did wrong, or the stream's.
pub fn serve_client<D: Disk + 'static>(disk: &Arc<D>, id: &str, stream: UnixStream) -> io::Result<()>
where
    D::Worker: 'static,
{
    let device = Arc::new(Mutex::new(Device::new(disk, id)));
    let mut client = BackendReqHandler::from_stream(stream, device);
    loop {
        match client.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
