//! The tree: what can be done with the source, without a word of FUSE.
//!
//! Each request names nodes by number and is answered from the source by one or two system calls on descriptors, never
//! by a path, so nothing that moves meanwhile is mistaken. [`names`] are requests on directories' entries,
//! [`attributes`] on what files are, [`files`] on their bytes, [`listing`] on directories as a whole. [`privileges`] is
//! what a change of a file ends, [`leases`] what an open waits for, [`belief`] what may be believed of the answers.

mod attributes;
mod belief;
mod files;
mod leases;
mod listing;
mod names;
mod privileges;

pub use crate::callers::Caller;
pub use crate::entries::Listed;
pub use attributes::{Change, Looked, When};
pub use files::{Opened, Which};
pub use listing::OpenedDirectory;
pub use names::Made;

use crate::believed::Believed;
use crate::cache::Cache;
use crate::entries::Listing;
use crate::handles::Handles;
use crate::kept::Kept;
use crate::later::Later;
use crate::nodes::{Node, Nodes, Used};
use crate::stamp::look;
use crate::sys::open_anew;
use crate::watch::{Watch, is_told};
use crate::work::Work;
use files::Open;
use glob::{MatchOptions, Pattern};
use leases::Waits;
use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a node stands for and everything that is told of it.
#[derive(Debug)]
pub struct Found {
    /// The node; the kernel is told of it once more.
    pub node: Arc<Node>,
    /// What was told.
    pub told: Statx,
    /// Whoever changes it later is told of.
    pub is_watched: bool,
}

/// Files that are not worth keeping, by their names.
#[derive(Debug, Default)]
pub struct Excluded {
    /// Where the source is, as the kernel tells it.
    source: PathBuf,
    patterns: Vec<Pattern>,
}

impl Excluded {
    /// Patterns for files below this directory. One without a slash is for names anywhere, one with a slash for paths
    /// from there.
    #[must_use]
    pub fn new(source: &Path, patterns: Vec<Pattern>) -> Self {
        Self { source: source.to_owned(), patterns }
    }

    fn has(&self, node: &Node) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let path = node.at().map(|at| std::fs::read_link(at.way()));
        let Ok(Ok(path)) = path else { return false };
        self.has_path(path.strip_prefix(&self.source).unwrap_or(&path))
    }

    fn has_path(&self, path: &Path) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        self.patterns.iter().any(|pattern| {
            let whole = pattern.as_str().contains('/');
            let name = if whole { path } else { path.file_name().map_or(path, Path::new) };
            pattern.matches_path_with(name, options)
        })
    }
}

/// A source, its nodes and its cache.
#[derive(Debug)]
pub struct Tree {
    nodes: Nodes,
    open: Handles<Open>,
    listings: Handles<Listing>,
    cache: Arc<Cache>,
    excluded: Excluded,
    /// Changes of files on the source's file system are told, of those that are watched.
    tells: bool,
    /// What tells of names that come and go, once somebody listens.
    names: OnceLock<Option<Arc<Watch>>>,
    believed: Believed,
    /// The kernel can read files itself.
    passes: AtomicBool,
    /// It opens files without asking.
    opens_alone: AtomicBool,
    /// And directories.
    lists_alone: AtomicBool,
    /// For who has a lease.
    waits: Waits,
    pub(crate) kept: Kept,
    /// What the kernel is to be told.
    pub(crate) work: Work,
    /// Directories whose entries may be on their way, and are not to be kept.
    pub(crate) old_listings: Later,
}

impl Tree {
    /// The tree below a directory, which is given by a descriptor. `threads`: as many as call it at once.
    ///
    /// # Errors
    /// What the system answers.
    pub fn new(
        source: OwnedFd,
        cache: Arc<Cache>,
        excluded: Excluded,
        threads: usize,
    ) -> Result<Self, Errno> {
        let told = look(&source)?;
        let tells = cache.watch().is_some() && is_told(&source);
        cache.begin(fcntl_dupfd_cloexec(&source, 0)?);
        let nodes = Nodes::new(source, &told);
        let (open, listings) = (Handles::default(), Handles::default());
        let (names, believed) = (OnceLock::new(), Self::notes(cache.most_files()));
        let [passes, opens_alone, lists_alone] = [false; 3].map(AtomicBool::new);
        let waits = Waits::new(threads / 2);
        let (kept, work, old_listings) = (Kept::default(), Work::default(), Later::default());
        Ok(Self {
            nodes,
            open,
            listings,
            cache,
            excluded,
            tells,
            names,
            believed,
            passes,
            opens_alone,
            lists_alone,
            waits,
            kept,
            work,
            old_listings,
        })
    }

    /// Whether there may be files that are not to be kept.
    #[must_use]
    pub fn excludes(&self) -> bool {
        !self.excluded.patterns.is_empty()
    }

    /// The kernel can read files itself. Told before anything is opened.
    pub fn let_pass(&self) {
        self.passes.store(true, Relaxed);
    }

    fn passes(&self) -> bool {
        self.passes.load(Relaxed)
    }

    /// The node of this number.
    ///
    /// # Errors
    /// ESTALE.
    pub fn node(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.nodes.get(number)
    }

    /// The kernel forgets that it was told of a node so many times.
    pub fn forget(&self, number: u64, lookups: u64) {
        self.nodes.forget(number, lookups);
    }

    /// The node of a descriptor that opens nothing.
    fn enter(&self, path: OwnedFd) -> Result<Found, Errno> {
        let told = look(&path)?;
        self.found(self.nodes.enter(path, &told))
    }

    /// A node that the kernel is told of once more.
    fn found(&self, node: Arc<Node>) -> Result<Found, Errno> {
        match self.look_at(&node) {
            Ok((told, is_watched)) => Ok(Found { node, told, is_watched }),
            Err(errno) => {
                self.forget(node.number, 1);
                Err(errno)
            }
        }
    }

    /// Opens what the node stands for.
    fn open_node(node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_anew(node.at()?, flags)
    }

    /// What is known of a regular file that is used now; None of others.
    fn used<'a>(&self, node: &'a Node) -> Option<&'a Used> {
        let is_file = node.kind == FileType::RegularFile;
        let begin = || {
            let file = self.cache.file(node.identity);
            if let Some(watched) = node.watched() {
                self.cache.watched(&file, watched.told());
            }
            Used::new(file)
        };
        is_file.then(|| &**node.used.get_or_init(begin))
    }
}

/// A name of one entry of a directory.
fn check(name: &std::ffi::OsStr) -> Result<(), Errno> {
    let name = name.as_bytes();
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_for_names_or_for_paths() {
        let has = |pattern: &str, path: &str| {
            Excluded::new(Path::new("/"), vec![Pattern::new(pattern).unwrap()]).has_path(Path::new(path))
        };
        assert!(has("*.mp4", "a/b/film.mp4") && has("*.mp4", "film.mp4") && !has("*.mp4", "mp4/text"));
        assert!(has("data/*.bin", "data/a.bin") && !has("data/*.bin", "data/b/a.bin"));
        assert!(has("data/**/*.bin", "data/b/c/a.bin") && !has("*/a", "b/c/a"));
    }
}
