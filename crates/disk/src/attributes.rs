//! Attributes: what can be read and changed of a disk that runs, by zram's names and in zram's formats.
//!
//! A request is understood first ([`request`]), and then done here, one at a time: two that choose pages would only be
//! in each other's way. Clients of the disk do not wait for it.
//!
//! What differs from zram: compressors and the limit of memory change at any time; pages go to the backing compressed
//! in any case; what is shared by several pages is not compressed anew; there are no dictionaries; and the size of a
//! disk that was reset is at most the one that it began with.

mod chosen;
mod compressors;
pub mod request;
mod statistics;

use crate::face::Disk;
use crate::volume::{LEAST_MEMORY, Volume};
use compressors::Compressors;
use request::{Attribute, Setting};
use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// zram's.
const BATCH: usize = 32;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// the disk has clients
    #[error("the disk has clients (disconnect them first)")]
    Busy,
    /// the disk has a size
    #[error("the disk has a size (reset it first)")]
    HasSize,
    /// the disk cannot have this size
    #[error("a disk that began with {0} bytes can have as many at most, and one at least")]
    Size(u64),
    /// the disk has no size
    #[error("the disk was reset (set disksize first)")]
    NoSize,
    /// that is too little memory
    #[error("that is too little memory (give {LEAST_MEMORY} bytes or more, or 0 for no limit)")]
    TooLittle,
    /// there is no such compressor
    #[error("{0}")]
    Compressor(String),
    /// no compressor was chosen there
    #[error("no compressor was chosen there (set recomp_algorithm first)")]
    NoAlgorithm,
    /// there is no backing
    #[error("there is no backing (start the disk with --backing-dev)")]
    NoBacking,
    /// the limit of writeback is used up
    #[error("the limit of writeback is used up (raise writeback_limit)")]
    Limit,
    /// the backing is full
    #[error("the backing is full")]
    BackingFull,
    /// the backing could not be written
    #[error("the backing could not be written")]
    BackingFailed,
    /// pages are compressed in the backing in any case
    #[error("pages are compressed and encrypted in the backing in any case")]
    Compressed,
}

/// The attributes of a disk.
#[derive(Debug)]
pub struct Attributes {
    disk: Arc<Volume>,
    state: Mutex<State>,
}

/// What the attributes keep themselves. Locked while a request is done.
#[derive(Debug)]
struct State {
    compressors: Compressors,
    batch: usize,
    /// What the store had counted at the last reset.
    since: ramfold::Stats,
}

impl Attributes {
    /// The attributes of a disk with these compressors, as it was opened.
    #[must_use]
    pub fn new(disk: Arc<Volume>, compressor: &str, recomp: Option<&str>) -> Self {
        let compressors = Compressors::new(compressor, recomp);
        let state = State { compressors, batch: BATCH, since: ramfold::Stats::default() };
        Self { disk, state: Mutex::new(state) }
    }

    /// What is kept is whole at any moment, so a panic under the lock has spoilt nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what an attribute is, in lines.
    ///
    /// # Errors
    /// Those of `out`; its reader may have left.
    pub fn show(&self, attribute: Attribute, out: &mut dyn Write) -> io::Result<()> {
        let (disk, backing) = (&*self.disk, self.disk.backing());
        match attribute {
            Attribute::Disksize => writeln!(out, "{}", disk.size()),
            Attribute::Initstate => writeln!(out, "{}", u8::from(disk.size() > 0)),
            Attribute::MemLimit => writeln!(out, "{}", disk.mem_limit()),
            Attribute::CompAlgorithm => writeln!(out, "{}", self.state().compressors.show_first()),
            Attribute::RecompAlgorithm => write!(out, "{}", self.state().compressors.show_others()),
            Attribute::BackingDev => writeln!(out, "{}", backing.map_or("none", |backing| backing.name())),
            Attribute::CompressedWriteback => writeln!(out, "1"),
            Attribute::WritebackBatchSize => writeln!(out, "{}", self.state().batch),
            Attribute::WritebackLimit => writeln!(out, "{}", backing.map_or(0, |backing| backing.limit())),
            Attribute::WritebackLimitEnable => {
                writeln!(out, "{}", u8::from(backing.is_some_and(|backing| backing.is_limited())))
            }
            Attribute::MmStat => statistics::mm_stat(disk, &self.state().since, out),
            Attribute::IoStat => statistics::io_stat(disk, out),
            Attribute::BdStat => statistics::bd_stat(disk, out),
            Attribute::DebugStat => statistics::debug_stat(disk, out),
            Attribute::BlockState => {
                let dense = self.state().compressors.dense(disk.store());
                statistics::block_state(disk, &dense, out)
            }
            Attribute::AlgorithmParams
            | Attribute::Compact
            | Attribute::Idle
            | Attribute::MemUsedMax
            | Attribute::Recompress
            | Attribute::Reset
            | Attribute::Writeback => Ok(()),
        }
    }

    /// Changes what is to be changed.
    ///
    /// # Errors
    /// [`AttributeError`].
    pub fn set(&self, setting: Setting) -> Result<(), AttributeError> {
        let (disk, mut state) = (&*self.disk, self.state());
        match setting {
            Setting::Disksize(bytes) => resize(disk, bytes),
            Setting::Reset => {
                let done = disk.reset();
                state.since = disk.store().stats();
                if done { Ok(()) } else { Err(AttributeError::Busy) }
            }
            Setting::MemLimit(bytes) if disk.set_mem_limit(bytes) => Ok(()),
            Setting::MemLimit(_) => Err(AttributeError::TooLittle),
            Setting::MemUsedMax => {
                disk.counts().mem_used_max.store(disk.store().pool_bytes(), Relaxed);
                Ok(())
            }
            Setting::CompAlgorithm(name) => state.compressors.set_first(disk.store(), name),
            Setting::RecompAlgorithm { name, priority } => {
                state.compressors.set_other(disk.store(), priority, name)
            }
            Setting::AlgorithmParams { algorithm, level } => {
                state.compressors.set_level(disk.store(), &algorithm, level)
            }
            Setting::Compact => {
                disk.store().compact();
                Ok(())
            }
            Setting::Idle(unused) => {
                disk.mark_idle(unused);
                Ok(())
            }
            Setting::Recompress(what) => {
                has_size(disk)?;
                let by = state.compressors.of(disk.store(), &what.algorithm)?;
                chosen::recompress(disk, &what, by);
                Ok(())
            }
            Setting::Writeback(pages) => {
                has_size(disk)?;
                chosen::write_back(disk, &pages, state.batch)
            }
            Setting::WritebackBatchSize(size) => {
                state.batch = size;
                Ok(())
            }
            Setting::WritebackLimit(pages) => {
                disk.backing().ok_or(AttributeError::NoBacking).map(|backing| backing.set_limit(pages))
            }
            Setting::WritebackLimitEnable(on) => {
                disk.backing().ok_or(AttributeError::NoBacking).map(|backing| backing.set_limited(on))
            }
            Setting::CompressedWriteback(true) => Ok(()),
            Setting::CompressedWriteback(false) => Err(AttributeError::Compressed),
        }
    }
}

fn resize(disk: &Volume, bytes: u64) -> Result<(), AttributeError> {
    if disk.size() > 0 {
        return Err(AttributeError::HasSize);
    }
    if disk.resize(bytes) { Ok(()) } else { Err(AttributeError::Size(disk.most())) }
}

fn has_size(disk: &Volume) -> Result<(), AttributeError> {
    if disk.size() > 0 { Ok(()) } else { Err(AttributeError::NoSize) }
}
