//! zbud: two objects a page, one from each end.
//!
//! The idea is the kernel's (`mm/zbud.c`): a page is divided into 64 chunks; the first object begins at the
//! front, the last one ends at the back. Pages with one object are filed by the number of free chunks, and an
//! object goes into the first page of the first list that has room: simple, quick, and nothing ever moves. The
//! price: no more than two objects a page, so at best half the memory is saved; and at least one chunk is left
//! free in a page, so a whole page is refused. The guarantee: freeing two objects at most frees a page.
//!
//! Other than in the kernel the page's header lies beside it, in a table.

use std::sync::{Arc, Mutex};

use super::arena::{Arena, ArenaOptions, PageLimit};
use super::pages::{FreePages, max_pages, page_ptr};
use super::reservation::{Field8, Field32, Table, Zeroed};
use super::{Handle, MallocError, NewZpoolError, Zpool, lock};
use crate::page::PAGE_SIZE;

/// Chunks in a page.
const CHUNKS: usize = 64;
/// Bytes in a chunk.
const CHUNK: usize = PAGE_SIZE / CHUNKS;
/// The largest object: one chunk less than a page.
const MAX_SIZE: usize = PAGE_SIZE - CHUNK;
/// No page: the end of a list.
const NONE: u32 = u32::MAX;

/// The pool.
///
/// `state` protects the descriptors and lists. Reading and writing objects takes no lock: they do not move, and
/// what a handle needs of the descriptor does not change while the object lives. Lock order: `state`, then the
/// arena's.
#[derive(Debug)]
pub struct Zbud {
    arena: Arena,
    limit: Arc<PageLimit>,
    buddies: Table<Buddies>,
    state: Mutex<State>,
}

/// The descriptor of a page. In a page in use `first + last <= CHUNKS` and one of them is not 0; the page is on
/// the list of its free chunks exactly if the other one is.
#[derive(Debug)]
struct Buddies {
    /// Chunks of the object at the front; 0: none.
    first: Field8,
    /// Chunks of the object at the back; 0: none.
    last: Field8,
    next: Field32,
    prev: Field32,
}

// SAFETY: the type consists of atomic integers, for which zero bytes are zeros.
unsafe impl Zeroed for Buddies {}

impl Buddies {
    fn free_chunks(&self) -> usize {
        CHUNKS - usize::from(self.first.get()) - usize::from(self.last.get())
    }

    fn is_unbuddied(&self) -> bool {
        (self.first.get() == 0) != (self.last.get() == 0)
    }
}

#[derive(Debug)]
struct State {
    pages: FreePages,
    /// By free chunks: the pages with one object.
    unbuddied: [u32; CHUNKS],
    /// A bit for each list that is not empty.
    filled: u64,
}

/// What a handle says: a page, and which of its two objects.
#[derive(Debug, Clone, Copy)]
struct Place {
    page: u32,
    is_last: bool,
}

impl Place {
    fn of(handle: Handle) -> Self {
        let bits = handle.to_bits();
        let page = u32::try_from(bits >> 1).expect("not a handle of this pool");
        Self { page, is_last: bits & 1 != 0 }
    }

    fn handle(self) -> Handle {
        Handle::from_bits(u64::from(self.page) << 1 | u64::from(self.is_last))
    }
}

impl Zbud {
    /// An empty pool.
    ///
    /// # Errors
    /// [`NewZpoolError::Reserve`] if the system refuses the address space.
    pub fn new(options: &ArenaOptions) -> Result<Self, NewZpoolError> {
        let arena = Arena::new(options)?;
        let state = State { pages: FreePages::default(), unbuddied: [NONE; CHUNKS], filled: 0 };
        Ok(Self {
            buddies: Table::new(max_pages(&arena))?,
            limit: Arc::clone(&options.limit),
            state: Mutex::new(state),
            arena,
        })
    }

    /// Panics if the pool's structures contradict each other. For tests: no other thread may be in the pool.
    pub fn check(&self) {
        let state = lock(&self.state);
        let mut listed = 0;
        for (chunks, head) in state.unbuddied.iter().enumerate() {
            assert_eq!(*head != NONE, state.filled >> chunks & 1 != 0);
            let (mut prev, mut page) = (NONE, *head);
            while page != NONE {
                let buddies = &self.buddies[page];
                assert!(buddies.is_unbuddied() && buddies.free_chunks() == chunks);
                assert_eq!(buddies.prev.get(), prev);
                (prev, page) = (page, buddies.next.get());
                listed += 1;
            }
        }
        let mut unbuddied = 0;
        for page in state.pages.check(&self.arena) {
            let buddies = &self.buddies[page];
            assert!(usize::from(buddies.first.get()) + usize::from(buddies.last.get()) <= CHUNKS);
            assert!(buddies.first.get() != 0 || buddies.last.get() != 0, "a page without objects is taken");
            unbuddied += usize::from(buddies.is_unbuddied());
        }
        assert_eq!(listed, unbuddied);
    }

    /// A new page, without objects.
    fn new_page(&self, state: &mut State) -> Result<u32, MallocError> {
        let page = state.pages.take(&self.arena)?;
        if self.buddies.grow_to(page as usize + 1).is_err() {
            state.pages.give(&self.arena, page, self.limit.get());
            return Err(MallocError::NoMemory);
        }
        Ok(page)
    }

    fn link(&self, state: &mut State, page: u32) {
        let buddies = &self.buddies[page];
        let chunks = buddies.free_chunks();
        let head = std::mem::replace(&mut state.unbuddied[chunks], page);
        state.filled |= 1 << chunks;
        buddies.prev.set(NONE);
        buddies.next.set(head);
        if head != NONE {
            self.buddies[head].prev.set(page);
        }
    }

    fn unlink(&self, state: &mut State, page: u32) {
        let buddies = &self.buddies[page];
        let (prev, next) = (buddies.prev.get(), buddies.next.get());
        if next != NONE {
            self.buddies[next].prev.set(prev);
        }
        if prev != NONE {
            self.buddies[prev].next.set(next);
            return;
        }
        let chunks = buddies.free_chunks();
        state.unbuddied[chunks] = next;
        if next == NONE {
            state.filled &= !(1 << chunks);
        }
    }

    /// The address of the first `len` bytes of an object. Panics if there is no such object.
    fn object(&self, handle: Handle, len: usize) -> *mut u8 {
        let place = Place::of(handle);
        let buddies = &self.buddies[place.page];
        let chunks = if place.is_last { &buddies.last } else { &buddies.first };
        let size = usize::from(chunks.get()) * CHUNK;
        assert!(size > 0, "no such object");
        assert!(len <= size, "more than the object has");
        page_ptr(&self.arena, place.page, if place.is_last { PAGE_SIZE - size } else { 0 }, len)
    }
}

impl Zpool for Zbud {
    fn name(&self) -> &'static str {
        "zbud"
    }

    fn max_size(&self) -> usize {
        MAX_SIZE
    }

    fn malloc(&self, size: usize) -> Result<Handle, MallocError> {
        debug_assert!(size > 0);
        if size > MAX_SIZE {
            return Err(MallocError::TooLarge);
        }
        let chunks = size.div_ceil(CHUNK);
        let mut state = lock(&self.state);
        let fitting = state.filled >> chunks << chunks;
        let page = if fitting == 0 {
            self.new_page(&mut state)?
        } else {
            let page = state.unbuddied[fitting.trailing_zeros() as usize];
            self.unlink(&mut state, page);
            page
        };
        let buddies = &self.buddies[page];
        let is_last = buddies.first.get() != 0;
        let field = if is_last { &buddies.last } else { &buddies.first };
        field.set(u8::try_from(chunks).expect("at most 64"));
        if buddies.is_unbuddied() {
            self.link(&mut state, page);
        }
        Ok(Place { page, is_last }.handle())
    }

    fn free(&self, handle: Handle) {
        let Place { page, is_last } = Place::of(handle);
        let mut state = lock(&self.state);
        let buddies = &self.buddies[page];
        let field = if is_last { &buddies.last } else { &buddies.first };
        assert!(field.get() != 0, "no such object");
        if buddies.is_unbuddied() {
            self.unlink(&mut state, page);
            field.set(0);
            state.pages.give(&self.arena, page, self.limit.get());
        } else {
            field.set(0);
            self.link(&mut state, page);
        }
    }

    fn write(&self, handle: Handle, bytes: &[u8]) {
        let object = self.object(handle, bytes.len());
        self.arena.note_write(object, bytes.len());
        // SAFETY: the object has that many bytes, in a committed page, and does not move; by the caller's
        // contract nobody else reads, writes or frees it meanwhile, and `bytes` cannot lie in it.
        unsafe { object.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, handle: Handle, len: usize, with: &mut dyn FnMut(&[u8])) {
        let object = self.object(handle, len);
        // SAFETY: as in write: the bytes stay, and nobody writes them while they are lent.
        with(unsafe { std::slice::from_raw_parts(object, len) });
    }

    fn total_pages(&self) -> usize {
        self.arena.held()
    }

    fn meta_bytes(&self) -> usize {
        let table = self.arena.used_blocks() as usize * super::arena::BLOCK_PAGES * size_of::<Buddies>();
        let lists = lock(&self.state).pages.meta_bytes();
        table + lists + size_of::<Self>() + self.arena.meta_bytes()
    }

    fn compact(&self, max_pages: usize) -> usize {
        if max_pages < usize::MAX {
            // Objects never move here.
            return 0;
        }
        let trimmed = lock(&self.state).pages.trim(&self.arena);
        trimmed + self.arena.drop_reserve()
    }
}
