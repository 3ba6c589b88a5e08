//! What files are: owner, permissions, times, size, extended attributes.

use super::{Caller, Tree};
use crate::nodes::{Node, Used};
use crate::stamp::{Stamp, look};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, StatVfs, StatVfsMountFlags, Statx, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fstatvfs, ftruncate, getxattr, listxattr,
    removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};

/// The longest value of an extended attribute, and list of names, that the kernel takes.
const MOST_XATTR: usize = 64 << 10;
/// Who may what with a file (ACL).
const ACCESS_LIST: &str = "system.posix_acl_access";

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The time of the change.
    Now,
    /// Seconds and nanoseconds since 1970.
    At(i64, u32),
}

/// A node and everything that is told of it.
#[derive(Debug)]
pub struct Looked {
    /// The node.
    pub node: Arc<Node>,
    /// What was told.
    pub told: Statx,
    /// Whoever changes it later is told of.
    pub is_watched: bool,
    /// The time of modification was put back: nobody may believe it but the read that asked.
    pub is_put_back: bool,
}

/// What is to be changed of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    /// Bytes.
    pub size: Option<u64>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions.
    pub mode: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<When>,
    /// Time of the last modification.
    pub modified: Option<When>,
}

impl Tree {
    /// A node, and everything that is told of it. `reads`: for a read that asks whether the kernel's pages are right.
    ///
    /// # Errors
    /// What the source answers.
    pub fn look(&self, number: u64, reads: bool) -> Result<Looked, Errno> {
        let node = self.node(number)?;
        // Before the look: else a change in between would not be told.
        let is_watched = node.watched().is_some();
        let mut told = node.at().and_then(look)?;
        // An open, or a stat: what nobody tells of is compared then, as far as the kernel does not do it itself.
        let is_compared = self.opens_alone() && !is_watched && !reads && node.used.get().is_some();
        if is_compared && !self.is_held(&node, Stamp::of(&told)) {
            self.work.drop_pages([number]);
        }
        let is_put_back = self.show(&node, &mut told, reads);
        Ok(Looked { node, told, is_watched, is_put_back })
    }

    /// The kernel is about to be told this. True if the time of modification was put back, for a read.
    pub(super) fn show(&self, node: &Node, told: &mut Statx, reads: bool) -> bool {
        let Some(used) = node.used.get() else { return false };
        let mut shown = used.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(told);
        let object = || self.cache.object(&used.file, stamp);
        if reads {
            return shown.tell_read(told, object);
        }
        shown.tell(told, object);
        false
    }

    /// The mount is about to change this file.
    pub(super) fn begin_change(&self, used: &Used, source: BorrowedFd) {
        let mut shown = used.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if !shown.is_of_version()
            && let Ok(told) = look(source)
        {
            shown.learn(&told, || self.cache.object(&used.file, Stamp::of(&told)));
        }
    }

    /// Changes what is to be changed, in an order in which nothing undoes what was done before.
    ///
    /// # Errors
    /// What the source answers; some of it may have been changed.
    pub fn change(
        &self,
        number: u64,
        change: &Change,
        handle: Option<u64>,
    ) -> Result<(Arc<Node>, Statx), Errno> {
        let node = self.node(number)?;
        if let Some(size) = change.size {
            self.set_size(&node, size, handle)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            chownat(node.at()?, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = change.mode {
            chmodat(CWD, node.at()?.way(), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            utimensat(node.at()?, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        let mut told = node.at().and_then(look)?;
        self.show(&node, &mut told, false);
        Ok((node, told))
    }

    fn set_size(&self, node: &Node, size: u64, handle: Option<u64>) -> Result<(), Errno> {
        let open = handle.and_then(|handle| self.open.get(handle)).filter(|open| open.is_writable());
        let own = if open.is_none() { Some(self.open_file(node, OFlags::WRONLY)?) } else { None };
        let source = open.as_ref().map(|open| open.as_fd()).or(own.as_ref().map(AsFd::as_fd));
        let source = source.ok_or(Errno::BADF)?;
        self.alter(node, source, None, || ftruncate(source, size))
    }

    /// The file system that the source lies on.
    ///
    /// # Errors
    /// What the source answers.
    pub fn file_system(&self, number: u64) -> Result<StatVfs, Errno> {
        fstatvfs(self.node(number)?.at()?)
    }

    /// An extended attribute.
    ///
    /// # Errors
    /// What the source answers.
    pub fn xattr(&self, number: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        let at = node.at()?;
        let mut value = all(|out| getxattr(at.way(), name, out))?;
        let withholds = |flag| node.kind == FileType::RegularFile && node.withheld().contains(flag);
        if name == "security.capability" && withholds(StatVfsMountFlags::NOSUID) {
            return Err(Errno::NODATA);
        }
        if name == ACCESS_LIST && withholds(StatVfsMountFlags::NOEXEC) {
            may_not_run(&mut value);
        }
        Ok(value)
    }

    /// The names of a file's extended attributes, each followed by a zero.
    ///
    /// # Errors
    /// What the source answers.
    pub fn xattr_names(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        let at = node.at()?;
        all(|out| listxattr(at.way(), out))
    }

    /// Sets an extended attribute; `flags` as for setxattr(2). True if the file lent rights that it does not lend any
    /// more.
    ///
    /// # Errors
    /// What the source answers.
    pub fn set_xattr(
        &self,
        number: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        by: Caller,
    ) -> Result<bool, Errno> {
        setxattr(self.node(number)?.at()?.way(), name, value, XattrFlags::from_bits_retain(flags))?;
        if name == ACCESS_LIST { self.end_group(number, by) } else { Ok(false) }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// What the source answers.
    pub fn remove_xattr(&self, number: u64, name: &OsStr) -> Result<(), Errno> {
        removexattr(self.node(number)?.at()?.way(), name)
    }
}

/// Takes the permission to run a file from all in a list: a version, then of each 16 bits that say of whom it tells, 16
/// of permissions, and 32 of a number.
fn may_not_run(list: &mut [u8]) {
    let entries = list.get_mut(4..).unwrap_or_default();
    entries.chunks_exact_mut(8).for_each(|entry| entry[2] &= !1);
}

/// What a call gives that fills a buffer: most values are short, so a long one is asked for twice.
fn all(get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; 256];
    let len = match get(&mut out) {
        Err(Errno::RANGE) => {
            out.resize(MOST_XATTR, 0);
            get(&mut out)?
        }
        got => got?,
    };
    out.truncate(len);
    Ok(out)
}

fn timespec(when: Option<When>) -> Timespec {
    match when {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(When::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(When::At(seconds, nanoseconds)) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}
