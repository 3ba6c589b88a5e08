//! Parts that fail on demand, through the real traits, and pages that are known by a number.

use ramfold::codec::{self, Codec, CompressError, DecompressError};
use ramfold::tier::{ReadError, Slot, Tier, WriteError};
use ramfold::zpool::{self, ArenaOptions, Handle, MallocError, Zpool};
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolId, Scratch, Store};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A small generator (SplitMix64), so that a printed seed repeats a run.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The page of this number: same-filled, well compressible, half compressible or not at all, by turns.
pub fn page(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut random = Random(number);
    match number % 4 {
        0 => page.as_chunks_mut::<8>().0.fill(number.to_ne_bytes()),
        1 => random_fill(&mut page[..200], &mut random),
        2 => random_fill(&mut page[1000..3000], &mut random),
        _ => random_fill(&mut page, &mut random),
    }
    page
}

/// A page of its own that takes some hundred bytes, never same-filled.
pub fn small_page(number: u64) -> Page {
    page(number * 4 + 1)
}

fn random_fill(bytes: &mut [u8], random: &mut Random) {
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_ne_bytes()[..chunk.len()]));
}

/// A store with one thread's scratch, for tests that ask one thing at a time.
pub struct Bench {
    pub store: Store,
    pub scratch: Scratch,
}

impl Bench {
    pub fn new(config: &Config, tier: Option<Arc<dyn Tier>>) -> Self {
        Self::over(Store::new(config, tier).unwrap())
    }

    pub fn over(store: Store) -> Self {
        let scratch = store.scratch();
        Self { store, scratch }
    }

    pub fn put(&mut self, pool: PoolId, index: u64, page: &Page) -> Result<(), ramfold::StoreError> {
        self.store.store(Key { pool, object: 0, index }, page, &mut self.scratch)
    }

    pub fn get(&mut self, pool: PoolId, index: u64) -> Result<Page, ramfold::LoadError> {
        let mut page = [0xaa; PAGE_SIZE];
        self.store.load(Key { pool, object: 0, index }, &mut page, &mut self.scratch).map(|()| page)
    }

    /// Stores until a page is refused; the pool never has more than so many bytes. Gives the number of pages.
    pub fn fill(&mut self, pool: PoolId, most: u64) -> u64 {
        let mut stored = 0;
        while self.put(pool, stored, &small_page(stored)).is_ok() {
            assert!(self.store.pool_bytes() <= most);
            stored += 1;
        }
        stored
    }

    pub fn shrink(&mut self) -> ramfold::Shrunk {
        self.store.shrink()
    }

    pub fn stat(&self, name: &str) -> u64 {
        let stats = self.store.stats();
        let found = stats.fields().into_iter().find(|(field, _)| *field == name);
        found.unwrap_or_else(|| panic!("there is no counter {name}")).1
    }
}

/// Something that happens to every `one_in`-th call, or to the n-th from now; 0 is never.
#[derive(Debug, Default)]
pub struct Fault {
    pub one_in: AtomicU64,
    pub nth: AtomicI64,
    calls: AtomicU64,
}

impl Fault {
    pub fn strikes(&self) -> bool {
        let call = self.calls.fetch_add(1, Relaxed);
        let one_in = self.one_in.load(Relaxed);
        self.nth.fetch_sub(1, Relaxed) == 1 || one_in != 0 && Random(call).below(one_in) == 0
    }
}

/// Records by slot, and the free slots.
type Records = (Vec<Option<Vec<u8>>>, Vec<usize>);

/// What a test does in the middle of a write.
#[derive(Default)]
pub struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    pub fn set(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(hook));
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// A tier in memory. It uses freed slots again at once, and forgets what was discarded.
#[derive(Debug, Default)]
pub struct MemoryTier {
    records: Mutex<Records>,
    /// Records that fit in; 0: any number.
    pub capacity: AtomicU64,
    pub write_error: Fault,
    pub read_error: Fault,
    pub read_damage: Fault,
    pub writes: AtomicU64,
    pub during_write: Hook,
}

impl MemoryTier {
    pub fn len(&self) -> usize {
        self.records.lock().unwrap().0.iter().flatten().count()
    }
}

impl Tier for MemoryTier {
    fn write(&self, records: &[&[u8]]) -> Result<Vec<Slot>, WriteError> {
        self.writes.fetch_add(1, Relaxed);
        let hook = self.during_write.0.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        if self.write_error.strikes() {
            return Err(WriteError::Io(std::io::Error::other("ordered by the test")));
        }
        let mut guard = self.records.lock().unwrap();
        let (held, free) = &mut *guard;
        let capacity = self.capacity.load(Relaxed);
        if capacity != 0 && (held.len() - free.len() + records.len()) as u64 > capacity {
            return Err(WriteError::Full);
        }
        let slots = records.iter().map(|record| {
            assert!((1..=PAGE_SIZE).contains(&record.len()));
            let at = free.pop().unwrap_or_else(|| {
                held.push(None);
                held.len() - 1
            });
            assert!(held[at].replace(record.to_vec()).is_none());
            Slot::from_bits(at as u64)
        });
        Ok(slots.collect())
    }

    fn read(&self, slot: Slot, out: &mut [u8]) -> Result<usize, ReadError> {
        if self.read_error.strikes() {
            return Err(ReadError::Io(std::io::Error::other("ordered by the test")));
        }
        // A slot may be discarded and used again before it is read; of some, as a yield is long on a busy machine.
        if slot.to_bits().is_multiple_of(16) {
            std::thread::yield_now();
        }
        let records = self.records.lock().unwrap();
        let record = records.0[slot.to_bits() as usize].as_ref().ok_or(ReadError::Corrupt)?;
        out[..record.len()].copy_from_slice(record);
        if self.read_damage.strikes() {
            out[record.len() / 2] ^= 1;
        }
        Ok(record.len())
    }

    fn discard(&self, slot: Slot) {
        let mut records = self.records.lock().unwrap();
        assert!(records.0[slot.to_bits() as usize].take().is_some(), "a slot is discarded once");
        records.1.push(slot.to_bits() as usize);
    }

    fn used_bytes(&self) -> u64 {
        self.records.lock().unwrap().0.iter().flatten().map(|record| record.len() as u64).sum()
    }

    fn meta_bytes(&self) -> usize {
        0
    }
}

/// A real zpool that refuses memory or lends damaged bytes when told to, and knows which handles live.
#[derive(Debug)]
pub struct FaultyZpool {
    inner: Box<dyn Zpool>,
    pub no_memory: Fault,
    pub damage: Fault,
    live: Mutex<HashMap<Handle, usize>>,
}

impl FaultyZpool {
    pub fn new(name: &str) -> Arc<Self> {
        let inner = zpool::by_name(name, &ArenaOptions::default()).unwrap();
        Arc::new(Self {
            inner,
            no_memory: Fault::default(),
            damage: Fault::default(),
            live: Mutex::default(),
        })
    }

    pub fn live(&self) -> usize {
        self.live.lock().unwrap().len()
    }
}

impl Zpool for FaultyZpool {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn max_size(&self) -> usize {
        self.inner.max_size()
    }

    fn malloc(&self, size: usize) -> Result<Handle, MallocError> {
        if self.no_memory.strikes() {
            return Err(MallocError::NoMemory);
        }
        let handle = self.inner.malloc(size)?;
        assert_eq!(self.live.lock().unwrap().insert(handle, size), None, "a handle names one object");
        Ok(handle)
    }

    fn free(&self, handle: Handle) {
        assert!(self.live.lock().unwrap().remove(&handle).is_some(), "a handle is freed once");
        self.inner.free(handle);
    }

    fn write(&self, handle: Handle, bytes: &[u8]) {
        assert!(self.live.lock().unwrap()[&handle] >= bytes.len());
        self.inner.write(handle, bytes);
    }

    fn read(&self, handle: Handle, len: usize, with: &mut dyn FnMut(&[u8])) {
        assert!(
            self.live.lock().unwrap().get(&handle).is_some_and(|&size| size >= len),
            "a dead handle is read"
        );
        let damage = self.damage.strikes();
        self.inner.read(handle, len, &mut |bytes| {
            let mut copy = bytes.to_vec();
            copy[len / 3] ^= if damage { 0x10 } else { 0 };
            with(&copy);
        });
    }

    fn read_together(&self, handles: &[Handle], len: usize, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let mut copies = Vec::new();
        handles.iter().for_each(|handle| self.read(*handle, len, &mut |bytes| copies.push(bytes.to_vec())));
        with(&copies.iter().map(Vec::as_slice).collect::<Vec<_>>());
        true
    }

    fn total_pages(&self) -> usize {
        self.inner.total_pages()
    }

    fn meta_bytes(&self) -> usize {
        self.inner.meta_bytes()
    }

    fn compact(&self, max_pages: usize) -> usize {
        self.inner.compact(max_pages)
    }
}

/// A real codec that fails when told to.
#[derive(Debug)]
pub struct FaultyCodec {
    inner: Box<dyn Codec>,
    pub compress_error: Fault,
    pub decompress_error: Fault,
}

impl FaultyCodec {
    pub fn new(name: &str) -> Arc<Self> {
        let (compress_error, decompress_error) = Default::default();
        Arc::new(Self { inner: codec::by_name(name).unwrap(), compress_error, decompress_error })
    }
}

impl Codec for FaultyCodec {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn level(&self) -> Option<i32> {
        self.inner.level()
    }

    fn scratch(&self) -> codec::Scratch {
        self.inner.scratch()
    }

    fn compress(
        &self,
        scratch: &mut codec::Scratch,
        page: &Page,
        out: &mut [u8],
    ) -> Result<usize, CompressError> {
        if self.compress_error.strikes() {
            return Err(CompressError::Failed);
        }
        self.inner.compress(scratch, page, out)
    }

    fn decompress(
        &self,
        scratch: &mut codec::Scratch,
        data: &[u8],
        page: &mut Page,
    ) -> Result<(), DecompressError> {
        if self.decompress_error.strikes() {
            return Err(DecompressError);
        }
        self.inner.decompress(scratch, data, page)
    }
}
