//! A slow disk: a blkio cgroup (version 1) whose members read from the device under a directory at so many bytes and
//! requests a second. What they write by way of the page cache is not theirs any more when it goes to the device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const HIERARCHY: &str = "/sys/fs/cgroup/blkio";

/// A group that is removed when dropped; its members have ended by then.
#[derive(Debug)]
pub struct Throttle {
    path: PathBuf,
}

impl Throttle {
    /// A group named `name`, for the device under `directory`.
    ///
    /// # Errors
    /// There is no device, or no such controller: who measures says so and goes on without.
    pub fn new(name: &str, directory: &Path, bytes_a_second: u64, requests_a_second: u64) -> Result<Self> {
        let device = device(directory)?;
        let root = Path::new(HIERARCHY);
        ensure!(root.join("blkio.throttle.read_bps_device").exists(), "{HIERARCHY} has no throttling");
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
        let group = Self { path };
        for (file, value) in [
            ("read_bps_device", bytes_a_second),
            ("write_bps_device", bytes_a_second),
            ("read_iops_device", requests_a_second),
            ("write_iops_device", requests_a_second),
        ] {
            let file = group.path.join(format!("blkio.throttle.{file}"));
            fs::write(&file, format!("{device} {value}"))
                .with_context(|| format!("cannot write {device} to {}", file.display()))?;
        }
        Ok(group)
    }

    /// Makes `command` start as a member of the group.
    pub fn contain(&self, command: &mut Command) {
        let procs = self.path.join("cgroup.procs");
        // SAFETY: between fork and exec the closure opens, writes and closes a file; it takes no lock that another
        // thread could hold.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("ramfold-bench: {} is still busy: remove it by hand", self.path.display());
    }
}

/// The numbers of the whole disk that a directory is on, as `8:0`.
fn device(directory: &Path) -> Result<String> {
    let number = fs::metadata(directory).with_context(|| directory.display().to_string())?.dev();
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    let known = Path::new("/sys/dev/block").join(&number);
    if !known.exists() {
        bail!("{} is on no block device ({number})", directory.display());
    }
    if !known.join("partition").exists() {
        return Ok(number);
    }
    let disk = known.canonicalize()?.join("../dev");
    Ok(fs::read_to_string(&disk).with_context(|| disk.display().to_string())?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_no_device_is_told() {
        let told = device(Path::new("/proc")).unwrap_err().to_string();
        assert!(told.contains("/proc is on no block device"), "{told}");
        assert!(device(Path::new("/no/such/directory")).is_err());
    }
}
