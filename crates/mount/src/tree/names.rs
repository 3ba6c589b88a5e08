//! Names: looking up, making, moving and removing entries of directories.

use super::{Caller, Found, Tree, check};
use crate::stamp::Identity;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatxFlags, linkat, mkdirat, mknodat, openat,
    readlinkat, renameat_with, statx, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

/// What is made, when it is no regular file that is opened at once.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// Permissions and what it is.
    pub mode: u32,
    /// The device, if it is one.
    pub dev: u64,
    /// The caller's file mode creation mask.
    pub mask: u32,
}

impl Tree {
    /// The entry of this name.
    ///
    /// # Errors
    /// ENOENT if there is none, and what the source answers.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Found, Errno> {
        check(name)?;
        let parent = self.node(parent)?;
        let parent = parent.at()?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let told = statx(&parent, name, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
        if let Some(node) = self.nodes.find(Identity::of(&told)) {
            return self.found(node);
        }
        // It may be another one by now.
        self.enter(openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Makes a file, a device, a pipe or a socket.
    ///
    /// # Errors
    /// What the source answers.
    pub fn make_node(&self, parent: u64, name: &OsStr, made: Made, caller: Caller) -> Result<Found, Errno> {
        check(name)?;
        let directory = self.node(parent)?;
        let directory = directory.at()?;
        let (kind, mode) = (FileType::from_raw_mode(made.mode), Mode::from_raw_mode(made.mode & 0o7777));
        caller.make(made.mask, || mknodat(&directory, name, kind, mode, made.dev))?;
        self.lookup(parent, name)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// What the source answers.
    pub fn make_directory(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        mask: u32,
        caller: Caller,
    ) -> Result<Found, Errno> {
        check(name)?;
        let directory = self.node(parent)?;
        let directory = directory.at()?;
        caller.make(mask, || mkdirat(&directory, name, Mode::from_raw_mode(mode & 0o7777)))?;
        self.lookup(parent, name)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// What the source answers.
    pub fn make_link(
        &self,
        parent: u64,
        name: &OsStr,
        target: &Path,
        caller: Caller,
    ) -> Result<Found, Errno> {
        check(name)?;
        let directory = self.node(parent)?;
        let directory = directory.at()?;
        caller.make(0, || symlinkat(target, &directory, name))?;
        self.lookup(parent, name)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// What the source answers.
    pub fn link(&self, number: u64, parent: u64, name: &OsStr) -> Result<Found, Errno> {
        check(name)?;
        let (node, directory) = (self.node(number)?, self.node(parent)?);
        let (node, directory) = (node.at()?, directory.at()?);
        linkat(CWD, node.way(), &directory, name, AtFlags::SYMLINK_FOLLOW)?;
        self.lookup(parent, name)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// What the source answers.
    pub fn read_link(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        Ok(readlinkat(node.at()?, c"", Vec::new())?.into_bytes())
    }

    /// Removes a name of a file, or an empty directory.
    ///
    /// # Errors
    /// What the source answers.
    pub fn remove(&self, parent: u64, name: &OsStr, is_directory: bool) -> Result<(), Errno> {
        check(name)?;
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let directory = self.node(parent)?;
        let directory = directory.at()?;
        self.pin(&directory, name);
        unlinkat(&directory, name, flags)
    }

    /// Whoever has the file of this name open has it still when the name is gone.
    fn pin(&self, directory: impl AsFd, name: &OsStr) {
        if self.nodes.has_handles()
            && let Ok(told) =
                statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
        {
            self.nodes.pin(Identity::of(&told));
        }
    }

    /// Moves an entry.
    ///
    /// # Errors
    /// What the source answers.
    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Result<(), Errno> {
        check(from.1)?;
        check(to.1)?;
        let (directory, target) = (self.node(from.0)?, self.node(to.0)?);
        let (directory, target) = (directory.at()?, target.at()?);
        self.pin(&target, to.1);
        renameat_with(&directory, from.1, &target, to.1, flags)
    }
}
