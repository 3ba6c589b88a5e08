//! brk and sbrk over a managed area of their own, for programs that bring an allocator which uses them.

use std::ffi::{c_int, c_void};
use std::ptr;

use ramfold_pager::{MapError, Pager, Prot};

use crate::init;
use crate::lock::Lock;
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
            pager.protect(self.base + old, new - old, Prot(libc::PROT_READ | libc::PROT_WRITE))?;
        } else if new < old {
            pager.map_fixed(self.base + new, old - new, Prot(libc::PROT_NONE))?;
        }
        self.len = len;
        Ok(())
    }
}

/// Moves the break to what `choose` makes of the current one; the old break.
fn move_break(choose: impl FnOnce(usize) -> Option<usize> + 'static) -> Option<Result<usize, MapError>> {
    init::with_pager(|pager| {
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

unsafe extern "C" {
    /// glibc's record of the kernel's break.
    static mut __curbrk: *mut c_void;
}

/// # Safety
/// The program's break is not in use by anyone else.
unsafe fn kernel_brk(addr: usize) -> bool {
    // SAFETY: the caller's.
    let now = unsafe { sys::call(libc::SYS_brk, [addr, 0, 0, 0, 0]) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an address
    let now = now as usize;
    // SAFETY: a word of libc that only brk and sbrk write.
    unsafe { __curbrk = ptr::with_exposed_provenance_mut(now) };
    now >= addr
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(addr: *mut c_void) -> c_int {
    match move_break(move |_| Some(addr.addr())) {
        Some(Ok(_)) => 0,
        Some(Err(error)) => sys::fail(error.errno()),
        // SAFETY: the program's.
        None if unsafe { kernel_brk(addr.addr()) } => 0,
        None => sys::fail(libc::ENOMEM),
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    match move_break(move |old| old.checked_add_signed(increment)) {
        Some(Ok(old)) => ptr::with_exposed_provenance_mut(old),
        Some(Err(_)) => {
            sys::set_errno(libc::ENOMEM);
            FAILED
        }
        // SAFETY: the program's.
        None => unsafe { kernel_sbrk(increment) },
    }
}

/// # Safety
/// As for `kernel_brk`.
unsafe fn kernel_sbrk(increment: isize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        if __curbrk.is_null() {
            kernel_brk(0);
        }
        let old = __curbrk;
        let moved = old.addr().checked_add_signed(increment).is_some_and(|new| kernel_brk(new));
        if increment == 0 || moved {
            return old;
        }
    }
    sys::set_errno(libc::ENOMEM);
    FAILED
}

/// Held across fork.
pub fn before_fork() {
    BREAK.take();
}

/// In the parent and in the child.
pub fn after_fork() {
    BREAK.release();
}
