//! The swap file of the run, as the tier of one process: its extents are handed out by the segment.

use crate::Host;
use crate::fds::{self, Identity};
use crate::usage::Account;
use ramfold::tier::file::{ExtentSource, FileTier};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// Extents of the run's swap file that this process holds.
#[derive(Debug)]
struct RunExtents {
    account: Arc<Account>,
    file: File,
    identity: Identity,
}

impl ExtentSource for RunExtents {
    fn acquire(&self) -> Option<u32> {
        let (segment, slot) = (&self.account.segment, self.account.slot());
        let take = || segment.take_extent(slot);
        // What the dead have comes back sooner or later; who would be refused needs it now.
        take().or_else(|| if segment.reap(&|extent| self.discard(extent)) > 0 { take() } else { None })
    }

    fn release(&self, extent: u32) {
        self.account.segment.release_extent(self.account.slot(), extent, &|extent| self.discard(extent));
    }

    fn is_shared(&self, extent: u32) -> bool {
        self.account.segment.is_extent_shared(extent)
    }
}

impl RunExtents {
    fn discard(&self, extent: u32) {
        // The program may have closed it, and have a file of its own there.
        if self.identity.is_at(self.file.as_raw_fd()) {
            punch(&self.file, extent);
        }
    }
}

/// The tier over the swap file, if there is one; the numbers of its descriptors go to `files`.
pub fn open_tier(
    swap: Option<File>,
    account: &Arc<Account>,
    host: &dyn Host,
    files: &mut Vec<(RawFd, Identity)>,
) -> std::io::Result<Option<Arc<FileTier>>> {
    let Some(file) = swap else { return Ok(None) };
    let again = fds::raise(file.try_clone()?.into())?;
    host.protect_fd(again.as_raw_fd());
    let identity = Identity::of(&file)?;
    files.extend([file.as_raw_fd(), again.as_raw_fd()].map(|fd| (fd, identity)));
    let extents = RunExtents { account: Arc::clone(account), file: again.into(), identity };
    Ok(Some(Arc::new(FileTier::new(file, Box::new(extents)))))
}

/// Gives the file space of an extent back where the file system can; else it is written over later.
pub fn punch(file: impl AsFd, extent: u32) {
    let size = crate::segment::EXTENT_SIZE;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(file, flags, u64::from(extent) * size, size);
}
