//! A memory cgroup of one's own: version 1 (a `memory` hierarchy) or version 2, whichever has the memory controller.
//!
//! Version 1 does not charge zswap's pool to the group, version 2 does; [`Cgroup::charges_zswap`] says which, because
//! a comparison at equal memory must add the pool in one case only.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A group that is removed when dropped, with what still runs in it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Makes a group named `name` at the top of the hierarchy.
    ///
    /// # Errors
    /// No memory controller is mounted, or this user may not make groups.
    pub fn new(name: &str) -> Result<Self> {
        let (root, version) = hierarchy()?;
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
        Ok(Self { path, version })
    }

    /// Most bytes of memory; what is over goes to swap.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        self.write(file, bytes)
    }

    /// No swap at all: over the limit, a process is killed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forbid_swap(&self) -> Result<()> {
        match self.version {
            Version::One => self.write("memory.swappiness", 0),
            Version::Two => self.write("memory.swap.max", 0),
        }
    }

    /// Makes `command` start as a member of the group.
    pub fn contain(&self, command: &mut Command) {
        let procs = self.path.join("cgroup.procs");
        // SAFETY: between fork and exec the closure opens, writes and closes a file; it takes no lock that another
        // thread could hold, and the path's C string is short enough to be built on the stack.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    /// Bytes of anonymous and shared memory that the group's processes have resident.
    ///
    /// # Errors
    /// The statistics cannot be read.
    pub fn resident(&self) -> Result<u64> {
        match self.version {
            Version::One => Ok(self.stat("total_rss")? + self.stat("total_shmem")?),
            Version::Two => Ok(self.stat("anon")? + self.stat("shmem")?),
        }
    }

    /// Faults that had to wait for swap or a file since the group was made.
    ///
    /// # Errors
    /// The statistics cannot be read.
    pub fn major_faults(&self) -> Result<u64> {
        self.stat("pgmajfault")
    }

    /// Whether the kernel killed a process of the group because it could not keep the limit.
    ///
    /// # Errors
    /// The statistics cannot be read.
    pub fn ran_out(&self) -> Result<bool> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        Ok(self.value(file, "oom_kill")? > 0)
    }

    /// Whether limits include zswap's compressed pages on this machine.
    ///
    /// # Errors
    /// As [`Cgroup::new`].
    pub fn charge_zswap() -> Result<bool> {
        Ok(Self::new(&format!("ramfold-bench-probe-{}", std::process::id()))?.charges_zswap())
    }

    /// Whether the limit includes zswap's compressed pages.
    #[must_use]
    pub fn charges_zswap(&self) -> bool {
        self.version == Version::Two
    }

    fn kill_all(&self) {
        let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for member in members.lines().filter_map(|line| line.parse().ok()) {
            // SAFETY: plain integers; only a process that is in this group gets here.
            unsafe { libc::kill(member, libc::SIGKILL) };
        }
    }

    fn stat(&self, name: &str) -> Result<u64> {
        self.value("memory.stat", name)
    }

    fn value(&self, file: &str, name: &str) -> Result<u64> {
        let path = self.path.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.with_context(|| format!("{} has no {name}", path.display()))?.parse().context("not a number")
    }

    fn write(&self, file: &str, value: u64) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Cgroup {
    /// A process that was just killed or reaped may still be leaving the group.
    fn drop(&mut self) {
        for _ in 0..100 {
            self.kill_all();
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("ramfold-bench: {} is still busy: remove it by hand", self.path.display());
    }
}

fn hierarchy() -> Result<(PathBuf, Version)> {
    let one = Path::new("/sys/fs/cgroup/memory");
    if one.join("memory.limit_in_bytes").exists() {
        return Ok((one.to_owned(), Version::One));
    }
    let two = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(two.join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|controller| controller == "memory") {
        bail!("no memory cgroup controller in /sys/fs/cgroup");
    }
    fs::write(two.join("cgroup.subtree_control"), "+memory")
        .context("cannot enable the memory controller")?;
    Ok((two.to_owned(), Version::Two))
}
