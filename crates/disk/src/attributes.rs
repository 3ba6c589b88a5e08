//! Attributes: what can be read and changed of a disk that runs, by zram's names and in zram's formats.
//!
//! A request is understood first ([`request`]), and then done here. What takes its time (choosing pages, a reset) is
//! done one after the other, and nobody who only asks waits for it; nor do clients of the disk.
//!
//! Lock order: `deeds`, then `state`, then the store's.
//!
//! What differs from zram: compressors and the limit of memory change at any time; pages go to the backing compressed
//! in any case; what is shared by several pages is not compressed anew; a dictionary may be the disk's own; and the
//! size of a disk that was reset is at most the one that it began with.

mod chosen;
mod compressors;
pub mod request;
mod statistics;
mod trainer;

use crate::backing::Backing;
use crate::face::Disk;
use crate::volume::{LEAST_MEMORY, Volume};
use compressors::Compressors;
use ramfold_budget::control::{Answer, Answers, Refusal};
use request::{Attribute, Request, Setting, Wish};
use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trainer::Trainer;

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
    /// the file has no dictionary
    #[error("{0}")]
    Dictionary(String),
    /// the compressor has no dictionaries
    #[error("only zstd has dictionaries (set recomp_algorithm algo=zstd first)")]
    NoDictionaries,
    /// there can be no thread
    #[error("there can be no thread that makes a dictionary")]
    NoThread,
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
    #[error("pages are compressed and encrypted in the backing in any case (leave it at 1)")]
    Compressed,
}

impl From<AttributeError> for Refusal {
    fn from(error: AttributeError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The attributes of a disk.
#[derive(Debug)]
pub struct Attributes {
    disk: Arc<Volume>,
    /// Held by who goes through the disk's pages, or gives or takes its size.
    deeds: Mutex<()>,
    /// Held for a look or a change.
    state: Arc<Mutex<State>>,
    /// From when the disk is to have a dictionary of its own.
    trainer: Mutex<Option<Trainer>>,
}

/// What the attributes keep themselves.
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
        let state = Arc::new(Mutex::new(state));
        Self { disk, deeds: Mutex::default(), state, trainer: Mutex::default() }
    }

    /// What is kept is whole at any moment, so a panic under the lock has spoilt nothing.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.deeds.lock().unwrap_or_else(PoisonError::into_inner)
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
            Attribute::ShrinkerEnabled => writeln!(out, "{}", u8::from(disk.gives_way())),
            Attribute::FreshEnabled => writeln!(out, "{}", u8::from(disk.keeps_fresh())),
            Attribute::FreshStat => statistics::fresh_stat(disk, out),
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
            Attribute::AlgorithmParams => write!(out, "{}", self.state().compressors.show_params()),
            Attribute::Compact
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
        let disk = &*self.disk;
        match setting {
            Setting::Disksize(bytes) => self.resize(bytes),
            Setting::Reset => self.reset(),
            Setting::Recompress(what) => {
                let _alone = self.alone();
                disk.settle_all();
                trainer::make(disk, &self.state);
                let by = self.state().compressors.of(disk.store(), &what.algorithm)?;
                self.has_size().map(|()| chosen::recompress(disk, &what, by))
            }
            Setting::Writeback(pages) => {
                let _alone = self.alone();
                let batch = self.state().batch;
                self.has_size().and_then(|()| {
                    disk.settle_all();
                    chosen::write_back(disk, &pages, batch)
                })
            }
            Setting::CompAlgorithm(_) | Setting::RecompAlgorithm { .. } | Setting::AlgorithmParams { .. } => {
                self.set_compressor(setting)
            }
            Setting::MemLimit(bytes) if !disk.set_mem_limit(bytes) => Err(AttributeError::TooLittle),
            Setting::MemLimit(_) | Setting::CompressedWriteback(true) => Ok(()),
            Setting::CompressedWriteback(false) => Err(AttributeError::Compressed),
            Setting::FreshEnabled(on) => {
                disk.set_keeps_fresh(on);
                Ok(())
            }
            Setting::ShrinkerEnabled(on) => self.backing().map(|_| disk.set_gives_way(on)),
            Setting::WritebackLimit(pages) => self.backing().map(|backing| backing.set_limit(pages)),
            Setting::WritebackLimitEnable(on) => self.backing().map(|backing| backing.set_limited(on)),
            Setting::WritebackBatchSize(size) => {
                self.state().batch = size;
                Ok(())
            }
            Setting::MemUsedMax => {
                disk.counts().mem_used_max.store(disk.store().pool_bytes(), Relaxed);
                Ok(())
            }
            Setting::Compact => {
                disk.store().compact();
                Ok(())
            }
            Setting::Idle(unused) => {
                disk.mark_idle(unused);
                Ok(())
            }
        }
    }

    fn set_compressor(&self, setting: Setting) -> Result<(), AttributeError> {
        let store = self.disk.store();
        match setting {
            Setting::CompAlgorithm(name) => self.state().compressors.set_first(store, &name),
            Setting::RecompAlgorithm { name, priority } => {
                self.state().compressors.set_other(store, priority, &name)
            }
            Setting::AlgorithmParams { algorithm, level, dictionary } => {
                let is_own = dictionary == Some(Wish::Auto);
                self.state().compressors.set_params(store, &algorithm, level, dictionary)?;
                if is_own { self.start_trainer() } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// It looks on from now on, if it does not yet.
    fn start_trainer(&self) -> Result<(), AttributeError> {
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        if trainer.is_none() {
            let started = Trainer::start(Arc::clone(&self.disk), Arc::clone(&self.state));
            *trainer = Some(started.map_err(|_| AttributeError::NoThread)?);
        }
        Ok(())
    }

    fn reset(&self) -> Result<(), AttributeError> {
        let _alone = self.alone();
        if !self.disk.reset() {
            return Err(AttributeError::Busy);
        }
        self.state().since = self.disk.store().stats();
        Ok(())
    }

    fn resize(&self, bytes: u64) -> Result<(), AttributeError> {
        let _alone = self.alone();
        if self.disk.size() > 0 {
            return Err(AttributeError::HasSize);
        }
        if self.disk.resize(bytes) { Ok(()) } else { Err(AttributeError::Size(self.disk.most())) }
    }

    fn has_size(&self) -> Result<(), AttributeError> {
        if self.disk.size() > 0 { Ok(()) } else { Err(AttributeError::NoSize) }
    }

    fn backing(&self) -> Result<&Backing, AttributeError> {
        self.disk.backing().ok_or(AttributeError::NoBacking)
    }
}

impl Answers for Attributes {
    fn answer(&self, line: &[u8]) -> Result<Answer<'_>, Refusal> {
        match Request::parse(line)? {
            Request::Show(attribute) => Ok(Answer::written(move |out| self.show(attribute, out))),
            Request::Set(setting) => Ok(self.set(setting).map(|()| Answer::done())?),
        }
    }
}
