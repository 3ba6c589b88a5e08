//! What the store refuses goes back into the program, and so does what is touched on its way out.
//!
//! The thread that reads messages puts it there, whoever evicted it. The kernel drops what the program wants dropped
//! as soon as the message has been read ([`crate::changes`]); a page put there after that would have contents that the
//! program has given up. Only the reader knows all that was read. And what was not read yet makes the kernel refuse
//! (EAGAIN). So an evictor asks, rings, and waits with the group locked; the reader answers wherever it reads messages,
//! also while it waits for that lock.
//!
//! Price: the reader is woken once for each stretch of which pages are refused. Guarantee: a page that was dropped
//! stays empty, one that was moved comes to where it was moved to, any other is as it was.

use crate::engine::Engine;
use crate::mask::{Mask, bits};
use crate::staging::{Bell, Unstored};
use crate::sys::PAGE;
use crate::uffd::Fault;
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A place that is not mapped any more was unmapped or moved. That is told after it was done: no later than this.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(50);

impl Engine {
    /// Gives Evicting pages back to the program; their group is locked. Those (bits) that are in place; the others are
    /// to be empty.
    pub(crate) fn give_back(&self, unstored: Unstored) -> Mask {
        if unstored.pages == 0 {
            return 0;
        }
        if self.uffd.is_reader() {
            return self.give_back_here(unstored);
        }
        self.staging.ask_for(unstored);
        loop {
            self.staging.ring(Bell::GiveBack);
            self.staging.silence(Bell::GiveBack);
            // It may have been an older ring that was answered.
            if let Some(back) = self.staging.given_back() {
                return back;
            }
        }
    }

    /// Answers an evictor, if one asks. For the reader, with whatever locks, outside of the gate too: the evictor is
    /// inside.
    pub(crate) fn answer_evictor(&self) {
        if let Some(unstored) = self.staging.asked_for() {
            self.staging.answer(self.give_back_here(unstored));
            let bell = self.staging.bell(Bell::GiveBack);
            self.insist(|| self.uffd.zeropage(bell, PAGE).stopped);
        }
    }

    fn give_back_here(&self, Unstored { first, staged, pages }: Unstored) -> Mask {
        let is_back = |bit: &usize| self.put_in_place(first + bit, staged + bit * PAGE);
        bits(pages).filter(is_back).fold(0, |back, bit| back | 1 << bit)
    }

    /// Puts a page from the window to where it was. False if that place is to be empty. For the reader.
    pub(crate) fn put_in_place(&self, page: usize, staged: usize) -> bool {
        debug_assert!(self.uffd.is_reader());
        let addr = self.pages.addr(page);
        let place = addr..addr + PAGE;
        let begun = Instant::now();
        loop {
            if self.inbox.takes(&place) {
                return false;
            }
            if let Some(to) = self.inbox.moves(addr) {
                self.put_where_moved(to, staged);
                return false;
            }
            match self.uffd.copy(addr, staged, PAGE).stopped {
                None => return true,
                Some(Errno::AGAIN) => self.read_on(),
                Some(Errno::NOENT) if self.uffd.tells_changes() && begun.elapsed() < TOLD_WITHIN => {
                    std::thread::sleep(PAUSE);
                    self.read_on();
                }
                // Nothing is mapped there, or the process ends.
                Some(Errno::NOENT) if !self.uffd.tells_changes() => return false,
                Some(Errno::SRCH) => return false,
                Some(errno) => self.lose("it cannot be put back", errno),
            }
        }
    }

    /// Places a page that was moved while it was away. For the reader.
    pub(crate) fn put_where_moved(&self, to: usize, content: usize) {
        match self.insist(|| self.uffd.copy(to, content, PAGE).stopped) {
            // The program has unmapped it since.
            None | Some(Errno::NOENT | Errno::SRCH) => {}
            Some(errno) => self.lose("it cannot be put where it was moved to", errno),
        }
    }

    /// If it is the evictor that waits for a page of the program's, which it was about to make the process's own, the
    /// program has dropped that page meanwhile. The evictor has the group locked: it gets zeros, which nobody keeps.
    /// For the reader.
    pub(crate) fn help_evictor(&self, fault: Fault) {
        if fault.tid == self.evictor_tid.load(Relaxed) && self.pages.range().contains(&fault.addr) {
            let place = fault.addr & !(PAGE - 1);
            self.insist(|| self.uffd.zeropage(place, PAGE).stopped);
            self.uffd.wake(place, PAGE);
        }
    }

    /// Does it until the kernel does not answer that something is changing. For the reader.
    fn insist(&self, put: impl Fn() -> Option<Errno>) -> Option<Errno> {
        loop {
            match put() {
                Some(Errno::AGAIN) => self.read_on(),
                stopped => return stopped,
            }
        }
    }
}
