//! All other system calls of the pager, one function each.
//!
//! They are made raw (rustix without libc, or `syscall`): the pager runs in programs where libc's own mmap and
//! madvise are replaced by functions that call the pager.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const PAGE: usize = ramfold::PAGE_SIZE;

/// Bytes of address space that this crate has mapped for itself, the managed range included.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of this process's address space that are not the program's: the managed range, and what the pager and its
/// store have mapped.
#[must_use]
pub fn own_address_space() -> usize {
    OWN.load(Ordering::Relaxed) + ramfold::zpool::reserved_address_space()
}

/// Address space without memory behind it, at an address of the kernel's choice.
pub(crate) fn reserve(len: usize) -> Result<usize, Errno> {
    map_anonymous(None, len, ProtFlags::empty())
}

/// Zeroed memory of our own, taken from the system as it is touched. It is in no core dump.
pub(crate) fn map_own(len: usize) -> Result<NonNull<u8>, Errno> {
    let addr = map_anonymous(None, len, ProtFlags::READ | ProtFlags::WRITE)?;
    exclude_from_dumps(addr, len)?;
    NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).ok_or(Errno::NOMEM)
}

/// Puts an untouched inaccessible mapping over `addr`, whatever was there.
pub(crate) fn reserve_over(addr: usize, len: usize) -> Result<(), Errno> {
    map_anonymous(Some(addr), len, ProtFlags::empty()).map(drop)
}

/// The same where nothing is mapped: EEXIST if anything is.
pub(crate) fn reserve_free(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    match unsafe { libc::syscall(libc::SYS_mmap, addr, len, libc::PROT_NONE, flags, -1, 0) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// Takes a reserved range in which nothing is out of the address space, for who is about to put something there.
pub(crate) fn open_hole(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's: a part of the reserved range in which nothing is.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(addr), len) }
}

/// Maps a part of a file over `addr`, in common with whoever maps it too.
pub(crate) fn map_over(
    addr: usize,
    len: usize,
    prot: i32,
    file: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    let prot = ProtFlags::from_bits_retain(prot.cast_unsigned());
    // SAFETY: the caller's: the file has the contents that belong there.
    unsafe { rustix::mm::mmap(std::ptr::with_exposed_provenance_mut(addr), len, prot, flags, file, offset) }
        .map(drop)
}

/// madvise of what is not the pager's, as the program called it.
pub(crate) fn advise_foreign(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the program's own call, on memory of its own.
    match unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

fn last_errno() -> Errno {
    // SAFETY: the address of this thread's errno is always valid.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

fn map_anonymous(at: Option<usize>, len: usize, prot: ProtFlags) -> Result<usize, Errno> {
    let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    if at.is_some() {
        flags |= MapFlags::FIXED;
    }
    // SAFETY: without FIXED nothing existing is touched; with it, the address is in a range that we reserved.
    let addr = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::with_exposed_provenance_mut(at.unwrap_or(0)), len, prot, flags)
    }?;
    if at.is_none() {
        OWN.fetch_add(len, Ordering::Relaxed);
    }
    Ok(addr.expose_provenance())
}

/// Gives our own memory back to the system.
pub(crate) fn unmap_own(addr: usize, len: usize) {
    OWN.fetch_sub(len, Ordering::Relaxed);
    // SAFETY: called for ranges that this crate mapped and nobody uses any more.
    let _ = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(addr), len) };
}

/// Sets what the program may do with the pages.
pub(crate) fn protect(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    let flags = MprotectFlags::from_bits_retain(prot.cast_unsigned());
    // SAFETY: the range is one that the program asked to have protected so.
    unsafe { rustix::mm::mprotect(std::ptr::with_exposed_provenance_mut(addr), len, flags) }
}

/// As [`protect`], and gives the pages a protection key (pkeys(7)).
pub(crate) fn protect_with_key(addr: usize, len: usize, prot: i32, key: u8) -> Result<(), Errno> {
    // SAFETY: as in `protect`.
    match unsafe { libc::syscall(libc::SYS_pkey_mprotect, addr, len, prot, i32::from(key)) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// [`protect`] of pages that have one protection key and are to have another.
pub(crate) fn protect_as(addr: usize, len: usize, prot: i32, had: u8, key: u8) -> Result<(), Errno> {
    if had == key { protect(addr, len, prot) } else { protect_with_key(addr, len, prot, key) }
}

/// Lets the calling thread, one of the pager's, use memory of any protection key. A thread begins with its creator's
/// rights, and those of a program that uses keys are few.
pub(crate) fn use_all_keys() {
    #[cfg(target_arch = "x86_64")]
    {
        /// In ECX of CPUID's leaf 7: the system has switched protection keys on.
        const OSPKE: u32 = 1 << 4;
        if std::arch::x86_64::__cpuid_count(7, 0).ecx & OSPKE != 0 {
            // SAFETY: sets this thread's rights to user pages, and nothing else. It refuses nothing.
            unsafe { std::arch::asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack)) };
        }
    }
}

/// Drops the pages: the next touch finds them missing.
pub(crate) fn discard(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxDontNeed)
}

/// Whether what is mapped at an address is locked in memory.
pub(crate) fn is_locked(addr: usize) -> bool {
    let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
    // SAFETY: there is no file whose contents others would see changed; of locked memory it is refused (EBUSY).
    unsafe { rustix::mm::msync(std::ptr::with_exposed_provenance_mut(addr), PAGE, flags) == Err(Errno::BUSY) }
}

const GUARD_INSTALL: i32 = 102;
const GUARD_REMOVE: i32 = 103;

/// Drops the pages as [`discard`] does, but no userfaultfd tells of it: guards are put in the place of the pages and
/// taken away again (6.13). Nobody may touch the range meanwhile. On older kernels, where no userfaultfd of ours
/// tells anything, it is `discard`.
pub(crate) fn discard_unseen(addr: usize, len: usize) -> Result<(), Errno> {
    if !can_discard_unseen() {
        return discard(addr, len);
    }
    let installed = advise_raw(addr, len, GUARD_INSTALL);
    advise_raw(addr, len, GUARD_REMOVE).and(installed)
}

/// Whether [`discard_unseen`] is unseen here.
pub(crate) fn can_discard_unseen() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let Ok(addr) = map_own(PAGE) else { return false };
        let addr = addr.addr().get();
        let can = advise_raw(addr, PAGE, GUARD_INSTALL).is_ok();
        unmap_own(addr, PAGE);
        can
    })
}

fn advise_raw(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the callers' contracts: contents are dropped only where the program or the pager wants it.
    match unsafe { libc::syscall(libc::SYS_madvise, addr, len, advice) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Makes pages shared since a fork this process's own, without changing them.
pub(crate) fn unshare(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxPopulateWrite)
}

/// Brings missing pages in as reading them would (5.14).
pub(crate) fn populate_read(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxPopulateRead)
}

/// Brings a page in, whatever the kernel: by reading it. It is mapped, and its owner is not about to unmap it.
pub(crate) fn touch(addr: usize) {
    // SAFETY: the caller's: a readable page. What is read does not matter.
    unsafe { std::ptr::with_exposed_provenance::<u8>(addr).read_volatile() };
}

/// Copies a page of the staging window to another; both are there, and nobody else writes or drops either.
pub(crate) fn copy_page(from: usize, to: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the caller's: two pages of the pager's own memory, of which no reference is held.
    unsafe { to.copy_from_nonoverlapping(from, PAGE) };
}

/// Clears the referenced bits.
#[cfg(test)]
pub(crate) fn make_cold(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxCold)
}

/// Whether a page of our own or of the managed range is in the page tables.
pub(crate) fn is_present(addr: usize) -> Result<bool, Errno> {
    let mut present = 0u8;
    // SAFETY: for one page the kernel writes one byte, and reads none of the program's.
    let result = unsafe { libc::syscall(libc::SYS_mincore, addr, PAGE, std::ptr::from_mut(&mut present)) };
    if result == 0 { Ok(present & 1 != 0) } else { Err(Errno::NOMEM) }
}

/// Leaves the range out of core dumps: they would walk all of the reserved address space.
pub(crate) fn exclude_from_dumps(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxDontDump)
}

/// Undoes [`exclude_from_dumps`].
pub(crate) fn include_in_dumps(addr: usize, len: usize) -> Result<(), Errno> {
    advise(addr, len, Advice::LinuxDoDump)
}

fn advise(addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the callers' contracts: contents are dropped only where the program or the pager wants it.
    unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(addr), len, advice) }
}

#[cfg(test)]
thread_local! {
    /// Where a mapping begins that cannot be moved, and none that lies before it in the same call.
    pub(crate) static REFUSED: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Moves the page tables of a range; the old range stays mapped, empty (5.7).
pub(crate) fn move_mapping(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(at) = REFUSED.get().filter(|at| (from..from + len).contains(at)) {
        return Err(if at == from { Errno::NOMEM } else { Errno::FAULT });
    }
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: both ranges lie in the range that we own; the program asked for the move.
    unsafe {
        rustix::mm::mremap_fixed(
            std::ptr::with_exposed_provenance_mut(from),
            len,
            len,
            flags,
            std::ptr::with_exposed_provenance_mut(to),
        )
    }
    .map(drop)
}

/// mlock and munlock as the program called them.
pub(crate) fn lock(addr: usize, len: usize, lock: bool) -> Result<(), Errno> {
    let addr: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: locking changes no contents.
    if lock { unsafe { rustix::mm::mlock(addr, len) } } else { unsafe { rustix::mm::munlock(addr, len) } }
}

/// mlock without bringing anything in: what comes, stays.
pub(crate) fn lock_on_fault(addr: usize, len: usize) -> Result<(), Errno> {
    let addr: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: locking changes no contents.
    unsafe { rustix::mm::mlock_with(addr, len, rustix::mm::MlockFlags::ONFAULT) }
}

/// What /proc/self/pagemap says of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageEntry(u64);

impl PageEntry {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const EXCLUSIVE: u64 = 1 << 56;

    /// The page is in the page tables, or in a swap device of the system.
    pub(crate) fn has_contents(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAPPED) != 0
    }

    /// It is in the page tables of another process as well.
    pub(crate) fn is_shared(self) -> bool {
        self.0 & (Self::PRESENT | Self::EXCLUSIVE) == Self::PRESENT
    }
}

/// The entries of pages, from that of `addr` on. `pagemap` is /proc/self/pagemap; `entries` has room for eight bytes
/// a page.
pub(crate) fn page_entries<'a>(
    pagemap: BorrowedFd<'_>,
    addr: usize,
    entries: &'a mut [u8],
) -> Result<impl Iterator<Item = PageEntry> + use<'a>, Errno> {
    read_at(pagemap, addr / PAGE * 8, entries)?;
    Ok(entries.as_chunks::<8>().0.iter().map(|entry| PageEntry(u64::from_ne_bytes(*entry))))
}

/// Reads all of `out` from a file; from /proc/self/mem: memory that may be inaccessible or vanish.
pub(crate) fn read_at(file: BorrowedFd<'_>, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < out.len() {
        match rustix::io::pread(file, &mut out[done..], (offset + done) as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(bytes) => done += bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Runs the calling thread on one processor only.
pub(crate) fn run_on(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Refused (a cpuset without it): the thread stays where it is.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Takes a signal that the calling thread has caused while it blocks it, so that nobody else gets it.
pub(crate) fn take_signal(signal: i32) {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set is made before it is read; nothing is asked about the signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const now);
    }
}
