//! The swap file of a run.

use super::options::Swap;
use crate::failure::Failure;
use ramfold::tier::open_swap;
use ramfold_budget::segment::EXTENT_SIZE;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;

/// Opens the file, or an unlinked one in the directory; `None` if there is to be none.
pub fn open(swap: &Swap) -> Result<Option<OwnedFd>, Failure> {
    let Swap::At { path, .. } = swap else { return Ok(None) };
    match open_swap(Some(path)) {
        Ok(file) => Ok(Some(file.into())),
        Err(error) => Err(Failure::failed(format!(
            "--swap {}: {error} (give another directory or file, or --swap none)",
            path.display()
        ))),
    }
}

/// Gives the file space of an extent back, where the file system can; else it is written over later.
pub fn discard(swap: impl AsFd, extent: u32) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(swap, flags, u64::from(extent) * EXTENT_SIZE, EXTENT_SIZE);
}
