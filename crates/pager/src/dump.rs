//! Core dumps.
//!
//! While the kernel writes a core dump it waits for nobody: the pager's threads have been killed with the others, and
//! a page that is away would be left out. So before the process dies of a signal that leaves a core, what is away is
//! written, as it was, to an unlinked file beside the swap file, and the file is mapped in its place: the kernel
//! dumps such a mapping as it dumps memory, and can take its pages back meanwhile, so the limit is kept. The range,
//! which is left out of dumps otherwise (they would walk all of it), is put in where it holds something.
//!
//! The gate is closed while it is done. Other threads of the program go on until the process dies, as if the signal
//! had come later, and find their contents; but what was away is theirs in common with a child forked then.
//!
//! Price: nothing before; then the time to decompress and write all that is away. Not in the core: what is away when
//! there is no swap file, no room beside it or no right to it any more, and what lies in more pieces than
//! [`MOST_PIECES`].

use crate::engine::Engine;
use crate::pager::Pager;
use crate::pages::{Group, State};
use crate::space::{Area, Kind, Space};
use crate::sys::{self, PAGE};
use ramfold::{PAGE_SIZE, Scratch};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Mappings that may be made: half of what the kernel permits a process, unless told otherwise (vm.max_map_count).
const MOST_PIECES: usize = 32 << 10;
impl Pager {
    /// Before the process dies of a signal that leaves a core: sees to it that the core has all contents. Returns
    /// when that is done or does not get on. The program's memory may still be used, but the process is to end.
    pub fn prepare_dump(&self) {
        if let Some(engine) = self.engine() {
            engine.dump.asked.store(true, Ordering::Release);
            engine.keeper.call();
            engine.dump.wait();
        }
    }
}

impl Engine {
    /// For the keeper, outside of the gate.
    pub(crate) fn dump_if_asked(&self) {
        if self.dump.asked.swap(false, Ordering::Acquire) {
            Filling::begin(self).fill();
            self.dump.done.store(true, Ordering::Release);
            self.dump.waiter.call();
        }
    }
}

/// The file that is being filled.
struct Filling<'a> {
    engine: &'a Engine,
    /// None: what is away stays away.
    file: Option<File>,
    len: u64,
    pieces: usize,
    scratch: Scratch,
}

impl<'a> Filling<'a> {
    fn begin(engine: &'a Engine) -> Self {
        let open =
            |path| rustix::fs::open(path, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR);
        let file = engine.dump.directory.as_ref().and_then(|path| open(path).ok()).map(File::from);
        Self { engine, file, len: 0, pieces: 0, scratch: engine.scratch() }
    }

    fn fill(mut self) {
        let engine = self.engine;
        engine.settle_changes();
        let _closed = engine.gate.close_scoped();
        let mut space = engine.lock_space();
        for (range, area) in space.areas_in(&engine.pages.range()) {
            if area.kind == Kind::Anonymous && area.in_dumps {
                for part in engine.page_groups(&range) {
                    self.include(&mut space, part, area);
                    engine.dump.progress.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Puts pages of one group into the dump.
    fn include(&mut self, space: &mut Space, part: Range<usize>, area: Area) {
        let engine = self.engine;
        let group = engine.pages.lock(part.start);
        if group.is_empty(part.start) {
            return;
        }
        let mut rest = part.clone();
        while let Some(run) = next_away(&group, &rest)
            && self.bring(space, &group, &run, area).is_some()
        {
            rest.start = run.end;
        }
        // Refused, it is left out.
        let _ = sys::include_in_dumps(engine.pages.addr(part.start), part.len() * PAGE);
    }

    /// Maps the contents of these pages, which the program owns from then on. None if that is not to be had.
    fn bring(&mut self, space: &mut Space, group: &Group<'_>, run: &Range<usize>, area: Area) -> Option<()> {
        let (engine, file) = (self.engine, self.file.as_ref()?);
        if self.pieces == MOST_PIECES {
            return None;
        }
        let mut contents = vec![[0; PAGE_SIZE]; run.len()];
        for (page, content) in run.clone().zip(&mut contents) {
            engine.store().load(engine.key(page), content, &mut self.scratch).ok()?;
        }
        file.write_all_at(contents.as_flattened(), self.len).ok()?;
        let (addr, len) = (engine.pages.addr(run.start), run.len() * PAGE);
        sys::map_over(addr, len, area.prot.0, file.as_fd(), self.len).ok()?;
        self.len += len as u64;
        self.pieces += 1;
        run.clone().for_each(|page| engine.forget(group, page));
        space.set(addr..addr + len, Area::foreign());
        engine.uffd.wake(addr, len);
        Some(())
    }
}

/// The first pages in a row that only the store has.
fn next_away(group: &Group<'_>, pages: &Range<usize>) -> Option<Range<usize>> {
    let is_away = |page: &usize| group.state(*page) == State::Stored;
    let start = pages.clone().find(is_away)?;
    Some(start..start + (start..pages.end).take_while(is_away).count())
}
