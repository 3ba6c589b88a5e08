//! Generations: the codecs (or zpools, or tiers) that a store has used, numbered, one of them current.
//!
//! Entries name what made them by number, so old entries stay readable when the setting changes. Nothing is
//! ever taken out, which is why reading needs no lock; choosing again what was chosen before gives the old
//! number back, so that switching to and fro uses nothing up.

use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock};

/// Up to `MAX` of one kind.
#[derive(Debug)]
pub(crate) struct Generations<T: ?Sized, const MAX: usize> {
    items: [OnceLock<Arc<T>>; MAX],
    current: AtomicUsize,
    /// Held while one is added.
    adding: Mutex<()>,
}

impl<T: ?Sized, const MAX: usize> Generations<T, MAX> {
    /// The first, which is current, if there is one.
    pub(crate) fn new(first: Option<Arc<T>>) -> Self {
        let items = [const { OnceLock::new() }; MAX];
        if let Some(first) = first {
            let _ = items[0].set(first);
        }
        Self { items, current: AtomicUsize::new(0), adding: Mutex::new(()) }
    }

    /// The number and the item in use for new entries.
    pub(crate) fn current(&self) -> (usize, &T) {
        let number = self.current.load(Acquire);
        (number, self.get(number))
    }

    /// The item of this number, which was given by `current` or `add`.
    pub(crate) fn get(&self, number: usize) -> &T {
        self.items[number].get().expect("an entry names only what the store has used")
    }

    /// The number of `wanted`, or of the one that has the same identity. None if there is no number left.
    pub(crate) fn add<I: PartialEq>(&self, wanted: Arc<T>, identity: impl Fn(&T) -> I) -> Option<usize> {
        let _one_at_a_time = crate::lock(&self.adding);
        for (number, item) in self.items.iter().enumerate() {
            match item.get() {
                Some(old) if identity(old) == identity(&wanted) => return Some(number),
                Some(_) => {}
                None => {
                    let _ = item.set(wanted);
                    return Some(number);
                }
            }
        }
        None
    }

    /// Makes `number` the one for new entries.
    pub(crate) fn select(&self, number: usize) {
        self.current.store(number, Release);
    }

    /// All, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map_while(|item| item.get().map(|item| &**item))
    }
}
