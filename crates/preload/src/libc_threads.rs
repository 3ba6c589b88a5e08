//! Threads that libc starts for itself: for SIGEV_THREAD of `timer_create` and `mq_notify`, and for aio.
//!
//! libc does not start them by `pthread_create` as a program calls it, so threads.rs does not count them. They keep the
//! process alive all the same. They are what is left of the process's threads when the last counted one ends: all but
//! the pager's, which are entered here.
//!
//! Price: a look at the process's threads.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ramfold_budget::fds::own_path;
use ramfold_budget::time::sleep;

use crate::running;

/// Between two looks whether a thread of the pager's that has been started has begun.
const BEGINNING: Duration = Duration::from_micros(200);
/// Threads of the pager's that there can be, those included that have just ended.
const MOST: usize = 16;
/// Flags of /proc/PID/stat (include/linux/sched.h): a thread that the kernel has started in the process.
const PF_IO_WORKER: u64 = 0x10;
const PF_USER_WORKER: u64 = 0x4000;

/// Numbers of the pager's threads; 0 is a free place. A place is free again for another when its thread has ended.
static PAGERS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// Threads of the pager's that are being started.
static BEGIN: AtomicU32 = AtomicU32::new(0);

/// A thread of the pager's is about to be started: it calls [`enter`], or there is none and who would have started it
/// calls [`not_begun`].
pub fn begin() {
    BEGIN.fetch_add(1, Ordering::AcqRel);
}

/// See [`begin`].
pub fn not_begun() {
    BEGIN.fetch_sub(1, Ordering::AcqRel);
}

/// The calling thread is one of the pager's.
pub fn enter() {
    let tid = running::own_tid();
    let claim = |place: &AtomicU32, from| {
        place.compare_exchange(from, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let of_one_that_ended = |place: &AtomicU32| {
        let old = place.load(Ordering::Acquire);
        !lives(old) && claim(place, old)
    };
    let _ = PAGERS.iter().any(|place| claim(place, 0)) || PAGERS.iter().any(of_one_that_ended);
    not_begun();
}

/// In the child of a fork, before the pager's threads begin.
pub fn only_this_one() {
    PAGERS.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    BEGIN.store(0, Ordering::Relaxed);
}

/// Whether the process has another thread than this one and the pager's. Where /proc does not show this one: no.
pub fn are_left() -> bool {
    wait_for_beginners();
    let this = running::own_tid();
    let all = all();
    all.contains(&this) && all.into_iter().any(|tid| tid != this && !is_pagers(tid) && lives(tid))
}

/// How many of the pager's threads are this process's.
pub fn pagers() -> usize {
    wait_for_beginners();
    all().into_iter().filter(|tid| is_pagers(*tid)).count()
}

fn is_pagers(tid: u32) -> bool {
    PAGERS.iter().any(|place| place.load(Ordering::Acquire) == tid)
}

/// Returns when each thread of the pager's that was started is entered.
fn wait_for_beginners() {
    while BEGIN.load(Ordering::Acquire) > 0 {
        sleep(BEGINNING);
    }
}

/// The process's threads.
fn all() -> Vec<u32> {
    // The thread's own directory, and beside it the others'.
    let listed = own_path("..").ok().and_then(|path| fs::read_dir(path).ok());
    let number = |thread: fs::DirEntry| thread.file_name().to_str()?.parse().ok();
    listed.into_iter().flatten().flatten().filter_map(number).collect()
}

/// Not one that has ended (the first of a process stays to be seen), nor one that the kernel has started.
fn lives(tid: u32) -> bool {
    let stat = own_path(&format!("../{tid}/stat")).ok().and_then(|path| fs::read_to_string(path).ok());
    // The state, and six fields on the flags; before it the name in parentheses, which may hold some.
    let fields = stat.as_deref().and_then(|stat| stat.rsplit_once(") ")).map(|(_, fields)| fields.split(' '));
    let Some(mut fields) = fields else { return false };
    let has_ended = fields.next().is_none_or(|state| state == "Z" || state == "X");
    let flags: u64 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    !has_ended && flags & (PF_IO_WORKER | PF_USER_WORKER) == 0
}
