//! Memory cgroups: one without swap, where a process that goes over the limit is killed; and ones that only count.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Removed on drop, and its members with it: kept until the program that it holds has ended.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A group of `limit` bytes; says why not and gives None where there is no memory controller.
    pub fn without_swap(limit: u64) -> Option<Self> {
        let Some(group) = Self::new() else {
            super::need::skip("no memory cgroup controller");
            return None;
        };
        if group.is_of_version_one() {
            group.set("memory.limit_in_bytes", limit);
            group.set("memory.swappiness", 0);
        } else {
            group.set("memory.max", limit);
            group.set("memory.swap.max", 0);
        }
        Some(group)
    }

    /// A group without a limit; None where this user cannot make one.
    pub fn new() -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ramfold-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let (one, two) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let of_version_one = one.join("memory.limit_in_bytes").exists();
        if !of_version_one && fs::write(two.join("cgroup.subtree_control"), "+memory").is_err() {
            return None;
        }
        let path = if of_version_one { one } else { two }.join(name);
        fs::create_dir(&path).ok().map(|()| Self(path))
    }

    /// Bytes of anonymous memory that its members have resident, each page counted once, all at the same moment.
    pub fn anonymous(&self) -> u64 {
        let name = if self.is_of_version_one() { "rss " } else { "anon " };
        let stat = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        stat.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap()
    }

    fn is_of_version_one(&self) -> bool {
        self.0.join("memory.limit_in_bytes").exists()
    }

    /// Makes `command` start as a member.
    pub fn contain(&self, command: &mut Command) {
        let procs = self.0.join("cgroup.procs");
        // SAFETY: between fork and exec the closure only opens, writes and closes a file.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    fn set(&self, file: &str, value: u64) {
        let path = self.0.join(file);
        fs::write(&path, value.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Cgroup {
    /// Members that have just ended may need a moment to leave; who was to outlive its run is killed.
    fn drop(&mut self) {
        for attempt in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            if attempt == 50 {
                let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
                for member in members.lines().filter_map(|line| line.parse().ok()) {
                    // SAFETY: plain integers; only a process that is in this group gets here.
                    unsafe { libc::kill(member, libc::SIGKILL) };
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
