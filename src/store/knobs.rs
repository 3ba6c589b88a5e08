//! Knobs: settings that change while the store runs.

use super::{Store, named_codec, named_zpool};
use crate::config::{ConfigError, PoorPages};
use std::sync::atomic::Ordering::Relaxed;

impl Store {
    /// Chooses the compressor for new pages. Pages stored before stay readable.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no such compressor, or the store has used too many.
    pub fn set_compressor(&self, name: &str) -> Result<(), ConfigError> {
        self.objects.codecs.select(self.codec_number(name)?);
        Ok(())
    }

    /// Chooses the codec for pages that stay in the pool for long, or none.
    ///
    /// # Errors
    /// As [`Store::set_compressor`].
    pub fn set_recomp_algorithm(&self, name: Option<&str>) -> Result<(), ConfigError> {
        let number = name.map(|name| self.codec_number(name)).transpose()?;
        self.knobs.dense.store(number.map_or(0, |number| number + 1), Relaxed);
        Ok(())
    }

    /// The number of a codec, which it is given if it has none.
    pub(super) fn codec_number(&self, name: &str) -> Result<usize, ConfigError> {
        let codec = named_codec(name)?;
        self.objects.codecs.add(codec, |codec| (codec.name(), codec.level())).ok_or(ConfigError::TooMany)
    }

    /// Chooses the zpool for new pages. Pages stored before stay where they are.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no such zpool.
    pub fn set_zpool(&self, name: &str) -> Result<(), ConfigError> {
        let number =
            self.objects.zpools.add(named_zpool(name)?, |zpool| zpool.name()).ok_or(ConfigError::TooMany)?;
        self.objects.zpools.select(number);
        Ok(())
    }

    /// Sets the most that the zpools may hold. Pages above it leave at the next [`Store::shrink`].
    pub fn set_max_pool_bytes(&self, bytes: u64) {
        self.knobs.max_pool_bytes.store(bytes, Relaxed);
    }

    /// Sets the percentage of the limit under which a pool that was full takes pages without shrinking.
    pub fn set_accept_threshold(&self, percent: u8) {
        self.knobs.accept_threshold_percent.store(percent, Relaxed);
    }

    /// Sets the percentage of a page above which a compressed page is poor.
    pub fn set_max_compression_ratio(&self, percent: u8) {
        self.knobs.max_compression_ratio.store(percent, Relaxed);
    }

    /// What becomes of pages that come from now on and are poor.
    pub fn set_poor(&self, poor: PoorPages) {
        self.knobs.keep_raw.store(poor == PoorPages::KeepRaw, Relaxed);
    }

    /// Whether new pages of one repeated word are kept as that word.
    pub fn set_same_filled(&self, enabled: bool) {
        self.knobs.same_filled.store(enabled, Relaxed);
    }

    /// Whether duplicates of stored pages are looked for. What is shared stays shared.
    pub fn set_duplicates(&self, enabled: bool) {
        self.knobs.duplicates.store(enabled, Relaxed);
        if !enabled {
            self.dedup.clear();
        }
    }

    /// Whether new pages are stored at all.
    pub fn set_enabled(&self, enabled: bool) {
        self.knobs.enabled.store(enabled, Relaxed);
    }
}
