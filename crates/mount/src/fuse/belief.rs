//! Belief: how long the kernel may hold what it is told.
//!
//! - What is watched, for [`NAME_HOLDS`] and [`ATTRIBUTES_HOLD`]: it is told otherwise ([`crate::doubt`]) when that
//!   changes. Names of a directory, also those that are not there, in the answer to a lookup; attributes in the answers
//!   to lookup and getattr.
//! - Attributes of directories that are not watched, for [`BELIEF`].
//! - Attributes that come with a name, of a file whose changes could be told, for the call that looked it up
//!   ([`IN_PASSING`]).
//! - All else as long as the user says; not at all unless he does. Then a regular file is looked at for each read that
//!   the kernel answers from its own pages, so a file that changes behind the mount is read as it is, and never with an
//!   old length.

use super::Served;
use super::words::{attributes, error};
use crate::nodes::Node;
use crate::tree::Found;
use fuser::{FileAttr, FileType as Kind, Generation, INodeNo, ReplyEntry};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use std::time::{Duration, SystemTime};

/// How long a name holds, if nothing is told.
const NAME_HOLDS: Duration = Duration::from_secs(300);
/// How long attributes do. They are looked at meanwhile, which costs something.
const ATTRIBUTES_HOLD: Duration = Duration::from_secs(120);
/// How long attributes hold of directories that are not watched, and of what is watched and cannot be looked at.
const BELIEF: Duration = Duration::from_secs(1);
/// How long attributes hold that came with a name: a stat, or the read that follows an open, asks no second time. Well
/// below what docs/mount.md gives for changes that are told.
const IN_PASSING: Duration = Duration::from_millis(10);

/// The node of a name that is not there.
const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: Kind::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

impl Served {
    /// How long names, and attributes, hold of what nobody tells.
    pub(super) fn untold(&self, kind: FileType) -> Duration {
        if kind == FileType::Directory { BELIEF.max(self.untold) } else { self.untold }
    }

    /// How long such attributes hold. They were looked at after the node was watched, if it is.
    pub(super) fn belief(&self, node: &Node, told: &Statx, is_watched: bool) -> Duration {
        match is_watched {
            true if self.tree.may_believe(node, told, ATTRIBUTES_HOLD) => ATTRIBUTES_HOLD,
            true => BELIEF,
            false => self.untold(node.kind),
        }
    }

    /// What a lookup found, in a directory whose names are told or are not.
    pub(super) fn named(&self, reply: ReplyEntry, found: Result<Found, Errno>, is_told: bool) {
        match found {
            Ok(Found { node, told, is_watched }) => {
                let name = if is_told { NAME_HOLDS } else { self.untold(node.kind) };
                let of_file = self.belief(&node, &told, is_watched);
                let of_file = if self.tree.tells(&node) { of_file.max(IN_PASSING) } else { of_file };
                reply.entry_with_ttls(&of_file, &name, &attributes(&node, &told), Generation(0));
            }
            Err(Errno::NOENT) if is_told => {
                reply.entry_with_ttls(&Duration::ZERO, &NAME_HOLDS, &NOTHING, Generation(0));
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    /// What was made: the kernel believes its attributes whatever it was told meanwhile.
    pub(super) fn made(&self, reply: ReplyEntry, made: Result<Found, Errno>) {
        match made {
            Ok(Found { node, told, .. }) => {
                let name = self.untold(node.kind);
                let of_file = if self.tree.tells(&node) { name.max(IN_PASSING) } else { name };
                reply.entry_with_ttls(&of_file, &name, &attributes(&node, &told), Generation(0));
            }
            Err(errno) => reply.error(error(errno)),
        }
    }
}
