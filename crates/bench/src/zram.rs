//! A zram device of the program's own, of the kernel's.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

/// A zram device that is removed when the value is dropped.
#[derive(Debug)]
pub struct Zram(u32);

/// What `mm_stat` tells, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct MemoryStat {
    /// `orig_data_size`
    pub original: u64,
    /// `compr_data_size`
    pub compressed: u64,
    /// `mem_used_total`
    pub used: u64,
}

impl Zram {
    /// Adds a device of so many bytes with this compressor.
    ///
    /// # Errors
    /// There is no zram, no permission, or no such compressor.
    pub fn add(compressor: &str, bytes: u64) -> Result<Self> {
        let number =
            fs::read_to_string("/sys/class/zram-control/hot_add").context("no zram here, or not root")?;
        let device = Self(number.trim().parse()?);
        fs::write(device.attribute("comp_algorithm"), compressor)
            .with_context(|| format!("this zram has no {compressor}"))?;
        fs::write(device.attribute("disksize"), bytes.to_string())?;
        Ok(device)
    }

    fn attribute(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.0)
    }

    /// The device's file, to be written; without devtmpfs it has to be made.
    ///
    /// # Errors
    /// It is not there.
    pub fn open(&self) -> Result<File> {
        let path = self.path();
        OpenOptions::new().write(true).open(&path).with_context(|| path.display().to_string())
    }

    /// Where the device's file is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.0))
    }

    /// What it holds.
    ///
    /// # Errors
    /// `mm_stat` cannot be read, or is not what it is known to be.
    pub fn memory(&self) -> Result<MemoryStat> {
        let stat = fs::read_to_string(self.attribute("mm_stat"))?;
        let numbers: Vec<u64> = stat.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() > 5, "mm_stat is too short: {stat}");
        Ok(MemoryStat { original: numbers[0], compressed: numbers[1], used: numbers[2] })
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let gone = fs::write(self.attribute("reset"), "1")
            .and_then(|()| fs::write("/sys/class/zram-control/hot_remove", self.0.to_string()));
        if let Err(error) = gone {
            eprintln!("zram{} is still there: {error}", self.0);
        }
    }
}
