//! What the library keeps for each thread, in initial-exec thread-local storage (tls.c).
//!
//! Rust's own `thread_local!` is out of bounds here: in a shared library it reaches its storage through a table
//! that is allocated with malloc, which is what this library implements.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// The block of one thread; the layout is that of tls.c.
#[repr(C)]
pub struct Thread {
    /// Depth: while non-zero, malloc and mmap serve ramfold itself.
    pub internal: u32,
    /// This thread's slot in the heap's gate; 0 means none yet.
    pub slot: u32,
}

unsafe extern "C" {
    fn ramfold_thread() -> NonNull<Thread>;
}

/// This thread's block. Only this thread may touch it, and signal handlers running in it.
#[inline]
pub fn thread() -> NonNull<Thread> {
    // SAFETY: takes nothing and returns the address of this thread's static block.
    unsafe { ramfold_thread() }
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
