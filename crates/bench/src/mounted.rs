//! A `ramfold mount` that is measured.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::process::Running;

/// A mount that ends when this is dropped.
#[derive(Debug)]
pub struct Mounted {
    /// `ramfold mount` itself.
    pub server: Running,
    /// Where it is.
    pub point: PathBuf,
}

impl Mounted {
    /// Shows `source` at `mount`, both in `place`, by this command with these options. `contain` has its say before the
    /// server starts.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn start(
        ramfold: &Path,
        options: &[String],
        place: &Path,
        contain: &dyn Fn(&mut Command),
    ) -> Result<Self> {
        let point = place.join("mount");
        let mut command = Command::new(ramfold);
        command.arg("mount").arg(place.join("source")).arg(&point).args(options);
        command.env("XDG_RUNTIME_DIR", place).stdout(Stdio::null());
        command.stderr(File::create(place.join("told"))?);
        contain(&mut command);
        let outside = fs::metadata(&point)?.dev();
        let mut mounted = Self { server: Running::start(&mut command)?, point };
        let begun = Instant::now();
        while fs::metadata(&mounted.point)?.dev() == outside {
            let ended = mounted.server.0.try_wait()?.is_some();
            let told = || fs::read_to_string(place.join("told")).unwrap_or_default();
            ensure!(!ended && begun.elapsed().as_secs() < 20, "ramfold mount: {}", told().trim());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: plain integers; the child is not waited for yet.
        unsafe { libc::kill(self.server.0.id().cast_signed(), libc::SIGTERM) };
        let begun = Instant::now();
        while begun.elapsed().as_secs() < 10 && matches!(self.server.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if matches!(self.server.0.try_wait(), Ok(None)) {
            let _ = self.server.0.kill();
            let _ = Command::new("umount").arg("-l").arg(&self.point).status();
        }
    }
}
