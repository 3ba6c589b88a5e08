//! Knobs: settings that change while the store runs.

use super::look::Compressor;
use super::{Store, named_codec, named_zpool};
use crate::codec::Codec;
use crate::config::{ConfigError, PoorPages};
use crate::index::SHARDS;
use std::sync::Arc;
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
        self.set_recompressor(name.map(|name| self.compressor(name)).transpose()?);
        Ok(())
    }

    /// The same, with a compressor of this store's. What another one made no smaller is tried again.
    pub fn set_recompressor(&self, by: Option<Compressor>) {
        let dense = by.map_or(0, |compressor| compressor.0 + 1);
        if self.knobs.dense.swap(dense, Relaxed) != dense {
            (0..SHARDS).for_each(|number| self.index.lock(number).forget_dense());
        }
    }

    /// What the entries of this store call a codec of the caller's, which they can name from now on.
    ///
    /// # Errors
    /// [`ConfigError::TooMany`].
    pub fn add_codec(&self, codec: Arc<dyn Codec>) -> Result<Compressor, ConfigError> {
        let identity =
            |codec: &(dyn Codec + 'static)| (codec.name(), codec.level(), codec.dictionary().cloned());
        self.objects.codecs.add(codec, identity).map(Compressor).ok_or(ConfigError::TooMany)
    }

    /// As [`Store::set_compressor`], with a compressor of this store's.
    pub fn select_compressor(&self, compressor: Compressor) {
        self.objects.codecs.select(compressor.0);
    }

    /// The number of a codec, which it is given if it has none.
    pub(super) fn codec_number(&self, name: &str) -> Result<usize, ConfigError> {
        self.add_codec(named_codec(name)?).map(|compressor| compressor.0)
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
