//! Guests: processes that share this one's memory, by clone with CLONE_VM, and may outlive it. (Not the children of
//! vfork: their parent waits.)
//!
//! Before the first of them, and before the program filters its system calls (filters.rs), there is a keeper: a
//! process that shares the memory as well, and in which the pager's threads run from then on (ramfold-pager,
//! handover.rs), so that they end with none of the program's. It has copies of the pager's descriptors and nothing
//! else of the program's. It watches the memory's users, by kcmp, and ends with the last: by its exit or by its exec.
//!
//! Guarantee: nobody waits for a keeper that is no more (bond.rs), and the program has no child that it did not make.
//!
//! Price: a process, which looks twenty times a second. A guest has its creator's thread-local storage, ramfold's
//! too: if both change their mappings at the same moment, as if they were one thread, what happens is not certain.
//! What a user of the memory that is killed within a call of the pager's leaves locked, nobody unlocks.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ramfold_pager::Host;
use rustix::process::Pid;

use crate::ending::refuse;
use crate::pager::{internally, pager};
use crate::users::{self, EXPECTED, FREE, USERS, claim, own_pid};
use crate::{bond, deputy, descriptors, gate, host, lock, management, stack, sys, threads};

/// Between two looks at the users; and how many a guest has to enter itself, when nobody else is left.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 40;
/// Bytes of the stack on which the keeper begins.
const STACK: usize = 256 << 10;

/// The keeper serves.
static SERVES: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// In clone.c: a process that shares the memory and is nobody's child here. -1 if there can be none.
    fn ramfold_clone_keeper(
        function: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        stack_between: *mut c_void,
    ) -> c_int;
}

/// For clone.c, before a guest is made: its place, or null if there can be none.
#[unsafe(no_mangle)]
extern "C" fn ramfold_expect_guest(function: *mut c_void, argument: *mut c_void) -> *mut c_void {
    if !is_kept() {
        return ptr::null_mut();
    }
    let Some(place) = claim(EXPECTED) else { return ptr::null_mut() };
    place.function.store(function, Ordering::Relaxed);
    place.argument.store(argument, Ordering::Relaxed);
    ptr::from_ref(place).cast_mut().cast()
}

/// Sees to it that memory is managed and has a keeper; false if it cannot be, or the system refuses one.
pub fn is_kept() -> bool {
    if !pager().is_managed() {
        pager().demand();
        management::settle();
    }
    pager().is_managed() && internally(has_keeper)
}

fn has_keeper() -> bool {
    gate::hold_forks();
    let kept = threads::are_alone() || begin();
    if kept {
        threads::set_alone();
    }
    gate::release_forks();
    kept
}

/// Makes the keeper, and returns when it serves.
fn begin() -> bool {
    let (top, between) = (stack::new(STACK), stack::new(STACK));
    if top.is_null() || between.is_null() || claim(own_pid()).is_none() || !bond::tie() {
        only_this_one();
        return false;
    }
    SERVES.store(0, Ordering::Relaxed);
    pager().stop_threads();
    let ends = [top, between].map(|stack| stack.wrapping_byte_add(STACK));
    // SAFETY: one stack is the keeper's alone, for good, the other that of who makes it and has ended then.
    let keeper = unsafe { ramfold_clone_keeper(keep, ends[0], ends[1]) };
    stack::delete(between, STACK);
    if keeper <= 0 {
        only_this_one();
        if let Err(error) = pager().start_threads() {
            refuse(&error.to_string());
        }
        return false;
    }
    bond::leave_to_keeper();
    // If it ends before, this process does.
    while SERVES.load(Ordering::Acquire) == 0 {
        lock::wait(&SERVES, 0);
    }
    bond::is_left();
    true
}

/// The first thread of the keeper, which has the thread-local storage of the one that waits for it: it touches none
/// once that goes on. It stays, so that the process can be told by /proc.
extern "C" fn keep(_: *mut c_void) -> c_int {
    if let Err(error) = pager().start_threads() {
        refuse(&error.to_string());
    }
    let started = host::Program.spawn("ramfold-deputy", Box::new(deputy::run));
    if started.and_then(|()| host::Program.spawn("ramfold-guests", Box::new(watch))).is_err() {
        refuse("the process that keeps shared memory cannot start a thread");
    }
    // What the program closes is to be closed; its stderr was there until here.
    descriptors::close_range(0, u32::MAX, 0);
    SERVES.store(1, Ordering::Release);
    lock::wake(&SERVES, lock::ALL);
    loop {
        // SAFETY: waits for signals, which are blocked.
        unsafe { sys::call(libc::SYS_ppoll, [0; 5]) };
    }
}

/// Ends the keeper when nobody uses the memory any more.
fn watch() {
    let mut looks_left = LOOKS;
    while looks_left > 0 {
        std::thread::sleep(LOOK);
        let (mut used, mut expected) = (false, false);
        for user in &USERS {
            match user.pid.load(Ordering::Acquire) {
                FREE => {}
                EXPECTED => expected = true,
                pid if shares_memory(pid) => used = true,
                pid => drop(user.pid.compare_exchange(pid, FREE, Ordering::AcqRel, Ordering::Relaxed)),
            }
        }
        looks_left = match (used, expected) {
            (true, _) => LOOKS,
            (false, true) => looks_left - 1,
            (false, false) => 0,
        };
    }
    bond::untie();
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(libc::SYS_exit_group, [0; 5]) };
    }
}

/// Whether this process has the same memory; one that cannot be asked has.
fn shares_memory(pid: i32) -> bool {
    const KCMP_VM: usize = 1;
    let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs() as usize;
    // SAFETY: compares two processes.
    match unsafe { sys::call(libc::SYS_kcmp, [own, pid.unsigned_abs() as usize, KCMP_VM, 0, 0]) } {
        0 => true,
        -1 if sys::errno() != libc::ESRCH => {
            Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
        }
        _ => false,
    }
}

/// In the child of a fork, whose memory is its own; and where there came to be no keeper.
pub fn only_this_one() {
    users::forget();
    deputy::end();
    bond::forget();
}
