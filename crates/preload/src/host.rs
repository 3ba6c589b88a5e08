//! What the pager needs from the program it lives in: threads, an end, and file descriptors that survive.

use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::RawFd;

use ramfold_pager::Host;

use crate::tls::{self, Internal};
use crate::{descriptors, ending, heap, libc_threads, running, stack, threads, untraced};

/// Stack of a pager thread, in bytes; only what is touched is memory.
const STACK: usize = 512 << 10;

pub struct Program;

struct Body {
    name: &'static str,
    run: Box<dyn FnOnce() + Send>,
}

unsafe extern "C" fn run(body: *mut c_void) -> *mut c_void {
    tls::dedicate();
    libc_threads::enter();
    // SAFETY: made by `spawn` for this thread alone.
    let body = *unsafe { Box::from_raw(body.cast::<Body>()) };
    if let Ok(name) = CString::new(body.name) {
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    (body.run)();
    std::ptr::null_mut()
}

impl Host for Program {
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let _internal = Internal::enter();
        let stack = stack::new(STACK);
        if stack.is_null() {
            return Err(io::Error::last_os_error());
        }
        let body = Box::into_raw(Box::new(Body { name, run: body }));
        // SAFETY: the stack is fresh, and the body is this thread's alone.
        let create = || unsafe { threads::create_internal(stack, STACK, run, body.cast()) };
        libc_threads::begin();
        let error = tls::without_signals(|| untraced::start(create));
        if error == 0 {
            return Ok(());
        }
        libc_threads::not_begun();
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(body) });
        stack::delete(stack, STACK);
        Err(io::Error::from_raw_os_error(error))
    }

    fn leave_program(&self, kept: &[RawFd]) {
        descriptors::take_own_table(kept);
        descriptors::take_own_directory();
    }

    fn note_room(&self, plenty: bool) {
        heap::purge_soon(!plenty);
    }

    fn cpu_of(&self, tid: u32) -> Option<usize> {
        running::cpu_of(tid)
    }
}

impl ramfold_budget::Host for Program {
    fn protect_fd(&self, fd: RawFd) {
        if !descriptors::protect(fd) {
            ending::die("too many descriptors to keep open", false);
        }
    }

    fn die(&self, message: &str, reported: bool) -> ! {
        ending::die(message, reported)
    }
}
