//! The segment: one piece of memory shared by all members of a budget: `ramfold run` and every process of the run, and
//! doors that join.
//!
//! Who sets the limit creates it, without a name on any disk, and each member maps it. It holds what the
//! processes must agree on: the limit and how much of it is in use, which extents of the swap file belong to
//! whom, the counters that `--stats` reports, and why ramfold killed a process, if it did.
//!
//! The idea is a plain `#[repr(C)]` struct of atomics and tables: no lock lives in it, so a process that is
//! killed at any instruction leaves nothing locked. The price is that such a process may leave a charge or an
//! extent behind that it was just about to enter under its name (one batch at most, never the reverse): memory
//! or file space that is counted as used until the run ends. Everything that *is* under its name comes back when
//! its slot is reaped.
//!
//! Orders that the guarantees rest on:
//! - who changes whose a slot is holds the slot's lease ([`lease`]); a slot's `pid` is written last when the slot is
//!   claimed
//!   and cleared last when it is released;
//! - an extent's count goes up before the holder's bit is set, and the bit is cleared before the count goes down:
//!   an interrupted step leaks an extent, and never frees one twice;
//! - an extent whose last holder left is marked while its file space is given back, so nobody
//!   can take and write it in between.
//!
//! Any process of the run can write anything here, one that has given up its rights as well. So there is no secret in
//! it, no number is taken as an index, a length or a limit without being checked where it is read, and sums go round
//! instead of panicking. What nonsense can do is to let memory or extents be miscounted, or a process be killed.

mod balance;
mod counters;
mod extents;
mod heirs;
mod hold;
mod latency;
mod lease;
mod parts;
mod runs;
mod slots;
mod turns;

pub use counters::{Counter, Gauge};
pub use extents::EXTENT_SIZE;
pub use latency::FaultTimes;
pub use lease::KEEPER;
pub use parts::Part;
pub use slots::Process;

use balance::Balance;
use counters::{COUNTERS, GAUGES};
use heirs::Heritage;
use hold::Hold;
use latency::Latency;
use lease::{File, Lease};
use parts::{MAX_PARTS, Record};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use turns::Turns;

/// Managed processes that can live at the same time.
pub const MAX_PROCESSES: usize = 4096;
/// Messages of processes that ramfold killed; later ones are dropped.
pub const MAX_DEATHS: usize = 8;
/// Bytes of such a message that are kept.
pub const MAX_MESSAGE: usize = 240;
/// Bytes of a member's name that are kept.
pub const MAX_NAME: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"ramfold\x06");
/// Extents that a swap file can have: their numbers have 31 bits.
const MAX_EXTENTS: u64 = 1 << 31;

/// The front of the segment.
#[repr(C, align(64))]
struct Header {
    /// [`MAGIC`], written last at creation.
    magic: AtomicU64,
    /// Bytes that all processes may use together: the sum of the charged gauges.
    limit: AtomicU64,
    /// Extents in the table.
    extents: AtomicU64,
    /// Anonymous memory of processes that is in no slot.
    unmanaged: AtomicU64,
    /// Sum of the charged gauges over all slots and of `unmanaged`, and its highest value.
    in_use: AtomicU64,
    peak: AtomicU64,
    /// Extents whose count is not 0.
    extents_used: AtomicU64,
    /// Where a search for a free extent starts: none below it was free when it was written.
    extent_hint: AtomicU64,
    /// Slots at and above this index were never used.
    slots_used: AtomicU32,
    /// 1: a process could not write to the run's trace.
    trace_incomplete: AtomicU32,
    /// Runs that have begun.
    runs: AtomicU32,
    turns: Turns,
    counters: [AtomicU64; COUNTERS],
    /// Faults of processes that have ended.
    past_faults: Latency,
    deaths_begun: AtomicU32,
    deaths: [DeathRecord; MAX_DEATHS],
}

#[repr(C)]
struct DeathRecord {
    /// Process that was killed; written last.
    pid: AtomicU32,
    run: AtomicU32,
    len: AtomicU32,
    text: [AtomicU8; MAX_MESSAGE],
}

/// One managed process, or one of the members that a process has.
#[repr(C, align(64))]
struct Slot {
    /// 0: free. Otherwise the process, as it numbers itself: in a container of its own, others number it otherwise.
    pid: AtomicU32,
    /// 1: it waits for a forked child, and `pid` is the parent.
    prepared: AtomicU32,
    hold: Hold,
    /// A [`Kind`] as a number.
    kind: AtomicU32,
    gauges: [AtomicU64; GAUGES],
    balance: Balance,
    heritage: Heritage,
    /// Up to the first 0; empty: its process's name is its own.
    name: [AtomicU8; MAX_NAME],
}

/// The mapped segment. Dropping it unmaps it; slots are released by [`Segment::release`] or when reaped.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    extents: usize,
    /// As it was read once, or set here.
    limit: AtomicU64,
    /// `None` of a copy.
    file: Option<File>,
    /// Leases as addresses: of the slot that this process took last, and of the child that is being forked.
    own_lease: AtomicUsize,
    childs_lease: AtomicUsize,
    /// The run that this process belongs to; 0 for none.
    run: AtomicU32,
}

// SAFETY: the mapping is shared memory that is only accessed through atomics, and lives as long as the value.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Names the slot of a process. Of use until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotId(pub(crate) usize);

impl SlotId {
    /// Below [`MAX_PROCESSES`].
    #[must_use]
    pub fn number(self) -> usize {
        self.0
    }
}

/// A process that ramfold itself ended, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// The process.
    pub pid: u32,
    /// Its run ([`Segment::set_run`]).
    pub run: u32,
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
const PARTS_AT: usize = SLOTS_AT + MAX_PROCESSES * size_of::<Slot>();
const FAULTS_AT: usize = PARTS_AT + MAX_PARTS * size_of::<Record>();
const REFS_AT: usize = FAULTS_AT + MAX_PROCESSES * size_of::<Latency>();

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
    /// Of the file, for who looks for it in `/proc`.
    pub const NAME: &str = "ramfold-segment";

    /// Makes the segment of a run, which its maker looks after as long as the segment or the descriptor is there. The
    /// descriptor is closed on exec, and reached as `/proc/PID/fd/N`. Most of the memory is never touched.
    ///
    /// `limit` is in bytes; `swap_limit` in bytes, rounded down to whole extents, 0 for none.
    ///
    /// # Errors
    /// What the system answers when it gives no memory.
    pub fn create(limit: u64, swap_limit: u64) -> io::Result<(OwnedFd, Self)> {
        let extents = (swap_limit / EXTENT_SIZE).min(MAX_EXTENTS);
        let len = total_len(usize::try_from(extents).map_err(io::Error::other)?);
        let fd = rustix::fs::memfd_create(Self::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        // What is mapped must stay there.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        lease::lock(&fd, KEEPER, libc::F_WRLCK)?;
        let mut segment = Self::over(Self::map(&fd, len)?, len);
        let header = segment.header();
        header.limit.store(limit, Ordering::Relaxed);
        header.extents.store(extents, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        segment.check().map_err(io::Error::other)?;
        segment.file = Some(File::new(fd.try_clone()?).map_err(io::Error::other)?);
        Ok((fd, segment))
    }

    /// Maps the segment at `path` (`/proc/PID/fd/N`).
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(path: &str) -> Result<Self, OpenError> {
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let len = length(&fd)?;
        if !rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(OpenError::NotASegment);
        }
        let mut segment = Self::over(Self::map(&fd, len)?, len);
        segment.check()?;
        segment.file = Some(File::new(crate::fds::raise(fd)?)?);
        Ok(segment)
    }

    /// A copy of the segment at `path` as it is now: for who looks at a run from outside, whatever is behind the path.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn look_at(path: &str) -> Result<Self, OpenError> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let len = length(&fd)?;
        let mut copy = Self::over(map_copy(len)?, len);
        copy.read_from(&fd, 0, SLOTS_AT)?;
        copy.check()?;
        let used = copy.used_slots().len();
        copy.read_from(&fd, SLOTS_AT, size_of_val(copy.used_slots()))?;
        copy.read_from(&fd, PARTS_AT, MAX_PARTS * size_of::<Record>())?;
        copy.read_from(&fd, FAULTS_AT, used * size_of::<Latency>())?;
        Ok(copy)
    }

    fn over(base: NonNull<u8>, len: usize) -> Self {
        let (own_lease, childs_lease) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (limit, run) = (AtomicU64::new(0), AtomicU32::new(0));
        Self { base, len, extents: 0, limit, file: None, own_lease, childs_lease, run }
    }

    /// Looks whether it is what it should be, and keeps what must never change.
    fn check(&mut self) -> Result<(), OpenError> {
        let header = self.header();
        let valid = header.magic.load(Ordering::Acquire) == MAGIC;
        let (extents, limit) = (header.extents.load(Ordering::Relaxed), header.limit.load(Ordering::Relaxed));
        let extents = usize::try_from(extents.min(MAX_EXTENTS + 1)).map_err(|_| OpenError::NotASegment)?;
        if !valid || extents as u64 > MAX_EXTENTS || total_len(extents) != self.len {
            return Err(OpenError::NotASegment);
        }
        (self.extents, self.limit) = (extents, limit.into());
        Ok(())
    }

    /// Fills a part of a copy.
    fn read_from(&mut self, fd: &OwnedFd, at: usize, len: usize) -> Result<(), OpenError> {
        // SAFETY: the part is mapped, writable, and nobody else's: `self` is a copy, and borrowed alone.
        let part = unsafe { std::slice::from_raw_parts_mut(self.base.add(at).as_ptr(), len) };
        let mut done = 0;
        while done < len {
            match rustix::io::pread(fd, &mut part[done..], (at + done) as u64)? {
                0 => return Err(OpenError::NotASegment),
                more => done += more,
            }
        }
        Ok(())
    }

    fn map(fd: impl AsFd, len: usize) -> io::Result<NonNull<u8>> {
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, shared, fd, 0)? };
        NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, is page-aligned, and every bit pattern of atomics is valid.
        unsafe { self.base.cast().as_ref() }
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: PARTS_AT bytes are mapped, SLOTS_AT is a multiple of the header's alignment of 64.
        unsafe { std::slice::from_raw_parts(self.base.add(SLOTS_AT).cast().as_ptr(), MAX_PROCESSES) }
    }

    fn used_slots(&self) -> &[Slot] {
        let used = self.header().slots_used.load(Ordering::Acquire) as usize;
        &self.slots()[..used.min(MAX_PROCESSES)]
    }

    fn records(&self) -> &[Record] {
        // SAFETY: FAULTS_AT bytes are mapped, PARTS_AT is a multiple of 64.
        unsafe { std::slice::from_raw_parts(self.base.add(PARTS_AT).cast().as_ptr(), MAX_PARTS) }
    }

    /// By slot.
    fn faults(&self) -> &[Latency] {
        // SAFETY: REFS_AT bytes are mapped, FAULTS_AT is a multiple of 64.
        unsafe { std::slice::from_raw_parts(self.base.add(FAULTS_AT).cast().as_ptr(), MAX_PROCESSES) }
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
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets it, for this process and for who opens the segment from now on.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
        self.header().limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the swap file may take.
    #[must_use]
    pub fn swap_limit(&self) -> u64 {
        self.extents as u64 * EXTENT_SIZE
    }

    /// Whether somebody may soon find no extent in the swap file.
    pub fn is_swap_short(&self) -> bool {
        /// The part of the file that is left then.
        const SHARE: u64 = 16;
        self.swap_limit() - self.swap_used() <= (self.swap_limit() / SHARE).max(2 * EXTENT_SIZE)
    }

    /// Bytes of the swap file in extents that someone holds.
    #[must_use]
    pub fn swap_used(&self) -> u64 {
        self.header().extents_used.load(Ordering::Relaxed).min(self.extents as u64) * EXTENT_SIZE
    }
}

/// Why processes were killed.
impl Segment {
    /// Says which run this process belongs to ([`Segment::begin_run`]).
    pub fn set_run(&self, run: u32) {
        self.run.store(run, Ordering::Relaxed);
    }

    /// Notes that the run's trace ends before the run does.
    pub fn tell_trace_incomplete(&self) {
        self.header().trace_incomplete.store(1, Ordering::Relaxed);
    }

    /// Whether a process could not write all of its part of the run's trace.
    #[must_use]
    pub fn is_trace_incomplete(&self) -> bool {
        self.header().trace_incomplete.load(Ordering::Relaxed) != 0
    }

    /// To be called just before ramfold kills the calling process: the message is what `ramfold run` will print,
    /// `WHAT: WHY (what to do)`. False when there have been too many.
    pub fn report_death(&self, message: &str) -> bool {
        let index = self.header().deaths_begun.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(record) = self.header().deaths.get(index) else { return false };
        let len = (0..=MAX_MESSAGE.min(message.len())).rfind(|at| message.is_char_boundary(*at)).unwrap_or(0);
        for (to, from) in record.text.iter().zip(&message.as_bytes()[..len]) {
            to.store(*from, Ordering::Relaxed);
        }
        record.len.store(u32::try_from(len).unwrap_or(0), Ordering::Relaxed);
        record.run.store(self.run.load(Ordering::Relaxed), Ordering::Relaxed);
        let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
        record.pid.store(pid, Ordering::Release);
        true
    }

    /// The messages so far, oldest first.
    #[must_use]
    pub fn deaths(&self) -> Vec<Death> {
        let records = self.header().deaths.iter();
        records
            .filter_map(|record| {
                let pid = record.pid.load(Ordering::Acquire);
                let len = (record.len.load(Ordering::Relaxed) as usize).min(MAX_MESSAGE);
                let (run, message) = (record.run.load(Ordering::Relaxed), clean(&record.text[..len]));
                (pid != 0).then_some(Death { pid, run, message })
            })
            .collect()
    }
}

/// The text that is there; nothing in it may steer a terminal.
fn clean(text: &[AtomicU8]) -> String {
    let text: Vec<u8> = text.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    String::from_utf8_lossy(&text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Bytes of what is open, if they can be a segment's.
fn length(fd: &OwnedFd) -> Result<usize, OpenError> {
    let len = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| OpenError::NotASegment)?;
    if len < total_len(0) { Err(OpenError::NotASegment) } else { Ok(len) }
}

/// Memory for a copy.
fn map_copy(len: usize) -> io::Result<NonNull<u8>> {
    let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, private)? };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

impl Drop for Segment {
    fn drop(&mut self) {
        drop(Lease::from_address(*self.own_lease.get_mut()));
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    pub(super) fn segment(extents: u64) -> (OwnedFd, Segment) {
        Segment::create(1 << 30, extents * EXTENT_SIZE).unwrap()
    }

    fn path(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (fd, ours) = segment(100);
        let theirs = Segment::open(&path(&fd)).unwrap();
        assert_eq!((theirs.limit(), theirs.swap_limit()), (1 << 30, 100 << 20));
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
    fn deaths_are_told_in_order_and_cut_to_length() {
        let (_fd, segment) = segment(0);
        segment.report_death("memory exhausted");
        segment.set_run(77);
        segment.report_death(&"\u{e4}".repeat(MAX_MESSAGE));
        let deaths = segment.deaths();
        assert_eq!(deaths[0].message, "memory exhausted");
        assert_eq!((deaths[0].pid, deaths[1].message.len()), (std::process::id(), MAX_MESSAGE));
        assert_eq!((deaths[0].run, deaths[1].run), (0, 77));
        for _ in 0..20 {
            segment.report_death("again");
        }
        assert_eq!(segment.deaths().len(), MAX_DEATHS);
    }

    /// All that processes and `ramfold run` do with the segment, while it says anything.
    #[test]
    fn nonsense_in_it_makes_nobody_panic() {
        let (fd, segment) = segment(70);
        let member = Segment::open(&path(&fd)).unwrap();
        let mut random = 1u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let below = |number: u64, most: usize| usize::try_from(number % most as u64).unwrap();
        for _ in 0..300 {
            let slot = member.attach_another().unwrap_or(SlotId(5));
            for _ in 0..50 {
                let part = [size_of::<Header>(), REFS_AT - 64, segment.len][below(next(), 3)];
                let at = below(next(), part) / 8;
                let value = [u64::MAX, 0, next(), next() >> 40][below(next(), 4)];
                // SAFETY: within the mapping and aligned; all that is there are atomics.
                unsafe { segment.base.cast::<AtomicU64>().add(at).as_ref() }.store(value, Ordering::Relaxed);
            }
            let mut seen = 0;
            member.publish_parts(slot, [(&b"directory"[..], 1, 1)].into_iter());
            assert!(segment.parts(slot).len() <= MAX_PARTS);
            let supervised = (segment.newcomers(&mut seen), segment.deaths(), segment.processes());
            let counted = (segment.swap_used(), segment.all_faults().quantile_ns(0.5), segment.living());
            segment.leave_turns(1);
            segment.set_unmanaged(5);
            assert!(supervised.2.len() <= MAX_PROCESSES && counted.0 <= segment.swap_limit());
            assert_eq!(segment.limit(), 1 << 30);
            member.charge(slot, Gauge::Own, 1);
            member.divide(slot, 4096);
            let _ = (member.in_common(slot), member.ask_older(slot, 5, 5), member.is_extent_shared(3));
            member.answer(slot, Some(1));
            let child = member.prepare_child(slot, 4096, &|_| ());
            member.end_fork();
            if let Some(extent) = member.take_extent(slot) {
                member.release_extent(slot, extent, &|_| ());
            }
            segment.reap(&|extent| assert!(extent < 70));
            drop(child);
            member.release(slot, &|_| ());
            let _ = Segment::look_at(&path(&fd)).map(|copy| copy.processes().len());
        }
    }

    #[test]
    fn what_is_mapped_cannot_be_cut_off() {
        let (fd, segment) = segment(3);
        rustix::fs::ftruncate(&fd, 0).unwrap_err();
        assert!(Segment::look_at(&path(&fd)).is_ok_and(|copy| copy.limit() == segment.limit()));
    }
}
