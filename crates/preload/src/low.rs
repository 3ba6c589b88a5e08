//! Memory at low addresses (MAP_32BIT): the kernel's, counted and not managed, and so not without end.
//!
//! What asks for it tries elsewhere if there is none (Chez Scheme and Racket, whose whole heap would lie there; JIT
//! compilers), as it must: there is one GiB of it at most. So a part of the limit is given, and then it is used up.
//! The price: a program that can do without no other memory finds that little of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_pager::{MapError, Pager};

use crate::management::with_pager;

/// The part of the limit that may lie there.
const SHARE: u64 = 4;
/// Bytes that always may: the code of a JIT.
const LEAST: usize = 8 << 20;
/// Where the kernel puts it: below this address.
const END: usize = 2 << 30;

/// Bytes that were given and not given back. What is unmapped there and was never given makes it too little.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Enters a mapping that is about to be made.
///
/// # Errors
/// [`MapError::NoMemory`] if that would be more than may lie there.
pub fn take(len: usize) -> Result<(), MapError> {
    let limit = with_pager(Pager::limit);
    let most = usize::try_from(limit / SHARE).unwrap_or(usize::MAX).max(LEAST);
    let more = |given: usize| given.checked_add(len).filter(|sum| *sum <= most);
    let taken = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    taken.map(|_| ()).map_err(|_| MapError::NoMemory)
}

/// Something at this address was unmapped, or could not be mapped.
pub fn give_back(addr: usize, len: usize) {
    if addr < END {
        let less = |given: usize| Some(given.saturating_sub(len));
        let _ = GIVEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
