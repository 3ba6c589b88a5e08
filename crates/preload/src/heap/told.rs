//! glibc's questions and wishes about its allocator, as far as they have an answer here.

use std::ffi::c_int;

use libmimalloc_sys as mi;

use crate::{gate, large, tls};

#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    if !tls::is_internal() {
        let _pass = gate::enter(tls::thread());
        // SAFETY: takes no pointers.
        unsafe { mi::mi_collect(true) };
    }
    1
}

/// Accepts everything: the parameters of glibc's allocator have no meaning here.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// Large blocks as `hblks`; of mimalloc's memory only what is committed is known.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    // SAFETY: all fields are integers.
    let mut info: libc::mallinfo2 = unsafe { std::mem::zeroed() };
    (info.hblks, info.hblkhd) = large::totals();
    let (mut unused, mut committed) = ([0; 7], 0);
    let [a, b, c, d, e, f, g] = &mut unused;
    // SAFETY: eight places for eight numbers.
    unsafe { mi::mi_process_info(a, b, c, d, e, &mut committed, f, g) };
    info.arena = committed.saturating_sub(info.hblkhd);
    info.uordblks = info.arena;
    info
}

#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let clamp = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
    let wide = mallinfo2();
    // SAFETY: all fields are integers.
    let mut info: libc::mallinfo = unsafe { std::mem::zeroed() };
    (info.arena, info.hblks) = (clamp(wide.arena), clamp(wide.hblks));
    (info.hblkhd, info.uordblks) = (clamp(wide.hblkhd), clamp(wide.uordblks));
    info
}
