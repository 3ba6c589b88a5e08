//! xvmalloc: blocks of any size within a page, found by segregated fit.
//!
//! The idea is that of the allocator first used by compcache and zcache (xvmalloc), after TLSF (Masmano et al.,
//! "TLSF: a new dynamic memory allocator for real-time systems", 2004): a page is a row of blocks, each with a
//! header of 4 bytes; free blocks are on lists by size, a bitmap tells which lists have any, and a freed block
//! is merged with its free neighbours at once. Allocation and freeing take constant time. The price: a block
//! never crosses a page, so what two large objects leave of a page serves only small ones; objects do not move,
//! so a page goes back only when its last object is freed. The guarantee: no two free blocks are neighbours.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::arena::{Arena, ArenaOptions, PageLimit};
use super::pages::{FreePages, page_ptr};
use super::{Handle, MallocError, NewZpoolError, Zpool, lock};
use crate::page::PAGE_SIZE;

/// Bytes of a block's header.
const HEADER: usize = 4;
/// Block sizes are multiples of this.
const ALIGN: usize = 4;
/// The smallest block, in bytes without header: smaller rests stay with the block before. Holds the links.
const MIN_SIZE: usize = 32;
/// Places in a page where a block may begin.
const UNITS: u64 = (PAGE_SIZE / ALIGN) as u64;
/// In a link: no block.
const NO_PAGE: u32 = u32::MAX;
/// The largest: a page without the header.
const MAX_SIZE: usize = PAGE_SIZE - HEADER;
/// Free blocks of sizes `n * STEP .. (n + 1) * STEP` are on list n.
const STEP: usize = 32;
/// Lists, as many as a `u128` has bits.
const LISTS: usize = 128;

/// The pool.
///
/// `state` protects all headers and links. Reading and writing objects takes no lock: they do not move, and
/// a header's size does not change while its block is in use (its other bits may, so headers are atomics).
/// Lock order: `state`, then the arena's.
#[derive(Debug)]
pub struct Xvmalloc {
    arena: Arena,
    limit: Arc<PageLimit>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pages: FreePages,
    heads: [Option<Block>; LISTS],
    /// A bit for each list that is not empty.
    filled: u128,
}

/// A block: a page, and where in it the header is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    page: u32,
    at: usize,
}

/// A block's header: its size, the size of the block before it in the page (0: it is the first), both without
/// header, and whether it is free.
///
/// In a page `at + HEADER + size` is the next block's `at`, or the page's end; the next block's `before` is this
/// one's `size`; two neighbours are not both free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    size: usize,
    before: usize,
    is_free: bool,
}

impl Header {
    const SIZE_BITS: u32 = 13;
    const SIZE_MASK: u32 = (1 << Self::SIZE_BITS) - 1;

    fn from_bits(bits: u32) -> Self {
        Self {
            size: (bits & Self::SIZE_MASK) as usize,
            before: (bits >> Self::SIZE_BITS & Self::SIZE_MASK) as usize,
            is_free: bits >> (2 * Self::SIZE_BITS) != 0,
        }
    }

    fn to_bits(self) -> u32 {
        let bits =
            self.size | self.before << Self::SIZE_BITS | usize::from(self.is_free) << (2 * Self::SIZE_BITS);
        u32::try_from(bits).expect("27 bits")
    }
}

impl Block {
    /// 24 bits for the page, and 10 for the place in it.
    fn handle(self) -> Handle {
        Handle::from_bits(u64::from(self.page) * UNITS + (self.at / ALIGN) as u64)
    }

    fn of(handle: Handle) -> Self {
        let bits = handle.to_bits();
        let page = u32::try_from(bits / UNITS).expect("not a handle of this pool");
        Self { page, at: usize::try_from(bits % UNITS).expect("below a page") * ALIGN }
    }

    fn next(self, header: Header) -> Option<Self> {
        let at = self.at + HEADER + header.size;
        (at < PAGE_SIZE).then_some(Self { at, ..self })
    }

    fn previous(self, header: Header) -> Option<Self> {
        (header.before != 0).then(|| Self { at: self.at - HEADER - header.before, ..self })
    }
}

impl Xvmalloc {
    /// An empty pool.
    ///
    /// # Errors
    /// [`NewZpoolError::Reserve`] if the system refuses the address space.
    pub fn new(options: &ArenaOptions) -> Result<Self, NewZpoolError> {
        let state = State { pages: FreePages::default(), heads: [None; LISTS], filled: 0 };
        let limit = Arc::clone(&options.limit);
        Ok(Self { arena: Arena::new(options)?, limit, state: Mutex::new(state) })
    }

    /// Panics if the pool's structures contradict each other. For tests: no other thread may be in the pool.
    pub fn check(&self) {
        let state = lock(&self.state);
        let mut listed = 0;
        for (list, head) in state.heads.iter().enumerate() {
            assert_eq!(head.is_some(), state.filled >> list & 1 != 0);
            let (mut before, mut block) = (None, *head);
            while let Some(free) = block {
                let header = self.header(free);
                assert!(header.is_free && header.size / STEP == list);
                assert_eq!(self.link(free, Link::Before), before);
                (before, block) = (block, self.link(free, Link::After));
                listed += 1;
            }
        }
        let mut free = 0;
        for page in state.pages.check(&self.arena) {
            free += self.check_page(page);
        }
        assert_eq!(listed, free);
    }

    /// Checks the equations on [`Header`] for a page in use. Returns its free blocks.
    fn check_page(&self, page: u32) -> usize {
        let (mut free, mut before) = (0, Header { size: 0, before: 0, is_free: false });
        let mut block = Some(Block { page, at: 0 });
        let mut blocks = 0;
        while let Some(this) = block {
            let header = self.header(this);
            assert_eq!(header.before, before.size);
            assert!(header.size >= MIN_SIZE && header.size.is_multiple_of(ALIGN));
            assert!(this.at + HEADER + header.size <= PAGE_SIZE);
            assert!(!(header.is_free && before.is_free), "free neighbours");
            free += usize::from(header.is_free);
            blocks += 1;
            (block, before) = (this.next(header), header);
        }
        assert!(blocks > free, "a page without objects is taken");
        free
    }

    fn set_word(&self, block: Block, at: usize, value: u32) {
        let word = self.word(block, at);
        self.arena.note_write(std::ptr::from_ref(word).cast(), size_of::<u32>());
        word.store(value, Ordering::Relaxed);
    }

    fn word(&self, block: Block, at: usize) -> &AtomicU32 {
        let word = page_ptr(&self.arena, block.page, block.at + at, size_of::<u32>()).cast::<AtomicU32>();
        debug_assert!(word.is_aligned());
        // SAFETY: the word lies in the opened part of the arena, which lives as long as self; blocks and the
        // words in them are aligned to 4; headers, and links while the block is free, are only ever used as
        // atomics.
        unsafe { &*word }
    }

    fn header(&self, block: Block) -> Header {
        Header::from_bits(self.word(block, 0).load(Ordering::Relaxed))
    }

    fn set_header(&self, block: Block, header: Header) {
        self.set_word(block, 0, header.to_bits());
    }

    fn link(&self, block: Block, link: Link) -> Option<Block> {
        let word = |at| self.word(block, link as usize + at).load(Ordering::Relaxed);
        let page = word(0);
        (page != NO_PAGE).then(|| Block { page, at: word(4) as usize })
    }

    fn set_link(&self, block: Block, link: Link, to: Option<Block>) {
        let to = to.unwrap_or(Block { page: NO_PAGE, at: 0 });
        let at = u32::try_from(to.at).expect("below a page");
        self.set_word(block, link as usize, to.page);
        self.set_word(block, link as usize + 4, at);
    }

    /// Puts a free block on its list.
    fn insert(&self, state: &mut State, block: Block, size: usize) {
        let list = size / STEP;
        let head = state.heads[list].replace(block);
        state.filled |= 1 << list;
        self.set_link(block, Link::Before, None);
        self.set_link(block, Link::After, head);
        if let Some(head) = head {
            self.set_link(head, Link::Before, Some(block));
        }
    }

    /// Takes a free block off its list.
    fn remove(&self, state: &mut State, block: Block, size: usize) {
        let (before, after) = (self.link(block, Link::Before), self.link(block, Link::After));
        if let Some(after) = after {
            self.set_link(after, Link::Before, before);
        }
        if let Some(before) = before {
            self.set_link(before, Link::After, after);
            return;
        }
        let list = size / STEP;
        state.heads[list] = after;
        if after.is_none() {
            state.filled &= !(1 << list);
        }
    }

    /// A block of at least `size` bytes, off its list and no longer free: the first on the list of that size, if
    /// it happens to be large enough, or on the next list, where all are.
    fn find(&self, state: &mut State, size: usize) -> Result<Block, MallocError> {
        let near = state.heads[size / STEP].filter(|block| self.header(*block).size >= size);
        let larger = || {
            let lists = state.filled & (u128::MAX << (size / STEP) << 1);
            (lists != 0).then(|| state.heads[lists.trailing_zeros() as usize]).flatten()
        };
        if let Some(block) = near.or_else(larger) {
            let header = self.header(block);
            self.remove(state, block, header.size);
            self.set_header(block, Header { is_free: false, ..header });
            return Ok(block);
        }
        let block = Block { page: state.pages.take(&self.arena)?, at: 0 };
        self.set_header(block, Header { size: MAX_SIZE, before: 0, is_free: false });
        Ok(block)
    }

    /// Cuts a block to `size` bytes and frees the rest, if that makes a block.
    fn split(&self, state: &mut State, block: Block, size: usize) {
        let header = self.header(block);
        if header.size < size + HEADER + MIN_SIZE {
            return;
        }
        let cut = Header { size, ..header };
        let rest = Header { size: header.size - size - HEADER, before: size, is_free: true };
        self.set_header(block, cut);
        let free = block.next(cut).expect("there is a rest");
        self.set_header(free, rest);
        self.set_before(free, rest);
        self.insert(state, free, rest.size);
    }

    /// Tells the block after `block` how large `block` is.
    fn set_before(&self, block: Block, header: Header) {
        if let Some(next) = block.next(header) {
            self.set_header(next, Header { before: header.size, ..self.header(next) });
        }
    }

    /// The address of the first `len` bytes of an object. Panics if there is no such object.
    fn object(&self, handle: Handle, len: usize) -> *mut u8 {
        let block = Block::of(handle);
        let header = self.header(block);
        assert!(!header.is_free, "no such object");
        assert!(len <= header.size, "more than the object has");
        page_ptr(&self.arena, block.page, block.at + HEADER, len)
    }
}

/// A free block's links, by their offsets in it.
#[derive(Debug, Clone, Copy)]
enum Link {
    Before = HEADER as isize,
    After = HEADER as isize + 8,
}

impl Zpool for Xvmalloc {
    fn name(&self) -> &'static str {
        "xvmalloc"
    }

    fn max_size(&self) -> usize {
        MAX_SIZE
    }

    fn malloc(&self, size: usize) -> Result<Handle, MallocError> {
        debug_assert!(size > 0);
        if size > MAX_SIZE {
            return Err(MallocError::TooLarge);
        }
        let size = size.max(MIN_SIZE).next_multiple_of(ALIGN);
        let mut state = lock(&self.state);
        let block = self.find(&mut state, size)?;
        self.split(&mut state, block, size);
        Ok(block.handle())
    }

    fn free(&self, handle: Handle) {
        let mut block = Block::of(handle);
        let mut state = lock(&self.state);
        let mut header = self.header(block);
        assert!(!header.is_free, "no such object");
        if let Some(next) = block.next(header) {
            let other = self.header(next);
            if other.is_free {
                self.remove(&mut state, next, other.size);
                header.size += HEADER + other.size;
            }
        }
        if let Some(previous) = block.previous(header) {
            let other = self.header(previous);
            if other.is_free {
                self.remove(&mut state, previous, other.size);
                header = Header { size: header.size + HEADER + other.size, ..other };
                block = previous;
            }
        }
        header.is_free = true;
        self.set_header(block, header);
        self.set_before(block, header);
        if header.size == MAX_SIZE {
            state.pages.give(&self.arena, block.page, self.limit.get());
        } else {
            self.insert(&mut state, block, header.size);
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
        size_of::<Self>() + lock(&self.state).pages.meta_bytes() + self.arena.meta_bytes()
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
