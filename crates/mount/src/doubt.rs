//! Doubt: what the kernel of the mount believes is taken back when somebody else changes it behind the mount.
//!
//! Up to six threads. The first waits for what is told of files ([`crate::watch`]), and has the kernel forget their
//! attributes. That waits for nobody, so each read(2) from then on asks for the attributes again, and the kernel drops
//! its pages if they have changed. The second has it drop the pages at once, for mappings and for changes that left the
//! time of modification as it was. That waits for reads of these pages which are under way, and so for the source. The
//! third has it forget names that came or went, and the attributes of their directories. That waits for what is being
//! asked of the same directory. The fourth looks at what is believed and may not be told ([`crate::believed`]), the
//! fifth waits for mounts in the source ([`crate::mounts`]), and has the names that they are at forgotten. The sixth
//! drops what directories list that nobody tells of, some time after it was given.
//!
//! Order: an answer that was on its way when its file changed cannot be believed for longer than till then. It belongs
//! to a request that the kernel made before it was told to forget, and the kernel passes over such an answer (its
//! `attr_version`), if it knew the node. If it did not, it was told in vain, and is told again until it does.
//! A name is told to be forgotten with its directory locked in the kernel: whoever was looking it up has its answer by
//! then, and who asks the same of a name that the kernel had takes nothing but that name's old place, which is gone.
//! Answers to what makes and changes files have no such order, and hold for nothing.
//! What a directory lists is dropped at once, and again when one of its names has been told to be forgotten: whoever
//! was listing it has taken in his answer by then, so the kernel keeps nothing that was read before the change. Kernels
//! after Linux 6.18 do not wait where they do not know the name; for them, and where names were lost, it is dropped
//! once more some time later ([`crate::pages`]).
//!
//! Never called by who answers requests: dropping pages and names waits for answers. Price: threads that sleep.
//! Guarantee: a change that was told is asked for by every read(2), stat and look at a name that begins after these
//! threads have run. When events are lost, everything is asked for anew.

use crate::fuse::notify::Kernel;
use crate::mounts::Mounts;
use crate::tree::Tree;
use crate::watch::{Doubtful, Watch};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The best niceness.
const FIRST: i32 = -20;
/// Before the kernel is told again what it was told in vain.
const AGAIN: Duration = Duration::from_millis(2);

/// What the threads share.
#[derive(Debug)]
struct Shared {
    kernel: Kernel,
    tree: Arc<Tree>,
    mounts: Option<Mounts>,
}

/// The threads, until this is dropped. The connection has ended by then: nobody waits for an answer.
#[derive(Debug)]
pub(crate) struct Doubt {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Doubt {
    /// Tells the kernel of the mount of all that is told of the source, and of mounts in it. From now on the kernel may
    /// believe names.
    ///
    /// # Errors
    /// There are no threads to be had.
    pub(crate) fn begin(tree: Arc<Tree>, kernel: Kernel, mounts: Option<Mounts>) -> io::Result<Self> {
        tree.watch_names(kernel.forget_all_names().is_ok());
        let (files, names) = (tree.files_watch().cloned(), tree.names_watch().cloned());
        let shared = Arc::new(Shared { kernel, tree, mounts });
        let mut doubt = Self { shared, threads: vec![] };
        if let Some(files) = files {
            doubt.spawn("ramfold-doubt", move |shared| {
                be_first();
                shared.doubt(&files, |doubtful| shared.tree.old_pages.add(doubtful.nodes));
            })?;
            doubt.spawn("ramfold-drop", |shared| shared.drop_pages())?;
        }
        if let Some(names) = names {
            doubt.spawn("ramfold-names", move |shared| {
                be_first();
                shared.doubt(&names, |doubtful| shared.forget_names(&doubtful));
            })?;
            doubt.spawn("ramfold-mounts", |shared| shared.forget_mounts())?;
            doubt.spawn("ramfold-lists", |shared| shared.drop_listings())?;
        }
        doubt.spawn("ramfold-look", |shared| shared.look())?;
        doubt.spawn("ramfold-close", |shared| shared.tree.kept.close_unused())?;
        Ok(doubt)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.threads.push(Builder::new().name(name.to_owned()).spawn(move || work(&shared))?);
        Ok(())
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        let tree = &self.shared.tree;
        tree.files_watch().into_iter().chain(tree.names_watch()).for_each(|watch| watch.end());
        tree.believed().end();
        tree.old_pages.end();
        tree.old_listings.end();
        tree.kept.end();
        self.shared.mounts.iter().for_each(Mounts::end);
        for thread in self.threads.drain(..) {
            // One that has panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// On a busy machine others believe what has changed for as long as such a thread waits.
fn be_first() {
    be_before(FIRST);
}

/// Gives this thread a niceness. Only root may have one below 0.
pub(crate) fn be_before(niceness: i32) {
    let _ = setpriority_process(Some(gettid()), niceness);
}

impl Shared {
    /// Has the kernel forget the attributes of all that is told, and then does the rest.
    fn doubt(&self, watch: &Watch, rest: impl Fn(Doubtful)) {
        let mut in_vain = HashSet::new();
        while let Some(doubtful) = watch.wait(Some(AGAIN).filter(|_| !in_vain.is_empty())) {
            in_vain.extend(&doubtful.nodes);
            in_vain.retain(|node| !self.forget_attributes(*node));
            rest(doubtful);
        }
    }

    /// False if the kernel may be about to know of a node what it should forget.
    fn forget_attributes(&self, node: u64) -> bool {
        self.kernel.forget_attributes(node) || self.tree.node(node).is_err()
    }

    fn forget_names(&self, doubtful: &Doubtful) {
        let lists_alone = self.tree.lists_alone();
        if lists_alone {
            // What they list, whatever their times tell. An answer may be on its way.
            self.tree.old_pages.add(doubtful.nodes.iter().copied());
            self.tree.old_listings.add(doubtful.nodes.iter().copied());
        }
        if doubtful.all_names {
            let done = self.kernel.forget_all_names();
            // Such a kernel was to be told of all.
            assert_ne!(done, Err(Errno::INVAL), "names that changed behind the mount are not known any more");
        }
        let mut awaited = HashSet::new();
        for (directory, name) in &doubtful.names {
            self.kernel.forget_name(*directory, name);
            // It has arrived.
            if lists_alone && awaited.insert(*directory) {
                self.tree.old_pages.add([*directory]);
            }
        }
    }

    fn forget_mounts(&self) {
        while let Some(places) = self.mounts.as_ref().and_then(Mounts::wait) {
            for place in places {
                if let (Some(directory), Some(name)) = (self.tree.directory_of(&place), place.file_name()) {
                    self.kernel.forget_name(directory, name);
                }
            }
        }
    }

    fn drop_pages(&self) {
        be_first();
        while let Some(nodes) = self.tree.old_pages.take() {
            for node in nodes {
                // A kernel that does not know the node has no pages of it.
                let _ = self.kernel.forget_pages(node);
            }
        }
    }

    fn drop_listings(&self) {
        be_first();
        while let Some(directories) = self.tree.old_listings.take_later() {
            for directory in directories {
                self.kernel.wait_for_answers(directory);
                let _ = self.kernel.forget_pages(directory);
            }
        }
    }

    /// Looks at what is believed.
    fn look(&self) {
        be_first();
        let believed = self.tree.believed();
        while let Some(all) = believed.wait() {
            for file in all {
                if believed.is_right(&file, self.tree.stamp(file.node).ok()) {
                    believed.keep(file);
                    continue;
                }
                // In this order: what is told from here on is looked at.
                believed.forget(&file);
                if !self.forget_attributes(file.node) {
                    believed.doubt(&file);
                }
            }
        }
    }
}
