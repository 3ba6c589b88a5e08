//! The limit of address space (RLIMIT_AS), which start/limits.c keeps: what would pass it is refused here.
//!
//! Counted is what the kernel counts, less what ramfold has mapped for itself, managed memory being replaced by what
//! the program can use of it. What is reserved there and not accessible counts only in the call that reserves it,
//! since malloc and the break reserve much. Not refused: stacks of threads, libraries.
//!
//! Price: nothing where there is no limit; else a look at /proc/self/statm in each call that maps.

use std::ffi::c_ulong;

use ramfold_pager::{MapError, Pager};
use rustix::fs::{Mode, OFlags};

use crate::management;
use crate::sys::{self, PAGE};

unsafe extern "C" {
    /// start/limits.c; the greatest number when there is no limit.
    safe fn ramfold_most_mapped() -> c_ulong;
}

/// The kernel's count of all that is mapped.
fn mapped() -> Option<usize> {
    let file = rustix::fs::open(c"/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 24];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let pages: usize = std::str::from_utf8(&text[..len]).ok()?.split(' ').next()?.parse().ok()?;
    Some(pages * PAGE)
}

/// # Errors
/// [`MapError::NoMemory`] if `len` bytes more would be more than the program may map. Where the kernel does not say
/// how much is mapped, they may be.
pub fn admit(len: usize) -> Result<(), MapError> {
    if most() == usize::MAX { Ok(()) } else { management::with_pager(move |pager| admit_to(pager, len)) }
}

/// The same for who works on the pager.
pub fn admit_to(pager: &Pager, len: usize) -> Result<(), MapError> {
    let most = most();
    if most == usize::MAX || fits(pager, len, most) { Ok(()) } else { Err(MapError::NoMemory) }
}

fn most() -> usize {
    usize::try_from(ramfold_most_mapped()).unwrap_or(usize::MAX)
}

#[cold]
fn fits(pager: &Pager, len: usize, most: usize) -> bool {
    let outside = mapped().map_or(0, |all| all.saturating_sub(sys::own_address_space()));
    outside.saturating_add(pager.bytes_in_use()).saturating_add(len) <= most
}
