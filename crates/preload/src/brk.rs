//! brk and sbrk over a managed area of their own, for programs that bring an allocator which uses them.
//!
//! The break of a program that is linked to fixed addresses and has asked for none to be random is the kernel's, and
//! not managed: such a program takes it for the end of its own image (GCL, whose heaps are saved as executables).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use ramfold_pager::{MapError, Pager, Prot};

use crate::address_space;
use crate::lock::Lock;
use crate::management;
use crate::real::function;
use crate::sys::{self, FAILED, PAGE};

/// Address space for the break to grow in.
const AREA: usize = 64 << 30;

struct Break {
    /// Start of the area; 0 before the first use.
    base: usize,
    /// Bytes between the area's start and the break.
    len: usize,
}

static BREAK: Lock<Break> = Lock::new(Break { base: 0, len: 0 });

impl Break {
    /// Sets the break `len` bytes into the area; what is given back reads as zeros when it is taken again.
    fn set(&mut self, pager: &Pager, len: usize) -> Result<(), MapError> {
        let (old, new) = (self.len.next_multiple_of(PAGE), len.next_multiple_of(PAGE));
        if new > AREA || (new > old && pager.exhausted()) {
            return Err(MapError::NoMemory);
        }
        if new > old {
            address_space::admit_to(pager, new - old)?;
            pager.protect(self.base + old, new - old, Prot(libc::PROT_READ | libc::PROT_WRITE))?;
        } else if new < old {
            pager.map_fixed(self.base + new, old - new, Prot(libc::PROT_NONE))?;
        }
        self.len = len;
        Ok(())
    }
}

/// Moves the break to what `choose` makes of the current one; the old break.
fn move_break(choose: impl FnOnce(usize) -> Option<usize> + 'static) -> Result<usize, MapError> {
    management::with_pager(|pager| {
        let mut area = BREAK.lock();
        if area.base == 0 {
            area.base = pager.map(AREA, Prot(libc::PROT_NONE), PAGE)?;
        }
        let old = area.base + area.len;
        let len = choose(old).and_then(|new| new.checked_sub(area.base)).ok_or(MapError::NoMemory)?;
        area.set(pager, len)?;
        Ok(old)
    })
}

mod libcs {
    use super::{c_int, c_void, function};
    function!(fn brk(*mut c_void) -> c_int);
    function!(fn sbrk(isize) -> *mut c_void);
}

/// Whether the break follows the program's image, as it was at the first call: a program may switch randomization off
/// and go on with the break that it has.
fn follows_image() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if KNOWN.load(Ordering::Relaxed) == UNKNOWN {
        let follows = sys::has_fixed_layout();
        KNOWN.store(if follows { YES } else { NO }, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) == YES
}

#[unsafe(no_mangle)]
pub extern "C" fn brk(addr: *mut c_void) -> c_int {
    if follows_image()
        && let Some(libcs) = libcs::brk::get()
    {
        // SAFETY: libc's own function, with the program's argument.
        return unsafe { libcs(addr) };
    }
    // As libc does when it asks the kernel where the break is.
    if addr.is_null() {
        return 0;
    }
    move_break(move |_| Some(addr.addr())).map_or_else(|error| sys::fail(error.errno()), |_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn sbrk(increment: isize) -> *mut c_void {
    if follows_image()
        && let Some(libcs) = libcs::sbrk::get()
    {
        // SAFETY: libc's own function, with the program's argument.
        return unsafe { libcs(increment) };
    }
    let old = move_break(move |old| old.checked_add_signed(increment));
    old.map_or_else(
        |error| {
            sys::set_errno(error.errno());
            FAILED
        },
        ptr::with_exposed_provenance_mut,
    )
}

/// Held across fork.
pub fn before_fork() {
    BREAK.take();
}

/// In the parent and in the child.
pub fn after_fork() {
    BREAK.release();
}
