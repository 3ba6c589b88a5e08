//! Memory at low addresses (MAP_32BIT): the kernel's, counted and not managed, and so not without end.
//!
//! Programs that ask for it try elsewhere if there is none (Chez Scheme and Racket, whose whole heap would lie there),
//! as they must: there is one GiB of it at most. So once what cannot be managed takes a part of the limit, low
//! addresses are used up. A reservation is no use: SBCL takes 170 MiB there, at its start, and touches a few.
//!
//! The price: a look at /proc in each such call; a program that can do without no other memory finds that little of it.

use ramfold_pager::{MapError, Pager};

use crate::management::with_pager;

/// The part of the limit that may be unmanaged before low addresses are used up.
const SHARE: u64 = 4;
/// Bytes that always may be: the code of a JIT.
const LEAST: u64 = 8 << 20;

/// # Errors
/// [`MapError::NoMemory`] if low addresses are used up.
pub fn admit() -> Result<(), MapError> {
    let (limit, unmanaged) = with_pager(|pager: &Pager| (pager.limit(), pager.unmanaged()));
    if unmanaged > (limit / SHARE).max(LEAST) { Err(MapError::NoMemory) } else { Ok(()) }
}
