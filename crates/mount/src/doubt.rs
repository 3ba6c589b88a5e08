//! Doubt: what the kernel of the mount believes is taken back when somebody else changes it behind the mount.
//!
//! One thread waits for what is told of files ([`crate::watch`]), one for what is told of directories. Both have the
//! kernel forget attributes. That waits for nobody, so each read(2) from then on asks for the attributes again, and the
//! kernel drops its pages if they have changed. The rest waits for answers, and so for the source: it is left to
//! workers, each of whom waits at one node ([`crate::work`]). They have the kernel drop pages at once, for mappings and
//! for changes that left the time of modification as it was, and have it forget names that came or went. Further
//! threads look at what is believed and may not be told ([`crate::believed`]), wait for mounts in the source
//! ([`crate::mounts`]), whose names are forgotten, and wait until what directories list that nobody tells of is old.
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
//! once more some time later ([`crate::later`]).
//!
//! Never called by who answers requests: dropping pages and names waits for answers. Price: threads that sleep.
//! Guarantee: a change that was told is asked for by every read(2), stat and look at a name that begins after these
//! threads have run; where others wait for answers of the same node, after these came. When events are lost,
//! everything is asked for anew.

use crate::fuse::notify::Kernel;
use crate::mounts::Mounts;
use crate::tree::Tree;
use crate::watch::{Doubtful, Watch};
use crate::work::Due;
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
    /// believe names. `workers`: as many as threads that answer requests.
    ///
    /// # Errors
    /// There are no threads to be had.
    pub(crate) fn begin(
        tree: Arc<Tree>,
        kernel: Kernel,
        mounts: Option<Mounts>,
        workers: usize,
    ) -> io::Result<Self> {
        tree.watch_names(kernel.forget_all_names().is_ok());
        let (files, names) = (tree.files_watch().cloned(), tree.names_watch().cloned());
        let shared = Arc::new(Shared { kernel, tree, mounts });
        let mut doubt = Self { shared, threads: vec![] };
        for _ in 0..workers {
            doubt.spawn("ramfold-tell", |shared| {
                be_first();
                shared.tree.work.serve(|node, due| shared.tell(node, due));
            })?;
        }
        if let Some(files) = files {
            doubt.spawn("ramfold-doubt", move |shared| {
                be_first();
                shared.doubt(&files, |doubtful| shared.tree.work.drop_pages(doubtful.nodes));
            })?;
        }
        if let Some(names) = names {
            doubt.spawn("ramfold-names", move |shared| {
                be_first();
                shared.doubt(&names, |doubtful| shared.forget_names(doubtful));
            })?;
            doubt.spawn("ramfold-mounts", |shared| shared.forget_mounts())?;
            doubt.spawn("ramfold-lists", |Shared { tree, .. }| {
                while let Some(directories) = tree.old_listings.take() {
                    tree.work.drop_answers(directories);
                }
            })?;
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
        tree.work.end();
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

    fn forget_names(&self, doubtful: Doubtful) {
        let Doubtful { nodes, names, all_names } = doubtful;
        if self.tree.lists_alone() {
            // What they list, whatever their times tell. An answer may be on its way.
            self.tree.old_listings.add(nodes.iter().copied());
            self.tree.work.drop_pages(nodes);
        }
        if all_names {
            let done = self.kernel.forget_all_names();
            // Such a kernel was to be told of all.
            assert_ne!(done, Err(Errno::INVAL), "names that changed behind the mount are not known any more");
        }
        self.tree.work.forget_names(names);
    }

    fn forget_mounts(&self) {
        while let Some(places) = self.mounts.as_ref().and_then(Mounts::wait) {
            for place in places {
                if let (Some(directory), Some(name)) = (self.tree.directory_of(&place), place.file_name()) {
                    self.tree.work.forget_names([(directory, name.to_owned())]);
                }
            }
        }
    }

    /// Tells the kernel what is due of a node. One that does not know the node has no pages of it.
    fn tell(&self, node: u64, due: &Due) {
        if due.pages {
            let _ = self.kernel.forget_pages(node);
        }
        due.names.iter().for_each(|name| self.kernel.forget_name(node, name));
        if due.answers {
            self.kernel.wait_for_answers(node);
        }
        // What was being listed has arrived.
        if due.answers || !due.names.is_empty() && self.tree.lists_alone() {
            let _ = self.kernel.forget_pages(node);
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
