//! What mmap asks for, and who gives it.
//!
//! Private anonymous memory comes from the pager: where the program would like it if that is inside managed memory
//! and free, else anywhere. A little near the program's code, what has to lie low, and what only the kernel has kinds
//! of, come from the kernel. A thread that works for ramfold itself always gets the kernel's own mapping.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_pager::{MapError, Pager, Prot};

use crate::address_space;
use crate::deputy::{self, by_caller};
use crate::ending;
use crate::gate;
use crate::low;
use crate::management::{self, with_pager};
use crate::pager::{self, pager};
use crate::sys::{self, FAILED, PAGE};
use crate::tls;

/// An address, or why there is none.
pub type Pages = Result<usize, MapError>;

/// The pager's block of 16 pages: mappings of that size and more start on one, as mimalloc wants too.
const BLOCK: usize = 16 * PAGE;
/// Kinds of private anonymous memory that only the kernel can give.
const KERNEL_ONLY: c_int = libc::MAP_32BIT | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
const LOW: usize = 1 << 32;

/// Whether memory is managed, and this thread does not work for ramfold.
pub fn is_managing() -> bool {
    !tls::is_internal()
}

/// MAP_POPULATE and MAP_LOCKED, which never make the mapping fail.
fn prepare(pager: &Pager, addr: usize, len: usize, flags: c_int) {
    if flags & libc::MAP_POPULATE != 0 {
        let _ = pager.advise(addr, len, libc::MADV_WILLNEED);
    }
    if flags & libc::MAP_LOCKED != 0 {
        let _ = pager.lock(addr, len);
    }
}

fn map_anywhere(pager: &Pager, len: usize, prot: c_int, flags: c_int) -> Pages {
    let align = if len >= BLOCK { BLOCK } else { PAGE };
    let addr = pager.map(len, Prot(prot), align)?;
    prepare(pager, addr, len, flags);
    Ok(addr)
}

/// MAP_FIXED that touches managed memory.
fn map_fixed(pager: &Pager, request: Request, len: usize) -> Pages {
    let managed = pager.range();
    let keeps = request.flags & libc::MAP_FIXED_NOREPLACE != 0;
    if request.addr < managed.start || request.addr + len > managed.end || !request.addr.is_multiple_of(PAGE)
    {
        return Err(if keeps { MapError::Kernel(libc::EEXIST) } else { MapError::Invalid });
    }
    if request.is_managed_kind() {
        let (addr, prot) = (request.addr, Prot(request.prot));
        if keeps {
            pager.map_fixed_noreplace(addr, len, prot)?;
        } else {
            pager.map_fixed(addr, len, prot)?;
        }
        prepare(pager, request.addr, len, request.flags);
        return Ok(request.addr);
    }
    map_foreign(pager, request, len, !keeps)
}

/// Something of the kernel's at an address inside managed memory. What is to be brought in at once comes when the
/// pager does not stand still any more.
fn map_foreign(pager: &Pager, request: Request, len: usize, replace: bool) -> Pages {
    const ELSEWHERE: c_int = libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_FIXED_NOREPLACE;
    let call = Request { flags: request.flags & !ELSEWHERE | libc::MAP_FIXED, ..request };
    let mapped = pager.map_foreign(request.addr, len, replace, &mut || by_caller(|| call.raw()))?;
    if request.flags & libc::MAP_POPULATE != 0 && request.flags & libc::MAP_NONBLOCK == 0 {
        let private = request.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
        let writes = private && request.prot & libc::PROT_WRITE != 0;
        let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // It never makes the mapping fail.
        let _ = pager.advise(request.addr, len, advice);
    }
    Ok(mapped)
}

/// Whether memory can become executable only in the call that maps it (PR_SET_MDWE, 6.3): managed memory gets its
/// rights after that. A filter of system calls may not let one ask.
fn is_exec_gain_refused() -> bool {
    const REFUSE_EXEC_GAIN: c_int = 1;
    if deputy::is_wanted() {
        return false;
    }
    let before = sys::errno();
    // SAFETY: asks for an attribute of the process.
    let flags = unsafe { sys::call_int(libc::SYS_prctl, [libc::PR_GET_MDWE as usize, 0, 0, 0, 0]) };
    sys::set_errno(before);
    flags > 0 && flags & REFUSE_EXEC_GAIN != 0
}

/// What the program asks of mmap.
#[derive(Clone, Copy)]
pub struct Request {
    pub addr: usize,
    pub len: usize,
    pub prot: c_int,
    pub flags: c_int,
    pub fd: c_int,
    pub offset: i64,
}

impl Request {
    fn is_managed_kind(self) -> bool {
        let private = self.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
        let anonymous = self.flags & libc::MAP_ANONYMOUS != 0;
        // Those who ask for usable memory at a low address (LuaJIT) cannot use a high one. Reservations can (the JVM).
        let low = !self.is_fixed() && self.addr != 0 && self.addr < LOW && self.prot != libc::PROT_NONE;
        let given = private && (anonymous || self.is_zero_device()) && self.flags & KERNEL_ONLY == 0 && !low;
        given && !(self.prot & libc::PROT_EXEC != 0 && is_exec_gain_refused())
    }

    /// What older programs map in the place of anonymous memory, and the kernel takes for that: /dev/zero. A filter of
    /// system calls may not let one ask.
    fn is_zero_device(self) -> bool {
        let (before, mut found) = (sys::errno(), std::mem::MaybeUninit::<libc::stat>::uninit());
        // SAFETY: the place is large enough.
        let known =
            self.fd >= 0 && !deputy::is_wanted() && unsafe { libc::fstat(self.fd, found.as_mut_ptr()) } == 0;
        sys::set_errno(before);
        let is = |found: libc::stat| {
            found.st_mode & libc::S_IFMT == libc::S_IFCHR && found.st_rdev == libc::makedev(1, 5)
        };
        // SAFETY: the kernel has filled it in.
        known && is(unsafe { found.assume_init() })
    }

    /// Private memory that has to lie below 2 GiB.
    fn is_low(self) -> bool {
        let private_low = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        self.flags & private_low == private_low && self.prot != libc::PROT_NONE
    }

    fn is_fixed(self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
    }

    /// A reservation that takes a good part of the managed range. Where that has no room for it the kernel has: what is
    /// used of it is not managed, and counts.
    fn is_vast(self) -> bool {
        let reserves = self.prot == libc::PROT_NONE || self.flags & libc::MAP_NORESERVE != 0;
        reserves && self.len >= pager::range().len() / 16
    }

    /// Gets it from the kernel: what may come to count without being managed makes management due as well, which ends
    /// a program that has too much of it.
    fn beside(self) -> Pages {
        let given = self.raw().map_err(MapError::Kernel)?;
        if self.flags & libc::MAP_ANONYMOUS != 0 && self.prot & libc::PROT_WRITE != 0 && is_managing() {
            pager().note_beside(self.len);
            management::settle();
        }
        Ok(given)
    }

    /// The system call; the errno on failure.
    fn raw(self) -> Result<usize, i32> {
        let addr = ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: the program's own call; over managed memory only where the pager asked for it.
        let p = unsafe { sys::mmap(addr, self.len, self.prot, self.flags, self.fd, self.offset) };
        if p == FAILED { Err(sys::errno()) } else { Ok(p.addr()) }
    }

    /// Something of the kernel's where the program would like it, if it can be there: inside managed memory, where
    /// nothing is.
    fn at_hint(self) -> Option<usize> {
        // Huge pages: the kernel rounds the length up, over what follows.
        let pages = sys::pages(self.len).filter(|_| self.flags & libc::MAP_HUGETLB == 0);
        let len = pages.filter(|len| *len > 0 && is_managing())?;
        let request = Self { addr: self.addr / PAGE * PAGE, ..self };
        with_pager(move |pager| map_foreign(pager, request, len, false)).ok()
    }

    /// Memory of the pager's kind where the program would like it: inside managed memory, if nothing is there;
    /// elsewhere from the kernel, if it is little (a JIT's code has to be near its library). That is not managed, and
    /// counted.
    fn near(self, len: usize) -> Option<usize> {
        /// Bytes in one mapping, and of all.
        const LITTLE: usize = 1 << 20;
        const MOST: usize = 4 << 20;
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        let addr = self.addr / PAGE * PAGE;
        let there = Self { addr, flags: self.flags | libc::MAP_FIXED_NOREPLACE, ..self };
        if pager::range().contains(&addr) {
            return with_pager(move |pager| map_fixed(pager, there, len)).ok();
        }
        if let Some(what) = self.only_there() {
            let given = there.exactly(len)?;
            ending::tell_once(what);
            return Some(given);
        }
        let wanted = addr != 0 && len <= LITTLE && self.prot != libc::PROT_NONE;
        if !wanted || GIVEN.load(Ordering::Relaxed) + len > MOST {
            return None;
        }
        let given = there.exactly(len)?;
        GIVEN.fetch_add(len, Ordering::Relaxed);
        Some(given)
    }

    /// Whether it is of no use elsewhere: what the program is told then.
    fn only_there(self) -> Option<&'static str> {
        const ZGC: &str =
            "the heap of Java's ZGC is shared memory, which is not held under the limit (-XX:+UseG1GC is)";
        const GO: &str = "Go's race detector has room for the heap in one place only, and what lies there is not held \
                          under the limit";
        if self.is_coloured() {
            return Some(ZGC);
        }
        self.is_insisted_on().then_some(GO)
    }

    /// The kernel's mapping with MAP_FIXED_NOREPLACE, if it comes where it is asked for.
    fn exactly(self, len: usize) -> Option<usize> {
        let mapped = self.raw().ok()?;
        if mapped == self.addr {
            return Some(mapped);
        }
        // A kernel that takes it for a hint (before 4.17).
        // SAFETY: nobody else knows of it.
        unsafe { sys::call_int(libc::SYS_munmap, [mapped, len, 0, 0, 0]) };
        None
    }

    /// A reservation where bits of addresses have a meaning, for shared memory that is mapped several times over:
    /// Java's ZGC asks for powers of two, 4 TiB and up, and can have its heap nowhere else.
    fn is_coloured(self) -> bool {
        const LOWEST: usize = 4 << 40;
        self.prot == libc::PROT_NONE && self.addr >= LOWEST && self.addr.is_power_of_two()
    }

    /// A reservation that must lie where it is asked for. Go's race detector has 128 GiB of address space for the heap:
    /// it asks for places 4 GiB apart, and gives back what lies elsewhere. (Go without it asks 1 TiB apart, and takes
    /// in the end what there is.)
    fn is_insisted_on(self) -> bool {
        const STEP: usize = 4 << 30;
        const PLACES: usize = 32;
        static LAST: AtomicUsize = AtomicUsize::new(0);
        static FIRST: AtomicUsize = AtomicUsize::new(0);
        if self.addr == 0 || self.prot != libc::PROT_NONE {
            return false;
        }
        if LAST.swap(self.addr, Ordering::Relaxed) + STEP == self.addr && self.addr.is_multiple_of(STEP) {
            FIRST.store(self.addr, Ordering::Relaxed);
        }
        let first = FIRST.load(Ordering::Relaxed);
        first != 0 && (first..first + PLACES * STEP).contains(&self.addr)
    }

    /// The limit of address space. What malloc reserves counts when it is used; what lies over memory that is there may
    /// come to nothing more.
    fn admit(self) -> Result<(), MapError> {
        let reserves = self.prot == libc::PROT_NONE && gate::is_inside(tls::thread());
        if self.is_fixed() || reserves || !is_managing() { Ok(()) } else { address_space::admit(self.len) }
    }

    /// Maps it: the address.
    pub fn serve(mut self) -> Pages {
        self.admit()?;
        // Mimalloc's hints are for pages of its own kind, and low until somebody has begun them: what came to lie there
        // would not be known for its block any more.
        if !self.is_fixed() && is_managing() && gate::is_inside(tls::thread()) {
            self.addr = 0;
        }
        let range = pager::range();
        if !self.is_fixed() && !self.is_managed_kind() {
            if range.contains(&self.addr) {
                if let Some(mapped) = self.at_hint() {
                    return Ok(mapped);
                }
                self.addr = 0;
            }
            if self.is_low() && is_managing() {
                low::admit()?;
            }
            return self.beside();
        }
        let Some(len) = sys::pages(self.len).filter(|_| is_managing()) else { return self.beside() };
        let whole_pages = self.offset.unsigned_abs().is_multiple_of(PAGE as u64);
        if len == 0 || !whole_pages {
            return Err(MapError::Invalid);
        }
        if !self.is_fixed() {
            if let Some(addr) = self.near(len) {
                return Ok(addr);
            }
            let mapped = with_pager(move |pager| map_anywhere(pager, len, self.prot, self.flags));
            return match mapped {
                Err(MapError::NoMemory) if self.is_vast() => Self { addr: 0, ..self }.beside(),
                mapped => mapped,
            };
        }
        // Where management begins with this call, the range was still empty.
        let range = pager::range();
        let end = self.addr.checked_add(len).ok_or(MapError::NoMemory)?;
        if self.addr >= range.end || end <= range.start {
            return self.beside();
        }
        with_pager(move |pager| map_fixed(pager, self, len))
    }
}
