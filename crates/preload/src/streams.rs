//! stdio streams live outside managed memory.
//!
//! In the child of a fork, libc resets the lock of every open stream before any handler runs, so before the pager has
//! taken over there: a FILE that was evicted would be read as zeros. So the block that a FILE is comes from the
//! internal allocator. Buffers are the program's, and managed.
//!
//! fopen may block for ever, and be left by siglongjmp or by cancellation. So no mark covers the call: streams.c
//! notes that a block for a stream is to come, and the first that looks like one takes the note away. Whatever
//! becomes of a note, it moves one small block to the internal allocator, where it is as good as elsewhere.
//!
//! Where the program or a library of it has a malloc, the block must not pass through that: it may stand over this
//! one, and put a head of its own before what it gives. There the block is taken where libc asks for it.

use std::ops::RangeInclusive;

use crate::{real, tls};

/// Bytes of a FILE: alone, or with its lock, what its kind adds, and what it has for wide characters.
const SIZES: RangeInclusive<usize> = 216..=1024;

/// Whether a block of this size is for a stream that is being made.
#[cold]
pub fn takes(size: usize) -> bool {
    // SAFETY: only this thread uses its block.
    let own = unsafe { tls::thread().as_mut() };
    let taken = own.stream_blocks > 0 && SIZES.contains(&size);
    own.stream_blocks -= u32::from(taken);
    taken
}

real::function!(fn _IO_list_lock() -> ());
real::function!(fn _IO_list_unlock() -> ());
real::function!(fn _IO_list_resetlock() -> ());

/// Takes libc's lock on the list of all streams, as libc's fork does; a thread may have it several times.
pub fn hold_list() {
    call(_IO_list_lock::get());
}

/// Ends [`hold_list`], in the parent of a fork.
pub fn release_list() {
    call(_IO_list_unlock::get());
}

/// Ends [`hold_list`], in the child of a fork, whatever libc has done with the lock there.
pub fn reset_list() {
    call(_IO_list_resetlock::get());
}

fn call(of_libc: Option<unsafe extern "C" fn()>) {
    if let Some(function) = of_libc {
        // SAFETY: none of them has an argument or a result; each works on a lock of libc's own.
        unsafe { function() };
    }
}

unsafe extern "C" {
    fn ramfold_find_streams();
}

/// Finds libc's functions; there is one thread.
pub fn find() {
    _IO_list_lock::get();
    _IO_list_unlock::get();
    _IO_list_resetlock::get();
    // SAFETY: looks for names only.
    unsafe { ramfold_find_streams() };
}

real::jump! {
    fopen => ramfold_open_fopen,
    fopen64 => ramfold_open_fopen64,
    fdopen => ramfold_make_fdopen,
    // The first library's popen calls it.
    ramfold_popen => ramfold_make_popen,
    tmpfile => ramfold_make_tmpfile,
    tmpfile64 => ramfold_make_tmpfile64,
    fmemopen => ramfold_make_fmemopen,
    fopencookie => ramfold_make_fopencookie,
    open_memstream => ramfold_make_open_memstream,
    open_wmemstream => ramfold_make_open_wmemstream,
    setmntent => ramfold_make_setmntent,
}
