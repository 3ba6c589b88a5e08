//! The segment: one piece of memory shared by `ramfold run` and every process of the run.
//!
//! `ramfold run` creates it, without a name on any disk, and each managed process maps it. It holds what the
//! processes must agree on: the limit and how much of it is in use, which extents of the swap file belong to
//! whom, the key that seals the swap file, the counters that `--stats` reports, and why ramfold killed a
//! process, if it did.
//!
//! The idea is a plain `#[repr(C)]` struct of atomics and tables: no lock lives in it, so a process that is
//! killed at any instruction leaves nothing locked. The price is that such a process may leave a charge or an
//! extent behind that it was just about to enter under its name (one batch at most, never the reverse): memory
//! or file space that is counted as used until the run ends. Everything that *is* under its name comes back when
//! its slot is reaped.
//!
//! Orders that the guarantees rest on:
//! - a slot's `pid` is written last when the slot is claimed and cleared last when it is released; only who
//!   wins the compare-and-swap of `pid` to [`BUSY`] may release it;
//! - an extent's count goes up before the holder's bit is set, and the bit is cleared before the count goes down:
//!   an interrupted step leaks an extent, and never frees one twice;
//! - an extent whose last holder left is marked [`DISCARDING`] while its file space is given back, so nobody
//!   can take and write it in between.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes in an extent, the unit in which processes take space in the swap file.
pub const EXTENT_SIZE: u64 = 1 << 20;
/// Managed processes that can live at the same time.
pub const MAX_PROCESSES: usize = 4096;
/// Messages of processes that ramfold killed; later ones are dropped.
pub const MAX_DEATHS: usize = 8;
/// Bytes of such a message that are kept.
pub const MAX_MESSAGE: usize = 240;

const MAGIC: u64 = u64::from_le_bytes(*b"ramfold\x01");
/// `pid` of a slot that is being claimed or released.
const BUSY: u32 = u32::MAX;
/// Count of an extent whose file space is being given back.
const DISCARDING: u16 = u16::MAX;
/// Buckets in a power of two of the fault-latency histogram.
const SUB_BUCKETS: usize = 8;
const BUCKETS: usize = 64 * SUB_BUCKETS;

macro_rules! named {
    ($(#[$meta:meta])* $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum $kind { $($(#[$doc])* $variant,)+ }

        impl $kind {
            /// All of them, in the order of the segment.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name under which it is reported.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

named! {
    /// What only grows. Counted over all processes of the run, living and dead.
    Counter {
        /// Processes that were managed.
        Processes = "processes",
        /// Faults that the pager resolved.
        Faults = "faults",
        /// Faults on pages that had been evicted.
        Refaults = "refaults",
        /// Pages that were taken away from a process and stored.
        EvictedPages = "evicted_pages",
        /// Loads from the store.
        Loads = "loads",
        /// Stores.
        Stores = "stores",
        /// Entries that were invalidated.
        Invalidates = "invalidates",
        /// Loads that found nothing.
        Misses = "misses",
        /// Pages that went from the pool to the swap file.
        WrittenBackPages = "written_back_pages",
        /// Bytes written to the swap file.
        WritebackBytes = "writeback_bytes",
        /// Loads that were served by the swap file.
        TierLoads = "tier_loads",
        /// Stores that found the pool at its limit, or above the accept threshold after it was full.
        PoolLimitHit = "pool_limit_hit",
        /// Stores refused because nothing could be written back.
        RejectReclaimFail = "reject_reclaim_fail",
        /// Stores refused because the zpool had no memory.
        RejectAllocFail = "reject_alloc_fail",
        /// Stores refused because there was no memory for the entry.
        RejectMetaFail = "reject_meta_fail",
        /// Stores refused because the codec failed.
        RejectCompressFail = "reject_compress_fail",
        /// Stores refused because the page did not compress well enough.
        RejectCompressPoor = "reject_compress_poor",
        /// Loads that failed because the bytes could not be decompressed.
        DecompressFail = "decompress_fail",
        /// Loads that failed because the page is not the one that was stored.
        ChecksumFail = "checksum_fail",
    }
}

named! {
    /// What a process has now. The first three are charged against the limit.
    Gauge {
        /// Bytes of resident managed pages.
        Resident = "resident_bytes",
        /// Bytes of pool memory.
        Pool = "pool_total_size",
        /// Bytes that ramfold itself uses: tables, index, buffers, stacks.
        Own = "own_bytes",
        /// Pages in the store.
        StoredPages = "stored_pages",
        /// Their bytes before compression.
        OrigDataSize = "orig_data_size",
        /// Their bytes after compression.
        ComprDataSize = "compr_data_size",
        /// Pages stored as one repeated word.
        SameFilledPages = "same_filled_pages",
        /// Pages that share another's pool memory.
        DuplicatePages = "duplicate_pages",
        /// Pages stored as they are, because they did not compress.
        StoredIncompressiblePages = "stored_incompressible_pages",
    }
}

const COUNTERS: usize = Counter::ALL.len();
const GAUGES: usize = Gauge::ALL.len();

impl Gauge {
    /// Whether it counts against the limit.
    #[must_use]
    pub fn is_charged(self) -> bool {
        matches!(self, Self::Resident | Self::Pool | Self::Own)
    }
}

/// The front of the segment.
#[repr(C, align(64))]
struct Header {
    /// [`MAGIC`], written last at creation.
    magic: AtomicU64,
    /// Bytes that all processes may use together: the sum of the charged gauges.
    limit: AtomicU64,
    /// Extents in the table.
    extents: AtomicU64,
    /// Key of the swap file's records, for this run only.
    key: [AtomicU64; 4],
    /// Sum of the charged gauges over all slots, and its highest value.
    in_use: AtomicU64,
    peak: AtomicU64,
    /// Extents whose count is not 0.
    extents_used: AtomicU64,
    /// Where a search for a free extent starts: none below it was free when it was written.
    extent_hint: AtomicU64,
    /// Source of numbers that no two processes share (nonces).
    sequence: AtomicU64,
    /// Raised whenever a process needs memory that others have; a futex word.
    pressure: AtomicU32,
    /// Slots at and above this index were never used.
    slots_used: AtomicU32,
    counters: [AtomicU64; COUNTERS],
    fault_max_ns: AtomicU64,
    fault_buckets: [AtomicU64; BUCKETS],
    deaths_begun: AtomicU32,
    deaths: [DeathRecord; MAX_DEATHS],
}

#[repr(C)]
struct DeathRecord {
    /// Process that was killed; written last.
    pid: AtomicU32,
    len: AtomicU32,
    text: [AtomicU8; MAX_MESSAGE],
}

/// One managed process.
#[repr(C, align(64))]
struct Slot {
    /// 0: free. [`BUSY`]: being claimed or released. Otherwise the process, as `/proc` of the run numbers it.
    pid: AtomicU32,
    /// Start time and stack address, as in `/proc/PID/stat`: they tell the process from a later one with the
    /// same number, and from itself before an `exec`.
    start_time: AtomicU64,
    start_stack: AtomicU64,
    gauges: [AtomicU64; GAUGES],
}

/// The mapped segment. Dropping it unmaps it; slots are released by [`Segment::release`] or when reaped.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    extents: usize,
}

// SAFETY: the mapping is shared memory that is only accessed through atomics, and lives as long as the value.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Names the slot of a process. Of use until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotId(usize);

/// A process that ramfold itself ended, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// The process.
    pub pid: u32,
    /// What its library said: `WHAT: WHY`.
    pub message: String,
}

/// Why a segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// the run's shared memory cannot be opened
    #[error("the run's shared memory cannot be opened: {0}")]
    Io(#[from] io::Error),
    /// this is no segment of the same version of ramfold
    #[error("this is no segment of the same version of ramfold")]
    NotASegment,
}

impl From<rustix::io::Errno> for OpenError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

const SLOTS_AT: usize = size_of::<Header>();
const REFS_AT: usize = SLOTS_AT + MAX_PROCESSES * size_of::<Slot>();

/// Words of a slot's bitmap of extents.
const fn words(extents: usize) -> usize {
    extents.div_ceil(64)
}

const fn held_at(extents: usize) -> usize {
    REFS_AT + (extents * size_of::<AtomicU16>()).next_multiple_of(64)
}

const fn total_len(extents: usize) -> usize {
    held_at(extents) + words(extents) * MAX_PROCESSES * size_of::<AtomicU64>()
}

impl Segment {
    /// Makes the segment of a run. The descriptor has no close-on-exec flag problem to solve: it is closed on
    /// exec, and reached as `/proc/PID/fd/N` while its owner lives. Most of the memory is never touched.
    ///
    /// `limit` is in bytes; `swap_limit` in bytes, rounded down to whole extents, 0 for none.
    ///
    /// # Errors
    /// What the system answers when it gives no memory.
    pub fn create(limit: u64, swap_limit: u64, key: [u8; 32]) -> io::Result<(OwnedFd, Self)> {
        let extents = usize::try_from(swap_limit / EXTENT_SIZE).map_err(io::Error::other)?;
        let fd = rustix::fs::memfd_create("ramfold-segment", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, total_len(extents) as u64)?;
        let segment = Self::map(&fd, total_len(extents), extents)?;
        let header = segment.header();
        header.limit.store(limit, Ordering::Relaxed);
        header.extents.store(extents as u64, Ordering::Relaxed);
        for (word, bytes) in header.key.iter().zip(key.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok((fd, segment))
    }

    /// Maps the segment at `path` (`/proc/PID/fd/N`).
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(path: &str) -> Result<Self, OpenError> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| OpenError::NotASegment)?;
        if len < total_len(0) {
            return Err(OpenError::NotASegment);
        }
        let mut segment = Self::map(&fd, len, 0)?;
        let extents = segment.header().extents.load(Ordering::Relaxed);
        let valid = segment.header().magic.load(Ordering::Acquire) == MAGIC;
        segment.extents = usize::try_from(extents).map_err(|_| OpenError::NotASegment)?;
        if !valid || segment.extents > len || total_len(segment.extents) != len {
            return Err(OpenError::NotASegment);
        }
        Ok(segment)
    }

    fn map(fd: impl AsFd, len: usize, extents: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { base, len, extents })
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, is page-aligned, and every bit pattern of atomics is valid.
        unsafe { self.base.cast().as_ref() }
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: REFS_AT bytes are mapped, SLOTS_AT is a multiple of the header's alignment of 64.
        unsafe { std::slice::from_raw_parts(self.base.add(SLOTS_AT).cast().as_ptr(), MAX_PROCESSES) }
    }

    fn used_slots(&self) -> &[Slot] {
        &self.slots()[..self.header().slots_used.load(Ordering::Acquire) as usize]
    }

    fn refs(&self) -> &[AtomicU16] {
        // SAFETY: `extents` counts from REFS_AT on are mapped; `create` and `open` checked the length.
        unsafe { std::slice::from_raw_parts(self.base.add(REFS_AT).cast().as_ptr(), self.extents) }
    }

    fn held(&self, slot: SlotId) -> &[AtomicU64] {
        let words = words(self.extents);
        let at = held_at(self.extents) + slot.0 * words * size_of::<AtomicU64>();
        // SAFETY: the bitmaps of MAX_PROCESSES slots are mapped from `held_at` on, which is a multiple of 64.
        unsafe { std::slice::from_raw_parts(self.base.add(at).cast().as_ptr(), words) }
    }

    /// Bytes that all processes may use together.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.header().limit.load(Ordering::Relaxed)
    }

    /// Bytes that the swap file may take.
    #[must_use]
    pub fn swap_limit(&self) -> u64 {
        self.extents as u64 * EXTENT_SIZE
    }

    /// Bytes of the swap file in extents that someone holds.
    #[must_use]
    pub fn swap_used(&self) -> u64 {
        self.header().extents_used.load(Ordering::Relaxed) * EXTENT_SIZE
    }

    /// The key that seals the records of the swap file.
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        for (bytes, word) in key.as_chunks_mut().0.iter_mut().zip(&self.header().key) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        key
    }

    /// The first of `count` numbers that no other caller in the run gets.
    #[must_use]
    pub fn next_sequence(&self, count: u64) -> u64 {
        self.header().sequence.fetch_add(count, Ordering::Relaxed)
    }

    /// A word that changes whenever a process needs memory that others have: to be watched, or slept on with
    /// a shared futex.
    #[must_use]
    pub fn pressure(&self) -> &AtomicU32 {
        &self.header().pressure
    }
}

/// Charges and gauges.
impl Segment {
    /// Bytes charged now: resident pages, pool and ramfold's own memory of all processes.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.header().in_use.load(Ordering::Relaxed)
    }

    /// The highest value of [`Segment::in_use`] so far.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.header().peak.load(Ordering::Relaxed)
    }

    /// Adds to a gauge; a charged one may pass the limit: who charges looks at [`Segment::in_use`] and evicts.
    pub fn charge(&self, slot: SlotId, gauge: Gauge, amount: u64) {
        if gauge.is_charged() {
            let now = self.header().in_use.fetch_add(amount, Ordering::Relaxed).wrapping_add(amount);
            self.header().peak.fetch_max(now, Ordering::Relaxed);
        }
        self.slots()[slot.0].gauges[gauge as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds to a charged gauge if the sum stays within the limit, and says whether it did.
    #[must_use]
    pub fn try_charge(&self, slot: SlotId, gauge: Gauge, amount: u64) -> bool {
        let limit = self.limit();
        let fits = |now: u64| now.checked_add(amount).filter(|sum| *sum <= limit);
        let Ok(before) = self.header().in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) else {
            return false;
        };
        self.header().peak.fetch_max(before + amount, Ordering::Relaxed);
        self.slots()[slot.0].gauges[gauge as usize].fetch_add(amount, Ordering::Relaxed);
        true
    }

    /// Takes from a gauge what was charged to it.
    pub fn uncharge(&self, slot: SlotId, gauge: Gauge, amount: u64) {
        self.slots()[slot.0].gauges[gauge as usize].fetch_sub(amount, Ordering::Relaxed);
        if gauge.is_charged() {
            self.header().in_use.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    /// Sets a gauge, and moves the charge by the difference. For gauges that one place in the process sets.
    pub fn publish(&self, slot: SlotId, gauge: Gauge, value: u64) {
        let old = self.slots()[slot.0].gauges[gauge as usize].swap(value, Ordering::Relaxed);
        if gauge.is_charged() {
            let change = value.wrapping_sub(old);
            let now = self.header().in_use.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
            self.header().peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// A gauge of one process.
    #[must_use]
    pub fn gauge(&self, slot: SlotId, gauge: Gauge) -> u64 {
        self.slots()[slot.0].gauges[gauge as usize].load(Ordering::Relaxed)
    }

    /// A gauge's sum over all living processes.
    #[must_use]
    pub fn gauge_sum(&self, gauge: Gauge) -> u64 {
        let of = |slot: &Slot| slot.gauges[gauge as usize].load(Ordering::Relaxed);
        self.used_slots().iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Processes that are managed now.
    #[must_use]
    pub fn living(&self) -> usize {
        self.used_slots().iter().filter(|slot| slot.pid.load(Ordering::Relaxed) != 0).count()
    }
}

/// Counters and fault latencies.
impl Segment {
    /// Counts.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.header().counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// What was counted in all processes so far.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.header().counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Records how long a fault took to resolve, in nanoseconds. Does not count it.
    pub fn record_fault_ns(&self, ns: u64) {
        self.header().fault_buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.header().fault_max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// The longest fault, in nanoseconds.
    #[must_use]
    pub fn fault_max_ns(&self) -> u64 {
        self.header().fault_max_ns.load(Ordering::Relaxed)
    }

    /// The time in nanoseconds within which the share `quantile` (0 to 1) of the faults was resolved, to an
    /// eighth of its power of two. 0 if there were none.
    #[must_use]
    pub fn fault_quantile_ns(&self, quantile: f64) -> u64 {
        let counts: Vec<u64> =
            self.header().fault_buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut seen = 0;
        for (index, count) in counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= quantile * total as f64 {
                return bucket_end(index).min(self.fault_max_ns());
            }
        }
        0
    }
}

/// The bucket of a duration: eight to a power of two.
fn bucket(ns: u64) -> usize {
    let power = ns.max(SUB_BUCKETS as u64).ilog2();
    let sub = (ns >> (power - SUB_BUCKETS.ilog2()) & (SUB_BUCKETS as u64 - 1)) as usize;
    if ns < SUB_BUCKETS as u64 { sub } else { power as usize * SUB_BUCKETS + sub }
}

/// The largest duration in a bucket.
fn bucket_end(index: usize) -> u64 {
    if index < SUB_BUCKETS {
        return index as u64;
    }
    let (power, sub) = (index / SUB_BUCKETS, index % SUB_BUCKETS);
    let width = 1u128 << (power - SUB_BUCKETS.ilog2() as usize);
    u64::try_from((1u128 << power) + (sub as u128 + 1) * width - 1).unwrap_or(u64::MAX)
}

/// What tells one program image in one process from all others: `pid`, start time, and where its stack began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    start_time: u64,
    /// 0 if this process may not see it.
    start_stack: u64,
}

impl Identity {
    /// Of the process `who` (a number, or `self`), from the `/proc` that is mounted here.
    fn of(who: &str) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{who}/stat")).ok()?;
        // `PID (name) STATE ...`, and the name may hold anything: the rest begins with field 3 of proc_pid_stat(5).
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let pid = std::str::from_utf8(stat.split(|byte| *byte == b' ').next()?).ok()?.parse().ok()?;
        let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
        let field = |number: usize| rest.split(' ').nth(number - 3)?.parse::<u64>().ok();
        if rest.starts_with(['Z', 'X']) {
            return None;
        }
        Some(Self { pid, start_time: field(22)?, start_stack: field(28)? })
    }

    /// Whether a slot with `self` belongs to the process that is now `other`.
    fn is(&self, other: &Self) -> bool {
        let same_image =
            self.start_stack == other.start_stack || self.start_stack == 0 || other.start_stack == 0;
        self.pid == other.pid && self.start_time == other.start_time && same_image
    }
}

/// Slots.
impl Segment {
    /// Takes a slot for the calling process. A slot that it left behind before an `exec` is released.
    ///
    /// # Errors
    /// `/proc` cannot be read, or [`MAX_PROCESSES`] are managed already.
    pub fn attach(&self, discard: &dyn Fn(u32)) -> io::Result<SlotId> {
        let own = Identity::of("self").ok_or_else(|| io::Error::other("/proc/self/stat cannot be read"))?;
        self.release_stale(own.pid, discard);
        let slot = self.claim(own)?;
        self.add(Counter::Processes, 1);
        Ok(slot)
    }

    /// Releases slots that process `pid` left behind before an `exec`: to be called by the new program before
    /// it attaches, since its old memory is gone and its charge is not.
    pub fn release_stale(&self, pid: u32, discard: &dyn Fn(u32)) {
        for (index, slot) in self.used_slots().iter().enumerate() {
            if slot.pid.load(Ordering::Acquire) == pid {
                self.release_owned(SlotId(index), pid, discard);
            }
        }
    }

    fn claim(&self, owner: Identity) -> io::Result<SlotId> {
        for (index, slot) in self.slots().iter().enumerate() {
            if slot.pid.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                slot.start_time.store(owner.start_time, Ordering::Relaxed);
                slot.start_stack.store(owner.start_stack, Ordering::Relaxed);
                // MAX_PROCESSES fits.
                self.header()
                    .slots_used
                    .fetch_max(u32::try_from(index + 1).unwrap_or(u32::MAX), Ordering::Release);
                slot.pid.store(owner.pid, Ordering::Release);
                return Ok(SlotId(index));
            }
        }
        Err(io::Error::other("too many managed processes"))
    }

    /// Before a fork: takes a slot for the child and a count on every extent that `parent` holds, so that what
    /// the child will inherit stays readable whatever the parent does. The slot is under the parent's name until
    /// [`Segment::adopt`]; after a failed fork the parent releases it.
    ///
    /// # Errors
    /// As [`Segment::attach`].
    pub fn prepare_child(&self, parent: SlotId) -> io::Result<SlotId> {
        let of = &self.slots()[parent.0];
        let child = self.claim(Identity {
            pid: of.pid.load(Ordering::Relaxed),
            start_time: of.start_time.load(Ordering::Relaxed),
            start_stack: of.start_stack.load(Ordering::Relaxed),
        })?;
        for (index, word) in self.held(parent).iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.refs()[index * 64 + bit].fetch_add(1, Ordering::Relaxed);
            }
            self.held(child)[index].store(bits, Ordering::Relaxed);
        }
        Ok(child)
    }

    /// In the forked child: makes the prepared slot its own.
    ///
    /// # Errors
    /// The parent ended meanwhile and the slot was reaped: what the child inherited can no longer be read.
    pub fn adopt(&self, child: SlotId) -> io::Result<()> {
        let own = Identity::of("self").ok_or_else(|| io::Error::other("/proc/self/stat cannot be read"))?;
        let slot = &self.slots()[child.0];
        let parent = slot.pid.load(Ordering::Acquire);
        let taken = slot.pid.compare_exchange(parent, BUSY, Ordering::AcqRel, Ordering::Relaxed);
        if parent == 0 || parent == BUSY || taken.is_err() {
            return Err(io::Error::other("the process that forked this one ended meanwhile"));
        }
        slot.start_time.store(own.start_time, Ordering::Relaxed);
        slot.start_stack.store(own.start_stack, Ordering::Relaxed);
        slot.pid.store(own.pid, Ordering::Release);
        self.add(Counter::Processes, 1);
        Ok(())
    }

    /// Gives back a slot: its charges, and its counts on extents. `discard` gives back the file space of an
    /// extent that nobody holds any more.
    pub fn release(&self, slot: SlotId, discard: &dyn Fn(u32)) {
        let pid = self.slots()[slot.0].pid.load(Ordering::Acquire);
        self.release_owned(slot, pid, discard);
    }

    fn release_owned(&self, id: SlotId, pid: u32, discard: &dyn Fn(u32)) {
        let slot = &self.slots()[id.0];
        let ours = slot.pid.compare_exchange(pid, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if pid == 0 || pid == BUSY || !ours {
            return;
        }
        for (index, word) in self.held(id).iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.release_extent(id, extent_number(index * 64 + bit), discard);
            }
        }
        for gauge in Gauge::ALL {
            self.publish(id, *gauge, 0);
        }
        slot.pid.store(0, Ordering::Release);
    }

    /// Releases the slots of processes that ended or were replaced by `exec` without saying so. Returns how
    /// many. Any process of the run may call this at any time.
    pub fn reap(&self, discard: &dyn Fn(u32)) -> usize {
        let mut reaped = 0;
        for (index, slot) in self.used_slots().iter().enumerate() {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid == 0 || pid == BUSY {
                continue;
            }
            let known = Identity {
                pid,
                start_time: slot.start_time.load(Ordering::Relaxed),
                start_stack: slot.start_stack.load(Ordering::Relaxed),
            };
            let lives = Identity::of(&pid.to_string()).is_some_and(|now| known.is(&now));
            if !lives && slot.pid.load(Ordering::Acquire) == pid {
                self.release_owned(SlotId(index), pid, discard);
                reaped += 1;
            }
        }
        reaped
    }
}

fn extent_number(index: usize) -> u32 {
    u32::try_from(index).expect("a swap file has fewer than 2^32 extents")
}

/// Extents of the swap file.
impl Segment {
    /// Takes an extent that nobody holds. `None` when the swap file is full.
    #[must_use]
    pub fn take_extent(&self, slot: SlotId) -> Option<u32> {
        let hint = usize::try_from(self.header().extent_hint.load(Ordering::Relaxed)).unwrap_or(0);
        let start = hint.min(self.extents);
        let free = |index: &usize| {
            self.refs()[*index].compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = (start..self.extents).chain(0..start).find(free)?;
        self.header().extent_hint.store(index as u64 + 1, Ordering::Relaxed);
        self.header().extents_used.fetch_add(1, Ordering::Relaxed);
        self.held(slot)[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        Some(extent_number(index))
    }

    /// Gives an extent back. When nobody else holds it (after a fork, another process may), `discard` gives back
    /// its file space, and only then can it be taken again.
    pub fn release_extent(&self, slot: SlotId, extent: u32, discard: &dyn Fn(u32)) {
        let (index, bit) = (extent as usize, 1 << (extent % 64));
        let had = self.held(slot)[index / 64].fetch_and(!bit, Ordering::AcqRel);
        debug_assert!(had & bit != 0, "extent {extent} is not held by this slot");
        if had & bit == 0 {
            return;
        }
        let less = |count: u16| Some(if count == 1 { DISCARDING } else { count - 1 });
        if self.refs()[index].fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) == Ok(1) {
            discard(extent);
            self.refs()[index].store(0, Ordering::Release);
            self.header().extents_used.fetch_sub(1, Ordering::Relaxed);
            self.header().extent_hint.fetch_min(index as u64, Ordering::Relaxed);
        }
    }

    /// Whether another process holds the extent too: then it must not be overwritten.
    #[must_use]
    pub fn is_extent_shared(&self, extent: u32) -> bool {
        self.refs()[extent as usize].load(Ordering::Acquire) > 1
    }
}

/// Why processes were killed.
impl Segment {
    /// To be called just before ramfold kills the calling process: the message is what `ramfold run` will print,
    /// `WHAT: WHY (what to do)`.
    pub fn report_death(&self, message: &str) {
        let index = self.header().deaths_begun.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(record) = self.header().deaths.get(index) else { return };
        let len = (0..=MAX_MESSAGE.min(message.len())).rfind(|at| message.is_char_boundary(*at)).unwrap_or(0);
        for (to, from) in record.text.iter().zip(&message.as_bytes()[..len]) {
            to.store(*from, Ordering::Relaxed);
        }
        record.len.store(u32::try_from(len).unwrap_or(0), Ordering::Relaxed);
        let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        record.pid.store(pid, Ordering::Release);
    }

    /// The messages so far, oldest first.
    #[must_use]
    pub fn deaths(&self) -> Vec<Death> {
        let records = self.header().deaths.iter();
        records
            .filter_map(|record| {
                let pid = record.pid.load(Ordering::Acquire);
                let len = (record.len.load(Ordering::Relaxed) as usize).min(MAX_MESSAGE);
                let text: Vec<u8> = record.text[..len].iter().map(|b| b.load(Ordering::Relaxed)).collect();
                (pid != 0).then(|| Death { pid, message: String::from_utf8_lossy(&text).into_owned() })
            })
            .collect()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use std::cell::RefCell;

    fn segment(extents: u64) -> (OwnedFd, Segment) {
        Segment::create(1 << 30, extents * EXTENT_SIZE, [7; 32]).unwrap()
    }

    fn path(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (fd, ours) = segment(100);
        let theirs = Segment::open(&path(&fd)).unwrap();
        assert_eq!((theirs.limit(), theirs.swap_limit(), theirs.key()), (1 << 30, 100 << 20, [7; 32]));
        let slot = theirs.attach(&|_| ()).unwrap();
        theirs.charge(slot, Gauge::Resident, 1000);
        theirs.publish(slot, Gauge::Pool, 500);
        theirs.publish(slot, Gauge::StoredPages, 77);
        theirs.uncharge(slot, Gauge::Resident, 900);
        assert_eq!((ours.in_use(), ours.peak(), ours.gauge_sum(Gauge::StoredPages)), (600, 1500, 77));
        assert!(!theirs.try_charge(slot, Gauge::Own, 1 << 30));
        assert!(theirs.try_charge(slot, Gauge::Own, (1 << 30) - 600));
        assert_eq!((ours.total(Counter::Processes), ours.living()), (1, 1));
        theirs.release(slot, &|_| ());
        assert_eq!((ours.in_use(), ours.peak(), ours.living()), (0, 1 << 30, 0));
    }

    #[test]
    fn something_else_is_no_segment() {
        let (fd, ours) = segment(3);
        ours.header().magic.store(1, Ordering::Relaxed);
        assert!(matches!(Segment::open(&path(&fd)), Err(OpenError::NotASegment)));
        ours.header().magic.store(MAGIC, Ordering::Relaxed);
        ours.header().extents.store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(Segment::open(&path(&fd)), Err(OpenError::NotASegment)));
        assert!(matches!(Segment::open("/dev/null"), Err(OpenError::NotASegment)));
        assert!(matches!(Segment::open("/nowhere"), Err(OpenError::Io(_))));
    }

    #[test]
    fn extents_are_given_once_until_they_are_back() {
        let (_fd, segment) = segment(130);
        let slot = segment.attach(&|_| ()).unwrap();
        let all: Vec<u32> = std::iter::from_fn(|| segment.take_extent(slot)).collect();
        assert_eq!(all, (0..130).collect::<Vec<_>>());
        assert_eq!(segment.swap_used(), segment.swap_limit());
        let full = |_| assert_eq!(segment.take_extent(slot), None, "taken while its space is given back");
        segment.release_extent(slot, 64, &full);
        assert_eq!(segment.take_extent(slot), Some(64));
        segment.release_extent(slot, 64, &|_| ());
        segment.release_extent(slot, 3, &|_| ());
        assert_eq!(segment.take_extent(slot), Some(3));
        assert_eq!(segment.take_extent(slot), Some(64));
        assert_eq!(segment.take_extent(slot), None);
    }

    #[test]
    fn a_forked_child_holds_what_its_parent_held() {
        let (_fd, segment) = segment(70);
        let parent = segment.attach(&|_| ()).unwrap();
        let taken: Vec<u32> = (0..70).filter_map(|_| segment.take_extent(parent)).collect();
        let child = segment.prepare_child(parent).unwrap();
        segment.adopt(child).unwrap();
        let discarded = RefCell::new(vec![]);
        let discard = |extent| discarded.borrow_mut().push(extent);
        assert!(segment.is_extent_shared(69));
        segment.release_extent(parent, 69, &discard);
        assert!(!segment.is_extent_shared(69));
        segment.release(parent, &discard);
        assert_eq!((discarded.borrow().len(), segment.swap_used()), (0, 70 << 20));
        segment.release(child, &discard);
        assert_eq!((discarded.into_inner(), segment.swap_used()), (taken, 0));
    }

    #[test]
    fn a_dead_process_gives_everything_back() {
        let (_fd, segment) = segment(10);
        let living = segment.attach(&|_| ()).unwrap();
        segment.charge(living, Gauge::Own, 1);
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(&process.id().to_string()).unwrap();
        let dead = segment.claim(identity).unwrap();
        segment.charge(dead, Gauge::Resident, 4096);
        let extent = segment.take_extent(dead).unwrap();
        assert_eq!(segment.reap(&|_| panic!("nobody ended")), 0);
        process.kill().unwrap();
        process.wait().unwrap();
        let discarded = RefCell::new(vec![]);
        assert_eq!(segment.reap(&|extent| discarded.borrow_mut().push(extent)), 1);
        assert_eq!((segment.in_use(), segment.swap_used(), discarded.into_inner()), (1, 0, vec![extent]));
        assert_eq!(segment.living(), 1);
    }

    #[test]
    fn an_exec_shows_as_another_image_of_the_same_process() {
        let before = Identity { pid: 5, start_time: 10, start_stack: 100 };
        assert!(before.is(&before));
        assert!(!before.is(&Identity { start_stack: 200, ..before }));
        assert!(before.is(&Identity { start_stack: 0, ..before }), "hidden by the kernel: no proof");
        assert!(!before.is(&Identity { start_time: 11, ..before }));
    }

    #[test]
    fn a_slot_reaped_before_it_was_adopted_is_refused() {
        let (_fd, segment) = segment(1);
        let parent = segment.attach(&|_| ()).unwrap();
        let child = segment.prepare_child(parent).unwrap();
        segment.release(child, &|_| ());
        segment.adopt(child).unwrap_err();
    }

    #[test]
    fn buckets_cover_every_duration() {
        for ns in (0..70).map(|power| (1u128 << power) - 1).chain(0..3000) {
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            let end = bucket_end(bucket(ns));
            assert!(end >= ns && (end as f64) <= ns as f64 * 1.125 + 1.0, "{ns} ends at {end}");
        }
    }

    #[test]
    fn quantiles_come_from_what_was_recorded() {
        let (_fd, segment) = segment(0);
        assert_eq!(segment.fault_quantile_ns(0.5), 0);
        for ns in 1..=1000 {
            segment.record_fault_ns(ns);
        }
        assert!((500..=563).contains(&segment.fault_quantile_ns(0.5)));
        assert_eq!((segment.fault_quantile_ns(1.0), segment.fault_max_ns()), (1000, 1000));
    }

    #[test]
    fn deaths_are_told_in_order_and_cut_to_length() {
        let (_fd, segment) = segment(0);
        segment.report_death("memory exhausted");
        segment.report_death(&"\u{e4}".repeat(MAX_MESSAGE));
        let deaths = segment.deaths();
        assert_eq!(deaths[0].message, "memory exhausted");
        assert_eq!((deaths[0].pid, deaths[1].message.len()), (std::process::id(), MAX_MESSAGE));
        for _ in 0..20 {
            segment.report_death("again");
        }
        assert_eq!(segment.deaths().len(), MAX_DEATHS);
    }
}
