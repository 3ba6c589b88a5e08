//! The allocator of ramfold itself: memory that the pager never evicts.
//!
//! Everything the pager's threads touch has to be here, or a fault on it would wait for the thread that took it:
//! all Rust allocations of this library, and the C allocations made while `tls::Internal` is held (codecs,
//! stdio's FILE objects, the thread-local tables of new threads). dlmalloc over one reserved range, so that a
//! pointer given to `free` is told apart by its address; Rust blocks of 1 MiB and more are mappings of their own.
//! The price: one lock for all threads. The pager counts what it holds, with the rest of the process's unmanaged
//! memory, against the limit.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::{Allocator, Dlmalloc};

use crate::lock::Lock;
use crate::{ending, stack, sys};

/// Address space for C and small Rust allocations.
const RANGE: usize = 64 << 30;
/// Rust blocks from here on are mapped one by one: they go back to the system whole.
const LARGE: usize = 1 << 20;

/// Start of the reserved range; 0 until the first use.
static BASE: AtomicUsize = AtomicUsize::new(0);

static HEAP: Lock<Dlmalloc<Extent>> = Lock::new(Dlmalloc::new_with_allocator(Extent::new()));

/// True for pointers handed out by `malloc`, `calloc`, `memalign` and `realloc` of this module.
#[inline]
pub fn owns(p: *const c_void) -> bool {
    let base = BASE.load(Ordering::Relaxed);
    base != 0 && p.addr().wrapping_sub(base) < RANGE
}

/// The range's used part grows and shrinks at its end only.
struct Extent {
    used: std::cell::Cell<usize>,
}

// SAFETY: the cell is only reached under HEAP's lock.
unsafe impl Send for Extent {}

impl Extent {
    const fn new() -> Self {
        Self { used: std::cell::Cell::new(0) }
    }

    fn base() -> Option<usize> {
        let base = BASE.load(Ordering::Relaxed);
        if base != 0 {
            return Some(base);
        }
        let p = sys::map_private(RANGE, libc::PROT_NONE);
        BASE.store(p.addr(), Ordering::Relaxed);
        (!p.is_null()).then_some(p.addr())
    }
}

// SAFETY: `alloc` hands out disjoint, readable and writable parts of the range; `free_part` takes back the end.
unsafe impl Allocator for Extent {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let failed = (ptr::null_mut(), 0, 0);
        let used = self.used.get();
        let Some(base) = Self::base() else { return failed };
        if size > RANGE - used {
            return failed;
        }
        let rw = (libc::PROT_READ | libc::PROT_WRITE).unsigned_abs() as usize;
        // SAFETY: the part behind `used` belongs to the range and holds nothing.
        if unsafe { sys::call_int(libc::SYS_mprotect, [base + used, size, rw, 0, 0]) } != 0 {
            return failed;
        }
        self.used.set(used + size);
        (ptr::with_exposed_provenance_mut(base + used), size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, p: *mut u8, oldsize: usize, newsize: usize) -> bool {
        let Some(base) = Self::base() else { return false };
        let end = p.addr() + oldsize;
        if end != base + self.used.get() {
            return false;
        }
        let dontneed = libc::MADV_DONTNEED.unsigned_abs() as usize;
        let (from, len) = (p.addr() + newsize, oldsize - newsize);
        // SAFETY: dlmalloc no longer uses the end of its segment.
        if unsafe { sys::call_int(libc::SYS_madvise, [from, len, dontneed, 0, 0]) } != 0 {
            return false;
        }
        self.used.set(from - base);
        true
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        sys::PAGE
    }
}

/// Works on the heap, on a stack of ramfold's own: the pager's threads may be waiting for the lock.
fn with_heap<R>(f: impl FnOnce(&mut Dlmalloc<Extent>) -> R + 'static) -> R {
    stack::run(move || f(&mut HEAP.lock()))
}

/// Held across fork, so that the child's copy of the heap is whole.
pub fn before_fork() {
    HEAP.take();
}

/// In the parent and in the child.
pub fn after_fork() {
    HEAP.release();
}

pub fn malloc(size: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    with_heap(move |heap| unsafe { heap.c_malloc(size).cast() })
}

pub fn calloc(size: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    with_heap(move |heap| unsafe { heap.calloc(size, 16).cast() })
}

/// `align` is a power of two.
pub fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: any size is allowed; the alignment is a power of two.
    with_heap(move |heap| unsafe { heap.c_memalign(align, size).cast() })
}

/// Bytes of a block: the word before it holds the length of its chunk, with flags in the low bits, as in all of
/// dlmalloc's versions.
///
/// # Safety
/// `p` is owned by this module and not freed.
pub unsafe fn usable(p: *const c_void) -> usize {
    const WORD: usize = size_of::<usize>();
    const FLAGS: usize = 7;
    const IN_USE: usize = 3;
    // SAFETY: the caller's; the owner of a block may read the word before it.
    let head = unsafe { p.cast::<usize>().sub(1).read() };
    let overhead = if head & IN_USE == 0 { 2 * WORD } else { WORD };
    (head & !FLAGS).saturating_sub(overhead)
}

/// # Safety
/// `p` is owned by this module and not freed.
pub unsafe fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    with_heap(move |heap| unsafe { heap.c_realloc(p.cast(), size).cast() })
}

/// # Safety
/// `p` is owned by this module and not freed.
pub unsafe fn free(p: *mut c_void) {
    // SAFETY: the caller's.
    with_heap(move |heap| unsafe { heap.c_free(p.cast()) });
}

/// All Rust allocations of this library.
pub struct Global;

/// Of a block that may be null: then whoever cannot do without it says so.
fn told(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        ending::have_stderr();
    }
    block
}

/// A Rust block that is a mapping of its own; page alignment is enough for every type in use.
fn is_mapping(layout: &Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= sys::PAGE
}

fn mapped_len(size: usize) -> usize {
    size.next_multiple_of(sys::PAGE)
}

// SAFETY: dlmalloc and the kernel give disjoint blocks of the asked size and alignment; which of the two a block
// came from follows from its layout alone.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block: *mut u8 = if is_mapping(&layout) {
            sys::map_private(mapped_len(layout.size()), libc::PROT_READ | libc::PROT_WRITE).cast()
        } else {
            // SAFETY: the layout is valid.
            with_heap(move |heap| unsafe { heap.malloc(layout.size(), layout.align()) })
        };
        told(block)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapping(&layout) {
            // SAFETY: fresh mappings are zero.
            return unsafe { self.alloc(layout) };
        }
        // SAFETY: the layout is valid.
        told(with_heap(move |heap| unsafe { heap.calloc(layout.size(), layout.align()) }))
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if is_mapping(&layout) {
            let len = mapped_len(layout.size());
            // SAFETY: the block is a mapping of its own.
            unsafe { sys::munmap(p.addr(), len) };
        } else {
            // SAFETY: the block came from the heap with this layout.
            with_heap(move |heap| unsafe { heap.free(p, layout.size(), layout.align()) });
        }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's: the size, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let block = match (is_mapping(&layout), is_mapping(&new)) {
            // SAFETY: the block is a mapping of its own.
            (true, true) => unsafe { remap(p, mapped_len(layout.size()), mapped_len(size)) },
            (false, false) => {
                // SAFETY: the block came from the heap with this layout.
                with_heap(move |heap| unsafe { heap.realloc(p, layout.size(), layout.align(), size) })
            }
            // SAFETY: a fresh block, the smaller of both sizes, and the old one freed.
            _ => unsafe {
                let q = self.alloc(new);
                if !q.is_null() {
                    ptr::copy_nonoverlapping(p, q, layout.size().min(size));
                    self.dealloc(p, layout);
                }
                q
            },
        };
        told(block)
    }
}

/// # Safety
/// `p` is a mapping of `old` bytes.
unsafe fn remap(p: *mut u8, old: usize, new: usize) -> *mut u8 {
    let may_move = libc::MREMAP_MAYMOVE.unsigned_abs() as usize;
    // SAFETY: the caller's.
    let q = unsafe { sys::call(libc::SYS_mremap, [p.addr(), old, new, may_move, 0]) };
    if q == -1 {
        return ptr::null_mut();
    }
    sys::note_resized(old, new);
    q as *mut u8
}

#[global_allocator]
static GLOBAL: Global = Global;
