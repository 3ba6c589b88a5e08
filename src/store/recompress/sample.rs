//! A page's content for a sample of them all: a look that is no use, so the page becomes no younger by it.
//!
//! The bytes are copied under the lock of the page's shard and read with none held.

use super::Sweep;
use crate::entry::State;
use crate::index::Spot;
use crate::page::Page;
use crate::pools::Key;
use crate::store::Store;

impl Store {
    /// Gives the page, if it is in memory with bytes of its own.
    pub fn sample_page(&self, key: Key, page: &mut Page, sweep: &mut Sweep) -> bool {
        let Sweep { codecs, packed, .. } = sweep;
        let spot = Spot::new(key);
        let shard = self.index.lock(spot.shard());
        let own = shard.get(&spot).filter(|(_, entry)| entry.state() == State::Pool);
        let Some((_, entry)) = own else { return false };
        let packed = &mut packed[..entry.len()];
        self.objects.read(entry, &mut |bytes| packed.copy_from_slice(bytes));
        drop(shard);
        self.objects.decode(entry, packed, page, codecs).is_ok()
    }
}
