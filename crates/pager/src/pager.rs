//! The pager's face: memory is mapped, protected, advised and unmapped here.

use std::ops::Range;

/// What may be done with mapped memory: the bits of `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prot(pub i32);

/// How pages leave the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// UFFDIO_MOVE where the kernel has it, write-protect and copy where not.
    #[default]
    Auto,
    /// Only UFFDIO_MOVE.
    Move,
    /// Only write-protect and copy.
    WriteProtect,
}

/// What the program says about a range (`madvise`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Contents are no longer wanted; the next read gives zeros (DONTNEED, FREE, REMOVE on private memory).
    DontNeed,
    /// Will be used soon (WILLNEED, POPULATE_READ, POPULATE_WRITE).
    WillNeed,
    /// May leave first (COLD, PAGEOUT).
    Cold,
}

/// Why memory was not mapped; `errno` gives the number for the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapError {
    /// The limit, the pool and the swap file are full, or the range is.
    NoMemory,
    /// Addresses or lengths are not aligned, or outside what is mapped.
    Invalid,
    /// The kernel refused with this errno.
    Kernel(i32),
}

impl MapError {
    /// The errno that the system call would have set.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NoMemory => libc::ENOMEM,
            Self::Invalid => libc::EINVAL,
            Self::Kernel(errno) => errno,
        }
    }
}

/// What the pager needs from the program that it runs in.
pub trait Host: Send + Sync {
    /// Starts a thread that blocks all signals and never uses managed memory, not even for its stack or
    /// its thread-local storage.
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()>;
    /// Ends the program at once: its memory can no longer be trusted or held.
    fn die(&self, message: &str) -> !;
}

/// Settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes: resident pages, compressed pool and ramfold's own memory together.
    pub limit: u64,
}

/// Could not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupError {}

/// The pager of this process.
#[allow(missing_debug_implementations)]
pub struct Pager {}

#[allow(missing_docs, unused_variables, clippy::missing_errors_doc)]
impl Pager {
    /// Reserves the range. No threads and no userfaultfd before the memory handed out passes a threshold.
    pub fn new(config: Config, host: &'static dyn Host) -> Result<Self, SetupError> { unimplemented!() }
    /// The managed address range; never unmapped.
    pub fn range(&self) -> Range<usize> { unimplemented!() }
    /// Private anonymous memory, zeroed, aligned to `align` (a power of two >= 4096), anywhere in the range.
    pub fn map(&self, len: usize, prot: Prot, align: usize) -> Result<usize, MapError> { unimplemented!() }
    /// MAP_FIXED: fresh zeroed private memory at addr (inside the range), replacing what was there.
    pub fn map_fixed(&self, addr: usize, len: usize, prot: Prot) -> Result<(), MapError> { unimplemented!() }
    /// MAP_FIXED of something that is not private anonymous memory into the range: `mmap` makes the raw call.
    /// From then on the pages are foreign: never touched by the pager until unmapped or mapped over.
    pub fn map_foreign(&self, addr: usize, len: usize, mmap: &mut dyn FnMut() -> Result<usize, i32>) -> Result<usize, MapError> { unimplemented!() }
    /// munmap of any part of the range. Unmapping what is not mapped is no error.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), MapError> { unimplemented!() }
    pub fn protect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), MapError> { unimplemented!() }
    /// mremap without copying; `fixed` is MREMAP_FIXED's address (inside the range).
    pub fn remap(&self, old: usize, old_len: usize, new_len: usize, may_move: bool, fixed: Option<usize>, keep_old: bool) -> Result<usize, MapError> { unimplemented!() }
    pub fn advise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), MapError> { unimplemented!() }
    /// Brings the pages back and never evicts them until `unlock` (mlock, user-supplied thread stacks).
    pub fn lock(&self, addr: usize, len: usize) -> Result<(), MapError> { unimplemented!() }
    pub fn unlock(&self, addr: usize, len: usize) -> Result<(), MapError> { unimplemented!() }
    /// True when nothing more can be held: new allocations must fail with ENOMEM.
    pub fn exhausted(&self) -> bool { unimplemented!() }
    /// To be called around fork: all pager threads and callers of the methods above are stopped in between.
    pub fn before_fork(&self) { unimplemented!() }
    pub fn after_fork_parent(&self) { unimplemented!() }
    /// First thing in the child, before it touches managed memory.
    pub fn after_fork_child(&self) { unimplemented!() }
}
