//! Memory for C codecs from the Rust heap.
//!
//! The store also lives inside programs whose `malloc` hands out the very memory that is being compressed.
//! A C codec that called `malloc` there would work in pages which may be evicted under it. So every C codec
//! is given this pair instead, and its memory comes from wherever the Rust global allocator takes it.
//!
//! Price: 16 bytes an allocation, in which the length is kept, for `free` is not told it.
//! Guarantee: blocks are aligned to 16 bytes, as `malloc`'s are; no memory is a null pointer, never an abort.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use zstd_safe::zstd_sys::ZSTD_customMem;

/// Bytes before a block, and the alignment of both.
const HEADER: usize = 16;

/// The layout of a block of `size` bytes and its header.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, HEADER).ok()
}

/// `malloc` on the Rust heap. Its result goes back through [`free`] only.
pub(super) extern "C" fn malloc(size: usize) -> *mut c_void {
    let Some(layout) = layout(size) else { return std::ptr::null_mut() };
    // SAFETY: the layout is not empty, it holds the header at least.
    let base = unsafe { alloc(layout) };
    if base.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: `base` is aligned for a usize and the block is HEADER bytes longer than `size`.
    unsafe {
        base.cast::<usize>().write(size);
        base.add(HEADER).cast()
    }
}

/// `free` for what [`malloc`] gave.
///
/// # Safety
/// `block` is null or came from [`malloc`] and was not freed yet.
pub(super) unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: `malloc` wrote the size HEADER bytes before the block, and made it with this very layout.
    unsafe {
        let base = block.cast::<u8>().sub(HEADER);
        let size = base.cast::<usize>().read();
        dealloc(base, Layout::from_size_align_unchecked(size + HEADER, HEADER));
    }
}

extern "C" fn allocate(_: *mut c_void, size: usize) -> *mut c_void {
    malloc(size)
}

unsafe extern "C" fn release(_: *mut c_void, block: *mut c_void) {
    // SAFETY: zstd gives back, once, what `allocate` gave it.
    unsafe { free(block) }
}

/// The pair as zstd takes it.
pub(super) fn for_zstd() -> ZSTD_customMem {
    ZSTD_customMem { customAlloc: Some(allocate), customFree: Some(release), opaque: std::ptr::null_mut() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_their_size_and_go_back() {
        for size in [0, 1, 15, 4096, 1 << 20] {
            let block = malloc(size);
            assert!(!block.is_null() && block.addr().is_multiple_of(16));
            // SAFETY: the block has `size` bytes, and is freed once.
            unsafe {
                std::ptr::write_bytes(block.cast::<u8>(), 0xa5, size);
                free(block);
            }
        }
    }

    #[test]
    fn an_impossible_size_is_a_null_pointer() {
        assert!(malloc(usize::MAX).is_null());
        assert!(malloc(isize::MAX.unsigned_abs()).is_null());
        // SAFETY: null is nothing to free.
        unsafe { free(std::ptr::null_mut()) };
    }
}
