//! What the dynamic linker and libc itself call where the program has a malloc of its own ([`crate::loader`]).
//!
//! The linker's blocks, those of threads that work for ramfold, and those of streams come from the internal
//! allocator; libc's others are the program's. Guarantee: a block goes back to who gave it, told by its address.

use std::ffi::c_void;
use std::ptr;

use super::{checked, ramfold_stream_block, release, resize};
use crate::loader::{self, Function};
use crate::{internal, tls};

/// What the dynamic linker is to call.
pub fn for_linker() -> [Function; 4] {
    [
        (c"malloc", (loaders_malloc as *const ()).expose_provenance()),
        (c"calloc", (loaders_calloc as *const ()).expose_provenance()),
        (c"realloc", (loaders_realloc as *const ()).expose_provenance()),
        (c"free", (loaders_free as *const ()).expose_provenance()),
    ]
}

/// What libc is to call.
pub fn for_libc() -> [Function; 3] {
    [
        (c"malloc", (libcs_malloc as *const ()).expose_provenance()),
        (c"realloc", (libcs_realloc as *const ()).expose_provenance()),
        (c"free", (loaders_free as *const ()).expose_provenance()),
    ]
}

/// malloc for the dynamic linker of a program whose own comes first.
pub extern "C" fn loaders_malloc(size: usize) -> *mut c_void {
    checked(internal::malloc(size))
}

/// calloc for it.
pub extern "C" fn loaders_calloc(count: usize, size: usize) -> *mut c_void {
    checked(count.checked_mul(size).map_or(ptr::null_mut(), internal::calloc))
}

/// realloc for it.
///
/// # Safety
/// As in C.
pub unsafe extern "C" fn loaders_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    match loader::theirs() {
        // SAFETY: what is not internal came from the program's malloc.
        Some(theirs) if !p.is_null() && !internal::owns(p) => unsafe { (theirs.realloc)(p, size) },
        _ if p.is_null() => loaders_malloc(size),
        // SAFETY: the linker's.
        _ => unsafe { resize(p, size) },
    }
}

/// malloc for libc itself, where a program has a malloc of its own.
pub extern "C" fn libcs_malloc(size: usize) -> *mut c_void {
    if tls::is_internal() {
        return loaders_malloc(size);
    }
    let block = ramfold_stream_block(size);
    match loader::theirs() {
        // SAFETY: libc's, which calls the program's.
        Some(theirs) if block.is_null() => unsafe { (theirs.malloc)(size) },
        _ => block,
    }
}

/// realloc for libc itself, where a program has a malloc of its own.
///
/// # Safety
/// As in C.
pub unsafe extern "C" fn libcs_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    match loader::theirs() {
        // SAFETY: libc's, which calls the program's.
        Some(theirs) if p.is_null() => unsafe { (theirs.realloc)(p, size) },
        // SAFETY: the caller's.
        _ => unsafe { loaders_realloc(p, size) },
    }
}

/// free for the linker, and for libc, which frees some of what the linker has allocated.
///
/// # Safety
/// As in C.
pub unsafe extern "C" fn loaders_free(p: *mut c_void) {
    match loader::theirs() {
        // SAFETY: what is not internal came from the program's malloc.
        Some(theirs) if !internal::owns(p) => unsafe { (theirs.free)(p) },
        // SAFETY: the linker's.
        _ => unsafe { release(p) },
    }
}
