//! Lets fork wait until no thread is inside the heap.
//!
//! mimalloc has no fork handlers: a child made while another thread holds one of its locks would hang on it. So
//! every call into it is announced in a slot of the calling thread, and fork closes the gate and waits for the
//! slots to clear. A pass costs two plain stores: the barrier between a thread's store and its look at the gate
//! is paid by fork, with membarrier(2). Slots live outside thread-local storage because fork reads those of threads
//! that may be ending. A thread that stays inside for a second (stopped by a signal, say) is waited for no longer.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

use ramfold_budget::time::sleep;

use crate::lock::{self, Lock};
use crate::sys;
use crate::tls::Thread;

/// Slot 0 counts the passes of threads without a slot of their own.
const SHARED: u32 = 1024;
const SLOTS: usize = SHARED as usize;

#[repr(align(64))]
struct Slot {
    /// Depth of the thread inside the heap.
    inside: AtomicU32,
    taken: AtomicU32,
}

static SLOT: [Slot; SLOTS] = [const { Slot { inside: AtomicU32::new(0), taken: AtomicU32::new(0) } }; SLOTS];
static CLOSED: AtomicU32 = AtomicU32::new(0);
/// Forks one after another: libc lets two threads run their handlers at the same time.
static FORK: Lock<()> = Lock::new(());

/// A thread inside the heap.
pub struct Pass(NonNull<Thread>);

/// Enters the heap; waits while a fork is under way.
#[inline]
pub fn enter(mut thread: NonNull<Thread>) -> Pass {
    // SAFETY: the block is this thread's own.
    let thread_mut = unsafe { thread.as_mut() };
    if thread_mut.slot == 0 {
        thread_mut.slot = claim();
    }
    loop {
        step(thread_mut, 1);
        compiler_fence(Ordering::SeqCst);
        if CLOSED.load(Ordering::Relaxed) == 0 {
            return Pass(thread);
        }
        if depth(thread_mut.slot) > 1 && thread_mut.slot != SHARED {
            return Pass(thread);
        }
        step(thread_mut, u32::MAX);
        lock::wait(&CLOSED, 1);
    }
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the block is this thread's own.
        step(unsafe { self.0.as_mut() }, u32::MAX);
    }
}

/// True when this thread is inside.
pub fn is_inside(thread: NonNull<Thread>) -> bool {
    // SAFETY: the block is this thread's own.
    let thread = unsafe { thread.as_ref() };
    thread.slot != 0 && if thread.slot == SHARED { thread.in_shared > 0 } else { depth(thread.slot) > 0 }
}

fn depth(slot: u32) -> u32 {
    SLOT[slot as usize % SLOTS].inside.load(Ordering::Relaxed)
}

/// Adds to the depth, modulo 2^32. A slot of one's own needs no locked instruction.
#[inline]
fn step(thread: &mut Thread, by: u32) {
    let inside = &SLOT[thread.slot as usize % SLOTS].inside;
    if thread.slot == SHARED {
        thread.in_shared = thread.in_shared.wrapping_add(by);
        inside.fetch_add(by, Ordering::SeqCst);
    } else {
        inside.store(inside.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    }
}

#[cold]
fn claim() -> u32 {
    let free = SLOT.iter().skip(1).position(|slot| slot.taken.swap(1, Ordering::Relaxed) == 0);
    #[allow(clippy::cast_possible_truncation)] // at most SLOTS
    free.map_or(SHARED, |i| i as u32 + 1)
}

/// Gives this thread's slot back; what it still does in the heap is counted in the shared one.
pub fn leave_for_good(mut thread: NonNull<Thread>) {
    // SAFETY: the block is this thread's own.
    let slot = std::mem::replace(unsafe { &mut thread.as_mut().slot }, SHARED);
    if slot != SHARED && slot != 0 {
        SLOT[slot as usize].taken.store(0, Ordering::Relaxed);
    }
}

/// The slot that is this thread's alone.
fn own_slot(thread: NonNull<Thread>) -> Option<usize> {
    // SAFETY: the block is this thread's own.
    let slot = unsafe { thread.as_ref().slot };
    (slot != 0 && slot != SHARED).then_some(slot as usize)
}

/// Lets no fork begin until [`release_forks`], and waits for one that is under way.
pub fn hold_forks() {
    FORK.take();
}

/// Ends [`hold_forks`].
pub fn release_forks() {
    FORK.release();
}

/// Closes the gate and waits until no other thread is inside.
pub fn close(thread: NonNull<Thread>) {
    FORK.take();
    CLOSED.store(1, Ordering::SeqCst);
    everyone_sees();
    let own = own_slot(thread);
    let others = || (0..SLOTS).filter(|i| Some(*i) != own);
    let mut patience = 10_000;
    while patience > 0 && others().any(|i| SLOT[i].inside.load(Ordering::Acquire) != 0) {
        sleep(Duration::from_micros(100));
        patience -= 1;
    }
}

/// Opens the gate again, in the parent.
pub fn open() {
    CLOSED.store(0, Ordering::SeqCst);
    lock::wake(&CLOSED, lock::ALL);
    FORK.release();
}

/// Opens the gate in the child, where this is the only thread.
pub fn open_in_child(thread: NonNull<Thread>) {
    let own = own_slot(thread);
    for (i, slot) in SLOT.iter().enumerate().filter(|(i, _)| Some(*i) != own) {
        if i != 0 && slot.taken.load(Ordering::Relaxed) != 0 {
            slot.taken.store(0, Ordering::Relaxed);
        }
        if slot.inside.load(Ordering::Relaxed) != 0 {
            slot.inside.store(0, Ordering::Relaxed);
        }
    }
    CLOSED.store(0, Ordering::SeqCst);
    FORK.release();
}

/// A memory barrier in every running thread of this process.
fn everyone_sees() {
    const REGISTER: usize = 1 << 4;
    const EXPEDITED: usize = 1 << 3;
    fence(Ordering::SeqCst);
    // SAFETY: membarrier touches no memory.
    unsafe {
        if sys::call(libc::SYS_membarrier, [EXPEDITED, 0, 0, 0, 0]) != 0 {
            sys::call(libc::SYS_membarrier, [REGISTER, 0, 0, 0, 0]);
            sys::call(libc::SYS_membarrier, [EXPEDITED, 0, 0, 0, 0]);
        }
    }
}
