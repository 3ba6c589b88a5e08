//! What the library keeps for each thread, in initial-exec thread-local storage (tls.c).
//!
//! Rust's own `thread_local!` is out of bounds here: in a shared library it reaches its storage through a table
//! that is allocated with malloc, which is what this library implements.

use std::arch::asm;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The block of one thread; the layout is that of thread.h.
#[repr(C)]
pub struct Thread {
    /// Depth: while non-zero, malloc and mmap serve ramfold itself.
    pub internal: u32,
    /// Blocks of malloc that may be a stream's (streams.rs).
    pub stream_blocks: u32,
    /// This thread's slot in the heap's gate; 0 means none yet.
    pub slot: u32,
    /// Depth: while non-zero, all signals are blocked and the thread cannot be cancelled.
    pub masked: u32,
    /// What was blocked before.
    pub mask: u64,
    /// Whether it could be cancelled before.
    pub cancelstate: c_int,
    /// Depth inside the heap, of a thread that has no slot of its own.
    pub in_shared: u32,
    /// The thread that is counted ([`crate::threads`]): who shares this storage has another number. 0: none.
    pub tid: u32,
    /// This thread runs on a stack of ramfold's own.
    pub off_stack: bool,
}

/// This thread's block. Only this thread may touch it, and signal handlers running in it.
#[inline]
pub fn thread() -> NonNull<Thread> {
    let block: *mut Thread;
    // SAFETY: reads the thread pointer and adds the block's place in static thread-local storage, which the linker
    // knows.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + ramfold_thread@GOTTPOFF]",
            out(reg) block,
            options(pure, readonly, nostack)
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "mrs {0}, tpidr_el0",
            "adrp {1}, :gottprel:ramfold_thread",
            "ldr {1}, [{1}, :gottprel_lo12:ramfold_thread]",
            "add {0}, {0}, {1}",
            out(reg) block,
            out(reg) _,
            options(pure, readonly, nostack)
        );
        NonNull::new_unchecked(block)
    }
}

/// True while this thread works for ramfold rather than for the program.
#[inline]
pub fn is_internal() -> bool {
    // SAFETY: the block lives as long as the thread, and only this thread writes it.
    unsafe { thread().as_ref().internal != 0 }
}

/// While it lives, this thread works for ramfold: malloc serves from the internal allocator, and the mapping
/// calls go straight to the kernel. Nests.
pub struct Internal(PhantomData<*const ()>);

impl Internal {
    #[inline]
    pub fn enter() -> Self {
        // SAFETY: only this thread writes its block.
        unsafe { thread().as_mut().internal += 1 };
        Self(PhantomData)
    }
}

impl Drop for Internal {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only this thread writes its block.
        unsafe { thread().as_mut().internal -= 1 };
    }
}

/// While it lives, no signal handler runs in this thread, and it is not cancelled. Nests; the outermost one costs two
/// system calls.
///
/// Whoever holds something that the pager's threads wait for (the pager's gate, the internal allocator's lock) must
/// not be interrupted: a handler may touch memory that only those threads can bring back. And it must not be left: a
/// handler might jump out of it, and a cancelled thread would end at the first file that is read. So a mark that is
/// set and taken away within is never left behind.
pub struct Masked(PhantomData<*const ()>);

impl Masked {
    pub fn enter() -> Self {
        // SAFETY: only this thread writes its block.
        let own = unsafe { thread().as_mut() };
        if own.masked == 0 {
            own.mask = set_mask(u64::MAX);
            own.cancelstate = set_cancelstate(CANCEL_DISABLE);
        }
        own.masked += 1;
        Self(PhantomData)
    }
}

/// Makes this thread ramfold's own, for good: it works for nobody else, and was started with its signals blocked (but
/// for the two that libc needs to change the user of all threads and to cancel them).
pub fn dedicate() {
    // SAFETY: only this thread writes its block.
    let own = unsafe { thread().as_mut() };
    own.internal = 1;
    own.masked = 1;
    own.off_stack = true;
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: only this thread writes its block.
        let own = unsafe { thread().as_mut() };
        own.masked -= 1;
        if own.masked == 0 {
            set_cancelstate(own.cancelstate);
            set_mask(own.mask);
        }
    }
}

/// Ends a `Masked` that was forgotten: by `fork`, whose two halves are in different functions.
pub fn unmask() {
    drop(Masked(PhantomData));
}

/// Sets the signals that are blocked; returns those that were. The kernel's own call: libc's leaves two out.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let how = libc::SIG_SETMASK.unsigned_abs() as usize;
    let args = [how, (&raw const mask).addr(), (&raw mut before).addr(), size_of::<u64>(), 0];
    // SAFETY: both words are valid for the call.
    unsafe { crate::sys::call(libc::SYS_rt_sigprocmask, args) };
    before
}

/// Runs `f` with every signal blocked, in the threads too that it starts. But for libc's own two, which
/// pthread_sigmask leaves open: who changes the user of all threads waits for each of them, and holds a lock meanwhile
/// that the start of a thread takes (`__nptl_setxid`, `allocate_stack`).
pub fn without_signals<T>(f: impl FnOnce() -> T) -> T {
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

/// As the C library's header has it.
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Whether this thread may be cancelled; returns what was so before.
fn set_cancelstate(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: changes a flag of this thread; the word is valid for the call.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}
