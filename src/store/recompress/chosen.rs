//! Recompression of a page that the caller has chosen, by a compressor of his choice: zram's `recompress`.
//!
//! What is shared stays as it is, and so does what is in a tier, or was made by that compressor. The guarantee is that
//! of a sweep.

use super::{Idle, Sweep};
use crate::config::ConfigError;
use crate::entry::State;
use crate::index::Spot;
use crate::pools::Key;
use crate::store::Store;
use crate::store::look::Compressor;

impl Store {
    /// What the entries of this store call a compressor, which they can name from now on.
    ///
    /// # Errors
    /// As [`Store::set_compressor`].
    pub fn compressor(&self, name: &str) -> Result<Compressor, ConfigError> {
        self.codec_number(name).map(Compressor)
    }

    /// Compresses the page anew. Whether it is denser now.
    pub fn recompress_page(&self, key: Key, by: Compressor, sweep: &mut Sweep) -> bool {
        let Some(idle) = self.copy_page(key, by, sweep) else { return false };
        let Ok(new) = self.make_denser(&idle, by.0, sweep) else { return false };
        let is_denser = self.settle(&idle, new);
        self.counters.recompressed_pages.add(u64::from(is_denser));
        is_denser
    }

    /// Copies the page's bytes to the sweep's buffer, if they are its own and in memory.
    fn copy_page(&self, key: Key, by: Compressor, sweep: &mut Sweep) -> Option<Idle> {
        let spot = Spot::new(key);
        let shard = self.index.lock(spot.shard());
        let (_, entry) = shard.get(&spot)?;
        let is_made = !entry.is_raw() && entry.codec() == by.0;
        if entry.state() != State::Pool || entry.is_fresh() || is_made {
            return None;
        }
        let packed = &mut sweep.packed[..entry.len()];
        self.objects.read(entry, &mut |bytes| packed.copy_from_slice(bytes));
        Some(Idle { key, entry })
    }
}
