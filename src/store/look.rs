//! What the store knows of each page of a range, for who shows it or chooses among the pages.
//!
//! A look is no use: it changes no age. Up to a leaf's pages are looked at under one lock and told with none held, so
//! what is told may have changed when it is heard.

use super::Store;
use crate::entry::{Entry, State};
use crate::index::{LEAF_PAGES, Spot};
use crate::pools::{Key, PoolId};
use std::ops::Range;

/// A compressor as the entries of one store name it; see [`Store::compressor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressor(pub(super) usize);

/// What the store knows of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageState {
    /// Where it is.
    pub place: PagePlace,
    /// Bytes stored, with all that it may share.
    pub len: usize,
    /// What made them; `None` if the page was stored as it is, or is one word.
    pub compressor: Option<Compressor>,
    /// It was stored as it is, to be compressed later.
    pub is_fresh: bool,
    /// It was stored as it is, and a denser compressor has been tried and made it no smaller.
    pub is_incompressible: bool,
}

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagePlace {
    /// In a zpool.
    Memory,
    /// In a tier.
    Tier,
    /// Nowhere: it is this word, again and again.
    Same(u64),
}

impl PageState {
    /// It was stored as it is, because it compresses too poorly: zram's huge.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.compressor.is_none() && !self.is_fresh && !matches!(self.place, PagePlace::Same(_))
    }

    fn of(object: Entry, was_tried: bool) -> Self {
        let place = match object.state() {
            State::Same => {
                return Self {
                    place: PagePlace::Same(object.filling()),
                    len: 0,
                    compressor: None,
                    is_fresh: false,
                    is_incompressible: false,
                };
            }
            State::Tier => PagePlace::Tier,
            _ => PagePlace::Memory,
        };
        let compressor = (!object.is_raw()).then(|| Compressor(object.codec()));
        let is_fresh = object.is_fresh();
        let is_incompressible = was_tried && compressor.is_none() && !is_fresh;
        Self { place, len: object.len(), compressor, is_fresh, is_incompressible }
    }
}

impl Store {
    /// Tells the state of each page of the range that the store holds, in order, until `each` returns false.
    pub fn look(
        &self,
        pool: PoolId,
        object: u64,
        range: Range<u64>,
        each: &mut dyn FnMut(u64, PageState) -> bool,
    ) {
        if range.is_empty() {
            return;
        }
        let mut states = Vec::new();
        for chunk in range.start / LEAF_PAGES..(range.end - 1) / LEAF_PAGES + 1 {
            self.look_at_leaf(Key { pool, object, index: chunk * LEAF_PAGES }, &mut states);
            let wanted = states.drain(..).filter(|(index, _)| range.contains(index));
            for (index, state) in wanted {
                if !each(index, state) {
                    return;
                }
            }
        }
    }

    /// The states of the pages in the leaf that the key lies in.
    fn look_at_leaf(&self, key: Key, states: &mut Vec<(u64, PageState)>) {
        let spot = Spot::new(key);
        let shard = self.index.lock(spot.shard());
        let Some(id) = shard.find(&spot) else { return };
        let leaf = shard.leaf(id);
        states.extend(leaf.iter().map(|(bit, entry)| {
            let state = match entry.state() {
                State::Shared => PageState::of(self.objects.shared.look(entry.shared_id()), false),
                _ => PageState::of(entry, leaf.is_dense(bit)),
            };
            (leaf.key(bit).index, state)
        }));
    }
}
