//! mmap and its family.
//!
//! Who gives what mmap asks for is told in [`crate::request`]. What is mapped over managed memory with MAP_FIXED
//! stays the pager's when it is private and anonymous, and becomes foreign to it when it is not. What is free there
//! is free to the program. A range that lies partly inside is split. A thread that works for ramfold itself calls the
//! kernel.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use ramfold_pager::{MapError, Move, Pager, Prot};

use crate::address_space;
use crate::deputy::by_caller;
use crate::heap;
use crate::management;
use crate::pager;
use crate::real::function;
use crate::request::{Pages, Request, is_managing};
use crate::sys::{self, FAILED, PAGE};

fn uint(value: c_int) -> usize {
    value.unsigned_abs() as usize
}

fn address(pages: Pages) -> *mut c_void {
    match pages {
        Ok(addr) => ptr::with_exposed_provenance_mut(addr),
        Err(error) => {
            sys::set_errno(error.errno());
            FAILED
        }
    }
}

fn status(done: Result<(), MapError>) -> c_int {
    done.map_or_else(|error| sys::fail(error.errno()), |()| 0)
}

/// `len` in whole pages when the range touches managed memory, and this thread does not work for ramfold.
fn managed(addr: usize, len: usize) -> Option<usize> {
    let len = sys::pages(len)?;
    let range = pager::range();
    (addr < range.end && addr.checked_add(len)? > range.start && is_managing()).then_some(len)
}

/// Works on the pager, which is there.
fn with_pager<T: 'static>(f: impl FnOnce(&Pager) -> Result<T, MapError> + 'static) -> Result<T, MapError> {
    management::with_pager(f)
}

/// A range cut at the bounds of managed memory.
struct Parts {
    outside: [Range<usize>; 2],
    inside: Range<usize>,
}

fn split(addr: usize, len: usize, managed: &Range<usize>) -> Parts {
    let end = addr + len;
    let (low, high) = (addr.max(managed.start), end.min(managed.end));
    Parts { outside: [addr..low, high..end], inside: low..high }
}

/// A call that takes a range: the pager's method inside, the system call with the remaining arguments outside.
fn on_parts(
    number: std::ffi::c_long,
    addr: usize,
    len: usize,
    rest: [usize; 3],
    inside: impl FnOnce(&Pager, usize, usize) -> Result<(), MapError> + 'static,
) -> c_int {
    let Some(pages) = managed(addr, len) else {
        // SAFETY: the program's own call, outside managed memory.
        return unsafe { sys::call_int(number, [addr, len, rest[0], rest[1], rest[2]]) };
    };
    let aligned = addr.is_multiple_of(PAGE);
    if !aligned || len == 0 {
        return if aligned && number != libc::SYS_munmap { 0 } else { sys::fail(libc::EINVAL) };
    }
    let parts = split(addr, pages, &pager::range());
    for part in parts.outside.iter().filter(|part| !part.is_empty()) {
        // SAFETY: the program's own call, outside managed memory.
        if unsafe { sys::call_int(number, [part.start, part.len(), rest[0], rest[1], rest[2]]) } != 0 {
            return -1;
        }
    }
    status(with_pager(move |pager| inside(pager, parts.inside.start, parts.inside.len())))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let request = Request { addr: addr.expose_provenance(), len, prot, flags, fd, offset };
    address(request.serve())
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    on_parts(libc::SYS_munmap, addr.addr(), len, [0; 3], Pager::unmap)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    on_parts(libc::SYS_mprotect, addr.addr(), len, [uint(prot), 0, 0], move |pager, addr, len| {
        let opens = Prot(prot) == Prot::READ_WRITE;
        match opens.then(|| heap::reserved_from(addr + len)).flatten() {
            Some(end) => address_space::admit_to(pager, len).and_then(|()| pager.commit(addr, len, end)),
            None => pager.protect(addr, len, Prot(prot)),
        }
    })
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(addr: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: the program's.
        return unsafe { mprotect(addr, len, prot) };
    }
    #[allow(clippy::cast_sign_loss)] // the kernel takes an int
    let rest = [uint(prot), key as usize, 0];
    on_parts(libc::SYS_pkey_mprotect, addr.addr(), len, rest, move |pager, addr, len| {
        let key = u8::try_from(key).map_err(|_| MapError::Invalid)?;
        pager.protect_with_key(addr, len, Prot(prot), key)
    })
}

/// What the kernel refuses before it looks at the memory.
fn may_be_moved(flags: c_int, old_pages: usize, to: Move) -> bool {
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let moves = to.fixed.is_some() || to.keep_old;
    let aligned = to.fixed.is_none_or(|addr| addr.is_multiple_of(PAGE));
    flags & !known == 0 && (to.may_move || !moves) && aligned && (!to.keep_old || to.len == old_pages)
}

/// # Safety
/// As in C, the new address included: it is read only with MREMAP_FIXED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fixed = (flags & libc::MREMAP_FIXED != 0).then_some(new.addr());
    let args = [old.addr(), old_len, new_len, uint(flags), new.addr()];
    let raw = move || {
        // SAFETY: the program's own call; onto managed memory only where the pager asked for it.
        match unsafe { sys::call(libc::SYS_mremap, args) } {
            -1 => Err(sys::errno()),
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an address
            addr => Ok(addr as usize),
        }
    };
    if let Some(old_pages) = managed(old.addr(), old_len.max(1)) {
        let Some(len) = sys::pages(new_len).filter(|len| *len > 0) else {
            return address(Err(MapError::Invalid));
        };
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        let to = Move { len, may_move, fixed, keep_old: flags & libc::MREMAP_DONTUNMAP != 0 };
        if !may_be_moved(flags, old_pages, to) {
            return address(Err(MapError::Invalid));
        }
        let from = old.addr();
        if let Err(error) = address_space::admit(len.saturating_sub(old_pages)) {
            return address(Err(error));
        }
        return address(with_pager(move |pager| match (pager.is_foreign(from), old_len) {
            (true, 0) => pager.duplicate_foreign(to, &mut || by_caller(raw)),
            (true, _) => pager.remap_foreign(from, old_pages, to, &mut || by_caller(raw)),
            (false, 0) => Err(MapError::Invalid),
            (false, _) => pager.remap(from, old_pages, len, may_move, fixed, to.keep_old),
        }));
    }
    if let Some((addr, pages)) = fixed.and_then(|addr| Some((addr, managed(addr, new_len)?))) {
        return address(with_pager(move |pager| {
            pager.map_foreign(addr, pages, true, &mut || by_caller(raw))
        }));
    }
    address(raw().map_err(MapError::Kernel))
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, value: c_int) -> c_int {
    on_parts(libc::SYS_madvise, addr.addr(), len, [uint(value), 0, 0], move |pager, addr, len| {
        pager.advise(addr, len, value)
    })
}

/// POSIX_MADV_DONTNEED keeps the contents, unlike MADV_DONTNEED: it does nothing, as in glibc.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, value: c_int) -> c_int {
    if value == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let before = sys::errno();
    // SAFETY: the program's.
    let done = unsafe { madvise(addr, len, value) };
    let error = if done == 0 { 0 } else { sys::errno() };
    sys::set_errno(before);
    error
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the program's.
    unsafe { mlock2(addr, len, 0) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: u32) -> c_int {
    if flags & !libc::MLOCK_ONFAULT != 0 {
        return sys::fail(libc::EINVAL);
    }
    let (start, len) = page_bounds(addr.addr(), len);
    on_parts(libc::SYS_mlock2, start, len, [flags as usize, 0, 0], Pager::lock)
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    let (start, len) = page_bounds(addr.addr(), len);
    on_parts(libc::SYS_munlock, start, len, [0; 3], Pager::unlock)
}

/// These two calls round the start down and the end up.
fn page_bounds(addr: usize, len: usize) -> (usize, usize) {
    let offset = addr % PAGE;
    (addr - offset, len.saturating_add(if len == 0 { 0 } else { offset }))
}

/// Locks what is managed: the system call would lock the whole range, and the pager's own windows. What is not managed
/// the pager never takes anyway.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    if !is_managing() {
        // SAFETY: locking changes no contents.
        return unsafe { sys::call_int(libc::SYS_mlockall, [uint(flags), 0, 0, 0, 0]) };
    }
    let (present, future) = (flags & libc::MCL_CURRENT != 0, flags & libc::MCL_FUTURE != 0);
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if flags & !known != 0 || !(present || future) {
        return sys::fail(libc::EINVAL);
    }
    status(with_pager(move |pager| pager.lock_all(present, future)))
}

#[unsafe(no_mangle)]
pub extern "C" fn munlockall() -> c_int {
    let raw = || {
        // SAFETY: unlocking changes no contents.
        match unsafe { sys::call_int(libc::SYS_munlockall, [0; 5]) } {
            0 => Ok(0),
            _ => Err(sys::errno()),
        }
    };
    if !is_managing() {
        return status(raw().map(drop).map_err(MapError::Kernel));
    }
    status(with_pager(move |pager| pager.unlock_all(&mut || by_caller(raw))))
}

mod libcs {
    use super::{c_int, c_void, function};
    function!(fn mincore(*mut c_void, usize, *mut u8) -> c_int);
    function!(fn msync(*mut c_void, usize, c_int) -> c_int);
}

/// ENOMEM if managed memory in the range is not mapped. Programs ask mincore and msync whether an address may be read.
fn all_mapped(addr: usize, len: usize) -> c_int {
    let Some(pages) = managed(addr, len).filter(|_| len > 0) else { return 0 };
    let inside = split(addr, pages, &pager::range()).inside;
    status(with_pager(move |pager| pager.check_mapped(inside.start, inside.len())))
}

/// Pages that are away are not in core.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: usize, present: *mut u8) -> c_int {
    let Some(libcs) = libcs::mincore::get() else { return sys::fail(libc::ENOSYS) };
    // SAFETY: libc's own function, with the program's arguments.
    let done = unsafe { libcs(addr, len, present) };
    if done == 0 { all_mapped(addr.addr(), len) } else { done }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msync(addr: *mut c_void, len: usize, flags: c_int) -> c_int {
    let Some(libcs) = libcs::msync::get() else { return sys::fail(libc::ENOSYS) };
    // SAFETY: libc's own function, with the program's arguments.
    let done = unsafe { libcs(addr, len, flags) };
    if done == 0 { all_mapped(addr.addr(), len) } else { done }
}

/// Advice to this process about itself goes range by range through `madvise`; all else to the kernel.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    value: c_int,
    flags: u32,
) -> isize {
    let destructive = [libc::MADV_DONTNEED, libc::MADV_FREE];
    let touches = |range: &libc::iovec| managed(range.iov_base.addr(), range.iov_len).is_some();
    // SAFETY: the program's.
    let list =
        unsafe { if ranges.is_null() { &[] } else { std::slice::from_raw_parts(ranges, count.min(1024)) } };
    if is_self(pidfd) && !destructive.contains(&value) && list.iter().any(touches) {
        let mut done = 0isize;
        for range in list {
            // SAFETY: the program's.
            if unsafe { madvise(range.iov_base, range.iov_len, value) } != 0 {
                return if done == 0 { -1 } else { done };
            }
            done = done.saturating_add_unsigned(range.iov_len);
        }
        return done;
    }
    let fd = uint(pidfd);
    let args = [fd, ranges.addr(), count, uint(value), flags as usize];
    // SAFETY: the program's.
    let done = unsafe { sys::call(libc::SYS_process_madvise, args) };
    isize::try_from(done).unwrap_or(isize::MAX)
}

/// True when a pidfd is this process's own: PIDFD_SELF, or what fdinfo says.
fn is_self(pidfd: c_int) -> bool {
    const PIDFD_SELF_THREAD: c_int = -10000;
    const PIDFD_SELF_THREAD_GROUP: c_int = -10001;
    if [PIDFD_SELF_THREAD, PIDFD_SELF_THREAD_GROUP].contains(&pidfd) {
        return true;
    }
    pager::internally(move || {
        let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")) else { return false };
        let pid = std::process::id();
        text.lines().any(|line| line.strip_prefix("Pid:").is_some_and(|n| n.trim().parse() == Ok(pid)))
    })
}
