//! FUSE's words for what the tree tells, and the other way round.

use crate::nodes::Node;
use crate::tree::{Caller, When};
use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyEmpty, ReplyXattr, Request, TimeOrNow};
use rustix::fs::{FileType as Kind, StatVfsMountFlags, Statx, StatxTimestamp};
use std::time::{Duration, SystemTime};

/// 0:1, which no driver has. 0:0 says to overlayfs that a file is not there.
const NO_DEVICE: u32 = 1;

/// Who asks.
pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
}

/// An error.
pub(super) fn error(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

/// An answer that tells whether it was done.
pub(super) fn empty(reply: ReplyEmpty, done: Result<(), rustix::io::Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(error(errno)),
    }
}

/// A value of an attribute, or its length if that is asked for.
pub(super) fn value(reply: ReplyXattr, most: u32, value: Result<Vec<u8>, rustix::io::Errno>) {
    match value {
        Ok(value) if most == 0 => reply.size(length(value.len())),
        Ok(value) if value.len() > most as usize => reply.error(error(rustix::io::Errno::RANGE)),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(error(errno)),
    }
}

/// A length that came in 32 bits, or less than that.
pub(super) fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// What a file is.
pub(super) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn system_time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds.into());
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { SystemTime::UNIX_EPOCH - whole } else { SystemTime::UNIX_EPOCH + whole };
    second + part
}

/// Everything that is told of a node.
pub(super) fn attributes(node: &Node, told: &Statx) -> FileAttr {
    let time = |time: &StatxTimestamp| system_time(time.tv_sec, time.tv_nsec);
    FileAttr {
        ino: INodeNo(node.number),
        size: told.stx_size,
        blocks: told.stx_blocks,
        atime: time(&told.stx_atime),
        mtime: time(&told.stx_mtime),
        ctime: time(&told.stx_ctime),
        crtime: time(&told.stx_btime),
        kind: kind(node.kind),
        perm: permissions(node, told),
        nlink: told.stx_nlink,
        uid: told.stx_uid,
        gid: told.stx_gid,
        rdev: shown_device(node, told),
        blksize: told.stx_blksize,
        flags: 0,
    }
}

/// The permissions, without those that the file's mount withholds. Of a directory none: its bits lend nothing.
fn permissions(node: &Node, told: &Statx) -> u16 {
    const LENT: u16 = 0o6000;
    const RUN: u16 = 0o111;
    let mode = told.stx_mode & 0o7777;
    if node.kind != Kind::RegularFile || mode & (LENT | RUN) == 0 {
        return mode;
    }
    let withheld = node.withheld();
    let without = |flag, bits| if withheld.contains(flag) { bits } else { 0 };
    mode & !without(StatVfsMountFlags::NOSUID, LENT) & !without(StatVfsMountFlags::NOEXEC, RUN)
}

/// A device's number; that of none, if the file's mount withholds devices.
fn shown_device(node: &Node, told: &Statx) -> u32 {
    let is_device = matches!(node.kind, Kind::CharacterDevice | Kind::BlockDevice);
    if is_device && node.withheld().contains(StatVfsMountFlags::NODEV) {
        return NO_DEVICE;
    }
    device(told.stx_rdev_major, told.stx_rdev_minor)
}

/// A device's number in 32 bits, as the kernel encodes it (new_encode_dev).
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The same, decoded.
pub(super) fn device_number(encoded: u32) -> u64 {
    rustix::fs::makedev((encoded >> 8) & 0xfff, (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00))
}

/// A time to set. Of one before 1970 fuser counts the nanoseconds backwards, though the kernel counts them forwards.
pub(super) fn when(time: TimeOrNow) -> When {
    match time {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(time) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => When::At(after.as_secs().cast_signed(), after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                When::At(before.as_secs().cast_signed().wrapping_neg(), before.subsec_nanos())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{major, minor};

    #[test]
    fn a_device_comes_back() {
        for (one, other) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            let number = device_number(device(one, other));
            assert_eq!((major(number), minor(number)), (one, other));
        }
    }

    #[test]
    fn a_time_comes_back_before_1970_too() {
        // As fuser makes it of what the kernel sends (its time.rs).
        let time = |seconds: i64, part| match Duration::new(seconds.unsigned_abs(), part) {
            before if seconds < 0 => SystemTime::UNIX_EPOCH - before,
            after => SystemTime::UNIX_EPOCH + after,
        };
        let times = [(0, 0), (5, 7), (-1, 999_999_999), (-1, 1), (-2, 800_000_000), (-3, 0), (1 << 33, 1)];
        for (seconds, part) in times {
            assert_eq!(when(TimeOrNow::SpecificTime(time(seconds, part))), When::At(seconds, part));
        }
    }
}
