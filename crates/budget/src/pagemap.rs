//! Which pages of a process have contents, by its /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).

use rustix::fd::{AsRawFd, BorrowedFd};
use std::ops::Range;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The first page of the range that may have contents: present, or in a swap device of the system. Goes over page
/// tables that are not there in one step each (PAGEMAP_SCAN, 6.7); where the kernel does not tell, it is the first of
/// all.
#[must_use]
pub fn next_with_contents(pagemap: BorrowedFd<'_>, range: &Range<u64>) -> Option<u64> {
    const PAGEMAP_SCAN: u64 = 0xc060_6610;
    const PRESENT: u64 = 1 << 3;
    const SWAPPED: u64 = 1 << 4;
    /// `struct page_region`: start, end, categories.
    type Region = [u64; 3];
    if range.is_empty() {
        return None;
    }
    let mut found: Region = [0; 3];
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start,
        end: range.end,
        vec: std::ptr::from_mut(&mut found).expose_provenance() as u64,
        vec_len: 1,
        max_pages: 1,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: PRESENT | SWAPPED,
        ..ScanArg::default()
    };
    // SAFETY: the kernel reads and writes the struct, and writes one region, for which there is room.
    match unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) } {
        0 => None,
        1.. => Some(found[0]),
        _ => Some(range.start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold::PAGE_SIZE as PAGE;
    use rustix::fd::AsFd;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn what_has_contents_is_found() {
        const PAGES: usize = 4096;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, where the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGES * PAGE, prot, flags) }.unwrap();
        let memory = mapped.expose_provenance();
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let next = |from: usize, to: usize| {
            let addr = |page: usize| (memory + page * PAGE) as u64;
            let found = next_with_contents(pagemap.as_fd(), &(addr(from)..addr(to)))?;
            Some(usize::try_from(found).unwrap().wrapping_sub(memory) / PAGE)
        };
        if next(0, PAGES) == Some(0) {
            return eprintln!("skipped: needs PAGEMAP_SCAN (6.7)");
        }
        assert_eq!(next(0, PAGES), None);
        // SAFETY: within the mapping, which nobody else knows of.
        unsafe { mapped.cast::<u8>().add(3001 * PAGE).write(1) };
        assert_eq!([next(0, PAGES), next(3001, 3002)], [Some(3001); 2]);
        assert_eq!([next(0, 3001), next(3002, PAGES), next(3001, 3001)], [None; 3]);
        // SAFETY: the mapping made above, whole.
        unsafe { munmap(mapped, PAGES * PAGE) }.unwrap();
    }
}
