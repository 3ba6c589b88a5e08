//! What the dynamic linker allocates lies outside managed memory.
//!
//! Its records of loaded libraries and of thread-local storage are read whenever a thread starts: also when the child of a
//! fork starts the threads that bring pages back. So the malloc family looks at who calls.

use std::sync::atomic::{AtomicUsize, Ordering};

static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Finds out where the dynamic linker is; before its first call counts.
pub fn find() {
    #[allow(clippy::cast_possible_truncation)] // an address
    // SAFETY: asks for a number.
    let base = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    if base == 0 {
        return;
    }
    // SAFETY: the dynamic linker is loaded from there on, first its ELF header, then its program headers.
    let end = unsafe {
        let header = &*std::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(base);
        #[allow(clippy::cast_possible_truncation)] // an offset in a mapped file
        let table = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(base + header.e_phoff as usize);
        let headers = std::slice::from_raw_parts(table, header.e_phnum.into());
        headers
            .iter()
            .filter(|part| part.p_type == libc::PT_LOAD)
            .map(|part| part.p_vaddr + part.p_memsz)
            .max()
    };
    START.store(base, Ordering::Relaxed);
    LEN.store(end.and_then(|end| end.try_into().ok()).unwrap_or(0), Ordering::Relaxed);
}

/// Whether the code at this address is the dynamic linker's.
#[inline]
pub fn contains(caller: usize) -> bool {
    caller.wrapping_sub(START.load(Ordering::Relaxed)) < LEN.load(Ordering::Relaxed)
}
