//! Names: where the control socket of a server is.
//!
//! Sockets lie as `NAME.ctl` in a directory of their owner: `ramfold` in `$XDG_RUNTIME_DIR`, or `/run/ramfold` for
//! root where that is not set. Nobody else can write there, and only the owner can connect. Whoever makes or takes
//! away a socket holds the directory's lock, so a socket at which nobody listens is one whose server has ended, and
//! not one that begins; such sockets are taken away when somebody comes by.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// How a socket's file ends.
const SUFFIX: &str = "ctl";
/// Servers of a kind that are looked at for a free number.
const MOST_UNNAMED: usize = 4096;

/// Why there is no such socket.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// it is no name
    #[error("\"{0}\" is no name (use up to 64 letters, digits, and . _ - after the first)")]
    NotAName(String),
    /// no directory for sockets
    #[error("there is no directory for control sockets (set XDG_RUNTIME_DIR)")]
    NoDirectory,
    /// the directory is somebody else's
    #[error("{} can be written by others (make it yours, mode 0700)", .0.display())]
    NotOwned(PathBuf),
    /// another server has this name
    #[error("the name {0} is taken (choose another)")]
    InUse(String),
    /// no server has this name
    #[error("nothing runs under the name {0} (start it, or give the path of its control socket)")]
    Nobody(String),
    /// the system refuses it
    #[error("{}: {why}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it says.
        why: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> NameError {
    let path = path.to_owned();
    |why| NameError::Io { path, why }
}

/// A socket that a server listens at. The file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    name: String,
}

impl Socket {
    /// A socket for a server of this name, or of the first that is free: those of kind `disk` are then `disk0`,
    /// `disk1` and so on. A name is of one server, of whatever kind.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn bind(name: Option<&str>, kind: &str) -> Result<Self, NameError> {
        let name = name.map(checked).transpose()?;
        Self::bind_in(&own_directory()?, name, kind)
    }

    /// The same, in this directory; the name is checked.
    pub(super) fn bind_in(directory: &Path, name: Option<&str>, kind: &str) -> Result<Self, NameError> {
        let _lock = lock(directory)?;
        remove_dead(directory);
        let is_free = |name: &str| !file(directory, name).exists();
        let name = match name {
            Some(name) if !is_free(name) => return Err(NameError::InUse(name.to_owned())),
            Some(name) => name.to_owned(),
            None => {
                let mut unnamed = (0..MOST_UNNAMED).map(|number| format!("{kind}{number}"));
                unnamed.find(|name| is_free(name)).ok_or_else(|| NameError::InUse(kind.to_owned()))?
            }
        };
        let path = file(directory, &name);
        let listener = UnixListener::bind(&path).map_err(at(&path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(at(&path))?;
        Ok(Self { listener, path, name })
    }

    /// The server's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A connection to the server of this name, or at this socket.
pub(super) fn connect(server: &str) -> Result<UnixStream, NameError> {
    if server.contains('/') {
        return UnixStream::connect(server).map_err(at(Path::new(server)));
    }
    let path = file(&place()?, checked(server)?);
    UnixStream::connect(&path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => NameError::Nobody(server.to_owned()),
        ErrorKind::ConnectionRefused => {
            if let Some(directory) = path.parent()
                && let Ok(_lock) = lock(directory)
            {
                remove_if_dead(&path);
            }
            NameError::Nobody(server.to_owned())
        }
        _ => NameError::Io { path, why },
    })
}

/// Where the socket of this name is.
fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.{SUFFIX}"))
}

/// The name, if it can be one.
fn checked(name: &str) -> Result<&str, NameError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_name = begins && name.len() <= 64 && name.bytes().all(is_plain);
    if is_name { Ok(name) } else { Err(NameError::NotAName(name.to_owned())) }
}

/// Where sockets are.
fn place() -> Result<PathBuf, NameError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    match runtime {
        Some(runtime) => Ok(runtime.join("ramfold")),
        None if geteuid().is_root() => Ok("/run/ramfold".into()),
        None => Err(NameError::NoDirectory),
    }
}

/// The same, which nobody else can write to. It is made if it is not there.
fn own_directory() -> Result<PathBuf, NameError> {
    let path = place()?;
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&path)(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&path).map_err(at(&path))?;
    let is_own = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
    if is_own { Ok(path) } else { Err(NameError::NotOwned(path)) }
}

/// Held by who makes or takes away a socket there.
fn lock(directory: &Path) -> Result<OwnedFd, NameError> {
    let file = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let locked = file.and_then(|file| flock(&file, FlockOperation::LockExclusive).map(|()| file));
    locked.map_err(|errno| at(directory)(errno.into()))
}

/// The directory's lock is held.
fn remove_dead(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter(|path| path.extension().is_some_and(|it| it == SUFFIX))
        .for_each(|path| remove_if_dead(&path));
}

/// The directory's lock is held.
fn remove_if_dead(path: &Path) {
    if UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_numbers_and_a_name_is_taken_once() {
        let place = tempfile::tempdir().unwrap();
        let bind = |name, kind| Socket::bind_in(place.path(), name, kind);
        let disk = bind(None, "disk").unwrap();
        let mounts = [(); 2].map(|()| bind(None, "mount").unwrap());
        assert_eq!([&disk, &mounts[0], &mounts[1]].map(Socket::name), ["disk0", "mount0", "mount1"]);
        assert!(matches!(bind(Some("disk0"), "mount"), Err(NameError::InUse(_))));
        drop(mounts);
        assert_eq!(bind(None, "mount").unwrap().name(), "mount0");
    }

    #[test]
    fn a_name_is_no_path() {
        for name in ["disk0", "a", "Scratch-1.old_2", &"x".repeat(64)] {
            assert!(checked(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "é", "a\0", &"x".repeat(65)] {
            assert!(checked(name).is_err(), "{name}");
        }
    }
}
