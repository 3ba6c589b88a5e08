//! The malloc family: mimalloc for the program, the internal allocator for ramfold.
//!
//! mimalloc gets its memory from the mmap of this library, so that it lies in the managed range. Blocks of 1 MiB
//! and more come from the pager one by one (large.rs): they are never copied when they grow, and go back whole.
//! A pointer's home is known by its address, so any of them can be freed from anywhere; one that is none of these is
//! libc's, from before this library was there (start/heap.c).

pub mod redirected;
mod told;

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::ptr;

use libmimalloc_sys as mi;

use crate::gate::{self, Pass};
use crate::large;
use crate::management;
use crate::pager;
use crate::sys::{self, PAGE};
use crate::{internal, loader, real, streams, tls};
use redirected::{loaders_calloc, loaders_malloc};

/// Blocks from this size on come from the pager directly.
const LARGE: usize = 1 << 20;
/// Bytes in what mimalloc's arenas consist of, and a multiple of them: what it is given at once.
const SLICE: usize = 64 << 10;
const AHEAD: usize = 1 << 20;
/// Alignments beyond this are served by the pager directly too.
const LARGE_ALIGN: usize = 64 << 10;

unsafe extern "C" {
    fn mi_is_in_heap_region(p: *const c_void) -> bool;
    fn _mi_arenas_contain(p: *const c_void) -> bool;
    fn _mi_option_get_fast(option: c_int) -> std::ffi::c_long;
}

/// Its purge_delay, ms: freed memory is garbage to the pager; back to it soon, but not at every free. Where there is
/// plenty, later: the program may want it again, and a first touch costs as much as a page of the kernel's.
const PURGE_DELAY: c_int = 15;
const SOON: std::ffi::c_long = 100;
const LATER: std::ffi::c_long = 1000;

/// Options of mimalloc 3 by number (its `mi_option_t`) and what they are set to.
const OPTIONS: [(c_int, std::ffi::c_long); 6] = [
    // arena_eager_commit: no. What is writable is what the program has allocated, and nothing is managed while
    // that is little.
    (4, 0),
    (PURGE_DELAY, SOON),
    // use_numa_nodes: one, without a look at /sys.
    (16, 1),
    // max_warnings: it must not write to the program's stderr.
    (20, 0),
    // destroy_on_exit: 2 means nothing at all is done at exit; collecting would bring back evicted pages.
    (22, 2),
    // arena_reserve, KiB.
    (23, 64 << 10),
];

/// Sets mimalloc's options; before its first use. All of them, so that it does not search the environment for each.
pub fn configure() {
    for option in 0..mi::_mi_option_last {
        let wanted = OPTIONS.iter().find(|(number, _)| *number == option);
        // SAFETY: options are words of mimalloc; there is one thread yet.
        unsafe { mi::mi_option_set(option, wanted.map_or(_mi_option_get_fast(option), |o| o.1)) };
    }
}

/// Whether what the program frees goes back to the pager soon.
pub fn purge_soon(soon: bool) {
    // SAFETY: options are words of mimalloc; one that is read meanwhile is the old or the new.
    unsafe { mi::mi_option_set(PURGE_DELAY, if soon { SOON } else { LATER }) };
}

/// How far from an address on, up to a multiple of [`AHEAD`], lies what mimalloc has reserved; None if it is not
/// mimalloc's.
pub fn reserved_from(addr: usize) -> Option<usize> {
    let most = (addr + 1).next_multiple_of(AHEAD);
    let slices = (addr / SLICE..most / SLICE).map(|slice| (slice + 1) * SLICE);
    // SAFETY: any address may be asked about.
    let is_mimallocs = |end: &usize| unsafe { _mi_arenas_contain(ptr::without_provenance(end - 1)) };
    slices.take_while(is_mimallocs).last()
}

/// Whose block a pointer is.
enum Home {
    Internal,
    Large,
    Heap,
    Libc,
}

fn home(p: *const c_void) -> Home {
    if internal::owns(p) {
        return Home::Internal;
    }
    // SAFETY: any pointer may be asked about.
    if !pager::range().contains(&p.addr()) || !unsafe { mi_is_in_heap_region(p) } {
        return if large::owns(p) { Home::Large } else { Home::Libc };
    }
    Home::Heap
}

/// Tells most blocks of mimalloc at once: in managed memory a program has no blocks of another kind but large ones,
/// which begin with a page.
#[inline]
fn is_plainly_heap(p: *const c_void) -> bool {
    pager::range().contains(&p.addr()) && !p.addr().is_multiple_of(PAGE)
}

/// Where a new block has to come from.
enum Source {
    Internal,
    Large,
    Heap(Pass),
    Exhausted,
}

fn source(size: usize, align: usize) -> Source {
    let thread = tls::thread();
    // SAFETY: the block is this thread's own.
    if unsafe { thread.as_ref().internal } != 0 {
        return Source::Internal;
    }
    management::settle();
    if pager::exhausted() && !collected(thread) {
        return Source::Exhausted;
    }
    if size >= LARGE || align > LARGE_ALIGN {
        return Source::Large;
    }
    Source::Heap(gate::enter(thread))
}

/// Gives what the program has freed back to the pager; whether that made room.
#[cold]
fn collected(thread: ptr::NonNull<tls::Thread>) -> bool {
    let _pass = gate::enter(thread);
    // SAFETY: takes no pointers.
    unsafe { mi::mi_collect(true) };
    !pager::exhausted()
}

/// A block of its own; where there is no more, after giving back what the program has freed.
fn allocate_large(size: usize, align: usize) -> *mut c_void {
    let p = large::alloc(size, align);
    if p.is_null() && collected(tls::thread()) { large::alloc(size, align) } else { p }
}

/// errno for a null pointer, as the C functions do.
#[inline]
fn checked(p: *mut c_void) -> *mut c_void {
    if p.is_null() {
        sys::set_errno(libc::ENOMEM);
    }
    p
}

/// Inside the heap at once, if nothing has to be seen to before.
#[inline]
fn straight(size: usize) -> Option<Pass> {
    let thread = tls::thread();
    // SAFETY: the block is this thread's own.
    let marked = unsafe { thread.as_ref().internal | thread.as_ref().stream_blocks } != 0;
    (management::is_calm() && !marked && size < LARGE && !pager::exhausted()).then(|| gate::enter(thread))
}

fn allocate(size: usize) -> *mut c_void {
    checked(match source(size, 16) {
        Source::Internal => internal::malloc(size),
        Source::Large => allocate_large(size, 16),
        // SAFETY: any size is allowed.
        Source::Heap(_pass) => unsafe { mi::mi_malloc(size) },
        Source::Exhausted => ptr::null_mut(),
    })
}

fn allocate_zeroed(size: usize) -> *mut c_void {
    checked(match source(size, 16) {
        Source::Internal => internal::calloc(size),
        Source::Large => allocate_large(size, 16),
        // SAFETY: any size is allowed.
        Source::Heap(_pass) => unsafe { mi::mi_zalloc(size) },
        Source::Exhausted => ptr::null_mut(),
    })
}

/// `align` is a power of two.
fn allocate_aligned(align: usize, size: usize) -> *mut c_void {
    match source(size, align) {
        Source::Internal => internal::memalign(align, size),
        Source::Large => allocate_large(size, align),
        // SAFETY: any size is allowed; the alignment is a power of two.
        Source::Heap(_pass) => unsafe { mi::mi_malloc_aligned(size, align) },
        Source::Exhausted => ptr::null_mut(),
    }
}

/// # Safety
/// `p` is a live block or null.
#[inline]
unsafe fn release(p: *mut c_void) {
    if is_plainly_heap(p) {
        let _pass = gate::enter(tls::thread());
        // SAFETY: mimalloc owns it.
        return unsafe { mi::mi_free(p) };
    }
    if p.is_null() {
        return;
    }
    match home(p) {
        Home::Internal => {
            // SAFETY: the internal allocator owns it.
            unsafe { internal::free(p) }
        }
        Home::Large => large::free(p),
        Home::Heap => {
            let _pass = gate::enter(tls::thread());
            // SAFETY: mimalloc owns it.
            unsafe { mi::mi_free(p) }
        }
        Home::Libc => libc_free(p),
    }
}

/// # Safety
/// `p` is a live block.
unsafe fn usable(p: *const c_void) -> usize {
    match home(p) {
        Home::Libc => libc_usable(p),
        Home::Internal => {
            // SAFETY: the internal allocator owns it.
            unsafe { internal::usable(p) }
        }
        Home::Large => large::len(p),
        Home::Heap => {
            // SAFETY: mimalloc owns it.
            unsafe { mi::mi_usable_size(p) }
        }
    }
}

real::function!(fn malloc_usable_size(*const c_void) -> usize);
real::function!(fn __libc_free(*mut c_void) -> ());

/// Frees a block of libc's.
#[cold]
fn libc_free(p: *mut c_void) {
    if let Some(free) = __libc_free::get() {
        // SAFETY: libc owns it.
        unsafe { free(p) };
    }
}

/// For the first library: whether this thread works for ramfold.
#[unsafe(no_mangle)]
extern "C" fn ramfold_is_internal() -> c_int {
    tls::is_internal().into()
}

/// For it: the block of a stream that is being made, where malloc is another's. Null if this is none, or there is no
/// memory.
#[unsafe(no_mangle)]
extern "C" fn ramfold_stream_block(size: usize) -> *mut c_void {
    if streams::takes(size) { internal::malloc(size) } else { ptr::null_mut() }
}

/// For it: whether a block is not the program's.
#[unsafe(no_mangle)]
extern "C" fn ramfold_owns(p: *const c_void) -> c_int {
    internal::owns(p).into()
}

/// Finds libc's function; there is one thread.
pub fn find() {
    malloc_usable_size::get();
}

/// Bytes of a block of libc's.
fn libc_usable(p: *const c_void) -> usize {
    // SAFETY: libc owns it.
    malloc_usable_size::get().map_or(0, |usable| unsafe { usable(p) })
}

/// A block in another home, with the contents of the old one.
///
/// # Safety
/// `p` is a live block of `old` usable bytes.
unsafe fn relocate(p: *mut c_void, old: usize, size: usize) -> *mut c_void {
    let new = allocate(size);
    if !new.is_null() {
        // SAFETY: both blocks are at least that long, and distinct.
        unsafe {
            ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast(), old.min(size));
            release(p);
        }
    }
    new
}

/// # Safety
/// `p` is a live block; `size` is not 0.
unsafe fn reallocate(p: *mut c_void, size: usize) -> *mut c_void {
    match home(p) {
        // SAFETY: the internal allocator owns it.
        Home::Internal => checked(unsafe { internal::realloc(p, size) }),
        Home::Large if size >= LARGE / 2 => checked(large::realloc(p, size)),
        // SAFETY: a live block of that length.
        Home::Large => unsafe { relocate(p, large::len(p), size) },
        Home::Heap => {
            // SAFETY: mimalloc owns it.
            let old = unsafe { mi::mi_usable_size(p) };
            match source(size, 16) {
                // SAFETY: mimalloc owns it.
                Source::Heap(_pass) => checked(unsafe { mi::mi_realloc(p, size) }),
                Source::Exhausted if size <= old => p,
                Source::Exhausted => checked(ptr::null_mut()),
                // SAFETY: a live block of that length.
                _ => unsafe { relocate(p, old, size) },
            }
        }
        // SAFETY: a live block of that length.
        Home::Libc => checked(unsafe { relocate(p, libc_usable(p), size) }),
    }
}

/// A function of C that goes on as `$target`, which gets the caller's address as one argument more.
macro_rules! with_caller {
    ($name:ident($($arg:ident: $ty:ty),*), $x86:literal, $arm:literal, $target:ident) => {
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $target);
        }
    };
}

with_caller!(malloc(_size: usize), "rsi", "x1", malloc_for);
with_caller!(calloc(_count: usize, _size: usize), "rdx", "x2", calloc_for);
with_caller!(realloc(_p: *mut c_void, _size: usize), "rdx", "x2", realloc_for);

extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    if loader::contains(caller) {
        return loaders_malloc(size);
    }
    match straight(size) {
        // SAFETY: any size is allowed.
        Some(_pass) => checked(unsafe { mi::mi_malloc(size) }),
        None if loader::theirs().is_none() && streams::takes(size) => checked(internal::malloc(size)),
        None => allocate(size),
    }
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    match count.checked_mul(size) {
        _ if loader::contains(caller) => loaders_calloc(count, size),
        Some(size) => allocate_zeroed(size),
        None => checked(ptr::null_mut()),
    }
}

unsafe extern "C" fn realloc_for(p: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if p.is_null() {
        return malloc_for(size, caller);
    }
    // SAFETY: the program's.
    unsafe { resize(p, size) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    // SAFETY: the program's.
    unsafe { release(p) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(p: *mut c_void) {
    // SAFETY: the program's.
    unsafe { release(p) }
}

/// # Safety
/// `p` is a live block or null.
unsafe fn resize(p: *mut c_void, size: usize) -> *mut c_void {
    if p.is_null() {
        return allocate(size);
    }
    // SAFETY: the caller's.
    unsafe {
        if size == 0 {
            release(p);
            return ptr::null_mut();
        }
        reallocate(p, size)
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(p: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the program's.
        Some(size) => unsafe { resize(p, size) },
        None => checked(ptr::null_mut()),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let before = sys::errno();
    let p = allocate_aligned(align, size);
    sys::set_errno(before);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the program's.
    unsafe { *out = p };
    0
}

/// Alignments that are no power of two are rounded up to one, as in glibc.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) if size <= isize::MAX.unsigned_abs() => checked(allocate_aligned(align, size)),
        _ => checked(ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    sys::pages(size).map_or_else(|| checked(ptr::null_mut()), |size| memalign(PAGE, size))
}

/// # Safety
/// As in C.
#[unsafe(export_name = "malloc_usable_size")]
pub unsafe extern "C" fn usable_size(p: *mut c_void) -> usize {
    if p.is_null() {
        return 0;
    }
    // SAFETY: the program's.
    unsafe { usable(p) }
}
