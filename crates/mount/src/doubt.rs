//! Doubt: what the kernel of the mount believes of a file is taken back when somebody else changes the file.
//!
//! Two threads. The first waits for what is told of files that are watched, and has the kernel forget their attributes.
//! That waits for nobody, so each read(2) from then on asks for the attributes again, and the kernel drops its pages if
//! they have changed. The second has it drop the pages at once, for mappings and for changes that left the time of
//! modification as it was. That waits for reads of these pages which are under way, and so for the source.
//!
//! Order: an answer that was on its way when its file changed cannot be believed for longer than till then. It belongs
//! to a request that the kernel made before it was told to forget, and the kernel passes over such an answer (its
//! `attr_version`). Only answers to a getattr are so; no others hold.
//!
//! Never called by who answers requests: dropping pages waits for answers. Price: two threads that sleep. Guarantee: a
//! change that was told is asked for by every read(2) that begins after the first thread has run.

use crate::watch::Watch;
use fuser::{INodeNo, Notifier};
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The best niceness.
const FIRST: i32 = -20;
/// From here on all pages.
const ALL: i64 = 0;
/// None.
const ATTRIBUTES: i64 = -1;

#[derive(Debug, Default)]
struct Waiting {
    nodes: HashSet<u64>,
    has_ended: bool,
}

/// Nodes whose pages are to be dropped.
#[derive(Debug, Default)]
struct Pages {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Pages {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, nodes: &HashSet<u64>) {
        self.waiting().nodes.extend(nodes);
        self.more.notify_one();
    }

    fn end(&self) {
        self.waiting().has_ended = true;
        self.more.notify_one();
    }

    /// Nodes, as soon as there are any. None at the end.
    fn take(&self) -> Option<HashSet<u64>> {
        let is_idle = |waiting: &mut Waiting| waiting.nodes.is_empty() && !waiting.has_ended;
        let mut waiting =
            self.more.wait_while(self.waiting(), is_idle).unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut waiting.nodes)).filter(|_| !waiting.has_ended)
    }
}

/// The threads, until this is dropped. The connection has ended by then: nobody waits for an answer.
#[derive(Debug)]
pub(crate) struct Doubt {
    watch: Arc<Watch>,
    pages: Arc<Pages>,
    threads: Vec<JoinHandle<()>>,
}

impl Doubt {
    /// Tells the kernel of the mount of all that this watch tells.
    ///
    /// # Errors
    /// There are no threads to be had.
    pub(crate) fn begin(watch: Arc<Watch>, kernel: &Notifier) -> io::Result<Self> {
        let mut doubt = Self { watch, pages: Arc::default(), threads: vec![] };
        let (watch, pages, told) = (Arc::clone(&doubt.watch), Arc::clone(&doubt.pages), kernel.clone());
        doubt.threads.push(Builder::new().name("ramfold-doubt".to_owned()).spawn(move || {
            // On a busy machine others read what has changed for as long as this thread waits. Only root may.
            let _ = setpriority_process(Some(gettid()), FIRST);
            while let Some(nodes) = watch.wait() {
                forget(&told, &nodes, ATTRIBUTES);
                pages.add(&nodes);
            }
        })?);
        let (pages, told) = (Arc::clone(&doubt.pages), kernel.clone());
        doubt.threads.push(Builder::new().name("ramfold-drop".to_owned()).spawn(move || {
            while let Some(nodes) = pages.take() {
                forget(&told, &nodes, ALL);
            }
        })?);
        Ok(doubt)
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        self.watch.end();
        self.pages.end();
        for thread in self.threads.drain(..) {
            // One that has panicked has ended the process.
            let _ = thread.join();
        }
    }
}

fn forget(kernel: &Notifier, nodes: &HashSet<u64>, from: i64) {
    for node in nodes {
        // A kernel that does not know the node believes nothing of it; one that has ended needs not be told.
        let _ = kernel.inval_inode(INodeNo(*node), from, 0);
    }
}
