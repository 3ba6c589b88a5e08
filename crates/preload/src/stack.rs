//! Stacks of ramfold's own, for what must not fault.
//!
//! A program calls malloc and mmap on any stack it likes: a coroutine's, or one for its signals. Such a stack may be
//! managed memory and evicted at any moment. Who holds a lock that the pager's threads need (the pager's own, the
//! internal allocator's) must not run there: it would wait for a page that those threads bring, and they for the lock.
//! So such work runs on a stack of ramfold's own, from a pool, with signals blocked. It gets what it needs by value:
//! the bound 'static keeps it from borrowing from the program's stack.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::ending::die;
use crate::sys::{self, PAGE};
use crate::tls::{self, Masked};

/// Bytes of a stack; only what is touched is memory.
const SIZE: usize = 256 << 10;
/// Stacks that are kept: as many as threads are inside at the same time.
const KEPT: usize = 64;

static POOL: [AtomicPtr<c_void>; KEPT] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT];

/// Memory for a stack of `size` bytes with a guard page below it; null when there is none.
pub fn new(size: usize) -> *mut c_void {
    let p = sys::map_private(size + PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the first page of a mapping just made.
    if p.is_null() || unsafe { sys::call_int(libc::SYS_mprotect, [p.addr(), PAGE, 0, 0, 0]) } != 0 {
        return ptr::null_mut();
    }
    p.wrapping_byte_add(PAGE)
}

/// Gives a stack of `new` back.
pub fn delete(stack: *mut c_void, size: usize) {
    // SAFETY: the mapping was made by `new`, and nobody runs on it.
    unsafe { sys::munmap(stack.addr() - PAGE, size + PAGE) };
}

fn take() -> *mut c_void {
    let full = |place: &&AtomicPtr<c_void>| !place.load(Ordering::Relaxed).is_null();
    let kept = POOL.iter().filter(full).map(|place| place.swap(ptr::null_mut(), Ordering::Acquire));
    let stack = kept.into_iter().find(|stack| !stack.is_null()).unwrap_or_else(|| new(SIZE));
    if stack.is_null() {
        die("out of memory: a stack of ramfold's own finds none (raise the system's limits)", false);
    }
    stack
}

fn give_back(stack: *mut c_void) {
    let kept = POOL.iter().any(|place| {
        place.compare_exchange(ptr::null_mut(), stack, Ordering::Release, Ordering::Relaxed).is_ok()
    });
    if !kept {
        delete(stack, SIZE);
    }
}

/// True when this thread runs on such a stack.
pub fn is_own() -> bool {
    // SAFETY: only this thread uses its block.
    unsafe { tls::thread().as_ref().off_stack }
}

/// Runs `f` on a stack of ramfold's own, with signals blocked. Nests.
pub fn run<R>(f: impl FnOnce() -> R + 'static) -> R {
    let _masked = Masked::enter();
    if is_own() {
        return f();
    }
    let mut thread = tls::thread();
    let stack = take();
    let mut call = Call::new(f);
    let (entry, data) = call.parts();
    // SAFETY: only this thread uses its block; the stack is this thread's until it is given back; `call` outlives the
    // call.
    unsafe {
        thread.as_mut().off_stack = true;
        switch(data, entry, stack.wrapping_byte_add(SIZE));
        thread.as_mut().off_stack = false;
    }
    give_back(stack);
    call.result()
}

/// A call that is made elsewhere: on another stack, or in another thread. Where it lies is not touched while `f` runs.
pub struct Call<F, R> {
    f: Option<F>,
    result: Option<R>,
}

/// Makes the call at this address, once.
pub type Entry = unsafe extern "C" fn(*mut c_void);

impl<F: FnOnce() -> R, R> Call<F, R> {
    pub fn new(f: F) -> Self {
        Self { f: Some(f), result: None }
    }

    /// How it is made: this function of this address.
    pub fn parts(&mut self) -> (Entry, *mut c_void) {
        (Self::enter, ptr::from_mut(self).cast())
    }

    unsafe extern "C" fn enter(call: *mut c_void) {
        let call = call.cast::<Self>();
        // SAFETY: the caller's: a call of this type.
        unsafe {
            let result = (*call).f.take().map(|f| f());
            (*call).result = result;
        }
    }

    /// What came of it. It has been made.
    pub fn result(self) -> R {
        self.result.expect("a call that was made has a result")
    }
}

/// Calls `entry(data)` on the stack that ends at `top`.
#[unsafe(naked)]
unsafe extern "C" fn switch(data: *mut c_void, entry: Entry, top: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdx", "call rsi", "mov rsp, rbp", "pop rbp", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov sp, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret"
    );
}
