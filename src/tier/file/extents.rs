//! Extents: the file in pieces of one MiB, and who may write which.

use rustix::fs::{FallocateFlags, fallocate};
use std::fmt::Debug;
use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// Bytes of an extent. Extent `n` lies at `n * EXTENT_BYTES` of the file.
pub const EXTENT_BYTES: u32 = 1 << 20;

/// Hands out the extents of one file, to one [`super::FileTier`] or to several of several processes.
///
/// An extent belongs to the tier that acquired it. After a fork it belongs to parent and child: the source
/// hands it out again only when both have released it.
pub trait ExtentSource: Send + Sync + Debug {
    /// An extent that nobody holds, below 2^31; `None` when the file is at its bound.
    fn acquire(&self) -> Option<u32>;

    /// Gives up an extent. Called once for each acquired, with no lock held that a reader waits for; the source
    /// may give its file space back before it hands it out again.
    fn release(&self, extent: u32);

    /// Whether somebody else holds an extent of this tier's too.
    fn is_shared(&self, _extent: u32) -> bool {
        false
    }
}

/// The extents of a file that one process uses alone.
#[derive(Debug)]
pub struct LocalExtents {
    /// Extents that the bound allows.
    bound: u32,
    /// The file in which released extents are punched out.
    punched: Option<File>,
    /// Protects the free extents; held for a few instructions.
    free: Mutex<FreeExtents>,
}

/// Extents that were released, the lowest taken first to keep the file short, and all from `next` on.
#[derive(Debug, Default)]
struct FreeExtents {
    released: std::collections::BTreeSet<u32>,
    next: u32,
}

impl LocalExtents {
    /// Extents of at most `max_bytes` in all, rounded down.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        let bound = u32::try_from(max_bytes / u64::from(EXTENT_BYTES)).unwrap_or(u32::MAX);
        Self { bound: bound.min(1 << 31), punched: None, free: Mutex::default() }
    }

    /// The same, giving the space of released extents back to the file system. That takes ext4 0.3 to 4 ms an
    /// extent, in the discard or write that released it; without it the file keeps its greatest size.
    #[must_use]
    pub fn punching(self, file: File) -> Self {
        Self { punched: Some(file), ..self }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, FreeExtents> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExtentSource for LocalExtents {
    fn acquire(&self) -> Option<u32> {
        let mut free = self.free();
        free.released.pop_first().or_else(|| {
            let extent = free.next;
            (extent < self.bound).then(|| {
                free.next += 1;
                extent
            })
        })
    }

    fn release(&self, extent: u32) {
        if let Some(file) = &self.punched {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (start, length) = (u64::from(extent) * u64::from(EXTENT_BYTES), u64::from(EXTENT_BYTES));
            // A file system without holes keeps the space, and the extent is written over later.
            let _ = fallocate(file, flags, start, length);
        }
        let fresh = self.free().released.insert(extent);
        debug_assert!(fresh, "extent {extent} was released twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_the_lowest_extent_comes_first() {
        let extents = LocalExtents::new(3 * u64::from(EXTENT_BYTES) + 5);
        let all: Vec<_> = std::iter::from_fn(|| extents.acquire()).collect();
        assert_eq!(all, [0, 1, 2]);
        extents.release(2);
        extents.release(0);
        assert_eq!([extents.acquire(), extents.acquire(), extents.acquire()], [Some(0), Some(2), None]);
        assert_eq!(LocalExtents::new(u64::MAX).bound, 1 << 31);
    }
}
