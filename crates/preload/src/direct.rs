//! The exported names of direct.c: files are opened without direct I/O where pages leave by a copy.

use std::ffi::c_int;

use crate::exec::jump;
use crate::tls::Internal;

unsafe extern "C" {
    static mut ramfold_pages_are_copied: c_int;
    fn ramfold_find_direct();
}

/// Pages leave by a copy from now on; there is one thread.
pub fn avoid() {
    // SAFETY: nobody reads it at the same time.
    unsafe { ramfold_pages_are_copied = 1 };
}

/// Finds libc's functions; there is one thread.
pub fn find() {
    let _internal = Internal::enter();
    // SAFETY: looks for names only.
    unsafe { ramfold_find_direct() };
}

jump! {
    open => ramfold_open,
    open64 => ramfold_open,
    openat => ramfold_openat,
    openat64 => ramfold_openat,
    __open_2 => ramfold_open_2,
    __open64_2 => ramfold_open_2,
    __openat_2 => ramfold_openat_2,
    __openat64_2 => ramfold_openat_2,
    fcntl => ramfold_fcntl,
    fcntl64 => ramfold_fcntl,
}
