//! The bytes of files: opening, reading through the cache, and changing the source.
//!
//! A change is made in the source first; then the cache forgets what it may have touched, and only then is it answered,
//! so whoever reads after a change that has returned reads what was written.

use super::{Caller, Found, Tree, check};
use crate::cache::Request;
use crate::nodes::Node;
use crate::passage::Backing;
use crate::source::{expect_no_order, in_pieces};
use crate::stamp::Stamp;
use crate::sys;
use fuser::BackingId;
use rustix::fs::{
    FallocateFlags, Mode, OFlags, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, openat, seek,
};
use rustix::io::{Errno, dup, pwrite};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Flags that open the source's file as the caller's is open. The rest is the kernel's business, or done by then.
const CARRIED: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC)
    .union(OFlags::NOATIME)
    .union(OFlags::NONBLOCK);

/// An open file.
#[derive(Debug)]
pub(super) struct Open {
    node: Arc<Node>,
    source: OwnedFd,
    writable: bool,
    appends: bool,
    /// Its pages are not to be kept.
    passing: bool,
    /// It was written to since it was flushed.
    written: AtomicBool,
    _passed: Option<Passed>,
}

/// One open of a file that is open one way only: by the kernel itself, or by the server.
#[derive(Debug)]
struct Passed(Arc<Node>);

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(used) = self.0.used.get() {
            used.passage.close();
        }
    }
}

impl Open {
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// An open file, as the kernel is told of it.
#[derive(Debug)]
pub struct Opened {
    /// What the kernel calls it.
    pub handle: u64,
    /// The pages that the kernel has of the file are of the version that it has now.
    pub is_held: bool,
    /// It may be written to.
    pub is_writable: bool,
    /// What the kernel reads and writes itself.
    pub backing: Option<Backing>,
}

impl Tree {
    /// Opens a file. `begin` has the kernel know one that it may read and write itself.
    ///
    /// # Errors
    /// What the source answers.
    pub fn open(
        &self,
        number: u64,
        flags: OFlags,
        begin: impl FnOnce(BorrowedFd) -> io::Result<BackingId>,
    ) -> Result<Opened, Errno> {
        let node = self.node(number)?;
        let source = Self::open_node(&node, flags & CARRIED)?;
        self.opened(node, source, flags, begin)
    }

    /// Makes a regular file and opens it, or opens it if it is there and may be. `begin`: as to open it.
    ///
    /// # Errors
    /// What the source answers.
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        flags: OFlags,
        (mode, mask): (u32, u32),
        caller: Caller,
        begin: impl FnOnce(BorrowedFd) -> io::Result<BackingId>,
    ) -> Result<(Found, Opened), Errno> {
        check(name)?;
        let directory = self.node(parent)?;
        let directory = directory.at()?;
        let made = flags & (CARRIED | OFlags::EXCL) | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let source = caller.make(mask, || openat(&directory, name, made, mode))?;
        let found = self.enter(sys::open_anew(&source, OFlags::PATH)?)?;
        let opened = self.opened(Arc::clone(&found.node), source, flags, begin)?;
        Ok((found, opened))
    }

    fn opened(
        &self,
        node: Arc<Node>,
        source: OwnedFd,
        flags: OFlags,
        begin: impl FnOnce(BorrowedFd) -> io::Result<BackingId>,
    ) -> Result<Opened, Errno> {
        expect_no_order(source.as_fd());
        let (passing, written) = (self.excluded.has(&node), AtomicBool::new(false));
        let may_pass = passing && self.tells(&node);
        let (backing, passed) = self.pass(&node, may_pass, || begin(source.as_fd()))?;
        if backing.is_none() {
            self.watch(&node, true);
        }
        // Of a file that is passed the kernel of the mount has no pages, and is not to be told of any (EIO).
        let is_held = backing.is_none() && self.is_held(&node, Stamp::now(&source)?);
        let writable = flags & OFlags::ACCMODE != OFlags::RDONLY;
        let appends = flags.contains(OFlags::APPEND);
        let handle =
            self.open.add(Open { node, source, writable, appends, passing, written, _passed: passed });
        Ok(Opened { handle, is_held, is_writable: writable, backing })
    }

    /// What the kernel calls the file, if it is to read and write it itself; `begin` has it know the file. And what
    /// holds the file so until it is closed.
    fn pass(
        &self,
        node: &Arc<Node>,
        may: bool,
        begin: impl FnOnce() -> io::Result<BackingId>,
    ) -> Result<(Option<Backing>, Option<Passed>), Errno> {
        let Some(used) = self.used(node).filter(|_| self.passes()) else { return Ok((None, None)) };
        let begun = used.passage.open(may, || begin().map(Arc::new));
        let backing = begun.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.cache.counts.passthrough_opens.fetch_add(backing.is_some().into(), Relaxed);
        Ok((backing, Some(Passed(Arc::clone(node)))))
    }

    /// The file is closed.
    pub fn close(&self, handle: u64) {
        self.open.remove(handle);
    }

    fn file(&self, handle: u64) -> Result<Arc<Open>, Errno> {
        self.open.get(handle).ok_or(Errno::BADF)
    }

    /// Gives `answer` the bytes at `offset`: `len` of them, or what is there before the end of the file.
    ///
    /// # Errors
    /// What the source answers.
    pub fn read<R>(
        &self,
        handle: u64,
        offset: u64,
        len: usize,
        answer: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        let open = self.file(handle)?;
        let file = &self.used(&open.node).ok_or(Errno::ISDIR)?.file;
        let request = Request { file, source: open.source.as_fd(), offset, len, passing: open.passing };
        self.cache.read(&request, answer)
    }

    /// Changes the bytes of a file by `change`: those of `touched`, or any if that is not known.
    pub(super) fn alter<R>(
        &self,
        node: &Node,
        source: BorrowedFd,
        touched: Option<Range<u64>>,
        change: impl FnOnce() -> R,
    ) -> R {
        let Some(used) = self.used(node) else { return change() };
        self.cache.change(&used.file, source, touched, change)
    }

    /// Writes bytes; gives how many were written.
    ///
    /// # Errors
    /// What the source answers, if none were.
    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let open = self.file(handle)?;
        open.written.store(true, Relaxed);
        // What is appended goes to an end that others may have moved.
        let touched = (!open.appends).then(|| offset..offset.saturating_add(data.len() as u64));
        let some = |done: usize| pwrite(&open.source, &data[done..], offset + done as u64);
        self.alter(&open.node, open.as_fd(), touched, || in_pieces(data.len(), some))
    }

    /// Tells what a close would: errors that some file systems tell of writes only then.
    ///
    /// # Errors
    /// What the source answers.
    pub fn flush(&self, handle: u64) -> Result<(), Errno> {
        let open = self.file(handle)?;
        if open.written.swap(false, Relaxed) {
            return sys::close(dup(&open.source)?);
        }
        Ok(())
    }

    /// Returns when what was written is on the source's storage.
    ///
    /// # Errors
    /// What the source answers.
    pub fn sync(&self, handle: u64, data_only: bool) -> Result<(), Errno> {
        let open = self.file(handle)?;
        if data_only { fdatasync(&open.source) } else { fsync(&open.source) }
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// What the source answers.
    pub fn allocate(&self, handle: u64, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        let open = self.file(handle)?;
        open.written.store(true, Relaxed);
        let mode = FallocateFlags::from_bits_retain(mode);
        self.alter(&open.node, open.as_fd(), None, || fallocate(&open.source, mode, offset, len))
    }

    /// copy_file_range(2), within the source.
    ///
    /// # Errors
    /// What the source answers.
    pub fn copy(&self, from: (u64, u64), to: (u64, u64), len: usize) -> Result<usize, Errno> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let (mut out, mut into) = (from.1, to.1);
        target.written.store(true, Relaxed);
        self.alter(&target.node, target.as_fd(), None, || {
            copy_file_range(&source.source, Some(&mut out), &target.source, Some(&mut into), len)
        })
    }

    /// Where data or a hole begins.
    ///
    /// # Errors
    /// What the source answers.
    pub fn seek(&self, handle: u64, to: SeekFrom) -> Result<u64, Errno> {
        seek(&self.file(handle)?.source, to)
    }
}
