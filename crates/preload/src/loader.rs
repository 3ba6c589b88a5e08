//! What the dynamic linker allocates lies outside managed memory.
//!
//! Its records of loaded libraries and of thread-local storage are read whenever a thread starts: also when the child
//! of a fork starts the threads that bring pages back. So the malloc family looks at who calls.
//!
//! A program may have a malloc of its own in its executable (rustc has jemalloc), which comes before this library's.
//! The dynamic linker then allocates from that: in managed memory, and within that allocator's own call of mmap when
//! threads start there, or under the locks that it holds across a fork. So the linker is told to use this library's
//! all the same, before the program begins. The linker keeps the addresses of the four functions that it found in its
//! own data. While this library is loaded it has functions of the first library there (start/linker.c).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sys::{self, PAGE};

static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static THEIRS: OnceLock<Theirs> = OnceLock::new();

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// What the dynamic linker called before it was redirected. It may still have blocks of it.
pub struct Theirs {
    pub malloc: Malloc,
    pub realloc: Realloc,
    pub free: Free,
}

/// The program's own functions, if it has any.
pub fn theirs() -> Option<&'static Theirs> {
    THEIRS.get()
}

/// Where the dynamic linker is loaded, and its program headers.
fn linker() -> Option<(usize, &'static [libc::Elf64_Phdr])> {
    #[allow(clippy::cast_possible_truncation)] // an address
    // SAFETY: asks for a number.
    let base = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    if base == 0 {
        return None;
    }
    // SAFETY: the dynamic linker is loaded from there on, first its ELF header, then its program headers.
    let headers = unsafe {
        let header = &*std::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(base);
        #[allow(clippy::cast_possible_truncation)] // an offset in a mapped file
        let table = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(base + header.e_phoff as usize);
        std::slice::from_raw_parts(table, header.e_phnum.into())
    };
    Some((base, headers))
}

/// Finds out where the dynamic linker is; before its first call counts.
pub fn find() {
    let Some((base, headers)) = linker() else { return };
    let loaded = headers.iter().filter(|part| part.p_type == libc::PT_LOAD);
    let end = loaded.map(|part| part.p_vaddr + part.p_memsz).max();
    START.store(base, Ordering::Relaxed);
    LEN.store(end.and_then(|end| end.try_into().ok()).unwrap_or(0), Ordering::Relaxed);
}

/// Whether the code at this address is the dynamic linker's.
#[inline]
pub fn contains(caller: usize) -> bool {
    caller.wrapping_sub(START.load(Ordering::Relaxed)) < LEN.load(Ordering::Relaxed)
}

/// The program's malloc is its own, and the dynamic linker does not keep its address where it was looked for.
#[derive(Debug)]
pub struct NotFound;

unsafe extern "C" {
    /// The first library passes malloc on to another one.
    static ramfold_next_malloc: c_int;
    /// What the first library has lent to the linker: malloc, calloc, realloc, free; or zeros.
    static ramfold_lent: [usize; 4];
    /// In libc itself, puts a function in the place of the one with this name. Returns how many places there were.
    fn ramfold_give_libc(name: *const c_char, function: *const c_void) -> c_int;
}

/// A function of this library, and the name of the one that it replaces.
pub type Function = (&'static CStr, usize);

/// Sees to it that the dynamic linker allocates from these functions of this library, and libc from those, where the
/// program has its own; while there is one thread.
pub fn redirect(for_linker: [Function; 4], for_libc: [Function; 3]) -> Result<(), NotFound> {
    // Not RTLD_DEFAULT: this library is linked to find its own functions first.
    // SAFETY: a null name is the program's; it is there already.
    let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    // SAFETY: the handle is the program's, and the name ends with a zero byte.
    let find = |name: &CStr| unsafe { libc::dlsym(program, name.as_ptr()) };
    let first_library = object(find(c"ramfold_kept").addr());
    // SAFETY: a word that was written before this library was loaded.
    let passed_on = unsafe { ramfold_next_malloc } != 0;
    let has_own = |name| object(find(name).addr()) != first_library;
    // SAFETY: words that were written before this library was loaded.
    let lent = unsafe { ramfold_lent };
    for ((name, ours), lent) in for_linker.into_iter().zip(lent) {
        let old = if lent == 0 { find(name).addr() } else { lent };
        if (passed_on || has_own(name)) && replace(old, ours) == 0 {
            return Err(NotFound);
        }
    }
    if passed_on || has_own(c"free") {
        // The linker's blocks of before go back to who lent it functions; he knows the program's.
        let [_, _, lent_realloc, lent_free] = lent.map(std::ptr::with_exposed_provenance_mut::<c_void>);
        let or = |lent: *mut c_void, name| if lent.is_null() { find(name) } else { lent };
        // SAFETY: functions of these names have these types.
        let theirs = unsafe {
            Theirs {
                malloc: std::mem::transmute::<*mut c_void, Malloc>(find(c"malloc")),
                realloc: std::mem::transmute::<*mut c_void, Realloc>(or(lent_realloc, c"realloc")),
                free: std::mem::transmute::<*mut c_void, Free>(or(lent_free, c"free")),
            }
        };
        let _ = THEIRS.set(theirs);
    }
    if has_own(c"free") { filter_libc(for_libc) } else { Ok(()) }
}

/// libc frees what the linker has allocated: the thread-local storage of libraries, when a thread takes over the
/// stack of one that has ended. It calls the free of the program for that, which would not know the block. And it
/// asks for the blocks of streams.
fn filter_libc(functions: [Function; 3]) -> Result<(), NotFound> {
    for (name, ours) in functions {
        // SAFETY: a function of that name's type; the name ends with a zero byte.
        if unsafe { ramfold_give_libc(name.as_ptr(), std::ptr::with_exposed_provenance(ours)) } == 0 {
            return Err(NotFound);
        }
    }
    Ok(())
}

/// Where the library is loaded that has this function. (The address of an exported function would not tell: what is
/// exported can be the program's.)
fn object(function: usize) -> usize {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the answer is written or stays zeros, which are valid.
    unsafe {
        libc::dladdr(std::ptr::with_exposed_provenance(function), info.as_mut_ptr());
        info.assume_init().dli_fbase.addr()
    }
}

/// Puts one address in the place of another in the dynamic linker's data. Returns how many there were.
fn replace(old: usize, new: usize) -> usize {
    let Some((base, headers)) = linker() else { return 0 };
    let parts =
        |kind| headers.iter().filter(move |part| part.p_type == kind).map(move |part| place(base, part));
    let read_only = |word: &usize| parts(libc::PT_GNU_RELRO).any(|part| part.contains(word));
    let writable =
        headers.iter().filter(|part| part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_W != 0);
    let words = writable
        .map(|part| place(base, part))
        .flat_map(|part| part.start.next_multiple_of(8)..part.end / 8 * 8);
    let mut count = 0;
    for word in words.step_by(8) {
        let at = std::ptr::with_exposed_provenance_mut::<usize>(word);
        // SAFETY: a word of the linker's data, which is mapped for good; there is one thread.
        if unsafe { at.read() } != old {
            continue;
        }
        let sealed = read_only(&word);
        if sealed && !protect(word, libc::PROT_READ | libc::PROT_WRITE) {
            continue;
        }
        // SAFETY: the same, and writable now: it holds the address of a function of the new one's type.
        unsafe { at.write(new) };
        if sealed {
            protect(word, libc::PROT_READ);
        }
        count += 1;
    }
    count
}

/// Where a part of an object that is loaded at `base` lies.
#[allow(clippy::cast_possible_truncation)] // addresses
pub fn place(base: usize, part: &libc::Elf64_Phdr) -> Range<usize> {
    let start = base + part.p_vaddr as usize;
    start..start + part.p_memsz as usize
}

/// Changes the protection of the page of a word.
fn protect(word: usize, prot: i32) -> bool {
    let prot = prot.unsigned_abs() as usize;
    // SAFETY: a page of the linker's data, which it has sealed; it becomes as it was.
    unsafe { sys::call_int(libc::SYS_mprotect, [word / PAGE * PAGE, PAGE, prot, 0, 0]) == 0 }
}
