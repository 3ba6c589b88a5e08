//! From plain memory to managed memory.
//!
//! Up to a threshold the range is ordinary memory: the kernel serves first touches, nothing is watched, no thread
//! runs. When the memory handed out passes the threshold, the threads start, the range is registered with a
//! userfaultfd, so that no page can appear unseen from then on, and then the pages that are there already are taken
//! from /proc/self/pagemap.

use crate::engine::Engine;
use crate::pages::{GROUP_PAGES, Pages, State};
use crate::space::{Kind, Space};
use crate::sys;
use ramfold_budget::pagemap;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;

/// Registers all of the range that is not foreign.
pub(crate) fn register(engine: &Engine, space: &Space, range: Range<usize>) -> Result<(), Errno> {
    let mut at = range.start;
    for (part, area) in space.areas_in(&range) {
        if area.kind == Kind::Foreign {
            if at < part.start {
                engine.uffd.register(at, part.start - at)?;
            }
            at = part.end;
        }
    }
    if at < range.end { engine.uffd.register(at, range.end - at) } else { Ok(()) }
}

/// Takes the pages that are present in the anonymous areas of the range as resident.
pub(crate) fn find_resident(engine: &Engine, space: &Space, range: &Range<usize>) -> Result<(), Errno> {
    for (part, area) in space.areas_in(range) {
        if area.kind == Kind::Anonymous {
            // Much of it has never been touched: only where there is something.
            let end = engine.pages.number(part.end - 1) + 1;
            let mut rest = part;
            while let Some(found) = next_with_contents(engine, &rest)
                && let Some(pages) = Pages::by_group(engine.pages.number(found)..end).next()
            {
                rest.start = engine.pages.addr(pages.end);
                find_in_group(engine, pages)?;
            }
        }
    }
    Ok(())
}

fn next_with_contents(engine: &Engine, range: &Range<usize>) -> Option<usize> {
    let range = range.start as u64..range.end as u64;
    let found = pagemap::next_with_contents(engine.pagemap.as_fd(), &range)?;
    usize::try_from(found).ok()
}

fn find_in_group(engine: &Engine, pages: Range<usize>) -> Result<(), Errno> {
    let mut entries = [0u8; GROUP_PAGES * 8];
    // Taken first: what a fault brings in from here on is not taken for a page that was there.
    let group = engine.pages.lock(pages.start);
    let (first, entries) = (engine.pages.addr(pages.start), &mut entries[..pages.len() * 8]);
    for (page, entry) in pages.zip(sys::page_entries(engine.pagemap.as_fd(), first, entries)?) {
        if entry.has_contents() && group.state(page) == State::None {
            engine.set_resident(&group, page);
        }
    }
    Ok(())
}
