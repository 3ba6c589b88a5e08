//! How much memory a process and its descendants have resident, seen from outside.

pub use ramfold_survey::process::{children, tree};

use super::cgroup::Cgroup;
use ramfold_budget::process::Stat;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// Looks every 10 ms until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Sampler {
    /// Of the tree of `root`; see [`of_tree`] for `group` and `bound`.
    pub fn start(root: u32, group: Option<Arc<Cgroup>>, bound: u64) -> Self {
        Self::of(move || of_tree(root, group.as_deref(), bound))
    }

    /// Of what `look` tells.
    pub fn of(look: impl Fn() -> u64 + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let watch = move || {
            let mut peak = 0;
            while !seen.load(Ordering::Relaxed) {
                peak = peak.max(look());
                sleep(Duration::from_millis(10));
            }
            peak
        };
        Self { ended, thread: spawn(watch) }
    }

    /// The highest number that was seen.
    pub fn stop(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Bytes of anonymous memory of the tree of `root`, and of shared memory counted once.
///
/// Resident sizes count a page once for each process that shares it after fork, and what goes from one process to the
/// next while they are read twice. That is enough while the sum is within `bound`; beyond it what the memory cgroup
/// counts decides, that is, each page once and all at the same moment; without one, the proportional sizes, read
/// three times.
pub fn of_tree(root: u32, group: Option<&Cgroup>, bound: u64) -> u64 {
    let tree = tree(root);
    let (anonymous, shared) = sizes(&tree);
    if anonymous + shared <= bound {
        return anonymous + shared;
    }
    if let Some(group) = group {
        return group.anonymous() + shared;
    }
    let proportional = |pid: &u32| {
        let process = fields(*pid, "smaps_rollup");
        size(&process, "Pss_Anon") + size(&process, "Pss_Shmem")
    };
    let sum = || tree.iter().map(proportional).sum::<u64>();
    std::iter::repeat_with(sum).take(3).find(|sum| *sum <= bound).unwrap_or_else(sum)
}

/// By the sizes that the kernel keeps: bytes of anonymous memory of these processes, and the most that one of them has
/// of shared memory.
fn sizes(tree: &[u32]) -> (u64, u64) {
    tree.iter().map(|pid| fields(*pid, "status")).fold((0, 0), |(anonymous, shared), process| {
        (anonymous + size(&process, "RssAnon"), u64::max(shared, size(&process, "RssShmem")))
    })
}

/// What [`of_tree`] tells, of a tree in which nobody has pages of its parent's: the sizes that the kernel keeps are
/// right then. Its sums by a walk (smaps_rollup) are not: they have a page twice that went from one address to another
/// meanwhile.
pub fn of_unrelated(root: u32) -> u64 {
    let (anonymous, shared) = sizes(&tree(root));
    anonymous + shared
}

/// Bytes that such a tree ([`of_unrelated`]) and `beside` have together.
///
/// They are not looked at in one moment, and what moves from one to the other meanwhile may count twice: the first of
/// four looks that is within `bound`, or the last.
pub fn with_beside(root: u32, beside: impl Fn() -> u64, bound: u64) -> u64 {
    let look = || {
        let (before, tree, after) = (beside(), of_unrelated(root), beside());
        tree + before.min(after)
    };
    std::iter::repeat_with(look).take(3).find(|sum| *sum <= bound).unwrap_or_else(look)
}

/// The parent of a process that has not ended.
pub fn parent(pid: u32) -> Option<u32> {
    Stat::of(pid).map(|stat| stat.parent)
}

/// The child of a process that has no other.
pub fn only_child(pid: u32) -> u32 {
    let children = children(pid);
    assert_eq!(children.len(), 1, "children of {pid}: {children:?}");
    children[0]
}

/// Bytes of anonymous memory that a process has resident; 0 if it has ended.
pub fn anonymous(pid: u32) -> u64 {
    size(&fields(pid, "status"), "RssAnon")
}

/// The `Name: N kB` lines of a file of /proc/PID, in bytes.
fn fields(pid: u32, file: &str) -> HashMap<String, u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some((name.to_owned(), kib << 10))
    };
    text.lines().filter_map(field).collect()
}

fn size(fields: &HashMap<String, u64>, name: &str) -> u64 {
    fields.get(name).copied().unwrap_or(0)
}
