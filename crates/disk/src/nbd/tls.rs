//! TLS for clients of NBD: the certificates of a directory, and a socket that is read and written through them.
//!
//! The directory has the files of QEMU and nbdkit, as PEM: `server-cert.pem` (with what leads to the authority, if
//! anything), `server-key.pem`, and where clients need a certificate `ca-cert.pem` and perhaps `ca-crl.pem`. They are
//! read for each client, and count from then on if they differ. Price: some files read a connection. Files that make no
//! sense together, as while they are renewed one by one, change nothing: the former ones go on, and a line says so. Of
//! files that tell who may come in the former would let in whom the new ones shut out: then nobody comes in.
//!
//! A session is never resumed, so who is let in has shown a certificate that counts now.

use crate::listen::Channel;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// FILE: the system's error
    #[error("{0}: {1}")]
    Unreadable(&'static str, io::Error),
    /// FILE: it is not PEM, or has nothing of its kind
    #[error("{0}: no {1} is found in it")]
    Missing(&'static str, &'static str),
    /// ca-cert.pem, ca-crl.pem: they cannot be used
    #[error("{AUTHORITY}: {0}")]
    Authority(VerifierBuilderError),
    /// the files do not go together, or are of a kind that is not supported
    #[error("{CERTIFICATE}, {KEY}: {0}")]
    Unusable(rustls::Error),
}

/// A client's socket through TLS.
pub type Secured<S> = StreamOwned<ServerConnection, S>;

/// All that is written is copied, so nothing is gained by pieces.
impl<S: Read + Write> Channel for &mut Secured<S> {}

/// What a server shows, and what it asks of its clients.
pub struct Certificates {
    directory: PathBuf,
    verifies_peer: bool,
    /// Never held while files are read.
    live: Mutex<Live>,
    tell: fn(&str),
}

struct Live {
    /// What was found the last time, whether it can be used or not. None: nothing could be read.
    found: Option<Files>,
    /// What can be used.
    config: Arc<ServerConfig>,
    /// It is not known who may come in.
    is_shut: bool,
}

impl Live {
    fn config(&self) -> io::Result<Arc<ServerConfig>> {
        let shut = || io::Error::other("it is not known who may come in");
        (!self.is_shut).then(|| Arc::clone(&self.config)).ok_or_else(shut)
    }
}

#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
    revoked: Option<Vec<u8>>,
}

impl CertificateError {
    /// Whether it leaves open who may come in.
    fn is_of_clients(&self) -> bool {
        match self {
            Self::Unreadable(name, _) | Self::Missing(name, _) => [AUTHORITY, REVOKED].contains(name),
            Self::Authority(_) => true,
            Self::Unusable(_) => false,
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Certificates").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Those of this directory. `verifies_peer`: clients need one that its authority has signed. `tell` gets a line if
    /// later ones cannot be used.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn read(directory: &Path, verifies_peer: bool, tell: fn(&str)) -> Result<Self, CertificateError> {
        let files = Files::read(directory, verifies_peer)?;
        let config = files.config()?;
        let live = Mutex::new(Live { found: Some(files), config, is_shut: false });
        Ok(Self { directory: directory.to_owned(), verifies_peer, live, tell })
    }

    /// What counts now.
    fn current(&self) -> io::Result<Arc<ServerConfig>> {
        let read = Files::read(&self.directory, self.verifies_peer);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, made) = match read {
            Ok(files) if live.found.as_ref() == Some(&files) => return live.config(),
            Ok(files) => {
                let made = files.config();
                (Some(files), made)
            }
            Err(error) if live.found.is_some() || error.is_of_clients() != live.is_shut => (None, Err(error)),
            Err(_) => return live.config(),
        };
        live.found = found;
        match made {
            Ok(config) => (live.config, live.is_shut) = (config, false),
            Err(error) => {
                live.is_shut = error.is_of_clients();
                let then = ["the former certificates go on", "nobody comes in until it is mended"];
                let then = then[usize::from(live.is_shut)];
                (self.tell)(&format!("disk: {}: {error} ({then})", self.directory.display()));
            }
        }
        live.config()
    }

    /// Secures a socket whose client begins now. When this returns, the client has shown what is asked of it.
    ///
    /// # Errors
    /// The stream's; `InvalidData` for a client that speaks something else or may not come in. It was told.
    pub fn accept<S: Read + Write>(&self, stream: S) -> io::Result<Secured<S>> {
        let connection = ServerConnection::new(self.current()?).map_err(io::Error::other)?;
        let mut secured = StreamOwned::new(connection, stream);
        while secured.conn.is_handshaking() {
            secured.conn.complete_io(&mut secured.sock)?;
        }
        Ok(secured)
    }
}

/// Tells the client that nothing follows, so that it can tell an end from a connection that was cut.
pub fn close<S: Read + Write>(secured: &mut Secured<S>) -> io::Result<()> {
    secured.conn.send_close_notify();
    secured.flush()
}

impl Files {
    fn read(directory: &Path, verifies_peer: bool) -> Result<Self, CertificateError> {
        let read = |name: &'static str| {
            fs::read(directory.join(name)).map_err(|error| CertificateError::Unreadable(name, error))
        };
        let revoked = match read(REVOKED) {
            _ if !verifies_peer => None,
            Err(CertificateError::Unreadable(_, error)) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read?),
        };
        let authority = verifies_peer.then(|| read(AUTHORITY)).transpose()?;
        Ok(Self { certificate: read(CERTIFICATE)?, key: read(KEY)?, authority, revoked })
    }

    fn config(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(CertificateError::Unusable)?;
        let builder = match &self.authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(AUTHORITY, authority)? {
                    roots.add(certificate).map_err(|_| CertificateError::Missing(AUTHORITY, "authority"))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.with_crls(self.revoked()?).build();
                builder.with_client_cert_verifier(verifier.map_err(CertificateError::Authority)?)
            }
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key);
        let key = key.map_err(|_| CertificateError::Missing(KEY, "private key without a password"))?;
        let config = builder.with_single_cert(certificates(CERTIFICATE, &self.certificate)?, key);
        let mut config = config.map_err(CertificateError::Unusable)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
        let Some(pem) = &self.revoked else { return Ok(Vec::new()) };
        all(pem).ok_or(CertificateError::Missing(REVOKED, "list of revoked certificates"))
    }
}

fn certificates(name: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    all(pem).ok_or(CertificateError::Missing(name, "certificate"))
}

/// None: there is none, or the file is damaged.
fn all<T: PemObject>(pem: &[u8]) -> Option<Vec<T>> {
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(pem).collect();
    items.ok().filter(|items| !items.is_empty())
}
