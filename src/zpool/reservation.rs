//! Address space first, memory later.
//!
//! A [`Reservation`] is a range of addresses that is reserved at once and opened from the front as it is
//! needed. Reserving costs the system nothing, also where overcommitting is forbidden: only what has been
//! opened is accounted. The range never moves, so references into it stay good while it grows, and readers
//! need no lock. A [`Table`] is an array in such a range.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::lock;

/// Bytes of all reservations of this process.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of address space that the pools of this process have reserved, most of which is never used.
#[must_use]
pub fn reserved_address_space() -> usize {
    RESERVED.load(Ordering::Relaxed)
}

/// A range of anonymous private memory: `0..opened` may be touched, `opened..len` is only reserved.
///
/// Invariant: `opened <= len`; both are multiples of `step` (`len` at least of the page size); `opened` never
/// shrinks. `growing` makes growth exclusive and is a leaf: no other lock is taken under it.
pub(super) struct Reservation {
    base: NonNull<u8>,
    len: usize,
    step: usize,
    opened: AtomicUsize,
    growing: Mutex<()>,
}

// SAFETY: the range belongs to this value alone and does not move; access to the bytes is by raw pointers and
// atomics, whose users keep their own rules.
unsafe impl Send for Reservation {}
// SAFETY: as above; the only state of its own that changes is atomic.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes, to be opened in steps of `step` bytes (a multiple of the page size).
    pub(super) fn new(len: usize, step: usize) -> Result<Self, Errno> {
        let len = len.max(1).checked_next_multiple_of(step).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::empty(), flags) }?;
        // SAFETY: the range was mapped just now and is ours. A kernel without huge pages refuses, and needs no
        // advice either.
        let _ = unsafe { madvise(base, len, Advice::LinuxNoHugepage) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        RESERVED.fetch_add(len, Ordering::Relaxed);
        Ok(Self { base, len, step, opened: AtomicUsize::new(0), growing: Mutex::new(()) })
    }

    /// Bytes that were reserved.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes `0..end` usable. New bytes are zero.
    pub(super) fn open_to(&self, end: usize) -> Result<(), Errno> {
        if end <= self.opened.load(Ordering::Acquire) {
            return Ok(());
        }
        if end > self.len {
            return Err(Errno::NOMEM);
        }
        let _growing = lock(&self.growing);
        let opened = self.opened.load(Ordering::Relaxed);
        if end > opened {
            let target = end.next_multiple_of(self.step);
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: opened..target lies in the range (len is a multiple of step), which is ours; more access
            // than before harms no reference into it.
            unsafe { mprotect(self.base.as_ptr().add(opened).cast(), target - opened, flags) }?;
            self.opened.store(target, Ordering::Release);
        }
        Ok(())
    }

    /// Where in the range an address is that [`Self::ptr`] gave.
    pub(super) fn offset(&self, ptr: *const u8) -> usize {
        ptr.addr() - self.base.as_ptr().addr()
    }

    /// The address of `len` bytes at `at`. Panics if they are not open. The bytes are shared: whoever
    /// dereferences the pointer excludes others.
    pub(super) fn ptr(&self, at: usize, len: usize) -> *mut u8 {
        let opened = self.opened.load(Ordering::Acquire);
        assert!(len <= opened && at <= opened - len, "outside of the opened range");
        // SAFETY: at..at + len was checked to lie in the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can hold a reference into it: those borrow from self.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole own mapping");
        RESERVED.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("len", &self.len)
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

/// A type whose all-zero bytes are a value, and which may be shared between threads.
///
/// # Safety
/// Both must hold, and the type needs no drop.
pub(super) unsafe trait Zeroed: Sync {}

// SAFETY: an atomic integer of zero bytes is zero.
unsafe impl Zeroed for AtomicU16 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: an array of such values is one.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}

macro_rules! field {
    ($name:ident, $atomic:ty, $int:ty) => {
        /// A number in a table that is written under a lock, and may be read without.
        #[derive(Debug)]
        #[repr(transparent)]
        pub(in crate::zpool) struct $name($atomic);

        impl $name {
            pub(in crate::zpool) fn get(&self) -> $int {
                self.0.load(Ordering::Relaxed)
            }

            pub(in crate::zpool) fn set(&self, value: $int) {
                self.0.store(value, Ordering::Relaxed);
            }
        }
    };
}
field!(Field8, AtomicU8, u8);
field!(Field16, AtomicU16, u16);
field!(Field32, AtomicU32, u32);

/// Bytes by which a table grows: memory is only used when an element is touched.
const TABLE_STEP: usize = 64 << 10;

/// An array of zeroed elements that grows in place.
#[derive(Debug)]
pub(super) struct Table<T> {
    memory: Reservation,
    elements: PhantomData<T>,
}

impl<T: Zeroed> Table<T> {
    /// A table that can grow to `most` elements.
    pub(super) fn new(most: usize) -> Result<Self, Errno> {
        let bytes = most.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?;
        Ok(Self { memory: Reservation::new(bytes, TABLE_STEP)?, elements: PhantomData })
    }

    /// Makes the elements `0..count` usable.
    pub(super) fn grow_to(&self, count: usize) -> Result<(), Errno> {
        self.memory.open_to(count.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?)
    }
}

impl<T: Zeroed> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        let size = size_of::<T>();
        let element = self.memory.ptr(at as usize * size, size).cast::<T>();
        // SAFETY: the element lies in opened memory, which was zero at first and since then only written
        // through shared references to T; it is aligned, as the base is page-aligned and at * size a multiple
        // of the alignment; it lives as long as self.
        unsafe { &*element }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_its_elements_in_place_while_it_grows() {
        let table = Table::<AtomicU32>::new(1 << 20).unwrap();
        table.grow_to(1).unwrap();
        let first = &table[0];
        first.store(7, Ordering::Relaxed);
        table.grow_to(1 << 20).unwrap();
        assert_eq!(table[0].load(Ordering::Relaxed), 7);
        assert!(std::ptr::eq(first, &table[0]));
        assert_eq!(table[(1 << 20) - 1].load(Ordering::Relaxed), 0);
        assert_eq!(table.grow_to((1 << 20) + 1), Err(Errno::NOMEM));
    }

    #[test]
    #[should_panic(expected = "outside of the opened range")]
    fn an_element_that_was_not_opened_is_refused() {
        let table = Table::<AtomicU32>::new(1 << 20).unwrap();
        table.grow_to(1).unwrap();
        let _ = &table[1 << 19];
    }
}
