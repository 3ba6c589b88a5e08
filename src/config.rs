//! Settings: [`Config`] at the start, knobs while the store runs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Settings of a store. The names are those of the kernel's zswap where the meaning is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Codec by name, with a level where it has levels: `lz4`, `zstd:-1`.
    pub compressor: String,
    /// Codec for pages that stayed in the pool for long (zram's name), if they are to be compressed anew; see
    /// [`crate::Store::recompress`].
    pub recomp_algorithm: Option<String>,
    /// Zpool by name: `zsmalloc`, `zbud`, `xvmalloc`.
    pub zpool: String,
    /// The most that the zpools may hold, in bytes. Default: a fifth of the memory of the machine.
    pub max_pool_bytes: u64,
    /// Once full, shrinking goes on until under this percentage of `max_pool_bytes`; 100 = no hysteresis.
    pub accept_threshold_percent: u8,
    /// A page whose compressed size is above this percentage of a page is poor (zcache's rule was 50).
    pub max_compression_ratio: u8,
    /// What becomes of poor pages.
    pub poor: PoorPages,
    /// A page of one repeated word costs no pool memory.
    pub same_filled_pages_enabled: bool,
    /// Identical pages share pool memory.
    pub duplicate_pages_enabled: bool,
    /// Off: store nothing new, keep serving what is stored.
    pub enabled: bool,
    /// A store that finds the pool full, or its own pool at its memlimit, writes back in the caller's thread before
    /// it gives up. For callers without a thread of their own for [`crate::Store::shrink`]. Without it no store waits
    /// for a tier.
    pub shrink_inline: bool,
}

/// What becomes of pages that do not compress well enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoorPages {
    /// They are stored as they are.
    KeepRaw,
    /// The store refuses them.
    Refuse,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compressor: "lz4".to_owned(),
            recomp_algorithm: None,
            zpool: "zsmalloc".to_owned(),
            max_pool_bytes: total_memory() / 5,
            accept_threshold_percent: 90,
            max_compression_ratio: 100,
            poor: PoorPages::KeepRaw,
            same_filled_pages_enabled: true,
            duplicate_pages_enabled: true,
            enabled: true,
            shrink_inline: true,
        }
    }
}

/// Bytes of memory of the machine.
fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Why a setting was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// there is no compressor of this name
    #[error("compressor {name}: {why}")]
    Compressor {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// there is no zpool of this name
    #[error("zpool {name}: {why}")]
    Zpool {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// a store can use 32 different compressors and levels in its life
    #[error("a store can use 32 different compressors and levels in its life")]
    TooMany,
    /// a store can have 16 tiers
    #[error("a store can have 16 tiers")]
    TooManyTiers,
}

/// The settings that change while the store runs.
#[derive(Debug)]
pub(crate) struct Knobs {
    /// One more than the number of the codec for recompression; 0: none.
    pub(crate) dense: AtomicUsize,
    pub(crate) max_pool_bytes: AtomicU64,
    pub(crate) accept_threshold_percent: AtomicU8,
    pub(crate) max_compression_ratio: AtomicU8,
    pub(crate) same_filled: AtomicBool,
    pub(crate) duplicates: AtomicBool,
    pub(crate) enabled: AtomicBool,
    /// Poor pages are kept as they are.
    pub(crate) keep_raw: AtomicBool,
    pub(crate) shrink_inline: bool,
}

impl Knobs {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            dense: AtomicUsize::new(0),
            max_pool_bytes: AtomicU64::new(config.max_pool_bytes),
            accept_threshold_percent: AtomicU8::new(config.accept_threshold_percent),
            max_compression_ratio: AtomicU8::new(config.max_compression_ratio),
            same_filled: AtomicBool::new(config.same_filled_pages_enabled),
            duplicates: AtomicBool::new(config.duplicate_pages_enabled),
            enabled: AtomicBool::new(config.enabled),
            keep_raw: AtomicBool::new(config.poor == PoorPages::KeepRaw),
            shrink_inline: config.shrink_inline,
        }
    }

    /// The share of `limit` under which a full pool takes new pages without shrinking.
    pub(crate) fn accept_bytes(&self, limit: u64) -> u64 {
        let percent = u64::from(self.accept_threshold_percent.load(Relaxed).min(100));
        (limit / 100).saturating_mul(percent) + limit % 100 * percent / 100
    }
}
