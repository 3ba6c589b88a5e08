//! Keys and the pools that they belong to.
//!
//! A pool is what zcache and tmem call by that name: a set of keys with one owner. What must be known of a pool
//! at every store (persistent? limited?) is part of its id, so that nothing has to be looked up.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, OnceLock};

/// Names one page: what zswap calls type and offset, zram a sector, zcache mount, inode and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The pool.
    pub pool: PoolId,
    /// The object in the pool: a file, an address space.
    pub object: u64,
    /// The page in the object.
    pub index: u64,
}

/// What the store may do with the pages of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// The store holds the only copy: a page leaves only for the tier, or when it is invalidated.
    Persistent,
    /// Another copy exists elsewhere: a page may be dropped at any time.
    Ephemeral,
}

/// Names a pool of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(u32);

const EPHEMERAL: u32 = 1 << 31;
const LIMITED: u32 = 1 << 30;
const CHUNK: usize = 64;
const MAX_POOLS: u32 = 64 * 64;

impl PoolId {
    /// What the store may do with the pages of the pool.
    #[must_use]
    pub fn kind(self) -> PoolKind {
        if self.0 & EPHEMERAL == 0 { PoolKind::Persistent } else { PoolKind::Ephemeral }
    }

    pub(crate) fn is_limited(self) -> bool {
        self.0 & LIMITED != 0
    }

    pub(crate) fn to_bits(self) -> u32 {
        self.0
    }

    fn number(self) -> usize {
        (self.0 & !(EPHEMERAL | LIMITED)) as usize
    }
}

/// What is kept of one pool.
#[derive(Debug, Default)]
struct Pool {
    /// The bits of the id that names it now, plus one; 0 while no pool has this number.
    id: AtomicU64,
    memlimit: AtomicU64,
    bytes: AtomicU64,
    /// It has refused a page at its memlimit, and waits for a thread that shrinks.
    crowded: AtomicBool,
}

/// The pools of a store.
#[derive(Debug)]
pub(crate) struct Pools {
    chunks: [OnceLock<Box<[Pool; CHUNK]>>; CHUNK],
    ephemeral: AtomicU32,
    any_crowded: AtomicBool,
    creating: Mutex<()>,
}

impl Pools {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNK],
            ephemeral: AtomicU32::new(0),
            any_crowded: AtomicBool::new(false),
            creating: Mutex::new(()),
        }
    }

    /// A new pool. Panics if 4096 pools exist.
    pub(crate) fn create(&self, kind: PoolKind, memlimit: Option<u64>) -> PoolId {
        let _one_at_a_time = crate::lock(&self.creating);
        let free = |&number: &u32| self.pool(number as usize).id.load(Relaxed) == 0;
        let number = (0..MAX_POOLS).find(free).expect("a store has at most 4096 pools");
        let ephemeral = if kind == PoolKind::Ephemeral { EPHEMERAL } else { 0 };
        let limited = if memlimit.is_some() { LIMITED } else { 0 };
        let id = PoolId(number | ephemeral | limited);
        let pool = self.pool(id.number());
        pool.memlimit.store(memlimit.unwrap_or(u64::MAX), Relaxed);
        pool.bytes.store(0, Relaxed);
        pool.crowded.store(false, Relaxed);
        pool.id.store(u64::from(id.0) + 1, Relaxed);
        self.ephemeral.fetch_add(u32::from(ephemeral != 0), Relaxed);
        id
    }

    /// Forgets the pool; its entries must be gone. False if there was none.
    pub(crate) fn destroy(&self, id: PoolId) -> bool {
        let _one_at_a_time = crate::lock(&self.creating);
        let existed = self.exists(id);
        if existed {
            self.pool(id.number()).id.store(0, Relaxed);
            self.ephemeral.fetch_sub(u32::from(id.kind() == PoolKind::Ephemeral), Relaxed);
        }
        existed
    }

    pub(crate) fn exists(&self, id: PoolId) -> bool {
        self.pool(id.number()).id.load(Relaxed) == u64::from(id.0) + 1
    }

    /// Whether any pool is ephemeral now.
    pub(crate) fn any_ephemeral(&self) -> bool {
        self.ephemeral.load(Relaxed) != 0
    }

    /// Counts `added` bytes in and `removed` bytes out of a limited pool.
    pub(crate) fn charge(&self, id: PoolId, added: usize, removed: usize) {
        if id.is_limited() {
            let change = (added as u64).wrapping_sub(removed as u64);
            self.pool(id.number()).bytes.fetch_add(change, Relaxed);
        }
    }

    /// Compressed bytes of a limited pool, and its limit.
    pub(crate) fn usage(&self, id: PoolId) -> (u64, u64) {
        let pool = self.pool(id.number());
        (pool.bytes.load(Relaxed), pool.memlimit.load(Relaxed))
    }

    /// Sets the limit of a limited pool.
    pub(crate) fn set_memlimit(&self, id: PoolId, bytes: u64) {
        self.pool(id.number()).memlimit.store(bytes, Relaxed);
    }

    /// Has the next thread that shrinks make room in the pool.
    pub(crate) fn set_crowded(&self, id: PoolId) {
        self.pool(id.number()).crowded.store(true, Relaxed);
        self.any_crowded.store(true, Release);
    }

    /// Whether there is a pool to make room in.
    pub(crate) fn any_crowded(&self) -> bool {
        self.any_crowded.load(Relaxed)
    }

    /// The pools to make room in, which are no longer noted as such.
    pub(crate) fn take_crowded(&self) -> Vec<PoolId> {
        if !self.any_crowded() || !self.any_crowded.swap(false, Acquire) {
            return vec![];
        }
        let pools = self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        let crowded = pools.filter(|pool| pool.crowded.swap(false, Relaxed));
        crowded
            .filter_map(|pool| u32::try_from(pool.id.load(Relaxed).checked_sub(1)?).ok().map(PoolId))
            .collect()
    }

    fn pool(&self, number: usize) -> &Pool {
        let chunk =
            self.chunks[number / CHUNK].get_or_init(|| Box::new(std::array::from_fn(|_| Pool::default())));
        &chunk[number % CHUNK]
    }
}
