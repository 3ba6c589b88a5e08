//! The range of addresses that the pager manages: reserved once, and never unmapped while somebody may touch it.

use crate::sys;
use rustix::io::Errno;
use std::ops::Range;

/// Smallest address range that is of use.
const MIN_RANGE: usize = 1 << 30;
/// Alignment of the range: that of a group's pages.
const ALIGN: usize = 4 << 20;

/// The reserved address range.
#[derive(Debug)]
pub(crate) struct Reservation(pub(crate) Range<usize>);

impl Reservation {
    /// As much as is asked for, or the half of it, and so on.
    pub(crate) fn new(wanted: usize) -> Result<Self, Errno> {
        let mut len = wanted.next_multiple_of(ALIGN);
        loop {
            match sys::reserve(len + ALIGN) {
                Ok(addr) => {
                    let start = addr.next_multiple_of(ALIGN);
                    sys::unmap_own(addr, start - addr);
                    sys::unmap_own(start + len, addr + ALIGN - start);
                    return Ok(Self(start..start + len));
                }
                Err(_) if len / 2 >= MIN_RANGE => len = (len / 2).next_multiple_of(ALIGN),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        sys::unmap_own(self.0.start, self.0.len());
    }
}
