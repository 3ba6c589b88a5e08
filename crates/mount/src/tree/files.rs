//! The bytes of files: opening, reading through the cache, and changing the source.
//!
//! A change is made in the source first; then the cache forgets what it may have touched, and only then is it answered,
//! so whoever reads after a change that has returned reads what was written.
//!
//! The kernel asks for each open, or for none. Where all changes of files are told ([`Tree::tells`]), and every file
//! can be opened when it is read or written ([`crate::kept`]), it checks permissions and keeps its pages without a
//! question. That holds for all of a mount. So it is not for one that excludes files, which are passed by their opens;
//! nor for a server that may not open what its caller could when it began.

use super::{Caller, Found, Tree, check};
use crate::cache::Request;
use crate::kept::Which as Slot;
use crate::nodes::Node;
use crate::passage::Backing;
use crate::source::{expect_no_order, in_pieces};
use crate::stamp::Stamp;
use crate::sys;
use fuser::BackingId;
use rustix::fs::{
    FallocateFlags, Mode, OFlags, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, openat, seek,
};
use rustix::io::{Errno, ReadWriteFlags, dup, pwrite, pwritev2};
use rustix::thread::{CapabilitySet, capabilities};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Flags that open the source's file as the caller's is open. Others come with each write, are the kernel's business,
/// or done by then.
const CARRIED: OFlags = OFlags::ACCMODE.union(OFlags::NOATIME).union(OFlags::NONBLOCK);
/// Such a file can be opened only to be appended to (FS_APPEND_FL), where that is refused otherwise.
const CARRIED_IF_REFUSED: OFlags = CARRIED.union(OFlags::APPEND);

/// What a request needs of a file that the kernel opened without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Access {
    fn slot(self) -> Slot<OwnedFd> {
        match self {
            Self::Read => |sources| &mut sources.to_read,
            Self::Write => |sources| &mut sources.to_write,
        }
    }
}

/// Which open file a request is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// One that was asked for: by the number that it was given.
    Handle(u64),
    /// One that the kernel opened without asking: by its node.
    Node(u64),
}

/// An open file.
#[derive(Debug)]
pub(super) struct Open {
    node: Arc<Node>,
    source: Arc<OwnedFd>,
    writable: bool,
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
    /// What the kernel calls it; 0 if it names the node alone.
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
        let source = self.open_source(&node, flags)?;
        self.opened(node, source, flags, begin)
    }

    fn open_source(&self, node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.open_file(node, flags & CARRIED) {
            Err(Errno::PERM) => self.open_file(node, flags & CARRIED_IF_REFUSED),
            opened => opened,
        }
    }

    /// Whether the kernel may open files without asking.
    #[must_use]
    pub fn may_open_alone(&self) -> bool {
        let may_all =
            || capabilities(None).is_ok_and(|it| it.effective.contains(CapabilitySet::DAC_OVERRIDE));
        self.tells && !self.excludes() && may_all()
    }

    /// The kernel opens files without asking. Told before anything is opened.
    pub fn let_open_alone(&self) {
        self.opens_alone.store(true, Relaxed);
    }

    /// Whether it does.
    #[must_use]
    pub fn opens_alone(&self) -> bool {
        self.opens_alone.load(Relaxed)
    }

    /// Makes a regular file and opens it. `begin`: as to open it.
    ///
    /// # Errors
    /// What the source answers. ESTALE if there is something of this name that the caller would open: the kernel has
    /// checked no permission of it. It looks the name up again then, and opens what it finds.
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
        let carried = if self.opens_alone() { OFlags::ACCMODE } else { CARRIED };
        let made = flags & carried | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let source =
            caller.make(mask, || openat(&directory, name, made, mode)).map_err(|errno| match errno {
                Errno::EXIST if !flags.contains(OFlags::EXCL) => Errno::STALE,
                errno => errno,
            })?;
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
        let handle = if self.opens_alone() {
            let access = if writable { Access::Write } else { Access::Read };
            self.kept.put(node.kept(), access.slot(), source);
            0
        } else {
            let source = Arc::new(source);
            self.open.add(Open { node, source, writable, passing, written, _passed: passed })
        };
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

    /// An open file, for one request. `flags`: those of the caller's file.
    fn file(&self, which: Which, access: Access, flags: OFlags) -> Result<Arc<Open>, Errno> {
        let number = match which {
            Which::Handle(handle) => return self.open.get(handle).ok_or(Errno::BADF),
            Which::Node(number) => number,
        };
        let node = self.node(number)?;
        // Before anything is read that the kernel then has.
        if node.watched.get().is_none() {
            self.watch(&node, true);
        }
        let writable = access == Access::Write;
        let mode = if writable { OFlags::WRONLY } else { OFlags::RDONLY };
        let open = |flags| {
            let source = self.open_source(&node, flags & !OFlags::ACCMODE | mode)?;
            expect_no_order(source.as_fd());
            Ok(source)
        };
        let special = flags & (OFlags::NOATIME | OFlags::APPEND);
        let source = match self.kept.get(node.kept(), access.slot(), || open(OFlags::empty())) {
            Err(Errno::PERM) if !special.is_empty() => Arc::new(open(special)?),
            Ok(_) if flags.contains(OFlags::NOATIME) && !writable => Arc::new(open(special)?),
            source => source?,
        };
        let (passing, written) = (false, AtomicBool::new(false));
        Ok(Arc::new(Open { node, source, writable, passing, written, _passed: None }))
    }

    /// Gives `answer` the bytes at an offset: so many of them, or what is there before the end of the file. `flags`:
    /// those of the caller's file.
    ///
    /// # Errors
    /// What the source answers.
    pub fn read<R>(
        &self,
        which: Which,
        (offset, len): (u64, usize),
        flags: OFlags,
        answer: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        let open = self.file(which, Access::Read, flags)?;
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
        // Of a file that nobody tells of no version is known, and a look may be a question to another machine.
        if node.watched().is_some() {
            self.begin_change(used, source);
        }
        self.cache.change(&used.file, source, touched, change)
    }

    /// Writes bytes; gives how many were written. `flags`: those of the caller's file; none if the kernel writes pages
    /// that a mapping has changed, which go where they belong.
    ///
    /// # Errors
    /// What the source answers, if none were.
    pub fn write(&self, which: Which, offset: u64, data: &[u8], flags: OFlags) -> Result<usize, Errno> {
        let open = self.file(which, Access::Write, flags)?;
        open.written.store(true, Relaxed);
        // What is appended goes to an end that others may have moved.
        let appends = flags.contains(OFlags::APPEND);
        let touched = (!appends).then(|| offset..offset.saturating_add(data.len() as u64));
        let how = how(flags);
        let some = |done: usize| match how.is_empty() {
            true => pwrite(&open.source, &data[done..], offset + done as u64),
            false => pwritev2(&open.source, &[IoSlice::new(&data[done..])], offset + done as u64, how),
        };
        self.alter(&open.node, open.as_fd(), touched, || in_pieces(data.len(), some))
    }

    /// Tells what a close would: errors that some file systems tell of writes only then.
    ///
    /// # Errors
    /// What the source answers.
    pub fn flush(&self, handle: u64) -> Result<(), Errno> {
        let open = self.open.get(handle).ok_or(Errno::BADF)?;
        if open.written.swap(false, Relaxed) {
            return sys::close(dup(&*open.source)?);
        }
        Ok(())
    }

    /// Returns when what was written is on the source's storage.
    ///
    /// # Errors
    /// What the source answers.
    pub fn sync(&self, which: Which, data_only: bool) -> Result<(), Errno> {
        let open = self.file(which, Access::Read, OFlags::empty())?;
        if data_only { fdatasync(&open.source) } else { fsync(&open.source) }
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// What the source answers.
    pub fn allocate(&self, which: Which, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
        let open = self.file(which, Access::Write, OFlags::empty())?;
        open.written.store(true, Relaxed);
        let mode = FallocateFlags::from_bits_retain(mode);
        self.alter(&open.node, open.as_fd(), None, || fallocate(&open.source, mode, offset, len))
    }

    /// copy_file_range(2), within the source.
    ///
    /// # Errors
    /// What the source answers.
    pub fn copy(&self, from: (Which, u64), to: (Which, u64), len: usize) -> Result<usize, Errno> {
        let source = self.file(from.0, Access::Read, OFlags::empty())?;
        let target = self.file(to.0, Access::Write, OFlags::empty())?;
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
    pub fn seek(&self, which: Which, to: SeekFrom) -> Result<u64, Errno> {
        seek(&self.file(which, Access::Read, OFlags::empty())?.source, to)
    }
}

/// How a write is done that a file with these flags is for.
fn how(flags: OFlags) -> ReadWriteFlags {
    let mut how = ReadWriteFlags::empty();
    how.set(ReadWriteFlags::APPEND, flags.contains(OFlags::APPEND));
    how.set(ReadWriteFlags::DSYNC, flags.contains(OFlags::DSYNC));
    how.set(ReadWriteFlags::SYNC, flags.contains(OFlags::SYNC));
    how
}
