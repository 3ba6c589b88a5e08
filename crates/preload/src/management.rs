//! When management begins: the first call that finds it due begins it.
//!
//! The pager says when the process has become large enough. Whoever works on it looks once it has done its work, and
//! so does malloc, for which the look is one load while all is calm.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use ramfold_pager::{Pager, SetupError};

use crate::ending::{refuse, tell_once};
use crate::pager::{internally, is_guest, pager};
use crate::{cores, deputy, gate, stack, tls};

/// The constructor has run.
static READY: AtomicBool = AtomicBool::new(false);
/// Malloc has nothing to see to: memory is managed or need not be yet. False as long as it is not certain.
static CALM: AtomicBool = AtomicBool::new(false);

/// From here on management may begin.
pub fn allow() {
    READY.store(true, Ordering::Relaxed);
    settle();
}

/// Works on the pager. Meanwhile this thread is internal, so that whatever the pager calls allocates outside the
/// managed range, and on a stack of ramfold's own. (Behind a filter the deputy does the work.)
pub fn with_pager<R>(f: impl FnOnce(&'static Pager) -> R + 'static) -> R {
    let result = internally(move || deputy::serve(move || f(pager())));
    settle();
    result
}

/// Begins management when it is due; not inside the heap, whose locks the threads that are started may wait for, and
/// not before [`allow`].
pub fn settle() {
    if !pager().is_due() {
        if !is_calm() {
            CALM.store(true, Ordering::Relaxed);
            // Who makes management due meanwhile finds it so before it says that there is no calm.
            fence(Ordering::SeqCst);
            CALM.store(!pager().is_due(), Ordering::Relaxed);
        }
        return;
    }
    CALM.store(false, Ordering::Relaxed);
    if READY.load(Ordering::Relaxed) && !stack::is_own() && !gate::is_inside(tls::thread()) && !is_guest() {
        pager().await_turn();
        begin();
    }
}

/// True when [`settle`] would find nothing to do.
#[inline]
pub fn is_calm() -> bool {
    CALM.load(Ordering::Relaxed)
}

#[cold]
fn begin() {
    internally(|| match pager().begin() {
        Ok(()) => cores::begin(),
        Err(SetupError::NoProc) => tell_once(
            "this process is not held under the limit any more: there is no /proc where it is (chroot?)",
        ),
        Err(error) => refuse(&error.to_string()),
    });
}
