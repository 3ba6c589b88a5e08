//! Shared objects: stored bytes that several entries have in common.
//!
//! Only what is really shared costs a count: when a duplicate is found, the entry that owned the object alone
//! gives it up to this table, and both entries name it by number. It stays here until the last entry lets go.
//!
//! A reader keeps the stripe locked while it reads the object, so writeback, which takes the lock to put a
//! tier slot in place of the object, can free the object afterwards.

use crate::bits::low_size;
use crate::entry::{Entry, State};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const STRIPES: usize = 1 << STRIPE_BITS;
const STRIPE_BITS: u32 = 4;

/// One shared object.
#[derive(Debug)]
struct Object {
    /// Where the bytes are: in state `Pool`, `Writing` or `Tier`.
    entry: Entry,
    /// Entries that name it; 0 in a free place.
    sharers: u32,
    /// Loaded since writeback last came by.
    referenced: AtomicBool,
}

/// A part of the table. The stripe of an object is in the low bits of its number.
#[derive(Debug, Default)]
struct Stripe {
    objects: Vec<Object>,
    free: Vec<u32>,
    gauges: Gauges,
}

/// Sums over the shared objects.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Gauges {
    /// Bytes in zpools.
    pub(crate) bytes: u64,
    /// Objects in zpools stored as they are.
    pub(crate) raw: u64,
    /// Sharers beyond the first of objects in zpools.
    pub(crate) duplicates: u64,
    /// Sharers of objects in the tier.
    pub(crate) tier_sharers: u64,
}

impl Gauges {
    fn count(&mut self, object: &Object, change: impl Fn(&mut u64, u64)) {
        let sharers = u64::from(object.sharers);
        if object.entry.in_pool() {
            change(&mut self.bytes, object.entry.len() as u64);
            change(&mut self.raw, u64::from(object.entry.is_raw()));
            change(&mut self.duplicates, sharers - 1);
        } else {
            change(&mut self.tier_sharers, sharers);
        }
    }
}

/// What writeback finds when it comes by.
pub(crate) enum Visit {
    /// Nothing to do: it is being written, or was loaded lately.
    Pass,
    /// It is in the tier.
    Gone,
    /// Copied; the entry as marked.
    Taken(Entry),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Shared {
    stripes: [RwLock<Stripe>; STRIPES],
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { stripes: std::array::from_fn(|_| RwLock::default()) }
    }

    /// Takes over the object of `entry` for two sharers. `near` spreads objects over the stripes.
    pub(crate) fn insert(&self, near: usize, entry: Entry) -> u64 {
        let number = near % STRIPES;
        let mut stripe = crate::write(&self.stripes[number]);
        let object = Object { entry: entry.settled(), sharers: 2, referenced: AtomicBool::new(false) };
        stripe.gauges.count(&object, |gauge, amount| *gauge += amount);
        let at = match stripe.free.pop() {
            Some(at) => {
                stripe.objects[at as usize] = object;
                u64::from(at)
            }
            None => {
                stripe.objects.push(object);
                stripe.objects.len() as u64 - 1
            }
        };
        at << STRIPE_BITS | number as u64
    }

    /// One sharer more, if the object's bytes can be had from a zpool and `equal` finds them so.
    pub(crate) fn join(&self, id: u64, equal: impl FnOnce(Entry) -> bool) -> bool {
        self.change(id, |object| {
            let joins = object.entry.in_pool() && object.sharers < u32::MAX && equal(object.entry);
            object.sharers += u32::from(joins);
            joins
        })
    }

    /// One sharer less. Gives back the object if it was the last.
    pub(crate) fn leave(&self, id: u64) -> Option<Entry> {
        let (number, at) = Self::split(id);
        let mut stripe = crate::write(&self.stripes[number]);
        let Stripe { objects, free, gauges } = &mut *stripe;
        let object = &mut objects[at];
        gauges.count(object, |gauge, amount| *gauge -= amount);
        object.sharers -= 1;
        if object.sharers > 0 {
            gauges.count(object, |gauge, amount| *gauge += amount);
            return None;
        }
        free.push(u32::try_from(at).ok()?);
        Some(object.entry)
    }

    /// Lends the object for a load.
    pub(crate) fn read<R>(&self, id: u64, with: impl FnOnce(Entry) -> R) -> R {
        let (number, at) = Self::split(id);
        let stripe = crate::read(&self.stripes[number]);
        let object = &stripe.objects[at];
        object.referenced.store(true, Relaxed);
        with(object.entry)
    }

    /// The object, as it is now. No use of it.
    pub(crate) fn look(&self, id: u64) -> Entry {
        let (number, at) = Self::split(id);
        crate::read(&self.stripes[number]).objects[at].entry
    }

    /// Lends the object to the batch of this number, to be copied and marked.
    pub(crate) fn visit(&self, id: u64, batch: usize, copy: impl FnOnce(Entry)) -> Visit {
        self.change(id, |object| match object.entry.state() {
            State::Pool if !object.referenced.swap(false, Relaxed) => {
                copy(object.entry);
                object.entry = object.entry.writing(batch);
                Visit::Taken(object.entry)
            }
            State::Tier => Visit::Gone,
            _ => Visit::Pass,
        })
    }

    /// Puts `new` in the place of `old`, if it still is there.
    pub(crate) fn replace(&self, id: u64, old: Entry, new: Entry) -> bool {
        let (number, at) = Self::split(id);
        let mut stripe = crate::write(&self.stripes[number]);
        let Stripe { objects, gauges, .. } = &mut *stripe;
        match objects.get_mut(at) {
            Some(object) if object.sharers > 0 && object.entry == old => {
                gauges.count(object, |gauge, amount| *gauge -= amount);
                object.entry = new;
                gauges.count(object, |gauge, amount| *gauge += amount);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn gauges(&self) -> Gauges {
        let mut sum = Gauges::default();
        for stripe in &self.stripes {
            let Gauges { bytes, raw, duplicates, tier_sharers } = crate::read(stripe).gauges;
            sum.bytes += bytes;
            sum.raw += raw;
            sum.duplicates += duplicates;
            sum.tier_sharers += tier_sharers;
        }
        sum
    }

    /// The sum of all sharers.
    pub(crate) fn sharers(&self) -> u64 {
        let sum = |stripe: &RwLock<Stripe>| -> u64 {
            let stripe = crate::read(stripe);
            let free: std::collections::HashSet<u32> = stripe.free.iter().copied().collect();
            let used = stripe.objects.iter().zip(0..).filter(|(_, at)| !free.contains(at));
            used.map(|(object, _)| u64::from(object.sharers)).sum()
        };
        self.stripes.iter().map(sum).sum()
    }

    /// Bytes of memory.
    pub(crate) fn meta_bytes(&self) -> usize {
        let bytes = |stripe: &RwLock<Stripe>| {
            let stripe = crate::read(stripe);
            stripe.objects.capacity() * size_of::<Object>() + stripe.free.capacity() * size_of::<u32>()
        };
        self.stripes.iter().map(bytes).sum()
    }

    fn change<R>(&self, id: u64, change: impl FnOnce(&mut Object) -> R) -> R {
        let (number, at) = Self::split(id);
        let mut stripe = crate::write(&self.stripes[number]);
        let Stripe { objects, gauges, .. } = &mut *stripe;
        let object = &mut objects[at];
        gauges.count(object, |gauge, amount| *gauge -= amount);
        let result = change(object);
        gauges.count(object, |gauge, amount| *gauge += amount);
        result
    }

    fn split(id: u64) -> (usize, usize) {
        let at = usize::try_from(id >> STRIPE_BITS).expect("a shared object's number is an address");
        (low_size(id) % STRIPES, at)
    }
}
