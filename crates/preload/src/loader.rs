//! What the dynamic linker allocates lies outside managed memory.
//!
//! Its records of loaded libraries and of thread-local storage are read whenever a thread starts: also when the child
//! of a fork starts the threads that bring pages back. So the malloc family looks at who calls.
//!
//! A program may have a malloc of its own in its executable (rustc has jemalloc), which comes before this library's.
//! The dynamic linker then allocates from that: in managed memory, and within that allocator's own call of mmap when
//! threads start there, or under the locks that it holds across a fork. So the linker is told to use this library's
//! all the same, before the program begins. The linker keeps the addresses of the four functions that it found in its
//! own data, where the first library finds them (start/linker.c). While this library is loaded, functions of the first
//! library stand there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Finds out where the dynamic linker is; before its first call counts.
pub fn find() {
    let (mut begin, mut end) = (0, 0);
    // SAFETY: writes both.
    unsafe { ramfold_linker(&raw mut begin, &raw mut end) };
    START.store(begin, Ordering::Relaxed);
    LEN.store(end - begin, Ordering::Relaxed);
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
    /// Where the dynamic linker lies; twice 0 where there is none.
    fn ramfold_linker(begin: *mut usize, end: *mut usize);
    /// In the dynamic linker, puts a function in the place of another. Returns how many places there were.
    fn ramfold_give_linker(old: *const c_void, function: *const c_void) -> c_int;
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
        // SAFETY: functions of one type; there is one thread.
        let given = |old, ours| unsafe { ramfold_give_linker(as_function(old), as_function(ours)) };
        if (passed_on || has_own(name)) && given(old, ours) == 0 {
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
        if unsafe { ramfold_give_libc(name.as_ptr(), as_function(ours)) } == 0 {
            return Err(NotFound);
        }
    }
    Ok(())
}

fn as_function(address: usize) -> *const c_void {
    std::ptr::with_exposed_provenance(address)
}

/// Where the library is loaded that has this function. (The address of an exported function would not tell: what is
/// exported can be the program's.)
fn object(function: usize) -> usize {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the answer is written or stays zeros, which are valid.
    unsafe {
        libc::dladdr(as_function(function), info.as_mut_ptr());
        info.assume_init().dli_fbase.addr()
    }
}
