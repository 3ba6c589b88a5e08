//! A byte range larger than its memory budget.

use crate::face::{Config, Host, MapError, Mode, Prot, SetupError};
use crate::pager::Pager;
use ramfold::tier::open_swap;
use ramfold_budget::segment::Segment;
use std::fmt;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

/// Settings of a [`Region`].
#[derive(Debug, Clone)]
pub struct RegionOptions {
    /// Bytes of memory that the region may use: resident pages and compressed pool. The store's tables (about 24
    /// bytes a stored page) and the threads' buffers (about a megabyte) come on top.
    pub budget: u64,
    /// The store's settings; `max_pool_bytes` of 0 means half the budget.
    pub store: ramfold::Config,
    /// Directory or file for what does not fit compressed into the budget; `None`: a region that does not fit ends
    /// the program when it is touched.
    pub swap: Option<PathBuf>,
    /// Most bytes that the swap file may take.
    pub swap_size: u64,
    /// How pages leave memory.
    pub mode: Mode,
}

impl RegionOptions {
    /// A budget in bytes, a swap file in /var/tmp of at most four times the budget, the default codec and zpool.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            store: ramfold::Config { max_pool_bytes: 0, ..ramfold::Config::default() },
            swap: Some(PathBuf::from("/var/tmp")),
            swap_size: budget.saturating_mul(4),
            mode: Mode::Auto,
        }
    }
}

/// A zeroed byte range whose cold pages are compressed in memory, and the coldest written to a file.
///
/// It is used as a slice. What is in memory costs nothing; what is not costs a few microseconds when it is touched.
/// The bytes are always those last written: if that cannot be kept up (swap file full, a record damaged), the process
/// ends with a message on stderr rather than read anything else.
///
/// The region works inside any Rust program on Linux that may use userfaultfd (see docs/platform.md), and uses three
/// threads. A fork()ed child must not touch it.
///
/// ```no_run
/// use ramfold_pager::{Region, RegionOptions};
///
/// let mut region = Region::new(1 << 30, RegionOptions::new(256 << 20))?;
/// region[0] = 1;
/// region[1 << 29..].fill(7);
/// assert_eq!(region[0], 1);
/// # Ok::<(), ramfold_pager::RegionError>(())
/// ```
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    pager: Pager,
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// the swap file cannot be used
    #[error("{0}")]
    Swap(#[from] ramfold::tier::OpenSwapError),
    /// memory cannot be managed
    #[error("memory cannot be managed: {0}")]
    Setup(#[from] SetupError),
    /// the shared accounts cannot be made
    #[error("the accounts cannot be made: {0}")]
    Segment(#[from] std::io::Error),
    /// the address space cannot be mapped
    #[error("{0} bytes of address space cannot be mapped")]
    Map(usize),
}

// SAFETY: the region owns its memory, like a Vec<u8>.
unsafe impl Send for Region {}
// SAFETY: shared access only reads, like a Vec<u8>; the pager keeps the contents unchanged.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `len` bytes, all zero.
    ///
    /// # Errors
    /// [`RegionError`], a line that says what to do.
    pub fn new(len: usize, options: RegionOptions) -> Result<Self, RegionError> {
        let swap = options.swap.as_deref().map(|path| open_swap(Some(path))).transpose()?;
        let swap_size = if swap.is_some() { options.swap_size } else { 0 };
        let (_, segment) = Segment::create(options.budget, swap_size)?;
        let mut store = options.store;
        if store.max_pool_bytes == 0 {
            store.max_pool_bytes = options.budget / 2;
        }
        let config = Config {
            segment: Arc::new(segment),
            store,
            swap,
            mode: options.mode,
            threshold: 0,
            range: len.max(1),
            trace: None,
            device: None,
            whole_process: false,
        };
        let pager = Pager::new(config, &Threads)?;
        let addr = pager.map(len.max(1), Prot(libc::PROT_READ | libc::PROT_WRITE), 4096);
        let addr = addr.map_err(|_: MapError| RegionError::Map(len))?;
        pager.begin()?;
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).ok_or(RegionError::Map(len))?;
        Ok(Self { start, len, pager })
    }

    /// The pager behind the region, for its counters.
    #[must_use]
    pub fn stats(&self) -> ramfold::Stats {
        self.pager.store_stats()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pager mapped `len` readable, zeroed bytes there, and keeps them until it is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of self is the only access to the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

/// An ordinary Rust program: its heap and stacks are not managed.
pub(crate) struct Threads;

impl ramfold_budget::Host for Threads {
    fn die(&self, message: &str, _reported: bool) -> ! {
        // With nobody left to tell, the exit status has to do.
        let _ = writeln!(std::io::stderr(), "ramfold: {message}");
        std::process::abort()
    }
}

impl Host for Threads {
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}
