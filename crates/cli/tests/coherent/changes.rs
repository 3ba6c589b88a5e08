//! What the threads change, through the mount and behind it, and what the book is told of it.

use super::{Client, Mistake, Outcome, lost, told};
use crate::book::{ABSENT, Body, CELL, CELLS, DATA, Name, RANGE, ZERO};
use crate::mapping::Mapping;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Client<'_> {
    fn changed(&self, kind: usize) {
        self.run.changes[kind].fetch_add(1, Relaxed);
    }

    /// Cells of one range that the file has: its number, the first cell, how many.
    fn some_range(&mut self, size: usize) -> Option<(usize, usize, usize)> {
        let from = self.random.below(size.max(1));
        let end = size.min((from / RANGE + 1) * RANGE);
        let most = end.checked_sub(from).filter(|most| *most > 0)?;
        Some((from / RANGE, from, 1 + self.random.below(most)))
    }

    pub(super) fn write(&mut self, name: &Name, directory: &Path) -> Outcome {
        let _shape = name.shape.read().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let body = name.body();
        let Some((range, from, len)) = self.some_range(body.size().done) else { return Ok(()) };
        let _range = body.ranges[range].lock().unwrap();
        let path = directory.join(&name.name);
        let file = File::options().write(true).open(&path).map_err(told("open to write", &path))?;
        let (change, versions) = body.begin(from..from + len, DATA, None);
        if !self.errs(Mistake::LostWrite) {
            let bytes = body.bytes(from, &versions);
            file.write_all_at(&bytes, (from * CELL) as u64).map_err(told("write", &path))?;
        }
        self.run.end(&body, change, directory == self.run.behind);
        self.changed(0);
        Ok(())
    }

    /// Behind the mount, the file's time is set as well, as nobody is told of a store to a mapping.
    pub(super) fn write_mapping(&mut self, name: &Name, directory: &Path, behind: bool) -> Outcome {
        let _shape = name.shape.read().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let body = name.body();
        let size = body.size().done;
        let Some((range, from, len)) = self.some_range(size) else { return Ok(()) };
        let _range = body.ranges[range].lock().unwrap();
        // Whole pages are written back, with all that was not seen yet of what others changed in them.
        self.run.settle();
        let first = range * RANGE;
        if !behind && body.firm(first, RANGE) != body.done(first, RANGE) {
            return Ok(());
        }
        let path = directory.join(&name.name);
        let file = File::options().read(true).write(true).open(&path).map_err(told("open to map", &path))?;
        let mut mapping = Mapping::new(&file, size * CELL, true).map_err(told("map", &path))?;
        let (change, versions) = body.begin(from..from + len, DATA, None);
        mapping.write(from * CELL, &body.bytes(from, &versions)).map_err(lost(&file, &path, size))?;
        mapping.sync().map_err(told("msync", &path))?;
        if behind {
            file.set_modified(std::time::SystemTime::now()).map_err(told("touch", &path))?;
        }
        drop(mapping);
        drop(file);
        self.run.end(&body, change, behind);
        self.changed(1);
        Ok(())
    }

    pub(super) fn truncate(&mut self, name: &Name, directory: &Path) -> Outcome {
        let _shape = name.shape.write().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let body = name.body();
        let size = body.size().done;
        // Longer more often than not, so that files stay large.
        let len = if self.random.below(3) == 0 {
            self.random.below(CELLS)
        } else {
            size + self.random.below(CELLS + 1 - size)
        };
        let path = directory.join(&name.name);
        let file = File::options().write(true).open(&path).map_err(told("open to truncate", &path))?;
        let (cells, kind) = if len < size { (len..size, ABSENT) } else { (size..len, ZERO) };
        let (change, _) = body.begin(cells, kind, Some(len));
        if !self.errs(Mistake::LostSize) {
            file.set_len((len * CELL) as u64).map_err(told("truncate", &path))?;
        }
        self.run.end(&body, change, directory == self.run.behind);
        self.changed(2);
        Ok(())
    }

    pub(super) fn append(&mut self, name: &Name, directory: &Path) -> Outcome {
        let _shape = name.shape.write().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let body = name.body();
        // Through the mount, where the end was moved a moment ago, who reads meanwhile may see it at the old one.
        let is_moved =
            body.moved.lock().unwrap().is_some_and(|then| self.run.clock.since(then) < self.run.bound);
        if is_moved && directory == self.run.through {
            return Ok(());
        }
        let path = directory.join(&name.name);
        let mut file = File::options().append(true).open(&path).map_err(told("open to append", &path))?;
        for _ in 0..2 {
            let size = body.size().done;
            let len = (1 + self.random.below(32)).min(CELLS - size);
            let (change, versions) = body.begin(size..size + len, DATA, Some(size + len));
            file.write_all(&body.bytes(size, &versions)).map_err(told("append", &path))?;
            self.run.end(&body, change, directory == self.run.behind);
        }
        self.changed(3);
        Ok(())
    }

    pub(super) fn rename_over(&mut self, name: &Name, directory: &Path) -> Outcome {
        let _shape = name.shape.write().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let len = 1 + self.random.below(CELLS);
        let body = Body::new(len);
        let new = directory.join(format!("new-{}", self.number));
        fs::write(&new, body.bytes(0, &vec![1; len])).map_err(told("write", &new))?;
        name.begin(Arc::clone(&body));
        if !self.errs(Mistake::LostName) {
            fs::rename(&new, directory.join(&name.name)).map_err(told("rename", &new))?;
        }
        name.end(directory == self.run.behind, self.run.clock.now());
        self.changed(4);
        Ok(())
    }

    pub(super) fn unlink_and_create(&mut self, name: &Name, directory: &Path) -> Outcome {
        let _shape = name.shape.write().unwrap();
        if !self.is_known(name, directory) {
            return Ok(());
        }
        let body = Body::new(0);
        let path = directory.join(&name.name);
        name.begin(Arc::clone(&body));
        fs::remove_file(&path).map_err(told("unlink", &path))?;
        let mut file = File::create_new(&path).map_err(told("create", &path))?;
        name.end(directory == self.run.behind, self.run.clock.now());
        let (mut size, end) = (0, 1 + self.random.below(CELLS));
        while size < end {
            let len = (1 + self.random.below(200)).min(end - size);
            let (change, versions) = body.begin(size..size + len, DATA, Some(size + len));
            file.write_all(&body.bytes(size, &versions)).map_err(told("write", &path))?;
            self.run.end(&body, change, directory == self.run.behind);
            size += len;
        }
        self.changed(5);
        Ok(())
    }
}
