//! What the file tier knows of its records and extents, in memory.
//!
//! Invariants, checked after each change in debug builds where it is cheap:
//! - an extent's `live` is the sum of the footprints of the records that slots point to in it;
//! - an extent with nothing live is in the table only while it is open;
//! - `used` is the sum of the extents' `end`.

use super::record::{self, Header, Sealer};
use super::slots::{Location, SlotTable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An extent that holds records or is being filled.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Extent {
    /// What seals the records from an offset on, in order. The first begins at 0.
    sealers: Vec<(u32, Arc<Sealer>)>,
    /// Bytes of records that slots point to.
    pub(super) live: u32,
    /// Bytes that were written, whether or not that succeeded.
    pub(super) end: u32,
    /// It is being filled.
    open: bool,
    /// The cleaner could not empty it: part of it cannot be read.
    stuck: bool,
}

/// Where and how a record can be read.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) location: Location,
    pub(super) sealer: Arc<Sealer>,
}

impl Extent {
    fn sealer(&self, offset: u32) -> &Arc<Sealer> {
        let later = self.sealers.partition_point(|(from, _)| *from <= offset);
        &self.sealers[later - 1].1
    }
}

impl Place {
    /// Whether the same was written to both.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.location == other.location && Arc::ptr_eq(&self.sealer, &other.sealer)
    }

    pub(super) fn header(&self, slot: u64) -> Header {
        Header { slot, length: self.location.length.into() }
    }
}

/// The tables. All methods take no time that depends on the number of slots.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Tables {
    slots: SlotTable,
    extents: BTreeMap<u32, Extent>,
    used: u64,
    live: u64,
}

impl Tables {
    /// See [`SlotTable::reserve`].
    pub(super) fn reserve(&mut self) -> Option<u64> {
        self.slots.reserve()
    }

    /// Gives back a slot that was reserved only.
    pub(super) fn unreserve(&mut self, slot: u64) {
        self.slots.free(slot);
    }

    /// Where the record of `slot` is, if it is in use.
    pub(super) fn place(&self, slot: u64) -> Option<Place> {
        let location = self.slots.get(slot)?;
        let sealer = Arc::clone(self.extents[&location.extent].sealer(location.offset));
        Some(Place { location, sealer })
    }

    /// Opens an extent for records.
    pub(super) fn open(&mut self, extent: u32, sealer: Arc<Sealer>) {
        let fresh = Extent { sealers: vec![(0, sealer)], live: 0, end: 0, open: true, stuck: false };
        let old = self.extents.insert(extent, fresh);
        debug_assert!(old.is_none(), "extent {extent} was handed out twice");
    }

    /// What is written from here on is sealed otherwise.
    pub(super) fn change_sealer(&mut self, extent: u32, sealer: Arc<Sealer>) {
        let extent = self.extents.get_mut(&extent).expect("an open extent");
        extent.sealers.push((extent.end, sealer));
    }

    /// Notes that the open extent was written up to `end`.
    pub(super) fn wrote(&mut self, extent: u32, end: u32) {
        let extent = self.extents.get_mut(&extent).expect("an open extent");
        self.used += u64::from(end - extent.end);
        extent.end = end;
    }

    /// Closes the open extent. Returns it if nothing in it is live: it is to be released.
    pub(super) fn seal(&mut self, extent: u32) -> Option<u32> {
        self.extents.get_mut(&extent).expect("an open extent").open = false;
        self.drop_if_dead(extent)
    }

    /// Publishes a record that was written for a reserved slot.
    pub(super) fn commit(&mut self, slot: u64, location: Location) {
        self.slots.set(slot, location);
        self.grow(location);
    }

    /// Frees a slot in use. Returns an extent that is to be released.
    pub(super) fn discard(&mut self, slot: u64) -> Option<u32> {
        let location = self.slots.get(slot)?;
        self.slots.free(slot);
        self.shrink(location)
    }

    /// Points `slot` to the copy at `to` if it is still `from`. Returns an extent that is to be released.
    pub(super) fn relocate(&mut self, slot: u64, from: Location, to: Location) -> Option<u32> {
        if self.slots.get(slot) != Some(from) {
            return None;
        }
        self.slots.set(slot, to);
        self.grow(to);
        self.shrink(from)
    }

    /// The closed extent with the least live bytes, not over `limit`.
    pub(super) fn sparsest(&self, limit: u32) -> Option<u32> {
        self.closed(limit).min().map(|(_, number)| number)
    }

    /// Live bytes and numbers of the closed extents that have not more than `limit`.
    pub(super) fn sparse(&self, limit: u32) -> Vec<(u32, u32)> {
        self.closed(limit).collect()
    }

    fn closed(&self, limit: u32) -> impl Iterator<Item = (u32, u32)> {
        let can_be_emptied = move |extent: &Extent| !extent.open && !extent.stuck && extent.live <= limit;
        let closed = self.extents.iter().filter(move |(_, extent)| can_be_emptied(extent));
        closed.map(|(number, extent)| (extent.live, *number))
    }

    /// An extent that holds something or is open.
    pub(super) fn extent(&self, extent: u32) -> Option<&Extent> {
        self.extents.get(&extent)
    }

    /// Whether no extent holds anything or is open.
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Leaves an extent out of further cleaning.
    pub(super) fn set_stuck(&mut self, extent: u32) {
        if let Some(extent) = self.extents.get_mut(&extent) {
            extent.stuck = true;
        }
    }

    /// Bytes written into the extents that are held.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of records that slots point to.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of memory. An extent is counted with the usual filling of the tree's nodes.
    pub(super) fn meta_bytes(&self) -> usize {
        let sealers: usize = self.extents.values().map(|extent| extent.sealers.len()).sum();
        self.slots.meta_bytes()
            + self.extents.len() * 2 * size_of::<(u32, Extent)>()
            + sealers * (size_of::<(u32, Arc<Sealer>)>() + size_of::<Sealer>())
    }

    fn grow(&mut self, location: Location) {
        let extent = self.extents.get_mut(&location.extent).expect("records lie in held extents");
        extent.live += footprint(location);
        self.live += u64::from(footprint(location));
        debug_assert!(extent.live <= extent.end);
    }

    fn shrink(&mut self, location: Location) -> Option<u32> {
        self.live -= u64::from(footprint(location));
        self.extents.get_mut(&location.extent).expect("records lie in held extents").live -=
            footprint(location);
        self.drop_if_dead(location.extent)
    }

    fn drop_if_dead(&mut self, number: u32) -> Option<u32> {
        let extent = &self.extents[&number];
        if extent.open || extent.live > 0 {
            return None;
        }
        self.used -= u64::from(extent.end);
        self.extents.remove(&number);
        Some(number)
    }

    /// Panics if `live` or `used` is wrong: a scan of the whole table.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut live = BTreeMap::<u32, u32>::new();
        let taken = (0..).map_while(|slot| self.slots.is_known(slot).then(|| self.slots.get(slot)));
        for location in taken.flatten() {
            *live.entry(location.extent).or_default() += footprint(location);
        }
        for (number, extent) in &self.extents {
            assert_eq!(live.remove(number).unwrap_or(0), extent.live, "live bytes of extent {number}");
            assert!(extent.live > 0 || extent.open, "extent {number} is dead");
        }
        assert!(live.is_empty(), "slots point to {live:?}");
        assert_eq!(self.live, self.extents.values().map(|extent| u64::from(extent.live)).sum::<u64>());
        assert_eq!(self.used, self.extents.values().map(|extent| u64::from(extent.end)).sum::<u64>());
    }
}

/// Bytes on disk of the record there.
fn footprint(location: Location) -> u32 {
    u32::try_from(record::footprint(location.length.into())).expect("a record is below two blocks")
}
