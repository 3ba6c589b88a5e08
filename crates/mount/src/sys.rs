//! System calls that the library for the others does not have as safe functions.
//!
//! This is the crate's one file with unsafe code.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A path to what a descriptor stands for, which follows no link and needs no permission.
pub(crate) fn way(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// As [`way`], from a directory that stays open: the walk to the table of descriptors takes as long as all the rest. It
/// leads there for as long as the file is open.
fn short_way(file: BorrowedFd<'_>) -> (BorrowedFd<'static>, String) {
    static TABLE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        openat(CWD, c"/proc/self/fd", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    });
    match table {
        Some(table) => (table.as_fd(), file.as_raw_fd().to_string()),
        None => (CWD, way(file)),
    }
}

/// Opens what a descriptor stands for anew.
///
/// # Errors
/// What the system answers.
pub(crate) fn open_anew(file: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let (directory, way) = short_way(file.as_fd());
    openat(directory, way, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Gives this thread a file mode creation mask and a working directory of its own.
///
/// # Errors
/// What the system answers.
pub(crate) fn unshare_mask() -> Result<(), Errno> {
    // SAFETY: it takes nothing from other threads, and this one's memory stays as it is.
    match unsafe { libc::unshare(libc::CLONE_FS) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Sets who this thread is to file systems.
pub(crate) fn be_to_file_systems(user: u32, group: u32) {
    // SAFETY: both set numbers of this thread, and nothing else.
    unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
    }
}

/// Closes a descriptor, and tells what the file system says to that.
///
/// # Errors
/// What the system answers; the descriptor is closed all the same.
pub(crate) fn close(descriptor: OwnedFd) -> Result<(), Errno> {
    // SAFETY: it is this function's own, and nothing uses it from here on.
    match unsafe { libc::close(descriptor.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// What the kernel calls a file, as long as it is that file: the kind of handle and its bytes.
pub(crate) type FileHandle = Box<[u8]>;

/// The longest handle (MAX_HANDLE_SZ).
const MOST_HANDLE: usize = 128;

/// struct file_handle, with room.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; MOST_HANDLE],
}

/// The handle of a file.
///
/// # Errors
/// What the system answers; not all file systems have handles.
pub(crate) fn handle_of(file: impl AsFd) -> Result<FileHandle, Errno> {
    let room = u32::try_from(MOST_HANDLE).unwrap_or(0);
    let mut handle = Handle { bytes: room, kind: 0, handle: [0; MOST_HANDLE] };
    let (raw, mut mount) = (file.as_fd().as_raw_fd(), 0);
    let at = (&raw mut handle).cast::<libc::file_handle>();
    // SAFETY: `handle` is a file_handle with as many bytes behind it as it says, and all pointers live for the call.
    match unsafe { libc::name_to_handle_at(raw, c"".as_ptr(), at, &raw mut mount, libc::AT_EMPTY_PATH) } {
        0 => {
            let len = usize::try_from(handle.bytes).unwrap_or(0).min(MOST_HANDLE);
            Ok([&handle.kind.to_ne_bytes(), &handle.handle[..len]].concat().into())
        }
        _ => Err(last_error()),
    }
}

/// Opens the file of a handle as a place that stands for it and opens nothing (O_PATH), on the file system that `mount`
/// lies on. Wants CAP_DAC_READ_SEARCH.
///
/// # Errors
/// What the system answers; ESTALE if there is no such file any more.
pub(crate) fn open_handle(mount: impl AsFd, handle: &FileHandle) -> Result<OwnedFd, Errno> {
    let (kind, bytes) = handle.split_first_chunk::<4>().ok_or(Errno::STALE)?;
    let len = bytes.len().min(MOST_HANDLE);
    let (kind, count) = (i32::from_ne_bytes(*kind), u32::try_from(len).unwrap_or(0));
    let mut handle = Handle { bytes: count, kind, handle: [0; MOST_HANDLE] };
    handle.handle[..len].copy_from_slice(&bytes[..len]);
    let (raw, at) = (mount.as_fd().as_raw_fd(), (&raw mut handle).cast::<libc::file_handle>());
    // SAFETY: `handle` is a file_handle with as many bytes behind it as it says, and lives for the call.
    let opened = unsafe { libc::open_by_handle_at(raw, at, libc::O_PATH | libc::O_CLOEXEC) };
    if opened < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just given this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// What a queue tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// What files hold and are, by their handles.
    Files,
    /// Names that come and go in directories, and what the directories are. `is_endless`: nothing is lost, however much
    /// there is to be told; only root may have that.
    Names { is_endless: bool },
}

impl Changes {
    /// The queue's own flags.
    fn flags(self) -> u32 {
        let endless = |is: bool| if is { libc::FAN_UNLIMITED_QUEUE } else { 0 };
        match self {
            Self::Files => libc::FAN_REPORT_FID,
            Self::Names { is_endless } => libc::FAN_REPORT_DFID_NAME | endless(is_endless),
        }
    }

    /// What is told.
    fn mask(self) -> u64 {
        let names = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;
        match self {
            Self::Files => libc::FAN_MODIFY | libc::FAN_ATTRIB | libc::FAN_MOVE_SELF,
            Self::Names { .. } => names | libc::FAN_ATTRIB | libc::FAN_MOVE_SELF | libc::FAN_ONDIR,
        }
    }
}

/// A queue of such changes, which is read without waiting.
///
/// # Errors
/// What the system answers.
pub(crate) fn change_queue(of: Changes) -> Result<OwnedFd, Errno> {
    let flags = libc::FAN_CLASS_NOTIF | of.flags() | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    // Only root may have more marks than others.
    for flags in [flags | libc::FAN_UNLIMITED_MARKS, flags] {
        // SAFETY: it takes no pointers.
        let raw = unsafe { libc::fanotify_init(flags, 0) };
        if raw >= 0 {
            // SAFETY: the kernel has just given this descriptor, and nobody else has it.
            return Ok(unsafe { OwnedFd::from_raw_fd(raw) });
        }
    }
    Err(last_error())
}

/// Has changes of the file that a descriptor stands for told in a queue that is for such, or no more.
///
/// # Errors
/// What the system answers.
pub(crate) fn tell_changes(queue: impl AsFd, of: Changes, file: impl AsFd, told: bool) -> Result<(), Errno> {
    let flags = if told { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    let (directory, way) = short_way(file.as_fd());
    let way = CString::new(way).map_err(|_| Errno::INVAL)?;
    let (queue, directory) = (queue.as_fd().as_raw_fd(), directory.as_raw_fd());
    // SAFETY: a string that ends with a zero, and lives for the call.
    match unsafe { libc::fanotify_mark(queue, flags, of.mask(), directory, way.as_ptr()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Has the C library's allocator keep one heap for all threads: what one frees another takes. Large pieces are the
/// system's own zeros, and never taken from the heap: most of fuser's buffers are never touched.
pub(crate) fn set_up_allocator() {
    const LARGE: libc::c_int = 1 << 20;
    // SAFETY: both set numbers in the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Has the C library's allocator give what is free back to the system.
pub(crate) fn give_free_memory_back() {
    // SAFETY: it moves nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}
