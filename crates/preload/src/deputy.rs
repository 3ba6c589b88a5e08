//! The deputy: a thread of the keeper's (guests.rs) that works on the pager for threads whose system calls are
//! filtered.
//!
//! A program that puts a filter before its system calls lets through what it needs itself, and dies at any other. What
//! the pager needs is other. The deputy has the same memory and no filter, so from then on whoever would work on the
//! pager hands the work over and waits. What is the program's own call (its file mapped over managed memory) the
//! deputy hands back. The waiting thread makes no call but futex, and that only.
//!
//! Price: two changes between threads for each call that maps, unmaps or advises, one caller at a time. Guarantee: the
//! order of things is as without the deputy: one who has handed work over does nothing until it is done.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::lock::{self, Lock};
use crate::stack::{Call, Entry};
use crate::tls::{self, Thread};

/// Work is handed over from now on.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Held by the one caller.
static CALLERS: Lock<()> = Lock::new(());
/// The deputy's block.
static DEPUTY: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());
/// Whose turn it is, and for what.
static TURN: AtomicU32 = AtomicU32::new(NOBODY);
static WORK: Work = Work(UnsafeCell::new(None));

const NOBODY: u32 = 0;
/// The deputy's: it works for the caller.
const DEPUTYS: u32 = 1;
/// The caller's: it makes a call for the deputy.
const CALLERS_OWN: u32 = 2;
/// The caller's: its work is done.
const DONE: u32 = 3;

/// What is handed over. Whoever's turn it is has it.
struct Work(UnsafeCell<Option<(Entry, *mut c_void)>>);

// SAFETY: only touched by the thread whose turn it is; the turn passes by release and acquire.
unsafe impl Sync for Work {}

/// Gives the turn to the other side.
fn pass(turn: u32) {
    TURN.store(turn, Ordering::Release);
    lock::wake(&TURN, lock::ALL);
}

/// Gives the turn to the other side, with work.
fn hand_over<F: FnOnce() -> R, R>(turn: u32, call: &mut Call<F, R>) {
    // SAFETY: it is this thread's turn.
    unsafe { *WORK.0.get() = Some(call.parts()) };
    pass(turn);
}

/// Does what was handed over. It is this thread's turn, and the other's call lives until it has the turn again.
fn work() {
    // SAFETY: it is this thread's turn.
    if let Some((entry, call)) = unsafe { (*WORK.0.get()).take() } {
        // SAFETY: the parts of one call, which its owner waits for.
        unsafe { entry(call) };
    }
}

/// Waits for a turn that `is_own`; which it is.
fn await_turn(is_own: impl Fn(u32) -> bool) -> u32 {
    loop {
        let turn = TURN.load(Ordering::Acquire);
        if is_own(turn) {
            return turn;
        }
        lock::wait(&TURN, turn);
    }
}

fn is_deputy() -> bool {
    DEPUTY.load(Ordering::Relaxed) == tls::thread().as_ptr()
}

/// What the deputy does, for good.
pub fn run() {
    DEPUTY.store(tls::thread().as_ptr(), Ordering::Relaxed);
    loop {
        await_turn(|turn| turn == DEPUTYS);
        work();
        pass(DONE);
    }
}

/// From here on work is handed over. There is a keeper.
pub fn begin() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether there is a filter of system calls.
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// In the child of a fork, which has no keeper.
pub fn end() {
    WANTED.store(false, Ordering::Relaxed);
    // Another thread may have held it, and waited.
    CALLERS.release();
    TURN.store(NOBODY, Ordering::Relaxed);
}

/// Runs `f` where no filter is. The caller is internal, on a stack of ramfold's own.
pub fn serve<R>(f: impl FnOnce() -> R + 'static) -> R {
    if !WANTED.load(Ordering::Relaxed) || is_deputy() {
        return f();
    }
    let _one = CALLERS.lock();
    let mut call = Call::new(f);
    hand_over(DEPUTYS, &mut call);
    while await_turn(|turn| turn != DEPUTYS) == CALLERS_OWN {
        work();
        pass(DEPUTYS);
    }
    TURN.store(NOBODY, Ordering::Relaxed);
    call.result()
}

/// Runs `f`, a call of the program's own, in the thread whose work the deputy does.
pub fn by_caller<R>(f: impl FnOnce() -> R) -> R {
    if !is_deputy() {
        return f();
    }
    let mut call = Call::new(f);
    hand_over(CALLERS_OWN, &mut call);
    await_turn(|turn| turn == DEPUTYS);
    call.result()
}
