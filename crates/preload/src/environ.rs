//! The settings, from the environment variable `RAMFOLD_RUN`: `key=value;key=value`.
//!
//! `limit` (bytes) is the only one that must be there. Keys that this version does not know are ignored, so that
//! the command line and the library may differ by a version; a value that cannot be read makes the whole string
//! invalid, and the library inert.

use std::ffi::{CStr, c_char};
use std::ptr;

use ramfold_pager::Config;

/// Name of the variable that holds the settings.
const VARIABLE: &str = "RAMFOLD_RUN";

unsafe extern "C" {
    static environ: *const *const c_char;
    /// Where the kernel put argc, argv and the environment: known to the dynamic linker before libc starts.
    static __libc_stack_end: *const usize;
}

/// The strings of the environment. Before libc has started, those on the initial stack.
pub fn strings() -> impl Iterator<Item = &'static CStr> {
    // SAFETY: both are variables of libc and of the dynamic linker, set before the first call of this library.
    let mut next = unsafe { if environ.is_null() { initial_environ() } else { environ } };
    std::iter::from_fn(move || {
        // SAFETY: the environment ends with a null pointer, and is passed over once.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let string = CStr::from_ptr(*next);
            next = next.add(1);
            Some(string)
        }
    })
}

/// # Safety
/// `__libc_stack_end` is set: true from the dynamic linker's first steps on.
unsafe fn initial_environ() -> *const *const c_char {
    // SAFETY: the layout is fixed by the ABI: argc, argv, null, environment.
    unsafe {
        let stack = __libc_stack_end;
        if stack.is_null() { ptr::null() } else { stack.add(*stack + 2).cast() }
    }
}

fn value() -> Option<&'static str> {
    strings().filter_map(|s| s.to_str().ok()).find_map(|s| s.strip_prefix(VARIABLE)?.strip_prefix('='))
}

/// The pager's settings; `None` when there are none or they cannot be read.
pub fn config() -> Option<Config> {
    let mut limit = None;
    for setting in value()?.split(';').filter(|s| !s.is_empty()) {
        let (key, value) = setting.split_once('=')?;
        if key == "limit" {
            limit = Some(value.parse().ok()?);
        }
    }
    Some(Config { limit: limit? })
}
