//! Where clients of a disk come: a socket and the protocol that is spoken there, or a block device of this machine.
//!
//! A socket that is closed is there and nobody is served: who comes waits. A device that is closed is not there. So a
//! disk that could not be kept at a stop goes on where it was.

use crate::failure::Failure;
use ramfold_disk::listen::{Listener, Server};
use ramfold_disk::nbd::tls::Certificates;
use ramfold_disk::ublk::{AddError, Device};
use ramfold_disk::volume::Volume;
use ramfold_disk::{nbd, vhost_user};
use std::sync::Arc;

/// What is spoken at a socket.
#[derive(Debug, Clone)]
pub enum Protocol {
    /// NBD, by TLS if there are certificates.
    Nbd(Option<Arc<Certificates>>),
    /// vhost-user-blk.
    VhostUser,
}

enum State {
    Closed(Listener, Protocol),
    Open(Server, Protocol),
    /// With this number, if there is one.
    NoDevice(Option<u32>),
    Device(Box<Device>),
    /// Its thread has panicked, or it could not be opened.
    Lost,
}

/// Where clients come.
pub struct Door {
    state: State,
    place: String,
}

impl Door {
    /// A closed door: a socket.
    pub fn new(protocol: Protocol, listener: Listener) -> Self {
        let place = match &protocol {
            Protocol::Nbd(certificates) => nbd::uri(&listener, certificates.is_some()),
            Protocol::VhostUser => vhost_user::uri(&listener),
        };
        Self { state: State::Closed(listener, protocol), place }
    }

    /// A closed door: a device of this machine, with this number if there is one.
    pub fn device(number: Option<u32>) -> Result<Self, Failure> {
        Device::check().map_err(|error| no_device(&error))?;
        Ok(Self { state: State::NoDevice(number), place: String::new() })
    }

    /// Where clients find it: a URI, or the path of a device that was opened.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether it cannot be opened again.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    /// Whether it is a device of this machine now.
    pub fn is_device(&self) -> bool {
        matches!(self.state, State::Device(_))
    }

    /// Whether somebody has the device for himself: a file system, swap. Of clients at a socket the disk tells.
    pub fn is_in_use(&self) -> bool {
        matches!(&self.state, State::Device(device) if device.is_in_use())
    }

    /// Lets clients come, if they do not yet.
    pub fn open(&mut self, volume: &Arc<Volume>, name: &str) -> Result<(), Failure> {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Closed(listener, protocol) => {
                let (volume, name) = (Arc::clone(volume), name.to_owned());
                let server = match &protocol {
                    Protocol::Nbd(certificates) => nbd::serve(listener, volume, name, certificates.clone()),
                    Protocol::VhostUser => vhost_user::serve(listener, volume, name),
                };
                State::Open(server.map_err(|error| super::failed(&error))?, protocol)
            }
            State::NoDevice(number) => {
                let device = Device::add(volume, number).map_err(|error| no_device(&error))?;
                self.place = device.path().display().to_string();
                State::Device(Box::new(device))
            }
            state => state,
        };
        Ok(())
    }

    /// Hangs up on all clients. Then none has a request under way.
    pub fn close(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Open(server, protocol) => {
                server.stop().map_or(State::Lost, |listener| State::Closed(listener, protocol))
            }
            State::Device(device) => {
                let number = device.number();
                device.stop();
                State::NoDevice(Some(number))
            }
            state => state,
        };
    }
}

fn no_device(error: &AddError) -> Failure {
    Failure::failed(format!("--ublk: {error}"))
}
