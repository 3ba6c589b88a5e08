//! brk and sbrk over a managed area of their own, for programs that bring an allocator which uses them.

use std::ffi::{c_int, c_void};
use std::ptr;

use ramfold_pager::{MapError, Pager, Prot};

use crate::address_space;
use crate::lock::Lock;
use crate::management;
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

#[unsafe(no_mangle)]
pub extern "C" fn brk(addr: *mut c_void) -> c_int {
    move_break(move |_| Some(addr.addr())).map_or_else(|error| sys::fail(error.errno()), |_| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn sbrk(increment: isize) -> *mut c_void {
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
