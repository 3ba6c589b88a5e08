//! System calls that the library for the others does not have as safe functions.
//!
//! This is the crate's one file with unsafe code.

use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
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

/// What the kernel calls a file in the events that it tells: the kind of handle and its bytes.
pub(crate) type FileHandle = Vec<u8>;

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
            Ok([&handle.kind.to_ne_bytes(), &handle.handle[..len]].concat())
        }
        _ => Err(last_error()),
    }
}

/// A queue of changes of files, which is read without waiting. Wants CAP_SYS_ADMIN for what it is used for.
///
/// # Errors
/// What the system answers.
pub(crate) fn change_queue() -> Result<OwnedFd, Errno> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    // SAFETY: it takes no pointers.
    let raw = unsafe { libc::fanotify_init(flags, 0) };
    if raw < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just given this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Has changes of the bytes of a file told in the queue, or no more.
///
/// # Errors
/// What the system answers.
pub(crate) fn tell_changes(queue: impl AsFd, way: &str, told: bool) -> Result<(), Errno> {
    let way = CString::new(way).map_err(|_| Errno::INVAL)?;
    let flags = if told { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    let raw = queue.as_fd().as_raw_fd();
    // SAFETY: the path lives for the call.
    match unsafe { libc::fanotify_mark(raw, flags, libc::FAN_MODIFY, libc::AT_FDCWD, way.as_ptr()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}
