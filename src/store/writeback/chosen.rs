//! Writeback of pages that the caller has chosen, whatever their age and however full the pool is: zram's `writeback`.
//!
//! They leave in batches as those of [`Store::shrink`] do, and with the same guarantee. The caller's list is no promise
//! of what is there: what is gone, in a tier or one word is passed over.

use super::{Run, Shrunk, Stop};
use crate::index::Spot;
use crate::pools::Key;
use crate::store::Store;
use crate::store::turns::Turn;

impl Store {
    /// Writes these pages back.
    pub fn write_back_pages(&self, keys: &[Key]) -> Shrunk {
        let before = self.pool_bytes();
        let mut run = Run::new(self);
        let mut turn = self.turns.begin(run.wanted(self));
        for key in keys {
            if turn.batch.is_full(u64::MAX) {
                self.write_back(&mut run, turn);
                turn = self.turns.begin(run.wanted(self));
            }
            if turn.tier().is_none() {
                break;
            }
            self.collect_page(*key, &mut run, &mut turn);
        }
        self.write_back(&mut run, turn);
        let stop = if run.wanted(self) == 0 { run.refusal } else { Stop::Done };
        let freed_bytes = before.saturating_sub(self.pool_bytes());
        Shrunk { written_back: run.written_back, dropped: run.dropped, freed_bytes, stop }
    }

    /// Copies a page to the batch. A shared object that was loaded lately is passed over once, so it is asked twice.
    fn collect_page(&self, key: Key, run: &mut Run, turn: &mut Turn) {
        let spot = Spot::new(key);
        let mut shard = self.index.lock(spot.shard());
        let before = run.found;
        for _ in 0..2 {
            let Some((leaf, _)) = shard.get(&spot) else { return };
            self.evict(&mut shard, leaf, spot.bit, run, turn);
            if run.found > before {
                return;
            }
        }
    }
}
