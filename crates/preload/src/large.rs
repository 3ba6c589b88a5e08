//! Blocks of 1 MiB and more: each is pages of its own in the managed range.
//!
//! realloc never copies. A block that has to move for the first time moves (its pages do, not their contents) into
//! a reservation of four times its size, so that later growth happens in place. Sizes are kept in a table outside
//! managed memory: freeing a block touches none of its pages, which may be evicted.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

use ramfold_pager::{MapError, Pager, Prot};

use crate::address_space;
use crate::lock::Lock;
use crate::management;
use crate::pager;
use crate::sys::{self, PAGE};

const RW: Prot = Prot(libc::PROT_READ | libc::PROT_WRITE);
const NONE: Prot = Prot(libc::PROT_NONE);
/// The pager's block.
const ALIGN: usize = 16 * PAGE;
/// No reservation is larger than this: address space is plentiful, but not endless.
const MAX_RESERVED: usize = 256 << 30;

#[derive(Clone, Copy)]
struct Block {
    /// Bytes that belong to the program, in whole pages.
    len: usize,
    /// Bytes that are readable and writable; from `len` on they are zero.
    open: usize,
    /// Bytes of address space.
    reserved: usize,
}

static BLOCKS: Lock<BTreeMap<usize, Block>> = Lock::new(BTreeMap::new());

fn get(p: *const c_void) -> Option<Block> {
    if !p.addr().is_multiple_of(PAGE) || !pager::range().contains(&p.addr()) {
        return None;
    }
    BLOCKS.lock().get(&p.addr()).copied()
}

fn set(addr: usize, block: Block) {
    BLOCKS.lock().insert(addr, block);
}

pub fn owns(p: *const c_void) -> bool {
    get(p).is_some()
}

pub fn len(p: *const c_void) -> usize {
    get(p).map_or(0, |block| block.len)
}

/// Number of blocks and their bytes.
pub fn totals() -> (usize, usize) {
    let blocks = BLOCKS.lock();
    (blocks.len(), blocks.values().map(|block| block.len).sum())
}

/// Zeroed memory; null when there is none left.
pub fn alloc(size: usize, align: usize) -> *mut c_void {
    let Some(len) = sys::pages(size.max(1)) else { return ptr::null_mut() };
    let mapped = management::with_pager(move |pager| {
        address_space::admit_to(pager, len).ok()?;
        let addr = pager.map(len, RW, align.max(ALIGN)).ok()?;
        set(addr, Block { len, open: len, reserved: len });
        Some(addr)
    });
    mapped.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

pub fn free(p: *mut c_void) {
    let addr = p.addr();
    management::with_pager(move |pager| {
        let block = BLOCKS.lock().remove(&addr)?;
        pager.unmap(addr, block.reserved).ok()
    });
}

/// The block with its new size, perhaps elsewhere; null, and the old block untouched, when that cannot be had.
pub fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    let (addr, Some(len)) = (p.addr(), sys::pages(size)) else { return ptr::null_mut() };
    let moved = management::with_pager(move |pager| {
        // Out of the table first: once the pages have moved, another thread may get the old address.
        let block = BLOCKS.lock().remove(&addr)?;
        let moved = if len <= block.len {
            shrink(pager, addr, block, len)
        } else if pager.exhausted() {
            Err(MapError::NoMemory)
        } else {
            grow(pager, addr, block, len)
        };
        let (new, block) = moved.unwrap_or((addr, block));
        set(new, block);
        moved.ok().map(|(new, _)| new)
    });
    moved.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

type Moved = Result<(usize, Block), MapError>;

fn shrink(pager: &Pager, addr: usize, block: Block, len: usize) -> Moved {
    if len < block.len {
        // Zeros again, whether or not the program has locked them.
        pager.map_fixed(addr + len, block.len - len, RW)?;
    }
    Ok((addr, Block { len, ..block }))
}

fn grow(pager: &Pager, addr: usize, block: Block, len: usize) -> Moved {
    if len <= block.open {
        return Ok((addr, Block { len, ..block }));
    }
    address_space::admit_to(pager, len - block.open)?;
    if len <= block.reserved {
        pager.protect(addr + block.open, len - block.open, RW)?;
        return Ok((addr, Block { len, open: len, ..block }));
    }
    if block.open == block.reserved && pager.remap(addr, block.open, len, false, None, false).is_ok() {
        return Ok((addr, Block { len, open: len, reserved: len }));
    }
    relocate(pager, addr, block, len)
}

fn relocate(pager: &Pager, addr: usize, block: Block, len: usize) -> Moved {
    let reserved = len.saturating_mul(4).min(MAX_RESERVED).max(len);
    let new = pager.map(reserved, NONE, ALIGN)?;
    if let Err(error) = pager.remap(addr, block.open, len, true, Some(new), false) {
        pager.unmap(new, reserved)?;
        return Err(error);
    }
    if block.reserved > block.open {
        pager.unmap(addr + block.open, block.reserved - block.open)?;
    }
    Ok((new, Block { len, open: len, reserved }))
}

/// Held across fork.
pub fn before_fork() {
    BLOCKS.take();
}

/// In the parent and in the child.
pub fn after_fork() {
    BLOCKS.release();
}
