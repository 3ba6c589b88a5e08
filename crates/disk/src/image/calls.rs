//! The system calls by which an image changes.
//!
//! They stand behind a trait so that a test can note each, and let it fail: what is left by a power cut after any of
//! them, and after an error of any of them, is then a matter of trying.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What makes the changes.
pub trait Calls: Debug + Send + Sync {
    /// Writes all bytes at a place of the file.
    ///
    /// # Errors
    /// The system's.
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Returns when all of the file will be there after a power cut.
    ///
    /// # Errors
    /// The system's. What was written since the last success is then in doubt for good.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// The same, of its bytes and its length.
    ///
    /// # Errors
    /// As [`Calls::sync`].
    fn sync_data(&self, file: &File) -> io::Result<()>;

    /// Puts one name in the place of another.
    ///
    /// # Errors
    /// The system's. Nothing was changed then.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Returns when what the directory says of this file will be so after a power cut.
    ///
    /// # Errors
    /// The system's.
    fn sync_directory_of(&self, path: &Path) -> io::Result<()>;
}

/// The system.
#[derive(Debug)]
pub struct System;

impl Calls for System {
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::rename(from, to)?)
    }

    fn sync_directory_of(&self, path: &Path) -> io::Result<()> {
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}
