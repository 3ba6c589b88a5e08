//! The swap file: where the file tier's bytes lie.
//!
//! A directory gets an unlinked file, which is gone with the last process that has it open, however that ends. A
//! file that is named stays, and is taken again by the next run; it is marked by an extended attribute, so that
//! no file of another kind is ever written over, and locked, so that no two runs share it unknowingly.

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, XattrFlags, fchmod, fgetxattr, flock, fsetxattr,
    fstat, fstatfs, fstatvfs, ftruncate, openat, stat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Where the swap file is made when no place is named: on disk on every system, unlike `/tmp`.
const DEFAULT_DIRECTORY: &str = "/var/tmp";
/// Marks a named file as a swap file.
const MARK: &str = "user.ramfold.swap";
/// The least free space that is worth beginning with: an extent.
const LEAST_FREE: u64 = super::file::EXTENT_BYTES as u64;

/// Why there is no swap file. The messages do not repeat the path.
#[derive(Debug, thiserror::Error)]
pub enum OpenSwapError {
    /// there is no such directory
    #[error("there is no such directory")]
    NoDirectory,
    /// no permission to make or open a file there
    #[error("no permission to make or open a file there")]
    NoPermission,
    /// the file system keeps its files in memory, which would save none
    #[error("{0} keeps its files in memory, so writing there would save none")]
    InMemory(&'static str),
    /// the file system is mounted read-only
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// no space is left on the file system
    #[error("no space is left on the file system")]
    NoSpace,
    /// it is neither a directory nor a regular file
    #[error("it is neither a directory nor a regular file")]
    NotAFile,
    /// the file is not empty and was not made by ramfold
    #[error("the file is not empty and was not made by ramfold")]
    NotEmpty,
    /// another run uses the file
    #[error("another run uses the file")]
    InUse,
    /// the file could not be opened
    #[error("the file could not be opened: {0}")]
    Io(std::io::Error),
}

impl From<Errno> for OpenSwapError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NoDirectory,
            Errno::ACCESS | Errno::PERM => Self::NoPermission,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::WOULDBLOCK => Self::InUse,
            errno => Self::Io(errno.into()),
        }
    }
}

/// Opens a swap file, readable and writable by its owner only and closed on exec: unlinked in the directory
/// `path` (by default `/var/tmp`), or the file `path`, which is made if it does not exist.
///
/// # Errors
/// [`OpenSwapError`], in one line. A file in memory (tmpfs, ramfs) is refused, and so is a file that is not
/// empty unless an earlier call made it and nobody uses it.
pub fn open_swap(path: Option<&Path>) -> Result<File, OpenSwapError> {
    let path = path.unwrap_or(Path::new(DEFAULT_DIRECTORY));
    let file = match stat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => unlinked_in(path)?,
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
            return Err(OpenSwapError::NotAFile);
        }
        Ok(_) => existing(path)?,
        Err(Errno::NOENT) => made(path)?,
        Err(errno) => return Err(errno.into()),
    };
    Ok(file)
}

/// How every swap file is opened.
const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// Its mode.
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// An unlinked file in the directory.
fn unlinked_in(directory: &Path) -> Result<File, OpenSwapError> {
    // With O_EXCL it cannot be linked later.
    let file = match openat(CWD, directory, FLAGS | OFlags::TMPFILE | OFlags::EXCL, OWNER) {
        Ok(file) => File::from(file),
        // File systems without O_TMPFILE, and kernels that take it for an attempt to write the directory.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => made_and_unlinked(directory)?,
        Err(errno) => return Err(errno.into()),
    };
    on_disk_with_space(&file)?;
    Ok(file)
}

/// The same for file systems without `O_TMPFILE`.
fn made_and_unlinked(directory: &Path) -> Result<File, OpenSwapError> {
    for attempt in 0..100 {
        let path = directory.join(format!(".ramfold-swap-{}-{attempt}", std::process::id()));
        match openat(CWD, &path, FLAGS | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, OWNER) {
            Ok(file) => {
                unlinkat(CWD, &path, AtFlags::empty())?;
                return Ok(file.into());
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// A new file under its name. If it turns out to be of no use, it is taken away again.
fn made(path: &Path) -> Result<File, OpenSwapError> {
    let file = File::from(openat(CWD, path, FLAGS | OFlags::CREATE | OFlags::EXCL, OWNER)?);
    match on_disk_with_space(&file).and_then(|()| claim(&file)) {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = unlinkat(CWD, path, AtFlags::empty());
            Err(error)
        }
    }
}

/// A file that was there: an empty one, or the swap file of an earlier run.
fn existing(path: &Path) -> Result<File, OpenSwapError> {
    let file = File::from(openat(CWD, path, FLAGS, Mode::empty())?);
    on_disk(&file)?;
    claim(&file)?;
    fchmod(&file, OWNER)?;
    ftruncate(&file, 0)?;
    on_disk_with_space(&file)?;
    Ok(file)
}

/// Locks and marks a file that is empty or bears the mark.
fn claim(file: &File) -> Result<(), OpenSwapError> {
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    let ours = fgetxattr(file, MARK, &mut [0u8; 8]).is_ok();
    if !ours && fstat(file)?.st_size != 0 {
        return Err(OpenSwapError::NotEmpty);
    }
    // Without attributes the file is refused the next time, unless it is empty.
    let _ = fsetxattr(file, MARK, b"1", XattrFlags::empty());
    Ok(())
}

fn on_disk_with_space(file: &File) -> Result<(), OpenSwapError> {
    on_disk(file)?;
    let space = fstatvfs(file)?;
    let enough = space.f_bavail.saturating_mul(space.f_frsize) >= LEAST_FREE;
    if enough { Ok(()) } else { Err(OpenSwapError::NoSpace) }
}

/// Refuses the file systems whose files are memory.
fn on_disk(file: &File) -> Result<(), OpenSwapError> {
    // From the kernel's include/uapi/linux/magic.h.
    let name = match fstatfs(file)?.f_type {
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x958_458f6 => "hugetlbfs",
        _ => return Ok(()),
    };
    Err(OpenSwapError::InMemory(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/var/tmp").unwrap()
    }

    #[test]
    fn a_directory_gets_an_unlinked_file_of_its_owner() {
        let directory = directory();
        for file in [
            open_swap(Some(directory.path())).unwrap(),
            made_and_unlinked(directory.path()).unwrap(),
            open_swap(None).unwrap(),
        ] {
            let metadata = file.metadata().unwrap();
            assert_eq!((metadata.nlink(), metadata.mode() & 0o7777, metadata.len()), (0, 0o600, 0));
            assert!(fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_named_file_is_made_used_by_one_and_taken_again() {
        let directory = directory();
        let path = directory.path().join("swap");
        let mut file = open_swap(Some(&path)).unwrap();
        file.write_all(b"sealed").unwrap();
        assert!(matches!(open_swap(Some(&path)), Err(OpenSwapError::InUse)));
        assert_eq!(file.metadata().unwrap().len(), 6);
        drop(file);
        let file = open_swap(Some(&path)).unwrap();
        assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().mode() & 0o777), (0, 0o600));
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let directory = directory();
        let path = directory.path().join("thesis");
        std::fs::write(&path, "not swap").unwrap();
        assert!(matches!(open_swap(Some(&path)), Err(OpenSwapError::NotEmpty)));
        assert_eq!(std::fs::read(&path).unwrap(), b"not swap");
        std::fs::write(&path, "").unwrap();
        assert!(open_swap(Some(&path)).is_ok());
    }

    #[test]
    fn each_hindrance_has_its_line() {
        let directory = directory();
        let message = |path: &Path| {
            let message = open_swap(Some(path)).unwrap_err().to_string();
            assert_eq!(message.lines().count(), 1);
            message
        };
        assert_eq!(message(&directory.path().join("no/file")), "there is no such directory");
        assert_eq!(message(Path::new("/dev/null")), "it is neither a directory nor a regular file");
        symlink("nowhere", directory.path().join("link")).unwrap();
        assert!(message(&directory.path().join("link")).starts_with("the file could not be opened"));
        assert!(matches!(OpenSwapError::from(Errno::ACCESS), OpenSwapError::NoPermission));
        assert!(matches!(OpenSwapError::from(Errno::NOSPC), OpenSwapError::NoSpace));
        assert!(matches!(OpenSwapError::from(Errno::ROFS), OpenSwapError::ReadOnly));
    }

    #[test]
    fn files_in_memory_are_refused_and_not_left_behind() {
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("skipped: no /dev/shm");
            return;
        };
        for path in [directory.path().to_owned(), directory.path().join("swap")] {
            let message = open_swap(Some(&path)).unwrap_err().to_string();
            assert!(message.starts_with("tmpfs keeps its files in memory"), "{message}");
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }
}
