//! On which processor a thread of the program runs, without a system call.
//!
//! A fault is served fastest on the core of the thread that waits for it. libc registers an rseq area for every
//! thread (2.35 on), and the kernel keeps the processor's number in it. Here each program thread enters where its
//! area is; the pager looks it up by thread id. Areas belong to control blocks, which are never managed memory, and
//! a thread leaves before its area goes: one that waits for a fault has not left.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::thread::gettid;

/// Entries; a thread that finds no free one among the PROBES after its own place is not entered.
const ENTRIES: usize = 1024;
const PROBES: usize = 16;
/// `cpu_id` in the kernel's `struct rseq`.
const CPU_ID: usize = 4;

struct Entry {
    tid: AtomicU32,
    /// The thread's `cpu_id`; null when it left.
    cpu: AtomicPtr<AtomicU32>,
}

static TABLE: [Entry; ENTRIES] =
    [const { Entry { tid: AtomicU32::new(0), cpu: AtomicPtr::new(ptr::null_mut()) } }; ENTRIES];

unsafe extern "C" {
    /// This thread's area; null when libc registers none.
    fn ramfold_rseq() -> *mut c_void;
}

fn places(tid: u32) -> impl Iterator<Item = &'static Entry> {
    (0..PROBES).map(move |i| &TABLE[(tid as usize + i) % ENTRIES])
}

/// This thread's number.
pub fn own_tid() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Enters this thread.
pub fn enter() {
    // SAFETY: asks about this thread.
    let area = unsafe { ramfold_rseq() };
    if area.is_null() {
        return;
    }
    let tid = own_tid();
    let claim = |e: &&Entry| e.tid.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok();
    if let Some(entry) = places(tid).find(claim) {
        entry.cpu.store(area.wrapping_byte_add(CPU_ID).cast(), Ordering::Release);
    }
}

/// Takes this thread out.
pub fn leave() {
    let tid = own_tid();
    if let Some(entry) = places(tid).find(|entry| entry.tid.load(Ordering::Relaxed) == tid) {
        entry.cpu.store(ptr::null_mut(), Ordering::Release);
        entry.tid.store(0, Ordering::Release);
    }
}

/// In the child of a fork: this thread has a new id, the others are gone.
pub fn only_this_one() {
    for entry in TABLE.iter().filter(|entry| entry.tid.load(Ordering::Relaxed) != 0) {
        entry.cpu.store(ptr::null_mut(), Ordering::Relaxed);
        entry.tid.store(0, Ordering::Relaxed);
    }
    enter();
}

/// The processor of the thread `tid`, which waits for a fault.
pub fn cpu_of(tid: u32) -> Option<usize> {
    let entry = places(tid).find(|entry| entry.tid.load(Ordering::Acquire) == tid)?;
    let cpu = entry.cpu.load(Ordering::Acquire);
    // SAFETY: a thread that waits has not left, so its area is there.
    let cpu = unsafe { cpu.as_ref() }?.load(Ordering::Relaxed);
    // Negative numbers say that there is none.
    usize::try_from(cpu).ok().filter(|cpu| *cpu < 1 << 16)
}
