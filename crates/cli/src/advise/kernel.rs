//! What this kernel offers: zram, zswap, their compressors, swap.
//!
//! The kernel's compressors are measured by ramfold's of the same bitstream, at the level that the kernel uses.

use ramfold_budget::process::size_in;
use std::fs;

/// A compressor of the kernel, and what it is called with its level in ramfold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressor {
    pub name: String,
    pub measured_as: &'static str,
}

/// The kernel's compressors with the level that it uses.
const KNOWN: &[(&str, &str)] = &[
    ("lz4", "lz4"),
    ("lzo-rle", "lzo-rle"),
    ("lzo", "lzo"),
    ("lz4hc", "lz4hc"),
    ("zstd", "zstd:3"),
    ("deflate", "deflate:6"),
];

/// What was found under /sys and /proc.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Compressors of zram; empty: no zram device.
    pub zram: Vec<Compressor>,
    /// Compressors that zswap can use now; empty: no zswap.
    pub zswap: Vec<Compressor>,
    /// Whether there is swap that is no zram.
    pub disk_swap: bool,
    /// Bytes of memory.
    pub memory: u64,
}

impl Kernel {
    /// Reads what is there; what cannot be read is not offered.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let zram = first_zram().map(|name| text(&format!("/sys/block/{name}/comp_algorithm")));
        let zswap = fs::metadata("/sys/module/zswap").is_ok().then(|| text("/proc/crypto"));
        Self {
            zram: known(&words(&zram.unwrap_or_default())),
            zswap: known(&algorithms(&zswap.unwrap_or_default())),
            disk_swap: disk_swap(&text("/proc/swaps")),
            memory: total(&text("/proc/meminfo")),
        }
    }
}

fn first_zram() -> Option<String> {
    let names =
        fs::read_dir("/sys/block").ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("zram")).min()
}

/// Of `[lzo-rle] lzo lz4`.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect()
}

/// The `name` lines of /proc/crypto.
fn algorithms(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("name")?.split_once(": ").map(|(_, name)| name))
        .collect()
}

fn known(names: &[&str]) -> Vec<Compressor> {
    let there = KNOWN.iter().filter(|(name, _)| names.contains(name));
    there.map(|(name, measured_as)| Compressor { name: (*name).to_owned(), measured_as }).collect()
}

fn disk_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty() && !line.starts_with("/dev/zram"))
}

/// `MemTotal` in bytes.
fn total(meminfo: &str) -> u64 {
    size_in(meminfo, "MemTotal:").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_as_the_kernel_writes_them() {
        let names = |compressors: Vec<Compressor>| {
            compressors.into_iter().map(|compressor| compressor.name).collect::<Vec<_>>()
        };
        assert_eq!(names(known(&words("[lzo-rle] lzo lz4 842 \n"))), ["lz4", "lzo-rle", "lzo"]);
        let crypto = "name         : deflate\ndriver       : deflate-generic\n\nname         : zstd\nname         : aes\n";
        assert_eq!(names(known(&algorithms(crypto))), ["zstd", "deflate"]);
        let head = "Filename Type Size Used Priority\n";
        assert!(!disk_swap(head) && !disk_swap(&format!("{head}/dev/zram0 partition 1 0 100\n")));
        assert!(disk_swap(&format!("{head}/swapfile file 1 0 -2\n")));
        assert_eq!(total("MemFree: 3 kB\nMemTotal:       1024 kB\n"), 1 << 20);
    }
}
