//! Processes of the run that are not managed (too small, static, setuid, in another language's hands): their memory
//! counts against the limit too, so that the managed ones leave room for it.
//!
//! They cannot be asked, so ramfold looks: from the program down all children, by /proc. What is found is late by the
//! time between two looks, and a process whose parent has ended is found no more.

use ramfold_budget::process::{Stat, anonymous};
use ramfold_budget::segment::Segment;
use ramfold_survey::process::children;
use rustix::fs::readlink;
use std::collections::{HashMap, HashSet};

/// What need not be looked at again.
#[derive(Debug, Default)]
pub struct Unmanaged {
    /// [`is_numbered_here`], by process.
    numbered_here: HashMap<u32, bool>,
}

impl Unmanaged {
    /// Bytes that the descendants of `program`, and itself, have beside the managed ones.
    pub fn look(&mut self, segment: &Segment, program: u32) -> u64 {
        let tree = tree(program);
        let managed: HashSet<u32> = segment.processes().iter().map(|process| process.pid).collect();
        let living: HashSet<u32> = tree.iter().map(|(pid, _)| *pid).collect();
        self.numbered_here.retain(|pid, _| living.contains(pid));
        let mut here = |pid| *self.numbered_here.entry(pid).or_insert_with(|| is_numbered_here(pid));
        let others = tree.iter().filter(|(pid, _)| !managed.contains(pid) && here(*pid));
        others.map(|(pid, parent)| of_its_own(*pid, *parent)).sum()
    }
}

/// Whether so much is not managed that it passes the limit by itself: no room that others make would do.
#[derive(Debug, Default)]
pub struct Beyond {
    looks: u32,
}

impl Beyond {
    /// What to say about it, once: when it was so in a number of looks in a row. A process that has just been copied,
    /// or comes to be managed, is found in one or two.
    pub fn look(&mut self, bytes: u64, limit: u64) -> Option<String> {
        const LOOKS: u32 = 5;
        match self.looks {
            LOOKS => return None,
            _ if bytes <= limit => self.looks = 0,
            _ => self.looks += 1,
        }
        let mib = |bytes| bytes >> 20;
        (self.looks == LOOKS).then(|| {
            format!(
                "the limit of {} MiB is passed: programs that are not managed have {} MiB (docs/platform.md tells which \
                 these are: What is not managed)",
                mib(limit),
                mib(bytes)
            )
        })
    }
}

/// Whether the process knows itself by the number it has here: in a container of its own it is entered in the segment
/// under another.
fn is_numbered_here(pid: u32) -> bool {
    let space = |pid: u32| readlink(format!("/proc/{pid}/ns/pid"), Vec::new()).ok();
    space(pid) == space(std::process::id())
}

/// A process and its descendants, each with its parent.
fn tree(root: u32) -> Vec<(u32, u32)> {
    let mut tree = vec![(root, 0)];
    let mut next = 0;
    while let Some((pid, _)) = tree.get(next).copied() {
        tree.extend(children(pid).into_iter().map(|child| (child, pid)));
        next += 1;
    }
    tree
}

/// Bytes of anonymous memory that the process has and its parent has not: before an exec it has the parent's, as a copy
/// that shares all pages (fork) or as the very same (vfork).
fn of_its_own(pid: u32, parent: u32) -> u64 {
    let start_stack = |pid| Stat::of(pid).map(|stat| stat.start_stack);
    let inherited = if start_stack(pid) == start_stack(parent) { anonymous(parent) } else { 0 };
    anonymous(pid).saturating_sub(inherited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_passes_the_limit_by_itself_is_told_once_and_not_for_a_moment() {
        let mut beyond = Beyond::default();
        let mut told = |bytes: &[u64]| bytes.iter().filter_map(|bytes| beyond.look(*bytes, 32 << 20)).count();
        assert_eq!(told(&[33 << 20, 33 << 20, 33 << 20, 33 << 20, 32 << 20, 33 << 20]), 0);
        assert_eq!(told(&[64 << 20; 20]), 1);
        assert_eq!(told(&[0; 20]) + told(&[64 << 20; 20]), 0);
    }

    #[test]
    fn a_child_that_is_not_managed_is_found_and_measured() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = tree(std::process::id());
        let me = std::process::id();
        assert!(found.contains(&(me, 0)) && found.contains(&(child.id(), me)), "{found:?}");
        let start_stack = |pid| Stat::of(pid).unwrap().start_stack;
        assert!(start_stack(me) != start_stack(child.id()), "the child has exec'd");
        // Other threads allocate between its two looks.
        assert!(of_its_own(me, me) < anonymous(me) / 2);
        assert!(anonymous(me) > 0);
        let (_fd, segment) = Segment::create(1 << 30, 0).unwrap();
        let mut unmanaged = Unmanaged::default();
        assert!(is_numbered_here(child.id()));
        assert!(unmanaged.look(&segment, me) > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(anonymous(child.id()), 0);
    }
}
