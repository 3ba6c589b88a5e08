//! Attributes: what can be read and changed of a mount that runs.
//!
//! What is changed holds from then on: pages that are kept stay readable, whatever compressed them.

use crate::cache::{Cache, Counts};
use crate::mount::LEAST_MEMORY;
use crate::parts::Limited;
use ramfold::codec::NAMES;
use ramfold_budget::control::request::{self, RequestError};
use ramfold_budget::control::values;
use ramfold_budget::control::{Answer, Answers, Refusal};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

ramfold_budget::attributes! {
    /// Something that can be read or written of a mount that runs.
    #[allow(missing_docs, reason = "the names say it")]
    pub enum Attribute {
        Compact = "compact" Write,
        Compressor = "compressor" Both,
        Directories = "directories" Read,
        MaxCompressionRatio = "max_compression_ratio" Both,
        Memlimit = "memlimit" Both,
        ShrinkerEnabled = "shrinker_enabled" Both,
        Stat = "stat" Read,
    }
}

/// What a memlimit can be.
const MEMLIMIT: &str = "bytes, or a size such as 512M; of a directory: DIRECTORY SIZE, or DIRECTORY none";

/// The attributes of a mount.
#[derive(Debug)]
pub struct Attributes {
    cache: Arc<Cache>,
    /// By its name, with its level.
    compressor: Mutex<String>,
    ratio: AtomicU8,
}

impl Attributes {
    /// The attributes of a mount that began with this compressor and ratio.
    #[must_use]
    pub fn new(cache: Arc<Cache>, compressor: &str, ratio: u8) -> Self {
        Self { cache, compressor: Mutex::new(compressor.to_owned()), ratio: AtomicU8::new(ratio) }
    }

    fn show(&self, attribute: Attribute, out: &mut dyn Write) -> io::Result<()> {
        match attribute {
            Attribute::Memlimit => writeln!(out, "{}", self.cache.limit()),
            Attribute::Compressor => {
                let compressor = self.compressor.lock().unwrap_or_else(PoisonError::into_inner);
                writeln!(out, "{}", values::choice(NAMES, &compressor))
            }
            Attribute::MaxCompressionRatio => writeln!(out, "{}", self.ratio.load(Relaxed)),
            Attribute::ShrinkerEnabled => writeln!(out, "{}", u8::from(self.cache.gives_way())),
            Attribute::Directories => self.show_directories(out),
            Attribute::Stat => self.show_counts(out),
            Attribute::Compact => Ok(()),
        }
    }

    /// A line each: its limit, what its pages take, its path.
    fn show_directories(&self, out: &mut dyn Write) -> io::Result<()> {
        let plain = |c: char| if c.is_control() { '?' } else { c };
        self.cache.limited().into_iter().try_for_each(|Limited { path, limit, bytes }| {
            let path: String = path.display().to_string().chars().map(plain).collect();
            writeln!(out, "{limit} {bytes} {path}")
        })
    }

    fn show_counts(&self, out: &mut dyn Write) -> io::Result<()> {
        let (cache, stats) = (&*self.cache, self.cache.store().stats());
        let Counts {
            hits,
            misses,
            kept,
            refused,
            passed_by,
            unsettled,
            source_bytes,
            source_reads,
            passthrough_opens,
        } = &cache.counts;
        let held = [
            ("memlimit", cache.limit()),
            ("memory", cache.in_use()),
            ("pool_total_size", stats.pool_total_size),
            ("stored_pages", stats.stored_pages),
            ("same_filled_pages", stats.same_filled_pages),
            ("duplicate_pages", stats.duplicate_pages),
            ("dropped_pages", stats.dropped_pages),
            ("files", cache.files() as u64),
        ];
        let counted = [
            ("hits", hits),
            ("misses", misses),
            ("kept", kept),
            ("refused", refused),
            ("passed_by", passed_by),
            ("unsettled", unsettled),
            ("source_reads", source_reads),
            ("source_bytes", source_bytes),
            ("passthrough_opens", passthrough_opens),
        ];
        let counted = counted.map(|(name, count)| (name, count.load(Relaxed)));
        held.into_iter().chain(counted).try_for_each(|(name, number)| writeln!(out, "{name} {number}"))
    }

    fn set(&self, attribute: Attribute, value: &str) -> Result<(), Refusal> {
        let wrong = |hint| RequestError::value(attribute, value, hint);
        match attribute {
            Attribute::Memlimit => {
                let Some(bytes) = values::size(value) else {
                    let (directory, limit) = directory(value).ok_or_else(|| wrong(MEMLIMIT))?;
                    let set = self.cache.set_limit_of(directory, limit);
                    return set.map_err(|error| Refusal::Failed(error.to_string()));
                };
                if bytes < LEAST_MEMORY {
                    return Err(Refusal::Failed(format!(
                        "that is too little memory (give {LEAST_MEMORY} bytes or more)"
                    )));
                }
                self.cache.set_limit(bytes);
            }
            Attribute::Compressor => {
                let set = self.cache.store().set_compressor(value);
                set.map_err(|error| Refusal::Failed(error.to_string()))?;
                value.clone_into(&mut self.compressor.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Attribute::MaxCompressionRatio => {
                let percent = values::number(value).and_then(|number| u8::try_from(number).ok());
                let percent = percent.filter(|percent| (1..=100).contains(percent));
                let percent = percent.ok_or_else(|| wrong("a percentage from 1 to 100"))?;
                self.cache.store().set_max_compression_ratio(percent);
                self.cache.set_keeps_poor(percent == 100);
                self.ratio.store(percent, Relaxed);
            }
            Attribute::ShrinkerEnabled => {
                self.cache.set_gives_way(values::switch(value).ok_or_else(|| wrong("0 or 1"))?);
            }
            Attribute::Compact => {
                values::trigger(value).ok_or_else(|| wrong("1"))?;
                self.cache.store().compact();
            }
            Attribute::Directories | Attribute::Stat => {}
        }
        Ok(())
    }
}

/// A directory and its limit; None: none.
fn directory(value: &str) -> Option<(&Path, Option<u64>)> {
    let (directory, limit) = value.rsplit_once(char::is_whitespace)?;
    let limit = if limit == "none" { None } else { Some(values::size(limit)?) };
    Some((Path::new(directory.trim_end()), limit))
}

impl Answers for Attributes {
    fn answer(&self, line: &[u8]) -> Result<Answer<'_>, Refusal> {
        match request::parse::<Attribute>(line)? {
            (attribute, None) => Ok(Answer::written(move |out| self.show(attribute, out))),
            (attribute, Some(value)) => self.set(attribute, value).map(|()| Answer::done()),
        }
    }
}
