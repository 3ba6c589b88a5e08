//! What a power cut leaves of files: all that was synced, and any of the sectors that were written since.

use super::{Call, PAGE, PAGES, Versions, page, random::random, volume};
use ramfold::PAGE_SIZE;
use ramfold_disk::face::Disk;
use ramfold_disk::image::Image;
use ramfold_disk::volume::Volume;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SECTOR: usize = 512;

/// A file on a disk with a cache: what is there for sure, and what each sector may have been since.
#[derive(Debug, Clone, Default)]
struct Platter {
    synced: Vec<u8>,
    /// Pieces of a sector at most.
    written: Vec<Piece>,
}

#[derive(Debug, Clone)]
struct Piece {
    at: usize,
    bytes: Vec<u8>,
    /// No sync writes it any more.
    is_lost: bool,
}

impl Platter {
    /// The bytes after a power cut; `chance` decides of each sector of each write.
    fn cut(&self, chance: &mut dyn FnMut() -> bool) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        self.written.iter().filter(|_| chance()).for_each(|piece| piece.apply(&mut bytes));
        bytes
    }

    fn write(&mut self, mut at: usize, mut data: &[u8]) {
        while !data.is_empty() {
            let (here, rest) = data.split_at(data.len().min((at / SECTOR + 1) * SECTOR - at));
            self.written.push(Piece { at, bytes: here.to_vec(), is_lost: false });
            (at, data) = (at + here.len(), rest);
        }
    }

    /// What was lost by a sync that failed may be there or not, until it is written anew and synced.
    fn sync(&mut self) {
        let mut anew = BTreeMap::new();
        for (number, piece) in self.written.iter().enumerate().filter(|(_, piece)| !piece.is_lost) {
            piece.apply(&mut self.synced);
            anew.insert(piece.at / SECTOR, number);
        }
        let mut number = 0;
        self.written.retain(|piece| {
            number += 1;
            piece.is_lost && anew.get(&(piece.at / SECTOR)).is_none_or(|anew| *anew < number - 1)
        });
    }
}

impl Piece {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let end = self.at + self.bytes.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[self.at..end].copy_from_slice(&self.bytes);
    }
}

/// What the calls so far have left.
#[derive(Debug, Clone, Default)]
struct World {
    files: BTreeMap<u64, Platter>,
    name: u64,
    /// Where it may lead instead, until the directory is synced.
    names: Vec<u64>,
    flushed: Versions,
    /// Versions of each page that were written since.
    since: BTreeMap<u64, Vec<u64>>,
}

impl World {
    fn step(&mut self, call: &Call) {
        match call {
            Call::Write { file, at, bytes } => {
                self.files.entry(*file).or_default().write(*at, bytes);
            }
            Call::Sync(file) => self.files.entry(*file).or_default().sync(),
            Call::Doubt(file) => {
                let platter = self.files.entry(*file).or_default();
                platter.written.iter_mut().for_each(|piece| piece.is_lost = true);
            }
            Call::Rename(file) => self.names.push(*file),
            Call::SyncDirectory => {
                self.name = self.names.pop().unwrap_or(self.name);
                self.names.clear();
            }
            Call::Flushed(versions) => {
                self.flushed.clone_from(versions);
                self.since.clear();
            }
            Call::Wrote(page, version) => self.since.entry(*page).or_default().push(*version),
        }
    }

    /// Cuts the power, starts again, and looks at each page. `chance`: which sectors are there.
    fn check(&self, directory: &Path, disk: &Volume, what: &str, chance: &mut dyn FnMut() -> bool) {
        for name in self.names.iter().chain([&self.name]) {
            let path = directory.join("after");
            fs::write(&path, self.files[name].cut(chance)).unwrap();
            let image = Image::open(&path, PAGES * PAGE, false);
            let mut image = image.unwrap_or_else(|error| panic!("{what}: {error}"));
            disk.discard(0, PAGES * PAGE, &mut disk.worker()).unwrap();
            image.restore(disk, |_, _| ()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut found = vec![0; PAGE_SIZE];
            for number in 0..PAGES {
                disk.read(number * PAGE, &mut found, &mut disk.worker()).unwrap();
                let flushed = self.flushed.get(&number).copied().unwrap_or(0);
                let since = self.since.get(&number).map_or(&[][..], |since| since);
                let mut may = since.iter().chain([&flushed]);
                assert!(
                    may.any(|version| page(number, *version) == found),
                    "{what}: page {number} is none of {flushed}, {since:?}"
                );
            }
        }
    }
}

/// Cuts the power after each call. Gives how many cuts there were.
pub fn cut_everywhere(directory: &Path, calls: &[Call], tries: u64, what: &str) -> usize {
    let disk = volume();
    let (mut world, mut cuts, mut state) = (World::default(), 0, 0x1234_5678_9abc_def1);
    for (number, call) in calls.iter().enumerate() {
        world.step(call);
        if world.flushed.is_empty() || matches!(call, Call::Wrote(..)) && number % 32 != 0 {
            continue;
        }
        let what = format!("{what}, call {number}");
        world.check(directory, &disk, &what, &mut || true);
        world.check(directory, &disk, &what, &mut || false);
        let open: usize = world.files.values().map(|file| file.written.len()).sum();
        for _ in 0..if open > 0 { tries } else { 0 } {
            let most = random(&mut state) % 8;
            world.check(directory, &disk, &what, &mut || random(&mut state) % 8 < most);
            cuts += 1;
        }
        cuts += 2;
    }
    cuts
}
