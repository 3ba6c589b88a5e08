//! What the kernel of the mount may believe for long: what is watched, and noted to be looked at.
//!
//! A regular file is watched from when it is first looked up, a directory from when something is first looked up in it
//! or it is first listed; each before it is looked at for an answer, so what changes after the look is told. A mark
//! keeps the file's inode in the kernel's memory. So files that are only looked up are watched while there are no more
//! than may be looked at, nor than half of what may be watched: the rest is for those that are opened.

use super::Tree;
use crate::believed::Believed;
use crate::nodes::{At, Node};
use crate::stamp::{Identity, Stamp, look};
use crate::watch::Watch;
use rustix::fs::{CWD, FileType, Mode, OFlags, Statx, ioctl_getflags, openat};
use rustix::io::Errno;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Most nodes that are looked at again and again: some hundredths of a processor.
const MOST_LOOKS: usize = 32 << 10;
/// Most directories that are watched.
const MOST_DIRECTORIES: usize = 64 << 10;
/// FS_ENCRYPT_FL and FS_CASEFOLD_FL (include/uapi/linux/fs.h).
const OTHER_NAMES: u32 = 0x800 | 0x4000_0000;

/// Whether a name in a directory leads where it leads until that is told. Not where upper and lower case are one: of a
/// name that comes or goes all spellings do, and one is told. Nor where names are encrypted: with a key that comes or
/// goes all are others, and none is told.
fn has_plain_names(directory: &At) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = openat(directory, c".", flags, Mode::empty()) else { return false };
    // A file system without such flags has no such directories.
    ioctl_getflags(directory).map_or(true, |flags| flags.bits() & OTHER_NAMES == 0)
}

impl Tree {
    /// As many notes as there may be files.
    pub(super) fn notes(most_files: usize) -> Believed {
        Believed::new(most_files.min(MOST_LOOKS))
    }

    /// From now on somebody has the kernel forget names that are told. `may_lose`: if some are lost, all of them.
    pub(crate) fn watch_names(&self, may_lose: bool) {
        let most = self.cache.most_files().min(MOST_DIRECTORIES);
        // Where none are lost is better: what is mounted on a name goes with it when all are forgotten.
        let begin =
            || Watch::of_names(most, true).or_else(|| Watch::of_names(most, false).filter(|_| may_lose));
        self.names.get_or_init(|| begin().filter(|_| self.tells));
    }

    pub(crate) fn names_watch(&self) -> Option<&Arc<Watch>> {
        self.names.get()?.as_ref()
    }

    pub(crate) fn files_watch(&self) -> Option<&Arc<Watch>> {
        self.cache.watch()
    }

    pub(crate) fn believed(&self) -> &Believed {
        &self.believed
    }

    /// The directory of a place, if the kernel knows it.
    pub(crate) fn directory_of(&self, place: &Path) -> Option<u64> {
        let above = openat(CWD, place.parent()?, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        self.nodes.number(Identity::of(&look(above).ok()?))
    }

    /// What can be seen of changes of a node.
    pub(crate) fn stamp(&self, number: u64) -> Result<Stamp, Errno> {
        self.node(number)?.at().and_then(Stamp::now)
    }

    /// Whether changes of a regular file by others are told, if somebody looks it up.
    #[must_use]
    pub fn tells(&self, node: &Node) -> bool {
        let is_refused = matches!(node.watched.get(), Some(None));
        self.tells && node.kind == FileType::RegularFile && self.nodes.is_own(node) && !is_refused
    }

    /// Whether names that come and go in this directory are told from now on.
    #[must_use]
    pub fn tells_names(&self, number: u64) -> bool {
        let Some(watch) = self.names_watch() else { return false };
        self.node(number).is_ok_and(|node| self.watch_directory(&node, watch))
    }

    fn watch_directory(&self, node: &Node, watch: &Arc<Watch>) -> bool {
        node.watched.get_or_init(|| {
            let at =
                node.at().ok().filter(|_| node.kind == FileType::Directory && self.nodes.is_own(node))?;
            if !has_plain_names(&at) {
                return None;
            }
            watch.begin((node.number, node.identity.dev), at)
        });
        node.watched().is_some()
    }

    /// Watches a regular file, where that is to be had.
    pub(super) fn watch(&self, node: &Node, is_open: bool) {
        let Some(watch) = self.files_watch().filter(|_| node.kind == FileType::RegularFile) else { return };
        let is_full = || watch.count() >= MOST_LOOKS.min(self.cache.most_files() / 2);
        if !is_open && (node.watched.get().is_some() || !self.tells(node) || is_full()) {
            return;
        }
        node.watched.get_or_init(|| {
            let at = node.at().ok()?;
            watch.begin((node.number, node.identity.dev), at)
        });
        // What was used before it was watched.
        if let (Some(watched), Some(used)) = (node.watched(), node.used.get()) {
            self.cache.watched(&used.file, watched.told());
        }
    }

    /// A node that the kernel is about to be told of once more: everything that is told of it, and whether whoever
    /// changes it later is told of.
    pub(super) fn look_at(&self, node: &Node) -> Result<(Statx, bool), Errno> {
        self.watch(node, false);
        let is_watched = node.watched().is_some();
        let mut told = node.at().and_then(look)?;
        self.show(node, &mut told, false);
        Ok((told, is_watched))
    }

    /// Whether the kernel may believe this for so long. It was watched before it was looked at.
    #[must_use]
    pub fn may_believe(&self, node: &Node, told: &Statx, hold: Duration) -> bool {
        node.watched().is_some_and(|watched| self.believed.tell(&watched.told(), Stamp::of(told), hold))
    }

    /// Whether what the kernel has of a file or directory is of this version. If not, it is about to drop that, and has
    /// what is of this one only.
    pub(super) fn is_held(&self, node: &Node, stamp: Stamp) -> bool {
        let mut held = node.held.get_or_init(Box::default).lock().unwrap_or_else(PoisonError::into_inner);
        let now = Some(stamp).filter(|stamp| self.cache.is_settled(stamp));
        let is_held = now.is_some() && *held == now;
        *held = now;
        is_held
    }
}
