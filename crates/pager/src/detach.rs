//! Detaching: cold pages out of the program, into the staging window, in each of the ways there are.
//!
//! UFFDIO_MOVE takes a run of them at once. Where the program has other rights to pages than the window gives, but
//! may write them, the window gets those for as long as the move lasts, and their protection key. Where MOVE is
//! missing: write-protect, copy, drop. Pages that may not be written are copied and dropped with the space locked.
//! What neither moves nor can be copied stays.
//!
//! All of it under the group's lock. Guarantee: a page is Evicting if and only if the window has it.

use crate::engine::Engine;
use crate::face::Prot;
use crate::mask::{Mask, bits, ones, runs};
use crate::pages::{BLOCK_BYTES, Group, State};
use crate::space::Kind;
use crate::sys::{self, PAGE, PageEntry};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;

/// Heat given to a page that could not be evicted, so that it is not tried again at once.
const STUCK: u16 = 12;

/// What kept pages from being moved.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// The program may do other things with them than with the window: not write them, execute them too, or use them
    /// by another protection key.
    pub(crate) unlike: bool,
}

/// Takes the cold pages of a run out of the program, into the window at `staging`; the others of the run are not
/// there. Returns the pages (bits) that lie in the window now; they are Evicting.
pub(crate) fn detach(
    engine: &Engine,
    group: &Group<'_>,
    (first, cold): (usize, Mask),
    run: Range<usize>,
    staging: usize,
    refused: &mut Refused,
) -> Mask {
    let mut detached = 0;
    let (mut at, mut most) = (run.start, run.len());
    let mut unshared = false;
    while at < run.end {
        let count = most.min(run.end - at);
        let progress =
            engine.uffd.move_pages(staging + at * PAGE, engine.pages.addr(first + at), count * PAGE);
        let moved = at..at + progress.bytes / PAGE;
        for bit in moved.clone().filter(|bit| cold >> bit & 1 != 0) {
            group.set(first + bit, State::Evicting);
            detached |= 1 << bit;
        }
        unshared &= moved.is_empty();
        at = moved.end;
        let addr = engine.pages.addr(first + at);
        match progress.stopped {
            None => most *= 2,
            // More than one mapping: each by itself.
            Some(Errno::INVAL) if count > 1 => most = count / 2,
            // What the program is dropping is let alone: the reader, which may be this thread, would have to bring it.
            Some(Errno::BUSY)
                if !unshared
                    && present(engine, addr, 1) != 0
                    && !engine.inbox.takes(&(addr..addr + PAGE))
                    && engine.unshare(group, addr).is_ok() =>
            {
                unshared = true;
            }
            // The program changes its memory past the pager; later.
            Some(Errno::AGAIN) => break,
            Some(errno) => {
                refused.unlike |= errno == Errno::INVAL;
                group.set_heat(first + at, STUCK);
                at += 1;
                unshared = false;
            }
        }
    }
    detached
}

/// The cold pages of a stretch that the program may write, and more than read beside: the window is made like them
/// while they are moved. Returns the pages that lie in the window now.
pub(crate) fn detach_unlike(
    engine: &Engine,
    (first, cold): (usize, Mask),
    count: usize,
    staging: usize,
) -> Mask {
    let space = engine.lock_space();
    let group = engine.lock_group(first);
    let there = cold & really_there(engine, &group, first, count);
    let mut detached = 0;
    for run in runs(there) {
        let start = engine.pages.addr(first + run.start);
        for (part, area) in space.areas_in(&(start..start + run.len() * PAGE)) {
            if area.kind != Kind::Anonymous || !area.prot.writable() {
                continue;
            }
            // A program can have all that it may read be executable as well (personality).
            let unlike = area.prot != Prot::READ_WRITE || area.key != 0;
            let rights = if unlike { area.prot.0 } else { area.prot.0 | libc::PROT_EXEC };
            let from = run.start + (part.start - start) / PAGE;
            let pages = from..from + part.len() / PAGE;
            let window = staging + from * PAGE;
            // Its own memory; refused, nothing is moved.
            if sys::protect_as(window, part.len(), rights, 0, area.key).is_ok() {
                detached |= detach(engine, &group, (first, there), pages, staging, &mut Refused::default());
                let _ = sys::protect_as(window, part.len(), Prot::READ_WRITE.0, area.key, 0);
            }
        }
    }
    detached
}

/// What of a stretch the program may not write now: nobody changes it while the space is locked, so a copy and a
/// discard are as good as a move. Returns the pages that lie in the window now.
pub(crate) fn detach_readonly(engine: &Engine, first: usize, count: usize, staging: usize) -> Mask {
    let space = engine.lock_space();
    let group = engine.lock_group(first);
    let mut detached = 0;
    for bit in bits(really_there(engine, &group, first, count)) {
        let page = first + bit;
        let readonly = space
            .area_at(engine.pages.addr(page))
            .is_some_and(|(_, area)| area.kind == Kind::Anonymous && !area.prot.writable() && !area.stays());
        if readonly && copy_out(engine, page, 1, staging + bit * PAGE) == Ok(1) {
            group.set(page, State::Evicting);
            detached |= 1 << bit;
        }
    }
    detached
}

/// Puts zeros into the window where a page was taken for resident that the program had discarded by a system call of
/// its own. To read such a page would cause a fault. The handler cannot wait for itself. Another evictor would wait for
/// it inside the gate: a closer waits until the evictor leaves, and the handler, which has read the fault, for the
/// closer.
pub(crate) fn fill_holes(engine: &Engine, staging: usize, holes: Mask) {
    for bit in bits(holes) {
        let addr = staging + bit * PAGE;
        engine.put(&(addr..addr + PAGE), || engine.uffd.zeropage(addr, PAGE));
    }
}

/// The resident pages of a stretch. Those that the program has discarded by a system call of its own are noticed:
/// they are None. To read one for a copy would wait for a fault that the group's lock keeps from being resolved.
pub(crate) fn really_there(engine: &Engine, group: &Group<'_>, first: usize, count: usize) -> Mask {
    let resident = |bit: &usize| group.state(first + bit) == State::Resident;
    let taken = (0..count).filter(resident).fold(0, |mask, bit| mask | 1 << bit);
    let there = present(engine, engine.pages.addr(first), count);
    for bit in bits(taken & !there) {
        group.set(first + bit, State::None);
    }
    taken & there
}

/// Without UFFDIO_MOVE: writes to the run wait while it is copied, and find the pages gone. Returns the pages (bits)
/// that lie in the window now.
pub(crate) fn detach_by_copy(
    engine: &Engine,
    group: &Group<'_>,
    first: usize,
    run: Range<usize>,
    staging: usize,
) -> Mask {
    let copy = |bits: Range<usize>| {
        let (page, count) = (first + bits.start, bits.len());
        let protected = engine.uffd.write_protect(engine.pages.addr(page), count * PAGE, true);
        let copied = protected.and_then(|()| copy_out(engine, page, count, staging + bits.start * PAGE));
        copied.unwrap_or(0) << bits.start
    };
    let mut detached = copy(run.clone());
    for bit in run {
        let addr = engine.pages.addr(first + bit);
        // The last of those that had it in common since a fork: it moves when it is this process's own.
        if detached >> bit & 1 == 0
            && engine.in_common(addr, 1) == 0
            && engine.uffd.write_protect(addr, PAGE, false).is_ok()
            && present(engine, addr, 1) != 0
            && engine.unshare(group, addr).is_ok()
        {
            detached |= copy(bit..bit + 1);
        }
        if detached >> bit & 1 != 0 {
            group.set(first + bit, State::Evicting);
        } else {
            group.set_heat(first + bit, STUCK);
            // Not protected in the first place, or unmapped: nobody waits.
            let _ = engine.uffd.write_protect(engine.pages.addr(first + bit), PAGE, false);
        }
    }
    detached
}

/// Copies pages that cannot change now into the window, and drops them. The group is locked. Returns the pages
/// (bits, from `page` on) that were dropped: where one cannot be (it is locked), those before it may be gone already.
fn copy_out(engine: &Engine, page: usize, count: usize, to: usize) -> Result<Mask, Errno> {
    let addr = engine.pages.addr(page);
    // Not straight into the window: its pages are missing, and only the handler could bring them.
    let mut copy = [0u8; BLOCK_BYTES];
    let copy = &mut copy[..count * PAGE];
    let common = engine.in_common(addr, count);
    sys::read_at(engine.memory.as_fd(), addr, copy)?;
    if let Some(errno) = engine.uffd.copy(to, copy.as_ptr().addr(), copy.len()).stopped {
        // The window's own memory: it cannot fail.
        let _ = sys::discard_unseen(to, count * PAGE);
        return Err(errno);
    }
    let dropped = drop_pages(engine, addr, count, to);
    for bit in bits(ones(0..count) & !dropped) {
        let _ = sys::discard_unseen(to + bit * PAGE, PAGE);
    }
    engine.member.usage.divide((dropped & common).count_ones());
    Ok(dropped)
}

/// Drops pages in which nothing changes now; their group is locked, and their copies lie in the window at `to`. Returns
/// those (bits) that were dropped.
///
/// They are moved out of the program's sight first: nobody is told then, and a page that is pinned stays, for
/// somebody may be about to write into it (direct I/O, a buffer registered with io_uring). Who had it pinned until then
/// may have written after it was copied, protected or not: so the window gets what was moved. A page that was in
/// common since a fork stays until it is unshared. Without UFFDIO_MOVE none of this can be told.
fn drop_pages(engine: &Engine, addr: usize, count: usize, to: usize) -> Mask {
    let all = ones(0..count);
    if !engine.uffd.can_move() {
        let done = sys::discard(addr, count * PAGE).is_ok();
        return if done { all } else { all & !present(engine, addr, count) };
    }
    let trash = engine.staging.evictors_trash(engine.uffd.is_reader()).start;
    let (mut dropped, mut at, mut most) = (0, 0, count);
    while at < count {
        let (start, pages) = (addr + at * PAGE, most.min(count - at));
        let progress = engine.uffd.move_pages(trash, start, pages * PAGE);
        let moved = progress.bytes / PAGE;
        if moved > 0 {
            for bit in bits(present(engine, trash, moved)) {
                sys::copy_page(trash + bit * PAGE, to + (at + bit) * PAGE);
            }
            let _ = sys::discard_unseen(trash, moved * PAGE);
            dropped |= ones(at..at + moved);
            at += moved;
            most = moved * 2;
        } else if pages > 1 {
            // More than one mapping, or a page that does not move: less of it.
            most = pages / 2;
        } else {
            let stays = progress.stopped == Some(Errno::BUSY) && engine.in_common(start, 1) == 0;
            dropped |= Mask::from(!stays && drop_told(engine, start)) << at;
            at += 1;
        }
    }
    dropped
}

/// Drops a page that does not move; whether it could.
///
/// One page, and no more: of that the kernel tells once at most. Of several it tells in one message what lies in one
/// mapping, and if another thread cuts that mapping meanwhile (mprotect, mlock), it tells the rest once more
/// (`madvise_dontneed_free` in `mm/madvise.c`): as it would if the program dropped it. While it is open whether the
/// last attempt was told the page stays.
fn drop_told(engine: &Engine, addr: usize) -> bool {
    let page = addr..addr + PAGE;
    !engine.inbox.expects_removal(&page) && engine.inbox.removing(page, || sys::discard(addr, PAGE)).is_ok()
}

/// Which pages of a stretch have contents.
pub(crate) fn present(engine: &Engine, addr: usize, count: usize) -> Mask {
    match engine.those(addr, count, PageEntry::has_contents) {
        Ok(there) => there,
        Err(_) => engine.die("a page was lost: /proc/self/pagemap cannot be read"),
    }
}
