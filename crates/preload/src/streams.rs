//! stdio streams live outside managed memory.
//!
//! In the child of a fork, libc resets the lock of every open stream before any handler runs, so before the pager
//! has taken over there: a FILE that was evicted would be read as zeros. Streams are therefore made while this
//! library is internal. Their buffers are allocated later, by the program, and are managed.

use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::tls::Internal;
use crate::{real, sys};

/// Replaces a function that makes a stream: the same, internal.
macro_rules! stream {
    ($module:ident, fn $name:ident($($arg:ident: $ty:ty),*)) => {
        mod $module {
            use super::*;
            real::function!(fn $name($($ty),*) -> *mut FILE);

            /// # Safety
            /// As in C.
            #[unsafe(export_name = stringify!($name))]
            pub unsafe extern "C" fn replacement($($arg: $ty),*) -> *mut FILE {
                let _internal = Internal::enter();
                let Some(real) = $name::get() else {
                    sys::set_errno(libc::ENOSYS);
                    return std::ptr::null_mut();
                };
                // SAFETY: the program's.
                without_cancellation(|| unsafe { real($($arg),*) })
            }
        }
    };
}

/// Some of these functions are cancellation points where the kernel takes its time. A thread that ended there would
/// stay internal, and unwind through Rust: it ends at its next such point instead.
fn without_cancellation<T>(f: impl FnOnce() -> T) -> T {
    let (mut before, mut ignored) = (0, 0);
    // SAFETY: changes a flag of this thread.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before);
        let result = f();
        pthread_setcancelstate(before, &raw mut ignored);
        result
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

type Text = *const c_char;

stream!(fopen_, fn fopen(path: Text, mode: Text));
stream!(fopen64_, fn fopen64(path: Text, mode: Text));
stream!(fdopen_, fn fdopen(fd: c_int, mode: Text));
stream!(popen_, fn popen(command: Text, mode: Text));
stream!(tmpfile_, fn tmpfile());
stream!(tmpfile64_, fn tmpfile64());
stream!(fmemopen_, fn fmemopen(buffer: *mut c_void, len: usize, mode: Text));
stream!(open_memstream_, fn open_memstream(buffer: *mut *mut c_char, len: *mut usize));
stream!(open_wmemstream_, fn open_wmemstream(buffer: *mut *mut c_int, len: *mut usize));
stream!(setmntent_, fn setmntent(path: Text, mode: Text));
