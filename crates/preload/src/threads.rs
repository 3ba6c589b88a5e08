//! Threads of the program.
//!
//! Threads of the pager walk libc's list of threads, and must not fault there. A new thread's control block lies on
//! its stack, which libc maps for itself, and its thread-local tables are the dynamic linker's (loader.rs); where the
//! program brings a stack of its own, in managed memory, the part in which libc puts the block is kept. Program
//! threads are counted: the pager's threads would keep a process alive whose main thread has called pthread_exit, so
//! the last program thread to end exits for it. Where threads that libc has started for itself are left, one of this
//! library's waits for them first. So does the last to end past libc, by exit(2): who calls that by syscall(), and who
//! returns from the function that clone() ran in a copy of the process.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use ramfold_budget::time::sleep;
use std::time::Duration;

use libc::{pthread_attr_t, pthread_key_t, pthread_t};

use crate::pager::internally;
use crate::tls::Internal;
use crate::{gate, libc_threads, management, pager, real, running, sys, tls};

/// A thread's start function.
pub type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

real::function!(fn pthread_create(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int);
real::function!(fn thrd_create(*mut pthread_t, Start, *mut c_void) -> c_int);

/// Threads of the program that have not ended.
static PROGRAM_THREADS: AtomicUsize = AtomicUsize::new(1);
/// The key whose destructor sees threads end; plus one, 0 when there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
/// One of them has ended past libc, which takes none for the last then; and with what the last of these did.
static PAST_LIBC: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicI32 = AtomicI32::new(0);
/// There is a thread that waits for those that libc has started.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Between two looks of it.
const LOOK: Duration = Duration::from_millis(50);
/// The pager's threads are another process's, a keeper's (guests.rs): the kernel ends this one with its last thread.
/// Set under [`gate::hold_forks`].
static ALONE: AtomicBool = AtomicBool::new(false);
/// glibc runs destructors in up to four rounds: ours counts them, to be among the last.
const ROUNDS: usize = 3;

/// Finds libc's functions; there is one thread.
pub fn find() {
    pthread_create::get();
    thrd_create::get();
}

/// Watches for the end of the main thread.
pub fn register_main() {
    let _internal = Internal::enter();
    let mut key: pthread_key_t = 0;
    // SAFETY: the destructor lives as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) } == 0 {
        KEY.store(key + 1, Ordering::Release);
    }
    begin();
}

/// In the child of a fork.
pub fn only_this_one() {
    PROGRAM_THREADS.store(1, Ordering::Relaxed);
    PAST_LIBC.store(false, Ordering::Relaxed);
    STATUS.store(0, Ordering::Relaxed);
    WAITS.store(false, Ordering::Relaxed);
    ALONE.store(false, Ordering::Relaxed);
    count_this(running::own_tid());
    running::only_this_one();
    // It may be one that was not counted in the parent.
    watch(1);
}

/// The pager's threads are a keeper's from here on.
pub fn set_alone() {
    ALONE.store(true, Ordering::Release);
}

/// Whether they are.
pub fn are_alone() -> bool {
    ALONE.load(Ordering::Acquire)
}

/// This thread is one of those that are counted.
fn begin() {
    count_this(running::own_tid());
    running::enter();
    watch(1);
}

fn count_this(tid: u32) {
    // SAFETY: only this thread writes its block.
    unsafe { tls::thread().as_mut().tid = tid };
}

/// Takes this thread off the count. Whether the process ends with it. (Where there is a keeper, a filter may forbid
/// to look for threads that are not counted.)
fn end() -> bool {
    gate::leave_for_good(tls::thread());
    running::leave();
    count_this(0);
    PROGRAM_THREADS.fetch_sub(1, Ordering::AcqRel) == 1 && (are_alone() || !others_go_on())
}

/// For the last thread that was counted, which is about to end. Whether there are others, which libc has started, and
/// one that waits for their end: it ends the process.
fn others_go_on() -> bool {
    internally(libc_threads::are_left) && (WAITS.swap(true, Ordering::AcqRel) || start_waiting())
}

/// Starts the thread that waits; false if there can be none.
fn start_waiting() -> bool {
    // SAFETY: attributes that are initialised, and a place for the thread.
    with_detached(|thread, attr| unsafe { create(thread, attr, wait, ptr::null_mut()) }) == 0
}

/// A thread like the program's: libc's `exit` runs the program's handlers in it.
extern "C" fn wait(_: *mut c_void) -> *mut c_void {
    tls::without_signals(|| {
        while !is_only_one() || internally(libc_threads::are_left) {
            sleep(LOOK);
        }
    });
    end_process()
}

fn end_past_libc(status: c_int) {
    // SAFETY: ends the process, without the program's own handlers.
    unsafe { sys::call(libc::SYS_exit_group, [(status & 0xff).unsigned_abs() as usize, 0, 0, 0, 0]) };
}

/// Whether the program has one thread that is counted.
pub fn is_only_one() -> bool {
    PROGRAM_THREADS.load(Ordering::Relaxed) == 1
}

fn watch(round: usize) {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(round)) };
    }
}

unsafe extern "C" fn ended(round: *mut c_void) {
    if round.addr() < ROUNDS {
        return watch(round.addr() + 1);
    }
    STATUS.store(0, Ordering::Relaxed);
    if end() {
        end_process();
    }
}

/// The end of a process whose last thread has ended.
fn end_process() -> ! {
    if PAST_LIBC.load(Ordering::Acquire) {
        end_past_libc(STATUS.load(Ordering::Relaxed));
    }
    // SAFETY: what libc does when the last thread ends.
    unsafe { libc::exit(0) }
}

/// For clone.c: this thread is about to end past libc. Not counted are threads that libc does not know, and processes
/// that share this one's memory. Where there is a keeper, the kernel ends the process itself, and a filter may let
/// nothing through but the end.
#[unsafe(no_mangle)]
extern "C" fn ramfold_before_exit(status: c_int) {
    // SAFETY: only this thread writes its block.
    let counted = unsafe { tls::thread().as_ref().tid };
    if are_alone() || counted != running::own_tid() {
        return;
    }
    STATUS.store(status, Ordering::Relaxed);
    PAST_LIBC.store(true, Ordering::Release);
    if end() {
        end_past_libc(status);
    }
}

/// What a new thread is to run; the layout is that of tls.c.
#[repr(C)]
pub struct Package {
    start: Start,
    arg: *mut c_void,
}

unsafe extern "C" {
    /// Calls `ramfold_started`, and the function that it returns.
    fn ramfold_begin(package: *mut c_void) -> *mut c_void;
}

/// The first thing that a program thread does.
///
/// # Safety
/// `package` was made by `start` for this thread alone.
#[unsafe(no_mangle)]
unsafe extern "C" fn ramfold_started(package: *mut c_void) -> Package {
    // SAFETY: the caller's.
    let package = *unsafe { Box::from_raw(package.cast::<Package>()) };
    begin();
    package
}

/// Starts a program thread with `create`, which gets the start function and its argument.
fn start(start: Start, arg: *mut c_void, create: impl FnOnce(Start, *mut c_void) -> c_int) -> c_int {
    let package = Box::into_raw(Box::new(Package { start, arg }));
    PROGRAM_THREADS.fetch_add(1, Ordering::Relaxed);
    let error = create(ramfold_begin, package.cast());
    if error != 0 {
        PROGRAM_THREADS.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(package) });
    }
    error
}

/// Keeps the control block, at the end of a stack that the program chose, when that is managed memory. False if it
/// cannot be kept.
///
/// # Safety
/// The attributes are null or initialised.
unsafe fn keep_control_block(attr: *const pthread_attr_t) -> bool {
    /// What glibc puts there: its own block, and below it the thread-local storage of the libraries that are loaded.
    const CONTROL_BLOCK: usize = 64 << 10;
    let (mut stack, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the caller's.
    if attr.is_null() || unsafe { libc::pthread_attr_getstack(attr, &raw mut stack, &raw mut len) } != 0 {
        return true;
    }
    let end = (stack.addr() + len).next_multiple_of(sys::PAGE);
    let first = stack.addr().max(end.saturating_sub(CONTROL_BLOCK)) / sys::PAGE * sys::PAGE;
    !pager::range().contains(&first)
        || management::with_pager(move |pager| pager.keep(first, end - first)).is_ok()
}

/// # Safety
/// As in C.
#[unsafe(export_name = "pthread_create")]
pub unsafe extern "C" fn create(
    thread: *mut pthread_t,
    attr: *const pthread_attr_t,
    function: Start,
    arg: *mut c_void,
) -> c_int {
    let Some(real) = pthread_create::get() else { return libc::EAGAIN };
    // SAFETY: the program's.
    if !unsafe { keep_control_block(attr) } {
        return libc::EAGAIN;
    }
    // SAFETY: the program's.
    start(function, arg, |begin, package| unsafe { real(thread, attr, begin, package) })
}

/// # Safety
/// As in C. The start function returns an int: in the same register, so it may be called as one returning a pointer.
#[unsafe(export_name = "thrd_create")]
pub unsafe extern "C" fn create_c11(thread: *mut pthread_t, function: Start, arg: *mut c_void) -> c_int {
    let Some(real) = thrd_create::get() else {
        return 1; // thrd_error
    };
    // SAFETY: the program's.
    start(function, arg, |begin, package| unsafe { real(thread, begin, package) })
}

/// Starts a pager thread: detached, on the given stack. libc's part of the work only.
pub unsafe fn create_internal(stack: *mut c_void, len: usize, start: Start, arg: *mut c_void) -> c_int {
    let Some(real) = pthread_create::get() else { return libc::EAGAIN };
    // SAFETY: attributes that are initialised, and a place for the thread; the stack is the caller's to give.
    with_detached(|thread, attr| unsafe {
        libc::pthread_attr_setstack(attr, stack, len);
        real(thread, attr, start, arg)
    })
}

/// Calls `create` with a place for a thread and the attributes of one that is detached; what it returns.
fn with_detached(create: impl FnOnce(*mut pthread_t, *mut pthread_attr_t) -> c_int) -> c_int {
    let (mut attr, mut thread) = (MaybeUninit::uninit(), 0);
    let attr = attr.as_mut_ptr();
    // SAFETY: the first call initialises the attributes.
    unsafe {
        libc::pthread_attr_init(attr);
        libc::pthread_attr_setdetachstate(attr, libc::PTHREAD_CREATE_DETACHED);
        let error = create(&raw mut thread, attr);
        libc::pthread_attr_destroy(attr);
        error
    }
}
