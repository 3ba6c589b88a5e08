//! shmat and shmdt: shared memory at an address of the program's choice.
//!
//! Where that lies in managed memory, the segment takes the place of what is free there or, with SHM_REMAP, of what
//! is mapped, and the pager has its range back when it is detached. To the kernel all of managed memory is taken, so
//! what the program asks for without SHM_REMAP is done with it. Anywhere else the calls are the kernel's.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use ramfold_pager::MapError;

use crate::deputy::by_caller;
use crate::sys::{self, PAGE};
use crate::{management, pager, tls};

/// shmat as the kernel has it; errno on failure.
fn attach(id: c_int, addr: usize, flags: c_int) -> Result<usize, c_int> {
    #[allow(clippy::cast_sign_loss)] // the kernel takes an int
    let args = [id as usize, addr, flags as usize, 0, 0];
    // SAFETY: the program's own call; over managed memory only where the pager asked for it.
    match unsafe { sys::call(libc::SYS_shmat, args) } {
        -1 => Err(sys::errno()),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an address
        attached => Ok(attached as usize),
    }
}

fn detach(addr: usize) -> Result<usize, c_int> {
    // SAFETY: the program's own call.
    if unsafe { sys::call(libc::SYS_shmdt, [addr, 0, 0, 0, 0]) } == 0 { Ok(0) } else { Err(sys::errno()) }
}

/// Bytes of a segment.
fn size_of_segment(id: c_int) -> Result<usize, c_int> {
    let mut about = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: there is room for what is written, and it is read only if it was.
    unsafe {
        if libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr()) < 0 {
            return Err(sys::errno());
        }
        Ok(about.assume_init().shm_segsz)
    }
}

/// shmat, at an address that is not null.
fn attach_at(id: c_int, addr: usize, flags: c_int) -> Result<usize, c_int> {
    let rounded = if flags & libc::SHM_RND != 0 { addr / PAGE * PAGE } else { addr };
    let managed = pager::range();
    let len = match size_of_segment(id) {
        Ok(len)
            if !tls::is_internal()
                && rounded < managed.end
                && rounded.saturating_add(len) > managed.start =>
        {
            len
        }
        // The kernel knows what is wrong with the number.
        _ => return attach(id, addr, flags),
    };
    let replace = flags & libc::SHM_REMAP != 0;
    let attached = management::with_pager(move |pager| {
        pager
            .attach(rounded, len, replace, &mut || by_caller(|| attach(id, rounded, flags | libc::SHM_REMAP)))
    });
    attached.map_err(|error| match error {
        MapError::Kernel(libc::EEXIST) => libc::EINVAL,
        other => other.errno(),
    })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    let addr = addr.expose_provenance();
    let attached = if addr == 0 { attach(id, addr, flags) } else { attach_at(id, addr, flags) };
    attached.map_or_else(
        |errno| {
            sys::set_errno(errno);
            sys::FAILED
        },
        ptr::with_exposed_provenance_mut,
    )
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    let addr = addr.addr();
    let done = if pager::range().contains(&addr) && !tls::is_internal() {
        management::with_pager(move |pager| pager.detach(addr, &mut || by_caller(|| detach(addr))))
            .map_err(MapError::errno)
    } else {
        detach(addr)
    };
    done.map_or_else(sys::fail, |_| 0)
}
