//! A draft: a file beside another that is to take its place, when it is whole.
//!
//! It has no name as long as it is written, where the file system has such files; else a name of its own. Guarantee:
//! the other file is there, as it was, until the draft is, by one step. A draft that is dropped is gone. Of one whose
//! writer was killed nothing stays, or a file `.NAME.ramfold-new`, which [`clear`] takes away.

use super::calls::Calls;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, openat, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that is to take the place of another. Its owner alone may read it.
#[derive(Debug)]
pub(super) struct Draft {
    file: Option<File>,
    target: PathBuf,
    /// Its own name, if it has one.
    name: Option<PathBuf>,
}

impl Draft {
    /// An empty one, for this place. Only one may be made for it at a time: who makes it has locked what is there.
    pub(super) fn new(target: &Path) -> Result<Self, Errno> {
        match open(directory(target), FLAGS | OFlags::TMPFILE, OWNER) {
            Ok(file) => Ok(Self { file: Some(file.into()), target: target.to_owned(), name: None }),
            // File systems without such files, and kernels that take it for an attempt to write the directory.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(target),
            Err(errno) => Err(errno),
        }
    }

    fn named(target: &Path) -> Result<Self, Errno> {
        clear(target);
        let name = beside(target);
        let file = openat(CWD, &name, FLAGS | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, OWNER)?;
        Ok(Self { file: Some(file.into()), target: target.to_owned(), name: Some(name) })
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        self.file.as_ref().expect("a draft has a file until it is taken")
    }

    /// Gives it its place, where nothing is.
    pub(super) fn appear(self) -> Result<File, Errno> {
        self.link(&self.target)?;
        Ok(self.taken())
    }

    /// Gives it its place.
    pub(super) fn replace(mut self, calls: &dyn Calls) -> std::io::Result<File> {
        if self.name.is_none() {
            clear(&self.target);
            let name = beside(&self.target);
            self.link(&name)?;
            self.name = Some(name);
        }
        let name = self.name.take().expect("it was given a name");
        calls.rename(&name, &self.target).inspect_err(|_| self.name = Some(name))?;
        Ok(self.taken())
    }

    fn link(&self, to: &Path) -> Result<(), Errno> {
        match &self.name {
            Some(name) => linkat(CWD, name, CWD, to, AtFlags::empty()),
            None => {
                let open = format!("/proc/self/fd/{}", self.file().as_raw_fd());
                linkat(CWD, open, CWD, to, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }

    fn taken(mut self) -> File {
        self.file.take().expect("a draft has a file until it is taken")
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlink(name);
        }
    }
}

/// Takes away what a writer left behind that was killed.
pub(super) fn clear(target: &Path) {
    let _ = unlink(beside(target));
}

fn directory(target: &Path) -> &Path {
    target.parent().unwrap_or(Path::new("/"))
}

/// The name of a draft.
fn beside(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".ramfold-new");
    target.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::super::calls::System;
    use super::*;
    use std::fs;
    use std::io::Write;

    fn names(directory: &Path) -> usize {
        directory.read_dir().unwrap().count()
    }

    #[test]
    fn a_draft_takes_its_place_as_a_whole_or_leaves_nothing() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = directory.path().join("file");
        for make in [Draft::new, Draft::named] {
            let draft = make(&target).unwrap();
            draft.file().write_all(b"first").unwrap();
            assert!(!target.exists());
            draft.appear().unwrap();
            assert_eq!(make(&target).unwrap().appear().unwrap_err(), Errno::EXIST);
            drop(make(&target).unwrap());
            let draft = make(&target).unwrap();
            draft.file().write_all(b"second").unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"first");
            // What another writer has left behind does not keep it.
            let left = beside(&target);
            if draft.name.is_none() {
                fs::write(&left, "half").unwrap();
            }
            draft.replace(&System).unwrap();
            assert_eq!((fs::read(&target).unwrap(), names(directory.path())), (b"second".to_vec(), 1));
            fs::remove_file(&target).unwrap();
        }
    }
}
