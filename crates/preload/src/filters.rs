//! A program that filters its own system calls (seccomp): browsers' content processes, `qemu -sandbox`, `file`.
//!
//! Behind the filter no management can begin, and threads of this process would be filtered with the program's (TSYNC).
//! So before the first filter management begins, however small the process is, and the pager's threads move to a
//! keeper (guests.rs), which is another process and keeps its system calls. From then on the program's threads ask
//! it (deputy.rs).
//!
//! Price: management of a process that might have stayed small, and a process. Guarantee: the filter holds for the
//! program's threads as it was written; the keeper is outside of it, with the program's memory. A filter that is put by
//! the program's own instructions is not seen, and one that it had from its parent is there before ramfold is.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::pager::is_guest;
use crate::{deputy, gate, guests, tls};

/// Copies of the process are filtered as it is.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// Whether the program has put a filter: what is no system call of the program's may end it.
pub fn is_filtered() -> bool {
    IS_FILTERED.load(Ordering::Relaxed)
}

/// For clone.c: a filter is about to be put before the system calls of this thread, or of all.
#[unsafe(no_mangle)]
extern "C" fn ramfold_before_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
    if !tls::is_internal() && !is_guest() && guests::is_kept() {
        deputy::begin();
    }
}

/// For clone.c: mimalloc calls.
#[unsafe(no_mangle)]
extern "C" fn ramfold_is_in_heap() -> std::ffi::c_int {
    gate::is_inside(tls::thread()).into()
}
