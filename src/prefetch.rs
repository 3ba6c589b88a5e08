//! Hints to the processor that memory will be read soon. Pages and objects come from far away as a rule, and a hint
//! costs nothing beside waiting for them one line after the other.

const LINE: usize = 64;

/// Asks for the cache lines of `len` bytes at `start`. The bytes need not exist.
pub(crate) fn prefetch_bytes(start: *const u8, len: usize) {
    for at in (0..len).step_by(LINE) {
        line(start.wrapping_add(at));
    }
}

/// Asks for the first cache line of a value, which need not exist.
pub(crate) fn prefetch<T>(value: *const T) {
    line(value.cast());
}

#[cfg(target_arch = "x86_64")]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction reads nothing into the program and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn line(_at: *const u8) {}
