//! zsmalloc: size classes over zspages of up to 16 pages, with compaction.
//!
//! The idea is the kernel's (`mm/zsmalloc.c`): objects of about one size share a zspage, a run of pages divided
//! into equal slots, so that little is lost at the end of pages and a freed slot fits the next object. A handle
//! names an object through a table, so objects can be moved together and whole pages given back. Other than in
//! the kernel the pages of a zspage follow each other in memory, and are committed one after the other as slots
//! are needed: no object is in two pieces, and a class with few objects does not pay for a whole zspage.
//!
//! The price: in each slot a tag of 4 bytes, which names the handle; rounding to a size class; about half a
//! page for each class in use; and beside the pages 4 bytes a handle and 32 bytes a zspage. The guarantee:
//! `read` and `write` take no lock that allocation or compaction of other objects holds.

mod classes;
mod compact;
mod handles;
mod zspage;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use self::classes::{MIN_SLOT, Shape, TAG, class_of_size, shapes};
use self::handles::{Chain, Handles};
use self::zspage::{Lists, NO_SLOT, Zspage};
use super::arena::{Arena, ArenaOptions, BLOCK_PAGES, BLOCK_SIZE};
use super::reservation::Table;
use super::{Handle, MallocError, NewZpoolError, Zpool, lock};
use crate::page::PAGE_SIZE;
use crate::prefetch::{prefetch, prefetch_bytes};

/// In a tag: the slot is in use, and the other bits are its handle. Without it they are the next free slot.
const LIVE: u32 = 1 << 31;
/// Bits of a place that are the slot's number; the others are the zspage's.
const SLOT_BITS: u32 = 12;
/// Bytes of an object to ask for ahead: what comes after them the processor foresees by itself.
const PREFETCH: usize = 512;
/// A class grows by this share of what it has, so that what it holds unused is in proportion.
const GROWTH: usize = 128;

/// The pool.
///
/// Lock order: the lock of one class, then a leaf (`side_numbers`, the handles' shared chain, or one of the
/// arena's). Never two classes.
///
/// The lock of a class protects its zspages' descriptors and tags, and the places of its objects. Whoever reads
/// or writes an object holds a pin on its zspage instead, and looks the place up again under the pin; objects
/// move only out of zspages that nobody has pinned. A reader that finds a zspage being moved waits for the
/// lock of the class, under which that happens.
#[derive(Debug)]
pub struct Zsmalloc {
    arena: Arena,
    zspages: Table<Zspage>,
    handles: Handles,
    /// Tags of the objects that are whole pages, for a zspage at a time.
    sides: Table<[AtomicU32; BLOCK_PAGES]>,
    side_numbers: Mutex<SideNumbers>,
    classes: Box<[Class]>,
    /// Their shapes side by side: a load wants no more of a class.
    shapes: Box<[Shape]>,
    class_of_size: Box<[u8]>,
    /// The class where the next bounded compaction begins.
    compact_from: AtomicUsize,
}

/// A size class, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Class {
    shape: Shape,
    number: u8,
    state: Mutex<State>,
}

/// `objects`, `slots` and `pages` are the sums of `live`, `slots` and `pages` over the zspages of the class.
#[derive(Debug, Default)]
struct State {
    lists: Lists,
    free_handles: Chain,
    objects: usize,
    slots: usize,
    pages: usize,
}

/// Which elements of `sides` are free.
#[derive(Debug, Default)]
struct SideNumbers {
    fresh: u32,
    free: Vec<u32>,
}

/// Where an object is: a zspage's number and a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    zspage: u32,
    slot: u16,
}

impl Place {
    fn from_bits(bits: u32) -> Self {
        let slot = bits & ((1 << SLOT_BITS) - 1);
        Self { zspage: bits >> SLOT_BITS, slot: u16::try_from(slot).expect("12 bits") }
    }

    fn to_bits(self) -> u32 {
        debug_assert!(self.slot >> SLOT_BITS == 0 && self.zspage >> (32 - SLOT_BITS) == 0);
        self.zspage << SLOT_BITS | u32::from(self.slot)
    }
}

/// A pinned object: it stays where it is until this is dropped.
struct Pinned<'a> {
    zspage: &'a Zspage,
    place: Place,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.zspage.unpin();
    }
}

impl Zsmalloc {
    /// An empty pool.
    ///
    /// # Errors
    /// [`NewZpoolError::Reserve`] if the system refuses the address space: the arena's, and an eighth of it for
    /// the table of handles.
    pub fn new(options: &ArenaOptions) -> Result<Self, NewZpoolError> {
        let arena = Arena::new(options)?;
        let blocks = arena.max_blocks();
        let shapes = shapes();
        let class_of_size = class_of_size(&shapes);
        let class = |(number, shape)| Class {
            shape,
            number: u8::try_from(number).expect("at most 256 classes"),
            state: Mutex::default(),
        };
        Ok(Self {
            zspages: Table::new(blocks)?,
            handles: Handles::new(blocks * (BLOCK_SIZE / MIN_SLOT))?,
            sides: Table::new(blocks)?,
            side_numbers: Mutex::default(),
            classes: shapes.iter().copied().enumerate().map(class).collect(),
            shapes: shapes.into(),
            class_of_size,
            compact_from: AtomicUsize::new(0),
            arena,
        })
    }

    /// Panics if the pool's structures contradict each other. For tests: no other thread may be in the pool.
    pub fn check(&self) {
        let states: Vec<_> = self.classes.iter().map(|class| lock(&class.state)).collect();
        let mut sums = vec![(0, 0, 0, 0); self.classes.len()];
        let mut zspages = 0;
        for number in 0..self.arena.used_blocks() {
            if self.zspages.grow_to(number as usize + 1).is_err() || self.zspages[number].live.get() == 0 {
                continue;
            }
            let zspage = &self.zspages[number];
            let class = &self.classes[usize::from(zspage.class.get())];
            self.check_zspage(class, number);
            let sum = &mut sums[usize::from(class.number)];
            sum.0 += usize::from(zspage.live.get());
            sum.1 += usize::from(zspage.slots.get());
            sum.2 += usize::from(zspage.pages.get());
            sum.3 += usize::from(Lists::is_listed(zspage));
            zspages += 1;
        }
        for ((class, state), sum) in self.classes.iter().zip(&states).zip(&sums) {
            let listed = state.lists.check(&self.zspages, class.number);
            assert_eq!((state.objects, state.slots, state.pages, listed), *sum, "class {:?}", class.shape);
        }
        self.arena.check(states.iter().map(|state| state.pages).sum(), zspages);
        let objects = states.iter().map(|state| state.objects).sum();
        self.handles.check(objects, states.iter().map(|state| &state.free_handles));
    }

    /// Checks the equations on [`Zspage`].
    fn check_zspage(&self, class: &Class, number: u32) {
        let (zspage, shape) = (&self.zspages[number], &class.shape);
        let (live, fresh, slots) = (zspage.live.get(), zspage.fresh.get(), zspage.slots.get());
        assert!(live <= fresh && fresh <= slots);
        assert_eq!(usize::from(slots), shape.slots_in(usize::from(zspage.pages.get())));
        let mut used = 0;
        for slot in 0..fresh {
            let place = Place { zspage: number, slot };
            let tag = self.tag(shape, place).load(Ordering::Relaxed);
            if tag & LIVE != 0 {
                assert_eq!(self.handles.get(tag & !LIVE), place.to_bits());
                used += 1;
            }
        }
        assert_eq!(used, live);
        let (mut slot, mut free) = (zspage.free.get(), 0);
        while slot != NO_SLOT {
            assert!(slot < fresh);
            let tag = self.tag(shape, Place { zspage: number, slot }).load(Ordering::Relaxed);
            assert!(tag & LIVE == 0);
            slot = next_free(tag);
            free += 1;
            assert!(free <= fresh - live);
        }
        assert_eq!(free, fresh - live);
    }

    fn class_for(&self, size: usize) -> Result<&Class, MallocError> {
        debug_assert!(size > 0);
        let number = self.class_of_size.get(size).ok_or(MallocError::TooLarge)?;
        Ok(&self.classes[usize::from(*number)])
    }

    /// A zspage with a free slot. Under the lock of the class.
    fn zspage_with_room(&self, class: &Class, state: &mut State) -> Result<u32, MallocError> {
        if let Some(zspage) = state.lists.fullest() {
            return Ok(zspage);
        }
        let want = (state.pages / GROWTH).max(1);
        match state.lists.growable() {
            Some(zspage) => self.extend(class, state, zspage, want),
            None => self.new_zspage(class, state, want.min(class.shape.pages)),
        }
    }

    fn extend(&self, class: &Class, state: &mut State, number: u32, want: usize) -> Result<u32, MallocError> {
        let pages = usize::from(self.zspages[number].pages.get());
        let more = self.arena.commit(number, pages, want.min(class.shape.pages - pages))?;
        self.set_pages(class, state, number, pages + more);
        Ok(number)
    }

    fn new_zspage(&self, class: &Class, state: &mut State, want: usize) -> Result<u32, MallocError> {
        let (number, pages) = self.arena.take(want, class.shape.pages)?;
        let side = self.zspages.grow_to(number as usize + 1).map_err(|_| MallocError::NoMemory);
        let side = side.and_then(|()| if class.shape.is_tagged() { Ok(0) } else { self.take_side() });
        let side = side.inspect_err(|_| self.arena.give(number, pages))?;
        let zspage = &self.zspages[number];
        zspage.reset(class.number, side);
        zspage.pages.set(0);
        zspage.slots.set(0);
        self.set_pages(class, state, number, pages);
        Ok(number)
    }

    /// Notes that the first `pages` pages of the zspage are committed.
    fn set_pages(&self, class: &Class, state: &mut State, number: u32, pages: usize) {
        let zspage = &self.zspages[number];
        let slots = class.shape.slots_in(pages);
        state.pages = state.pages + pages - usize::from(zspage.pages.get());
        state.slots = state.slots + slots - usize::from(zspage.slots.get());
        zspage.pages.set(u8::try_from(pages).expect("at most 16"));
        zspage.slots.set(u16::try_from(slots).expect("at most 4096"));
    }

    /// Forgets a zspage without objects. Returns its committed pages, which the caller gives to the arena.
    fn forget(&self, class: &Class, state: &mut State, number: u32) -> usize {
        let zspage = &self.zspages[number];
        debug_assert_eq!(zspage.live.get(), 0);
        let pages = usize::from(zspage.pages.get());
        state.lists.unlink(&self.zspages, number);
        self.set_pages(class, state, number, 0);
        if !class.shape.is_tagged() {
            lock(&self.side_numbers).free.push(zspage.side.get());
        }
        pages
    }

    fn take_side(&self) -> Result<u32, MallocError> {
        let mut numbers = lock(&self.side_numbers);
        if let Some(number) = numbers.free.pop() {
            return Ok(number);
        }
        let number = numbers.fresh;
        self.sides.grow_to(number as usize + 1).map_err(|_| MallocError::NoMemory)?;
        numbers.fresh += 1;
        Ok(number)
    }

    /// Takes a free slot of the zspage, which has one, for the object of `handle`, and refiles the zspage. The
    /// caller publishes the place.
    fn take_slot(&self, class: &Class, state: &mut State, number: u32, handle: u32) -> Place {
        let zspage = &self.zspages[number];
        let free = zspage.free.get();
        let slot = if free == NO_SLOT { zspage.fresh.get() } else { free };
        let place = Place { zspage: number, slot };
        if free == NO_SLOT {
            zspage.fresh.set(slot + 1);
        } else {
            zspage.free.set(next_free(self.tag(&class.shape, place).load(Ordering::Relaxed)));
        }
        self.set_tag(&class.shape, place, LIVE | handle);
        zspage.live.set(zspage.live.get() + 1);
        state.lists.refile(&self.zspages, number, class.shape.slots);
        place
    }

    /// Pins the object of a handle.
    fn pin(&self, handle: u32) -> Pinned<'_> {
        loop {
            let bits = self.handles.get(handle);
            let place = Place::from_bits(bits);
            let zspage = &self.zspages[place.zspage];
            if zspage.pin() {
                let pinned = Pinned { zspage, place };
                if self.handles.get(handle) == bits {
                    return pinned;
                }
            } else {
                drop(lock(&self.classes[usize::from(zspage.class.get())].state));
            }
        }
    }

    /// The address of the first `len` bytes of a handle's object, pinned. Panics if there is no such object.
    fn object(&self, handle: Handle, len: usize) -> (Pinned<'_>, *mut u8) {
        let handle = handle_index(handle);
        let pinned = self.pin(handle);
        let shape = &self.shapes[usize::from(pinned.zspage.class.get())];
        self.assert_live(shape, pinned.place, handle);
        assert!(len <= shape.payload(), "more than the object has");
        let start = usize::from(pinned.place.slot) * shape.size + shape.size - shape.payload();
        let bytes = self.arena.ptr(pinned.place.zspage, start, len);
        (pinned, bytes)
    }

    /// Catches most uses of a handle after it was freed.
    fn assert_live(&self, shape: &Shape, place: Place, handle: u32) {
        assert!(usize::from(place.slot) < shape.slots, "no such object");
        assert_eq!(self.tag(shape, place).load(Ordering::Relaxed), LIVE | handle, "no such object");
    }

    /// The tag of a slot: [`LIVE`] and its handle, or the next free slot.
    fn tag(&self, shape: &Shape, place: Place) -> &AtomicU32 {
        let slot = usize::from(place.slot);
        if !shape.is_tagged() {
            return &self.sides[self.zspages[place.zspage].side.get()][slot];
        }
        let tag = self.arena.ptr(place.zspage, slot * shape.size, TAG).cast::<AtomicU32>();
        // SAFETY: the slot lies in the opened part of the arena, which lives as long as self; the tag is
        // aligned, since blocks and slot sizes are multiples of 4; only atomics ever refer to these bytes.
        unsafe { &*tag }
    }

    fn set_tag(&self, shape: &Shape, place: Place, tag: u32) {
        let at = self.tag(shape, place);
        if shape.is_tagged() {
            self.arena.note_write(std::ptr::from_ref(at).cast(), TAG);
        }
        at.store(tag, Ordering::Relaxed);
    }
}

/// The next free slot, from the tag of a free one.
fn next_free(tag: u32) -> u16 {
    u16::try_from(tag).expect("the tag of a free slot")
}

/// The index in the table of handles.
fn handle_index(handle: Handle) -> u32 {
    u32::try_from(handle.to_bits()).expect("not a handle of this pool")
}

impl Zpool for Zsmalloc {
    fn name(&self) -> &'static str {
        "zsmalloc"
    }

    fn max_size(&self) -> usize {
        PAGE_SIZE
    }

    fn malloc(&self, size: usize) -> Result<Handle, MallocError> {
        let class = self.class_for(size)?;
        let mut state = lock(&class.state);
        let handle = self.handles.take(&mut state.free_handles)?;
        let zspage = match self.zspage_with_room(class, &mut state) {
            Ok(zspage) => zspage,
            Err(error) => {
                self.handles.give(&mut state.free_handles, handle);
                return Err(error);
            }
        };
        let place = self.take_slot(class, &mut state, zspage, handle);
        state.objects += 1;
        self.handles.set(handle, place.to_bits());
        Ok(Handle::from_bits(u64::from(handle)))
    }

    fn free(&self, handle: Handle) {
        let handle = handle_index(handle);
        let (class, mut state, place) = loop {
            let bits = self.handles.get(handle);
            let place = Place::from_bits(bits);
            let class = &self.classes[usize::from(self.zspages[place.zspage].class.get())];
            let state = lock(&class.state);
            if self.handles.get(handle) == bits {
                break (class, state, place);
            }
        };
        self.assert_live(&class.shape, place, handle);
        let zspage = &self.zspages[place.zspage];
        self.set_tag(&class.shape, place, u32::from(zspage.free.get()));
        zspage.free.set(place.slot);
        zspage.live.set(zspage.live.get() - 1);
        state.objects -= 1;
        self.handles.give(&mut state.free_handles, handle);
        if zspage.live.get() > 0 {
            state.lists.refile(&self.zspages, place.zspage, class.shape.slots);
        } else {
            let pages = self.forget(class, &mut state, place.zspage);
            drop(state);
            self.arena.give(place.zspage, pages);
        }
    }

    fn write(&self, handle: Handle, bytes: &[u8]) {
        let (_pinned, object) = self.object(handle, bytes.len());
        self.arena.note_write(object, bytes.len());
        // SAFETY: the object has that many bytes, in committed memory, and stays there while it is pinned; by
        // the caller's contract nobody else reads, writes or frees it meanwhile, and `bytes` cannot lie in it.
        unsafe { object.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn prefetch(&self, handle: Handle, len: usize) {
        let place = Place::from_bits(self.handles.get(handle_index(handle)));
        prefetch(&raw const self.zspages[place.zspage]);
        // By the length and not by the descriptor, which is not waited for.
        let Some(class) = self.class_of_size.get(len) else { return };
        let start = usize::from(place.slot) * self.shapes[usize::from(*class)].size;
        prefetch_bytes(self.arena.ptr(place.zspage, start, 0), TAG + len.min(PREFETCH));
    }

    fn read(&self, handle: Handle, len: usize, with: &mut dyn FnMut(&[u8])) {
        let (_pinned, object) = self.object(handle, len);
        // SAFETY: as in write: the bytes stay, and nobody writes them while they are lent.
        with(unsafe { std::slice::from_raw_parts(object, len) });
    }

    fn read_together(&self, handles: &[Handle], len: usize, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let pinned: Vec<_> = handles.iter().map(|handle| self.object(*handle, len)).collect();
        // SAFETY: as in write: the bytes stay while they are pinned, and nobody writes them while they are lent.
        let lend = |(_, object): &(Pinned<'_>, *mut u8)| unsafe { std::slice::from_raw_parts(*object, len) };
        with(&pinned.iter().map(lend).collect::<Vec<_>>());
        true
    }

    fn total_pages(&self) -> usize {
        self.arena.held()
    }

    fn meta_bytes(&self) -> usize {
        let sides = {
            let numbers = lock(&self.side_numbers);
            numbers.fresh as usize * size_of::<[u32; BLOCK_PAGES]>()
                + numbers.free.capacity() * size_of::<u32>()
        };
        let zspages = self.arena.used_blocks() as usize * size_of::<Zspage>();
        size_of_val::<[Class]>(&self.classes)
            + self.class_of_size.len()
            + self.arena.meta_bytes()
            + zspages
            + sides
            + self.handles.bytes()
    }

    fn compact(&self, max_pages: usize) -> usize {
        let emptied = self.empty_sparse(max_pages);
        if max_pages < usize::MAX { emptied } else { emptied + self.arena.drop_reserve() }
    }
}
