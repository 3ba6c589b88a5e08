//! fork: everything stands still while the process is copied.
//!
//! Order of locks: libc's list of streams, the pager's change of phase, the heap's gate (no thread inside mimalloc),
//! the large blocks, the break, the pager, and last the internal allocator, which the pager itself needs. The handlers
//! are registered before anybody else's, by start/fork.c: so the first one runs last before the fork, and the last ones
//! run first after it, before any handler that touches memory.
//!
//! libc's fork takes its list of streams after the handlers. Who flushes all streams holds that lock, and may wait for
//! a page of a buffer, which nobody brings any more. So the first handler takes it before anybody stands still.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::PAGE;
use crate::tls::{self, Masked};
use crate::{
    brk, deputy, descriptors, ending, gate, guests, internal, large, libc_data, libc_threads, management,
    pager, stack, streams, threads,
};

/// The fork that is under way has libc's list of streams. Between [`stop`] and its end.
static HOLDS_LIST: AtomicBool = AtomicBool::new(false);

/// A handler for fork: the first library registered it before anybody else had one.
#[unsafe(export_name = "ramfold_before_fork")]
extern "C" fn before() {
    make_room();
    // Else there is nobody to have it, but what a signal handler has interrupted: libc's fork does not take it either.
    let holds_list = pager::pager().is_managed() || !threads::is_only_one();
    if holds_list {
        streams::hold_list();
    }
    stop(&[], false);
    HOLDS_LIST.store(holds_list, Ordering::Relaxed);
}

fn make_room() {
    let pager = pager::pager();
    let _masked = Masked::enter();
    if pager.is_managed() {
        // To wait is a system call, which a filter may forbid.
        pager::internally(|| deputy::serve(|| pager.make_room_for_child()));
    }
}

/// `also` are addresses whose pages are touched before the fork is over; `shares_table`: the copy has this table of
/// descriptors.
fn stop(also: &[usize], shares_table: bool) {
    let pager = pager::pager();
    // Until the end: a signal handler may touch memory, and nobody would bring it back.
    mem::forget(Masked::enter());
    pager.before_fork();
    gate::close(tls::thread());
    large::before_fork();
    brk::before_fork();
    let mut touched = libc_data::pages();
    touched.extend(own_frames());
    touched.extend(also);
    pager::internally(move || pager.stop_for_fork(&touched, shares_table));
    internal::before_fork();
}

/// Where the stack is used until the fork is over: by libc's fork, above, and by what it calls, below.
fn own_frames() -> impl Iterator<Item = usize> {
    const ABOVE: usize = 4 << 10;
    const BELOW: usize = 16 << 10;
    let here = 0u8;
    let here = (&raw const here).addr();
    (here - BELOW..=here + ABOVE).step_by(PAGE)
}

#[unsafe(export_name = "ramfold_after_fork_parent")]
extern "C" fn in_parent() {
    // Whoever gets the list may wait for a page, as for the end of the fork.
    if HOLDS_LIST.load(Ordering::Relaxed) {
        streams::release_list();
    }
    go_on_in_parent();
}

#[unsafe(export_name = "ramfold_after_fork_child")]
extern "C" fn in_child() {
    if HOLDS_LIST.load(Ordering::Relaxed) {
        streams::reset_list();
    }
    go_on_in_child();
}

fn go_on_in_parent() {
    // Whatever follows may allocate.
    internal::after_fork();
    let pager = pager::pager();
    stack::run(|| pager.after_fork_parent());
    brk::after_fork();
    large::after_fork();
    gate::open();
    tls::unmask();
    management::settle();
}

fn go_on_in_child() {
    internal::after_fork();
    // Before the pager's threads begin.
    libc_threads::only_this_one();
    let pager = pager::pager();
    pager::internally(|| {
        if let Err(error) = descriptors::in_new_process(|| pager.after_fork_child()) {
            ending::refuse(&error.to_string());
        }
    });
    brk::after_fork();
    large::after_fork();
    gate::open_in_child(tls::thread());
    threads::only_this_one();
    guests::only_this_one();
    tls::unmask();
    management::settle();
}

crate::real::function!(fn _Fork() -> libc::pid_t);

/// fork without handlers: still a copy of this process, so still everything has to stand still. libc takes no lock.
#[unsafe(export_name = "_Fork")]
pub extern "C" fn bare_fork() -> libc::pid_t {
    let Some(real) = _Fork::get() else {
        return crate::sys::fail(libc::ENOSYS);
    };
    make_room();
    stop(&[], false);
    // SAFETY: the program's.
    let pid = unsafe { real() };
    ramfold_end_copy((pid == 0).into());
    pid
}

unsafe extern "C" {
    fn ramfold_find_clone();
}

/// Finds libc's functions; there is one thread.
pub fn find() {
    _Fork::get();
    // SAFETY: looks for a name only.
    unsafe { ramfold_find_clone() };
}

crate::real::jump! {
    clone => ramfold_clone,
    syscall => ramfold_syscall,
    prctl => ramfold_prctl,
}

/// For clone.c: before a copy of the process that libc's fork knows nothing of.
///
/// # Safety
/// `count` addresses lie at `touched`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ramfold_begin_copy(touched: *const usize, count: usize, shares_table: libc::c_int) {
    // SAFETY: the caller's; a null pointer comes with none.
    let touched = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(touched, count) } };
    make_room();
    stop(touched, shares_table != 0);
}

/// After it, or after a bare fork.
#[unsafe(no_mangle)]
extern "C" fn ramfold_end_copy(in_the_child: libc::c_int) {
    if in_the_child != 0 { go_on_in_child() } else { go_on_in_parent() }
}
