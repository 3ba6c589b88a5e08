//! Folding: the log of an image becomes a new image.
//!
//! All pages are written to a new file while clients write and flush; then, as a log behind them, those that were
//! flushed meanwhile, in rounds as long as they are many; at last, with flushes waiting, the rest. The file is synced
//! and put in the place of the image, and the directory is synced before a flush goes on.
//!
//! Price: all pages are read and written, and there are two images and a log meanwhile. Guarantee: under the name there
//! is at any moment an image with all that was flushed; until it is known which of the two a power cut would leave,
//! neither takes more.

use super::super::draft::Draft;
use super::super::format::Header;
use super::super::log::{Log, Mark};
use super::super::{SaveError, seal, write_draft};
use super::{Durable, Failure, Live, fill, lock, stopped};
use crate::changed::Changed;
use crate::face::DiskError;
use crate::pages::Pages;
use ramfold::PAGE_SIZE;
use ramfold::codec::by_name;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Pages that may be left for the last step, in which flushes wait; and how many rounds come before at most.
const FEW: u64 = 1024;
const ROUNDS: usize = 4;

impl Durable {
    /// Leaves a log that is in doubt for a new image, unless somebody else has.
    pub(super) fn renew(&self, pages: &Arc<Pages>, wanted: u64) -> Result<(), DiskError> {
        let _alone = lock(&self.fold);
        {
            let live = self.live();
            if !live.is_in_doubt || live.good >= wanted {
                return Ok(());
            }
            if live.not_before.is_some_and(|it| Instant::now() < it) {
                return Err(live.error);
            }
        }
        let folded = self.fold(pages);
        let mut live = self.live();
        let Err(error) = folded else {
            self.tell(&mut live, None);
            return Ok(());
        };
        live.error = match &error {
            SaveError::Io(error) if error.kind() == ErrorKind::StorageFull => DiskError::NoSpace,
            _ => DiskError::Io,
        };
        live.not_before = Some(Instant::now() + self.settings.patience);
        self.tell(&mut live, Some(&error));
        Err(live.error)
    }

    /// Has a log folded that has grown.
    pub(super) fn call_folder(self: &Arc<Self>, live: &mut Live, pages: &Arc<Pages>) {
        let is_large = live.log.as_ref().is_some_and(|log| log.bytes() >= live.most);
        if !is_large || live.is_folding || self.is_stopping.load(SeqCst) {
            return;
        }
        let (durable, pages) = (Arc::clone(self), Arc::clone(pages));
        let thread = std::thread::Builder::new().name("ramfold-fold".to_owned());
        let thread = thread.spawn(move || {
            let _alone = lock(&durable.fold);
            let folded =
                if durable.is_stopping.load(SeqCst) { Err(stopped().into()) } else { durable.fold(&pages) };
            let mut live = durable.live();
            live.is_folding = false;
            if let Err(error) = folded {
                let is_wanted = !durable.is_stopping.load(SeqCst);
                if is_wanted && !std::mem::replace(&mut live.has_told_of_fold, true) {
                    (durable.settings.tell)(&format!(
                        "no new image could be made, and its log grows: {error}"
                    ));
                }
                live.most = live.log.as_ref().map_or(u64::MAX, Log::bytes).saturating_mul(2);
            }
        });
        // Without a thread the next flush tries again.
        if let Ok(thread) = thread {
            live.is_folding = true;
            *lock(&self.thread) = Some(thread);
        }
    }

    /// Makes a new image with an empty log. The caller holds `fold`.
    pub(super) fn fold(&self, pages: &Arc<Pages>) -> Result<(), SaveError> {
        self.live().since = Some(Changed::new(pages.most()));
        let folded = self.write_anew(pages);
        self.live().since = None;
        folded
    }

    fn write_anew(&self, pages: &Pages) -> Result<(), SaveError> {
        let compressor = &self.settings.compressor;
        let go_on = |_, _| !self.is_stopping.load(SeqCst);
        let (draft, header) = write_draft(&self.calls, &self.path, pages, compressor, false, go_on)?;
        self.calls.sync(draft.file())?;
        let (mark, codec) = (self.mark()?, by_name(compressor).map_err(io::Error::other)?);
        let mut log = Log::new(&self.calls, draft.file(), header.length, mark.seed, codec)?;
        for _ in 0..ROUNDS {
            let flushed =
                self.live().since.replace(Changed::new(pages.most())).unwrap_or_else(|| Changed::new(0));
            let count = flushed.count();
            self.write_group(&mut log, pages, &[&flushed], &mut Vec::new())?;
            if count <= FEW {
                break;
            }
        }
        self.put((draft, header), &mark, log, pages)
    }

    /// Adds a group of these pages to a log that has no image yet.
    fn write_group(
        &self,
        log: &mut Log,
        pages: &Pages,
        marks: &[&Changed],
        taken: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        if marks.iter().all(|marks| marks.count() == 0) {
            return Ok(());
        }
        let (mut page, mut scratch) = ([0; PAGE_SIZE], pages.scratch());
        let written = log.append(|group| {
            marks.iter().try_for_each(|marks| fill(group, (pages, marks), taken, (&mut page, &mut scratch)))
        })?;
        log.accept(&written);
        Ok(())
    }

    /// The last step: no flush is under way. What has changed and was not flushed goes along.
    fn put(
        &self,
        (draft, header): (Draft, Header),
        mark: &Mark,
        mut log: Log,
        pages: &Pages,
    ) -> Result<(), SaveError> {
        let mut live = self.live();
        let number = self.begun.fetch_add(1, SeqCst) + 1;
        let flushed = live.since.take().unwrap_or_else(|| Changed::new(0));
        let Some(changed) = pages.changed() else { return Err(stopped().into()) };
        let mut taken = Vec::new();
        let mut step = || -> Result<(), SaveError> {
            self.write_group(&mut log, pages, &[&flushed], &mut Vec::new())?;
            self.write_group(&mut log, pages, &[changed], &mut taken)?;
            seal(&*self.calls, draft.file(), &header, &mark.block()).map_err(SaveError::Io)
        };
        let mut done = step();
        if done.is_ok() {
            let most = self.settings.least_log.max(header.length);
            done = live.image.put(draft, header);
            if done.is_ok() {
                // The name leads to one or the other: until it is known which, neither takes a group.
                (live.log, live.most, live.is_in_doubt) = (Some(log), most, true);
                done = self.calls.sync_directory_of(&self.path).map_err(SaveError::Io);
            }
        }
        if let Err(error) = done {
            taken.iter().for_each(|number| changed.mark(*number));
            return Err(error);
        }
        (live.good, live.is_in_doubt, live.not_before) = (number, false, None);
        live.has_told_of_fold = false;
        live.counts.folds += 1;
        Ok(())
    }
}
