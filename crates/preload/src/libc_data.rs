//! What libc allocated for itself and touches around a fork.
//!
//! libc's fork copies the state of its name service, and puts it back in the child, before any handler of ours can run
//! there: a page of it that is away would be lost. Where that state lies only libc knows, but it must know it: by a
//! pointer in its static data. So all pages count that libc's static data points to; there are a few dozen.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pager;
use crate::sys::PAGE;

/// No such state is longer; it may lie across two pages.
const LONGEST: usize = 1 << 10;

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Finds libc's static data; while there is one thread.
pub fn find() {
    // SAFETY: the callback matches the signature.
    unsafe { libc::dl_iterate_phdr(Some(look_at), std::ptr::null_mut()) };
}

/// Keeps the writable segment of the object that has libc's code.
#[allow(clippy::cast_possible_truncation)] // addresses
unsafe extern "C" fn look_at(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    let code = libc::gnu_get_libc_version as *const () as usize;
    // SAFETY: the dynamic linker's description of a loaded object and its headers.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let segment = |writable: bool| {
        let flag = if writable { libc::PF_W } else { libc::PF_X };
        headers
            .iter()
            .filter(move |header| header.p_type == libc::PT_LOAD && header.p_flags & flag != 0)
            .map(move |header| place(base, header))
    };
    if !segment(false).any(|range| range.contains(&code)) {
        return 0;
    }
    if let Some(data) = segment(true).next() {
        START.store(data.start, Ordering::Relaxed);
        END.store(data.end, Ordering::Relaxed);
    }
    1
}

/// Where a part of an object that is loaded at `base` lies.
#[allow(clippy::cast_possible_truncation)] // addresses
fn place(base: usize, part: &libc::Elf64_Phdr) -> Range<usize> {
    let start = base + part.p_vaddr as usize;
    start..start + part.p_memsz as usize
}

/// Addresses in the managed pages that libc's static data points to.
pub fn pages() -> Vec<usize> {
    let words = START.load(Ordering::Relaxed).next_multiple_of(8)..END.load(Ordering::Relaxed) / 8 * 8;
    let managed: Range<usize> = pager::range();
    let mut pages = Vec::new();
    for word in words.step_by(8) {
        // SAFETY: mapped and aligned; other threads may write it, so it is read as one word and not trusted.
        let value = unsafe { std::ptr::with_exposed_provenance::<usize>(word).read_volatile() };
        if managed.contains(&value) {
            pages.extend([value, value + LONGEST].map(|addr| addr / PAGE * PAGE));
        }
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}
