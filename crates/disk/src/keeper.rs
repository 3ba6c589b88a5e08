//! The keeper: the disk's one thread beside those that serve requests.
//!
//! It writes back when the pool is full, so that writers seldom do; gives the memory of discarded pages back to the
//! system; and compresses pages anew that stay for long, while nothing else is to be done. As a door of a budget the
//! disk has nothing to give but its pool.

use crate::pages::Pages;
use ramfold_budget::door::{Door, Given};
use ramfold_budget::effort::until_low;
use ramfold_budget::recompress::Recompressor;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks, uncalled.
const LOOK: Duration = Duration::from_millis(20);
/// Between two times that the holes of discarded pages are closed.
const CLOSE_HOLES: Duration = Duration::from_millis(250);

/// The keeper's thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    pages: Arc<Pages>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(pages: Arc<Pages>) -> std::io::Result<Self> {
        let kept = Arc::clone(&pages);
        let thread = std::thread::Builder::new().name("ramfold-keeper".to_owned());
        let thread = Some(thread.spawn(move || keep(&kept))?);
        Ok(Self { pages, thread })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.pages.closing.store(true, Relaxed);
        self.pages.member.event().call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Door for Pages {
    fn resident(&self) -> u64 {
        0
    }

    fn candidates(&self) -> usize {
        0
    }

    fn oldest(&self) -> Option<u64> {
        None
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }
}

fn keep(pages: &Pages) {
    let member = &pages.member;
    let mut recompressor = Recompressor::default();
    let (mut closed, mut next) = (0, Instant::now());
    while !pages.is_closing() {
        member.tick(pages);
        pages.counts.note_used(member.store().pool_bytes());
        if member.is_pressed(pages.resident()) {
            until_low(member, pages, Given::default);
        }
        let discarded = pages.discarded.load(Relaxed);
        if discarded != closed && Instant::now() >= next {
            member.store().compact();
            (closed, next) = (discarded, Instant::now() + CLOSE_HOLES);
        }
        let stats = member.store().stats();
        recompressor.work(member, stats.stores + stats.loads, || (), || pages.is_closing());
        member.event().wait(LOOK);
    }
}
