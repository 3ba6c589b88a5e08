//! The system calls behind the functions that this library replaces.
//!
//! They set errno and return -1 as the replaced functions do. libc's `syscall` is one of those, and asking the
//! dynamic linker for the original would allocate.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    /// In clone.c: -1 and errno on failure.
    fn ramfold_system_call(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> c_long;
}

pub const PAGE: usize = 4096;

/// What a failed mapping call returns.
pub const FAILED: *mut c_void = libc::MAP_FAILED;

/// Sets errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets errno and returns -1.
pub fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Whether the program is linked to fixed addresses, and runs where none is random: it has asked for both.
pub fn has_fixed_layout() -> bool {
    const ET_EXEC: u16 = 2;
    // SAFETY: asks only; the value is the kernel's for "no change".
    let personality = unsafe { libc::personality(0xffff_ffff) };
    #[allow(clippy::cast_possible_truncation)] // an address
    // SAFETY: a lookup in what the kernel has given the process.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    if personality & libc::ADDR_NO_RANDOMIZE == 0 || headers == 0 {
        return false;
    }
    let file = std::ptr::with_exposed_provenance::<[u8; 18]>(headers / PAGE * PAGE);
    // SAFETY: the program headers are mapped, and a page that is mapped is mapped as a whole.
    let start = unsafe { file.read() };
    start.starts_with(b"\x7fELF") && u16::from_ne_bytes([start[16], start[17]]) == ET_EXEC
}

/// Rounds up to pages; `None` on overflow.
pub fn pages(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE)
}

/// A system call of up to five arguments: -1 and errno on failure.
pub unsafe fn call(number: c_long, args: [usize; 5]) -> c_long {
    // SAFETY: forwarded to the caller.
    unsafe { ramfold_system_call(number, args[0], args[1], args[2], args[3], args[4], 0) }
}

/// The same for the calls that return an int.
#[allow(clippy::cast_possible_truncation)] // 0 or -1
pub unsafe fn call_int(number: c_long, args: [usize; 5]) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { call(number, args) as c_int }
}

pub unsafe fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    #[allow(clippy::cast_possible_truncation, reason = "words of a register")]
    // SAFETY: forwarded to the caller.
    unsafe {
        let [prot, flags, fd] = [prot, flags, fd].map(|value| value as isize as usize);
        let at = ramfold_system_call(libc::SYS_mmap, addr.addr(), len, prot, flags, fd, offset as usize);
        std::ptr::with_exposed_provenance_mut(at as usize)
    }
}

/// Gives back what [`map_private`] gave.
pub unsafe fn munmap(addr: usize, len: usize) -> c_int {
    OWN.fetch_sub(len, Ordering::Relaxed);
    // SAFETY: forwarded to the caller.
    unsafe { call_int(libc::SYS_munmap, [addr, len, 0, 0, 0]) }
}

/// Bytes that [`map_private`] has given.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of address space that ramfold has mapped for itself, managed memory included.
pub fn own_address_space() -> usize {
    OWN.load(Ordering::Relaxed) + ramfold_pager::own_address_space()
}

/// What [`map_private`] gave has another length.
pub fn note_resized(old: usize, new: usize) {
    OWN.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
}

/// Private anonymous memory from the kernel, for ramfold itself; null on failure.
pub fn map_private(len: usize, prot: c_int) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel chooses touches no existing memory.
    let p = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if p == FAILED {
        return std::ptr::null_mut();
    }
    OWN.fetch_add(len, Ordering::Relaxed);
    p
}
