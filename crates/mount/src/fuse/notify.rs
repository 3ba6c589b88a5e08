//! What the kernel of the mount is told unasked: to forget attributes, pages, names.
//!
//! Messages as FUSE lays them out, written to the connection. Unlike fuser's, these tell when the kernel does not know
//! what it is to forget: then an answer may be on its way that tells it of just that.
//!
//! What may wait, for whom: [`Kernel::forget_attributes`] and [`Kernel::forget_all_names`] wait for nobody.
//! [`Kernel::forget_pages`] waits for reads of these pages; [`Kernel::forget_name`] and [`Kernel::wait_for_answers`]
//! for all requests that the kernel has made of that directory, until it has taken in the answers. So none of them is
//! called by who answers requests.

use rustix::io::{Errno, fcntl_dupfd_cloexec, write};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Codes of messages (enum fuse_notify_code).
const INVALIDATE_INODE: u32 = 2;
const INVALIDATE_ENTRY: u32 = 3;
const NEXT_EPOCH: u32 = 8;
/// Bytes of struct fuse_out_header.
const HEADER: usize = 16;

/// The kernel's end of a connection.
#[derive(Debug, Clone)]
pub struct Kernel(Arc<OwnedFd>);

impl Kernel {
    /// The one that serves this session.
    ///
    /// # Errors
    /// There is no descriptor to be had.
    pub fn of(session: impl AsFd) -> Result<Self, Errno> {
        Ok(Self(Arc::new(fcntl_dupfd_cloexec(session, 0)?)))
    }

    fn tell(&self, code: u32, parts: &[&[u8]]) -> Result<(), Errno> {
        let len = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut message = u32::try_from(len).map_err(|_| Errno::NAMETOOLONG)?.to_ne_bytes().to_vec();
        message.extend(code.to_ne_bytes());
        message.extend([0; 8]);
        parts.iter().for_each(|part| message.extend_from_slice(part));
        write(&self.0, &message).map(drop)
    }

    /// Has it forget a node's attributes. False if it does not know the node.
    #[must_use]
    pub fn forget_attributes(&self, node: u64) -> bool {
        self.forget(node, -1)
    }

    /// The same, and all pages.
    #[must_use]
    pub fn forget_pages(&self, node: u64) -> bool {
        self.forget(node, 0)
    }

    fn forget(&self, node: u64, from: i64) -> bool {
        let told = [node.to_ne_bytes(), from.to_ne_bytes(), [0; 8]];
        // A connection that has ended needs not be told.
        self.tell(INVALIDATE_INODE, &[told.as_flattened()]) != Err(Errno::NOENT)
    }

    /// Has it forget a name of a directory, be it that of a file or one that is not there.
    pub fn forget_name(&self, directory: u64, name: &OsStr) {
        let len = u32::try_from(name.len()).unwrap_or(0).to_ne_bytes();
        // It does not know most names. One that it is being told of now it knows by then: it waits for that answer.
        let _ =
            self.tell(INVALIDATE_ENTRY, &[&directory.to_ne_bytes(), &len, &[0; 4], name.as_bytes(), &[0]]);
    }

    /// Returns when what was being asked of a directory has been answered, and the answers taken in.
    pub fn wait_for_answers(&self, directory: u64) {
        // No entry has this name.
        self.forget_name(directory, OsStr::new("."));
    }

    /// Has it ask for all names again (Linux 6.16).
    ///
    /// # Errors
    /// The kernel does not know how.
    pub fn forget_all_names(&self) -> Result<(), Errno> {
        self.tell(NEXT_EPOCH, &[])
    }
}
