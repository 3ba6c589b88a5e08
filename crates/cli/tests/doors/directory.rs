//! A door over a directory, as a file cache is: pages of files are kept while there is memory for them, and read
//! again after that. What the store refuses is forgotten, and what it drops is no loss.

use crate::open::{Beside, Open};
use crate::run_beside::block;
use ramfold::{Key, PAGE_SIZE, Page, PoolId, PoolKind, Scratch};
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::until_fits;
use ramfold_budget::member::Member;
use ramfold_budget::segment::Counter;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages in one turn.
const BATCH: usize = 16;

/// What a file of so many bytes holds.
pub fn contents(file: u64, len: u64) -> Vec<u8> {
    (0..len / PAGE_SIZE as u64).flat_map(|page| *block(file << 32 | page)).collect()
}

type At = (u64, u64);

struct Pages {
    resident: HashMap<At, Box<Page>>,
    queue: VecDeque<(At, u64)>,
    scratch: Scratch,
}

struct Shared {
    member: Member,
    pool: PoolId,
    files: Vec<File>,
    pages: Mutex<Pages>,
    count: AtomicU64,
    closing: AtomicBool,
}

impl Door for Shared {
    fn resident(&self) -> u64 {
        self.count.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    fn candidates(&self) -> usize {
        usize::try_from(self.count.load(Ordering::Relaxed)).unwrap()
    }

    fn oldest(&self) -> Option<u64> {
        self.pages.lock().unwrap().queue.front().map(|(_, time)| *time)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl Beside for Shared {
    fn member(&self) -> &Member {
        &self.member
    }

    fn give(&self) -> Given {
        let mut pages = self.pages.lock().unwrap();
        let mut given = Given::default();
        while given.pages < BATCH
            && let Some((at, _)) = pages.queue.pop_front()
        {
            let page = pages.resident.remove(&at).unwrap();
            let _ = self.member.store().store(self.key(at), &page, &mut pages.scratch);
            self.count.fetch_sub(1, Ordering::Relaxed);
            given.pages += 1;
        }
        given.looked_at = given.pages;
        self.member.count(Counter::EvictedPages, given.pages as u64);
        given
    }

    fn closing(&self) -> &AtomicBool {
        &self.closing
    }
}

impl Shared {
    fn key(&self, (object, index): At) -> Key {
        Key { pool: self.pool, object, index }
    }

    fn read(&self, at: At) -> Box<Page> {
        // What finds no room is read all the same, and not kept.
        let fits = until_fits(&self.member, self, || self.give());
        let mut pages = self.pages.lock().unwrap();
        if let Some(page) = pages.resident.get(&at) {
            return page.clone();
        }
        let mut page = Box::new([0; PAGE_SIZE]);
        if self.member.store().load(self.key(at), &mut page, &mut pages.scratch).is_err() {
            let file = &self.files[usize::try_from(at.0).unwrap()];
            file.read_exact_at(&mut page[..], at.1 * PAGE_SIZE as u64).unwrap();
        }
        if fits {
            pages.queue.push_back((at, self.member.segment().clock()));
            pages.resident.insert(at, page.clone());
            self.count.fetch_add(1, Ordering::Relaxed);
            self.member.store().invalidate(self.key(at));
            self.member.enter(self.resident());
        }
        page
    }
}

pub struct Directory(Open<Shared>);

impl Directory {
    /// Over a directory whose files are numbers.
    pub fn open(member: Member, path: &Path) -> Self {
        let pool = member.store().create_pool(PoolKind::Ephemeral, None);
        let files = (0..).map_while(|file: u64| File::open(path.join(file.to_string())).ok()).collect();
        let pages =
            Pages { resident: HashMap::new(), queue: VecDeque::new(), scratch: member.store().scratch() };
        let (count, closing) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Open::new(Shared { member, pool, files, pages: Mutex::new(pages), count, closing }))
    }

    pub fn read(&self, file: u64, page: u64) -> Box<Page> {
        self.0.0.read((file, page))
    }

    pub fn held(&self) -> Box<dyn Fn() -> u64 + Send> {
        self.0.held()
    }
}
