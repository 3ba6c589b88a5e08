//! The kernel's side of the comparison: a swap file on a real file system, with zswap in front of it or without.
//! Everything is put back as it was on drop.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const PARAMETERS: &str = "/sys/module/zswap/parameters";

/// An active swap file, removed on drop.
#[derive(Debug)]
pub struct SwapFile(PathBuf);

impl SwapFile {
    /// Makes and activates a swap file of `bytes` in `directory`.
    ///
    /// # Errors
    /// Other swap is active (the kernel would use it too), no space, or no right to swap.
    pub fn activate(directory: &Path, bytes: u64) -> Result<Self> {
        let active = fs::read_to_string("/proc/swaps").context("cannot read /proc/swaps")?;
        ensure!(active.lines().count() == 1, "other swap is active (end it: swapoff -a)");
        let path = directory.join(format!("ramfold-bench-{}.swap", std::process::id()));
        let swap = Self(path.clone());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        let len = i64::try_from(bytes).context("the swap file is too large")?;
        // SAFETY: plain integers on an open descriptor.
        let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
        ensure!(failed == 0, "{}: {}", path.display(), std::io::Error::from_raw_os_error(failed));
        let made =
            Command::new("mkswap").arg(&path).stdout(Stdio::null()).status().context("cannot run mkswap")?;
        ensure!(made.success(), "mkswap {} failed", path.display());
        // SAFETY: the path is a C string that outlives the call.
        let failed = unsafe { libc::swapon(swap.c_path().as_ptr(), 0) };
        ensure!(failed == 0, "swapon {}: {}", path.display(), std::io::Error::last_os_error());
        Ok(swap)
    }

    fn c_path(&self) -> CString {
        CString::new(self.0.as_os_str().as_bytes()).expect("a path without NUL")
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // SAFETY: the path is a C string that outlives the call. It fails harmlessly when swapon never succeeded.
        unsafe { libc::swapoff(self.c_path().as_ptr()) };
        // A swap file that is still active cannot be unlinked (EPERM): say so rather than leave it silently.
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("ramfold-bench: {} is left behind: {error}", self.0.display());
        }
    }
}

/// zswap's parameters, put back on drop.
#[derive(Debug)]
pub struct Zswap {
    before: Vec<(&'static str, String)>,
    debugfs_mounted: bool,
}

impl Zswap {
    /// Remembers the parameters, then takes the first of `compressors` that this kernel has and lets the pool grow
    /// to half of memory. zswap itself stays off until [`Zswap::enable`].
    ///
    /// # Errors
    /// No zswap in this kernel, no right to change it, or none of the compressors.
    pub fn prepare(compressors: &[&str]) -> Result<Self> {
        let before = ["enabled", "compressor", "max_pool_percent"]
            .into_iter()
            .map(|name| Ok((name, read_parameter(name)?)))
            .collect::<Result<_>>()?;
        let zswap = Self { before, debugfs_mounted: mount_debugfs()? };
        zswap.enable(true)?;
        write_parameter("max_pool_percent", "50")?;
        let Some(_) = compressors.iter().find(|name| write_parameter("compressor", name).is_ok()) else {
            bail!("zswap has none of {compressors:?}");
        };
        zswap.enable(false)?;
        Ok(zswap)
    }

    /// Switches zswap on or off for pages that leave from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enable(&self, on: bool) -> Result<()> {
        write_parameter("enabled", if on { "Y" } else { "N" })
    }

    /// The compressor in use.
    ///
    /// # Errors
    /// The parameter cannot be read.
    pub fn compressor(&self) -> Result<String> {
        read_parameter("compressor")
    }
}

impl Drop for Zswap {
    fn drop(&mut self) {
        for (name, value) in self.before.iter().rev() {
            if let Err(error) = write_parameter(name, value) {
                eprintln!("ramfold-bench: {error:#}");
            }
        }
        if self.debugfs_mounted {
            // SAFETY: the path is a C string literal.
            unsafe { libc::umount2(c"/sys/kernel/debug".as_ptr(), 0) };
        }
    }
}

/// vm.page-cluster, put back on drop: how much the kernel reads ahead when a page comes back from swap.
#[derive(Debug)]
pub struct PageCluster {
    before: String,
}

impl PageCluster {
    const PATH: &str = "/proc/sys/vm/page-cluster";

    /// Remembers what is set.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn remember() -> Result<Self> {
        let before = fs::read_to_string(Self::PATH).context("cannot read vm.page-cluster")?;
        Ok(Self { before: before.trim().to_owned() })
    }

    /// Pages that are read together, as a logarithm.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set(&self, log_pages: u32) -> Result<()> {
        fs::write(Self::PATH, log_pages.to_string()).context("cannot set vm.page-cluster")
    }
}

impl Drop for PageCluster {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::PATH, &self.before) {
            eprintln!("ramfold-bench: vm.page-cluster is not {} again: {error}", self.before);
        }
    }
}

/// Bytes of memory that zswap's pool takes now, all programs together.
///
/// # Errors
/// Neither `/proc/meminfo` (Linux 5.19) nor debugfs tells.
pub fn zswap_pool() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    if let Some(rest) = meminfo.lines().find_map(|line| line.strip_prefix("Zswap:")) {
        let kib: u64 =
            rest.trim().trim_end_matches(" kB").parse().context("/proc/meminfo: Zswap is no number")?;
        return Ok(kib << 10);
    }
    let text = fs::read_to_string("/sys/kernel/debug/zswap/pool_total_size")
        .context("cannot read zswap's pool size")?;
    text.trim().parse().context("pool_total_size is no number")
}

/// Pages that moved between memory and the swap device, all programs together, since the machine started.
///
/// What zswap takes or gives is not among them, nor are pages of zeros: the kernel counts `pswpin` and `pswpout` where
/// it hands the page to the device, and zswap's writeback passes there too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSwap {
    /// Pages read, those read ahead included.
    pub read: u64,
    /// Pages written.
    pub written: u64,
}

impl DeviceSwap {
    /// Now.
    ///
    /// # Errors
    /// `/proc/vmstat` has no such counters.
    pub fn now() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?)
    }

    fn parse(vmstat: &str) -> Result<Self> {
        let value = |name: &str| {
            let value = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.parse().ok()).with_context(|| format!("/proc/vmstat has no {name}"))
        };
        Ok(Self { read: value("pswpin")?, written: value("pswpout")? })
    }

    /// What moved between `earlier` and this.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { read: self.read - earlier.read, written: self.written - earlier.written }
    }
}

/// Writes dirty pages back and drops the page cache, so that no run inherits it from another.
///
/// # Errors
/// This user may not.
pub fn drop_caches() -> Result<()> {
    write_back();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches (root may)")
}

/// Has all that is dirty written to disk, and waits for it.
pub(crate) fn write_back() {
    // SAFETY: no arguments.
    unsafe { libc::sync() };
}

/// True when it was this call that mounted it.
fn mount_debugfs() -> Result<bool> {
    if Path::new("/sys/kernel/debug/bdi").exists() {
        return Ok(false);
    }
    let (debugfs, at) = (c"debugfs", c"/sys/kernel/debug");
    // SAFETY: C string literals, no data.
    let failed = unsafe { libc::mount(debugfs.as_ptr(), at.as_ptr(), debugfs.as_ptr(), 0, std::ptr::null()) };
    ensure!(failed == 0, "cannot mount debugfs: {}", std::io::Error::last_os_error());
    Ok(true)
}

fn read_parameter(name: &str) -> Result<String> {
    let path = Path::new(PARAMETERS).join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn write_parameter(name: &str, value: &str) -> Result<()> {
    let path = Path::new(PARAMETERS).join(name);
    fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_counts() {
        let before = "pswpin 3\npswpout 5\nswpin_zero 7\nzswpin 100\nzswpout 200\nzswpwb 1\n";
        let after = "zswpin 900\nzswpout 900\npswpin 10\npswpout 25\nzswpwb 11\n";
        let (before, after) = (DeviceSwap::parse(before).unwrap(), DeviceSwap::parse(after).unwrap());
        assert_eq!(after.since(before), DeviceSwap { read: 7, written: 20 });
        assert!(DeviceSwap::parse("zswpin 1\npswpout 2\n").is_err());
    }
}
