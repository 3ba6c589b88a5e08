//! Futexes that the kernel itself writes to.
//!
//! It waits for no page there. FUTEX_LOCK_PI and FUTEX_WAKE_OP answer EFAULT when a word is away, and libc aborts; of
//! a robust mutex nobody learns that the thread which held it has ended. So mutexes of these kinds are kept from
//! pthread_mutex_init on. When a futex call by syscall() fails so, its words are brought in, and it is made again.
//!
//! Price: the page of such a mutex, for as long as its memory is mapped. Guarantee: as without ramfold, but for what
//! the program does by its own instructions.

use std::ffi::c_int;

use libc::{pthread_mutex_t, pthread_mutexattr_t};

use crate::management::with_pager;
use crate::sys::{self, PAGE};
use crate::{pager, real, tls};

real::function!(fn pthread_mutex_init(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int);

/// Finds libc's function; there is one thread.
pub fn find() {
    pthread_mutex_init::get();
}

/// # Safety
/// As in C.
#[unsafe(export_name = "pthread_mutex_init")]
pub unsafe extern "C" fn init(mutex: *mut pthread_mutex_t, attributes: *const pthread_mutexattr_t) -> c_int {
    let Some(real) = pthread_mutex_init::get() else { return libc::ENOSYS };
    // SAFETY: the program's.
    let done = unsafe { real(mutex, attributes) };
    // SAFETY: libc has accepted the attributes.
    if done == 0 && unsafe { is_written_by_kernel(attributes) } && !tls::is_internal() {
        let (start, end) = (mutex.addr() / PAGE * PAGE, mutex.addr() + size_of::<pthread_mutex_t>());
        let len = end.next_multiple_of(PAGE) - start;
        if pager::range().contains(&start) {
            // It is mapped, so it can be kept.
            let _ = with_pager(move |pager| pager.keep(start, len));
        }
    }
    done
}

/// Whether a mutex with these attributes inherits priorities, or is robust.
unsafe fn is_written_by_kernel(attributes: *const pthread_mutexattr_t) -> bool {
    let (mut protocol, mut robust) = (libc::PTHREAD_PRIO_NONE, libc::PTHREAD_MUTEX_STALLED);
    if attributes.is_null() {
        return false;
    }
    // SAFETY: the caller's: they are initialised.
    unsafe {
        libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
        libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
    }
    protocol == libc::PTHREAD_PRIO_INHERIT || robust == libc::PTHREAD_MUTEX_ROBUST
}

/// For clone.c: brings a managed word in, for writing. Whether it did.
#[unsafe(no_mangle)]
extern "C" fn ramfold_bring_word(addr: usize) -> c_int {
    let args = [addr / PAGE * PAGE, PAGE, libc::MADV_POPULATE_WRITE.unsigned_abs() as usize, 0, 0];
    // SAFETY: changes no contents.
    let brought = pager::range().contains(&addr) && unsafe { sys::call(libc::SYS_madvise, args) } == 0;
    brought.into()
}
