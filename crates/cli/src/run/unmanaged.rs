//! Processes of the run that are not managed (too small, static, setuid, in another language's hands): their memory
//! counts against the limit too, so that the managed ones leave room for it.
//!
//! They cannot be asked, so ramfold looks: from the program down all children, by /proc. The price is bounded to a
//! hundredth of the time, by looking less often where there is much to look at. What is found is late by that, and a
//! process whose parent has ended is found no more. What a forked child shares with its parent counts twice.

use ramfold_pager::segment::Segment;
use rustix::fs::readlink;
use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

/// Between two looks, in multiples of what one takes.
const REST: u32 = 100;

/// When to look again.
#[derive(Debug)]
pub struct Unmanaged {
    next: Instant,
}

impl Default for Unmanaged {
    fn default() -> Self {
        Self { next: Instant::now() }
    }
}

impl Unmanaged {
    /// Enters what the descendants of `program`, and itself, have beside the managed ones; not at every call.
    pub fn look(&mut self, segment: &Segment, program: u32) {
        let start = Instant::now();
        if start < self.next {
            return;
        }
        let managed: HashSet<u32> = segment.processes().iter().map(|process| process.pid).collect();
        let others = tree(program).into_iter().filter(|pid| !managed.contains(pid) && numbered_here(*pid));
        segment.set_unmanaged(others.map(anonymous).sum());
        self.next = start + (start.elapsed() * REST).min(Duration::from_secs(5));
    }
}

/// A process and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| list.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<_>>())
            .collect();
        tree.extend(children);
        next += 1;
    }
    tree
}

/// Whether the process knows itself by the number it has here: in a container of its own it is entered in the segment
/// under another.
fn numbered_here(pid: u32) -> bool {
    let space = |of: &str| readlink(format!("/proc/{of}/ns/pid"), Vec::new()).ok();
    space(&pid.to_string()) == space("self")
}

/// Bytes of anonymous memory that the process has resident; 0 if it has ended.
fn anonymous(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = statm.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * ramfold::PAGE_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_that_is_not_managed_is_found_and_measured() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let found = tree(std::process::id());
        assert!(found.contains(&std::process::id()) && found.contains(&child.id()), "{found:?}");
        assert!(numbered_here(child.id()) && anonymous(std::process::id()) > 0);
        let (_fd, segment) = Segment::create(1 << 30, 0, [0; 32]).unwrap();
        let mut unmanaged = Unmanaged::default();
        unmanaged.look(&segment, std::process::id());
        assert!(segment.unmanaged() > 0 && segment.in_use() == segment.unmanaged());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(anonymous(child.id()), 0);
    }
}
