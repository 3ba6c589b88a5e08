//! What is open: numbers for the kernel to call things by.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// Open things by their numbers.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    /// A number for it.
    pub(crate) fn add(&self, it: T) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(it));
        number
    }

    /// What has this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// The number is free.
    pub(crate) fn remove(&self, number: u64) {
        let gone = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        // With nothing locked.
        drop(gone);
    }
}
