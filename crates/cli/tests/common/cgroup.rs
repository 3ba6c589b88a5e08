//! A memory cgroup without swap: over the limit, a process in it is killed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Removed on drop.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A group of `limit` bytes; says why not and gives None where there is no memory controller.
    pub fn without_swap(limit: u64) -> Option<Self> {
        let name = format!("ramfold-test-{}", std::process::id());
        let (one, two) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        if one.join("memory.limit_in_bytes").exists() {
            let group = Self::make(one.join(name));
            group.set("memory.limit_in_bytes", limit);
            group.set("memory.swappiness", 0);
            return Some(group);
        }
        if fs::write(two.join("cgroup.subtree_control"), "+memory").is_err() {
            super::need::skip("no memory cgroup controller");
            return None;
        }
        let group = Self::make(two.join(name));
        group.set("memory.max", limit);
        group.set("memory.swap.max", 0);
        Some(group)
    }

    /// Makes `command` start as a member.
    pub fn contain(&self, command: &mut Command) {
        let procs = self.0.join("cgroup.procs");
        // SAFETY: between fork and exec the closure only opens, writes and closes a file.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    fn make(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    fn set(&self, file: &str, value: u64) {
        let path = self.0.join(file);
        fs::write(&path, value.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Cgroup {
    /// Members that have just ended may need a moment to leave.
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
