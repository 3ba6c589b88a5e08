//! What the pager needs from the program it lives in: threads, an end, and file descriptors that survive.

use std::ffi::{CString, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use ramfold_pager::Host;

use crate::sys::{self, PAGE};
use crate::tls::{self, Internal};
use crate::{descriptors, running, threads};

/// Stack of a pager thread, in bytes; only what is touched is memory.
const STACK: usize = 512 << 10;

pub struct Program;

struct Body {
    name: &'static str,
    run: Box<dyn FnOnce() + Send>,
}

unsafe extern "C" fn run(body: *mut c_void) -> *mut c_void {
    tls::dedicate();
    // SAFETY: made by `spawn` for this thread alone.
    let body = *unsafe { Box::from_raw(body.cast::<Body>()) };
    if let Ok(name) = CString::new(body.name) {
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    (body.run)();
    std::ptr::null_mut()
}

/// A stack with a guard page below it.
fn stack() -> io::Result<*mut c_void> {
    let p = sys::map_private(STACK + PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the first page of a mapping just made.
    if p.is_null() || unsafe { sys::call_int(libc::SYS_mprotect, [p.addr(), PAGE, 0, 0, 0]) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(p.wrapping_byte_add(PAGE))
}

/// Runs `f` with every signal blocked: the threads it starts block them for good.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are written before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        result
    }
}

impl Host for Program {
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let _internal = Internal::enter();
        let stack = stack()?;
        let body = Box::into_raw(Box::new(Body { name, run: body }));
        // SAFETY: the stack is fresh, and the body is this thread's alone.
        let error = without_signals(|| unsafe { threads::create_internal(stack, STACK, run, body.cast()) });
        if error == 0 {
            return Ok(());
        }
        // SAFETY: no thread has them.
        unsafe {
            drop(Box::from_raw(body));
            sys::munmap(stack.addr() - PAGE, STACK + PAGE);
        }
        Err(io::Error::from_raw_os_error(error))
    }

    fn protect_fd(&self, fd: RawFd) {
        if !descriptors::protect(fd) {
            self.die("too many descriptors to keep open");
        }
    }

    fn cpu_of(&self, tid: u32) -> Option<usize> {
        running::cpu_of(tid)
    }

    fn die(&self, message: &str) -> ! {
        complain(message);
        loop {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

/// One line on the program's stderr.
pub fn complain(message: &str) {
    let line = format!("ramfold: {message}\n");
    // SAFETY: descriptor 2 is only written to; if the program closed it, the write fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, line.as_bytes());
}
