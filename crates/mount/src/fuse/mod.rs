//! FUSE: requests of the kernel, each one call of the tree.
//!
//! What the kernel may believe, and for how long, is in [`belief`].

mod belief;
pub(crate) mod notify;
mod words;

use crate::tree::{Change, Found, Looked, Opened, Tree, Which};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use notify::Kernel;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use words::{attributes, caller, empty, error, length, value};

/// Most bytes of a request: each thread has room for one.
const MOST_BYTES: u32 = 128 << 10;
/// Requests that the kernel sends ahead of its readers.
const AHEAD: u16 = 16;

/// A tree, as a FUSE file system.
#[derive(Debug)]
pub struct Served {
    tree: Arc<Tree>,
    /// There before the first request.
    kernel: Arc<OnceLock<Kernel>>,
    /// How long names and attributes hold whose changes nobody tells.
    untold: Duration,
}

impl Served {
    /// Serves this tree to a kernel that is known before the first request. `untold`: how long names and attributes
    /// hold whose changes nobody tells.
    #[must_use]
    pub fn new(tree: Arc<Tree>, kernel: Arc<OnceLock<Kernel>>, untold: Duration) -> Self {
        Self { tree, kernel, untold }
    }

    /// A file is about to be changed by who may not keep the rights that it lends. `may_not`: the kernel says so.
    fn end_privileges(&self, request: &Request, number: INodeNo, may_not: bool) -> Result<(), Errno> {
        self.ended(number, self.tree.end_privileges(number.0, caller(request), may_not))
    }

    /// What is known of a file is forgotten, if it has lost rights.
    fn ended(&self, number: INodeNo, has_lost: Result<bool, Errno>) -> Result<(), Errno> {
        if has_lost? && let Some(kernel) = self.kernel.get() {
            // It knows the node, for it asks.
            let _ = kernel.forget_attributes(number.0);
        }
        Ok(())
    }
}

fn flags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// The open file that the kernel names so.
fn which(number: INodeNo, handle: FileHandle) -> Which {
    if handle.0 == 0 { Which::Node(number.0) } else { Which::Handle(handle.0) }
}

/// What the kernel does with the pages that it has, and whether it tells of a close: not where nothing was written.
fn held(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.is_held);
    flags.set(FopenFlags::FOPEN_NOFLUSH, !opened.is_writable);
    flags
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
        ];
        for flag in wanted {
            // A kernel without one of them serves as well, with less.
            let _ = config.add_capabilities(flag);
        }
        // Not of files that the kernel writes itself: their rights would end nowhere.
        if !self.tree.excludes() {
            let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        // A file system that is read so counts as one layer of those that the kernel stacks.
        if self.tree.excludes()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            self.tree.let_pass();
        }
        if self.tree.may_open_alone() && config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok() {
            self.tree.let_open_alone();
            if config.add_capabilities(InitFlags::FUSE_NO_OPENDIR_SUPPORT).is_ok() {
                self.tree.let_list_alone();
            }
        }
        let _ = config.set_max_write(MOST_BYTES);
        let _ = config.set_max_readahead(MOST_BYTES);
        let _ = config.set_max_background(AHEAD);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // Before the look: else a name that comes or goes in between would not be told.
        let is_told = self.tree.tells_names(parent.0);
        self.named(reply, self.tree.lookup(parent.0, name), is_told);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.tree.forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, reads: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.look(number.0, reads.is_some()) {
            Ok(Looked { node, told, is_watched, is_put_back }) => {
                let belief = if is_put_back { Duration::ZERO } else { self.belief(&node, &told, is_watched) };
                reply.attr(&belief, &attributes(&node, &told));
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed, modified) = (accessed.map(words::when), modified.map(words::when));
        let change = Change { size, uid, gid, mode, accessed, modified };
        let takes_away = size.is_some() || uid.is_some() || gid.is_some();
        let ends = if takes_away { self.end_privileges(request, number, false) } else { Ok(()) };
        match ends.and_then(|()| self.tree.change(number.0, &change, handle.map(|handle| handle.0))) {
            // The kernel believes it whatever it was told meanwhile.
            Ok((node, told)) => reply.attr(&self.untold(node.kind), &attributes(&node, &told)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.tree.read_link(number.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        dev: u32,
        reply: ReplyEntry,
    ) {
        let made = crate::tree::Made { mode, dev: words::device_number(dev), mask };
        self.made(reply, self.tree.make_node(parent.0, name, made, caller(request)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        reply: ReplyEntry,
    ) {
        self.made(reply, self.tree.make_directory(parent.0, name, mode, mask, caller(request)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree.remove(parent.0, name, false));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree.remove(parent.0, name, true));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.made(reply, self.tree.make_link(parent.0, name, target, caller(request)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        empty(reply, self.tree.rename((parent.0, name), (new_parent.0, new_name), flags));
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.made(reply, self.tree.link(number.0, parent.0, name));
    }

    fn open(&self, _: &Request, number: INodeNo, open: OpenFlags, reply: ReplyOpen) {
        if self.tree.opens_alone() {
            // From now on the kernel does not ask.
            return reply.error(error(Errno::NOSYS));
        }
        match self.tree.open(number.0, flags(open.0), |source| reply.open_backing(source)) {
            Ok(opened) => match &opened.backing {
                Some(backing) => {
                    reply.opened_passthrough(FileHandle(opened.handle), held(&opened), backing);
                }
                None => reply.opened(FileHandle(opened.handle), held(&opened)),
            },
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u32,
        open: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let range = (offset, len as usize);
        let answered = self.tree.read(which(number, handle), range, flags(open.0), |bytes| {
            if let Some(reply) = reply.take() {
                reply.data(bytes);
            }
        });
        if let (Err(errno), Some(reply)) = (answered, reply) {
            reply.error(error(errno));
        }
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        written: WriteFlags,
        open: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages that a mapping has changed: whose file they came by tells nothing of them.
        let of_mapping = written.contains(WriteFlags::FUSE_WRITE_CACHE);
        let flags = if of_mapping { OFlags::empty() } else { flags(open.0) };
        let takes_away = written.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let ends = if takes_away { self.end_privileges(request, number, true) } else { Ok(()) };
        match ends.and_then(|()| self.tree.write(which(number, handle), offset, data, flags)) {
            Ok(written) => reply.written(length(written)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if self.tree.opens_alone() {
            // What file systems that tell of changes have to say, they say at a write or an fsync.
            return reply.error(error(Errno::NOSYS));
        }
        empty(reply, self.tree.flush(handle.0));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.tree.close(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty(reply, self.tree.sync(which(number, handle), data_only));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.tree.lists_alone() {
            // From now on the kernel does not ask.
            return reply.error(error(Errno::NOSYS));
        }
        match self.tree.open_directory(number.0) {
            Ok(opened) => {
                let mut flags = FopenFlags::empty();
                flags.set(FopenFlags::FOPEN_CACHE_DIR, opened.may_keep);
                flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.is_held);
                reply.opened(FileHandle(opened.handle), flags);
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        from: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.tree.list(which(number, handle), from, |listed| {
            // The kernel's own number for what is above is as good as any.
            let shown = if listed.is_dot() { number } else { INodeNo(listed.number) };
            !reply.add(shown, listed.next, words::kind(listed.kind), &listed.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.tree.close_directory(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.tree.sync_directory(which(number, handle)));
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        match self.tree.file_system(number.0) {
            Ok(it) => reply.statfs(
                it.f_blocks,
                it.f_bfree,
                it.f_bavail,
                it.f_files,
                it.f_ffree,
                u32::try_from(it.f_bsize).unwrap_or(4096),
                u32::try_from(it.f_namemax).unwrap_or(255),
                u32::try_from(it.f_frsize).unwrap_or(4096),
            ),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let set = self.tree.set_xattr(number.0, name, value, flags.cast_unsigned(), caller(request));
        empty(reply, self.ended(number, set));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, most: u32, reply: ReplyXattr) {
        value(reply, most, self.tree.xattr(number.0, name));
    }

    fn listxattr(&self, _: &Request, number: INodeNo, most: u32, reply: ReplyXattr) {
        value(reply, most, self.tree.xattr_names(number.0));
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.tree.remove_xattr(number.0, name));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        open: i32,
        reply: ReplyCreate,
    ) {
        let begin = |source: BorrowedFd| reply.open_backing(source);
        match self.tree.create(parent.0, name, flags(open), (mode, mask), caller(request), begin) {
            Ok((Found { node, told, .. }, opened)) => {
                let (told, handle) = (attributes(&node, &told), FileHandle(opened.handle));
                // One time is for the name and the attributes, so it is a regular file's.
                let (hold, first, flags) = (&self.untold, Generation(0), held(&opened));
                match &opened.backing {
                    Some(backing) => {
                        reply.created_passthrough(hold, &told, first, handle, flags, backing);
                    }
                    None => reply.created(hold, &told, first, handle, flags),
                }
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self
            .end_privileges(request, number, false)
            .and_then(|()| self.tree.allocate(which(number, handle), mode.cast_unsigned(), offset, len));
        empty(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let to = match (whence, u64::try_from(offset)) {
            (libc::SEEK_DATA, Ok(offset)) => SeekFrom::Data(offset),
            (libc::SEEK_HOLE, Ok(offset)) => SeekFrom::Hole(offset),
            _ => return reply.error(error(Errno::INVAL)),
        };
        match self.tree.seek(which(number, handle), to) {
            Ok(offset) => reply.offset(offset.cast_signed()),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        from: FileHandle,
        offset: u64,
        target: INodeNo,
        to: FileHandle,
        into: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // An answer has 32 bits.
        let len = usize::try_from(len.min(1 << 30)).unwrap_or(1 << 30);
        let copied = self
            .end_privileges(request, target, false)
            .and_then(|()| self.tree.copy((which(source, from), offset), (which(target, to), into), len));
        match copied {
            Ok(copied) => reply.written(length(copied)),
            Err(errno) => reply.error(error(errno)),
        }
    }
}
