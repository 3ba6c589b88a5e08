//! A door over memory, as a RAM disk is: blocks that are kept, in memory or in the store.

use crate::open::{Beside, Open};
use ramfold::{Key, PAGE_SIZE, Page, PoolId, PoolKind, Scratch};
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::until_fits;
use ramfold_budget::member::Member;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Blocks in one turn.
const BATCH: usize = 16;

struct Blocks {
    resident: HashMap<u64, Box<Page>>,
    /// Oldest first, with the budget's clock when each came.
    queue: VecDeque<(u64, u64)>,
    scratch: Scratch,
}

struct Shared {
    member: Member,
    pool: PoolId,
    blocks: Mutex<Blocks>,
    count: AtomicUsize,
    closing: AtomicBool,
}

impl Door for Shared {
    fn resident(&self) -> u64 {
        (self.count.load(Ordering::Relaxed) * PAGE_SIZE) as u64
    }

    fn candidates(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn oldest(&self) -> Option<u64> {
        self.blocks().queue.front().map(|(_, time)| *time)
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
        let mut given = Given::default();
        let mut blocks = self.blocks();
        for _ in 0..BATCH {
            let Some((block, time)) = blocks.queue.pop_front() else { break };
            given.looked_at += 1;
            let page = blocks.resident.remove(&block).unwrap();
            if self.member.store().store(self.key(block), &page, &mut blocks.scratch).is_ok() {
                self.count.fetch_sub(1, Ordering::Relaxed);
                given.pages += 1;
            } else {
                blocks.resident.insert(block, page);
                blocks.queue.push_back((block, time));
                given.refused += 1;
            }
        }
        self.member.count(ramfold_budget::segment::Counter::EvictedPages, given.pages as u64);
        given
    }

    fn closing(&self) -> &AtomicBool {
        &self.closing
    }
}

impl Shared {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap()
    }

    fn key(&self, block: u64) -> Key {
        Key { pool: self.pool, object: 0, index: block }
    }

    fn put(&self, block: u64, page: Box<Page>) {
        assert!(until_fits(&self.member, self, || self.give()), "{}", self.member.out_of_memory());
        let time = self.member.segment().clock();
        let mut blocks = self.blocks();
        if blocks.resident.insert(block, page).is_none() {
            blocks.queue.push_back((block, time));
            self.count.fetch_add(1, Ordering::Relaxed);
            self.member.store().invalidate(self.key(block));
        }
        drop(blocks);
        self.member.enter(self.resident());
    }
}

pub struct Memory(Open<Shared>);

impl Memory {
    pub fn open(member: Member) -> Self {
        let pool = member.store().create_pool(PoolKind::Persistent, None);
        let blocks =
            Blocks { resident: HashMap::new(), queue: VecDeque::new(), scratch: member.store().scratch() };
        let (count, closing) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self(Open::new(Shared { member, pool, blocks: Mutex::new(blocks), count, closing }))
    }

    pub fn write(&self, block: u64, page: &Page) {
        self.0.0.put(block, Box::new(*page));
    }

    pub fn read(&self, block: u64) -> Box<Page> {
        let mut blocks = self.0.0.blocks();
        if let Some(page) = blocks.resident.get(&block) {
            return page.clone();
        }
        let mut page = Box::new([0; PAGE_SIZE]);
        self.0.0.member.store().load(self.0.0.key(block), &mut page, &mut blocks.scratch).unwrap();
        drop(blocks);
        self.0.0.put(block, page.clone());
        page
    }

    pub fn resident(&self) -> u64 {
        self.0.0.resident()
    }

    pub fn held(&self) -> Box<dyn Fn() -> u64 + Send> {
        self.0.held()
    }
}
