//! A socket of a disk, and the protocol that is spoken there.
//!
//! Closed, it is there and nobody is served: who comes waits. So a disk that could not be kept at a stop goes on where
//! it was.

use ramfold_disk::listen::{Listener, Server};
use ramfold_disk::volume::Volume;
use ramfold_disk::{nbd, vhost_user};
use std::io;
use std::sync::Arc;

/// What is spoken at a socket.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    /// NBD.
    Nbd,
    /// vhost-user-blk.
    VhostUser,
}

enum State {
    Closed(Listener),
    Open(Server),
    /// Its thread has panicked, or could not be had.
    Lost,
}

/// Where clients come.
pub struct Door {
    protocol: Protocol,
    state: State,
    uri: String,
}

impl Door {
    /// A closed door.
    pub fn new(protocol: Protocol, listener: Listener) -> Self {
        let uri = match protocol {
            Protocol::Nbd => nbd::uri(&listener),
            Protocol::VhostUser => vhost_user::uri(&listener),
        };
        Self { protocol, state: State::Closed(listener), uri }
    }

    /// Where clients find it.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether it cannot be opened again.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    /// Lets clients come, if they do not yet.
    pub fn open(&mut self, volume: &Arc<Volume>, name: &str) -> io::Result<()> {
        let (volume, name) = (Arc::clone(volume), name.to_owned());
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Closed(listener) => State::Open(match self.protocol {
                Protocol::Nbd => nbd::serve(listener, volume, name)?,
                Protocol::VhostUser => vhost_user::serve(listener, volume, name)?,
            }),
            state => state,
        };
        Ok(())
    }

    /// Hangs up on all clients. Then none has a request under way.
    pub fn close(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Open(server) => server.stop().map_or(State::Lost, State::Closed),
            state => state,
        };
    }
}
