//! The swap file of a run.

use super::options::Swap;
use crate::failure::Failure;
use ramfold::tier::open_swap;
use rustix::fd::OwnedFd;

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
