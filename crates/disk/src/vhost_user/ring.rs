//! A ring: one queue of a guest's requests, and the thread that serves it.
//!
//! The thread sleeps until the guest kicks (or the ring's own bell rings), carries out all requests that are there in
//! their order, and calls the guest back. While it is awake for more ([`Awake`]) the guest need not kick. It holds the
//! state's lock for [`BATCH`] requests at most. So who has the lock finds no request under way, and who has joined the
//! thread knows that none will be.
//!
//! Guarantee: requests end in the order in which they came, so the ring's index of what was used tells all that was
//! done: after a disconnection the front end can go on from there. A ring whose indices cannot be is served no more.

use super::Memory;
use super::request::Hands;
use crate::awake::{self, Awake, Patience};
use crate::face::Disk;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};

/// Requests carried out in a row with the lock held.
const BATCH: usize = 32;
/// Entries that a ring has at most.
pub const MOST_ENTRIES: u16 = 1024;

/// What the front end has set.
pub struct State {
    pub queue: Queue,
    pub memory: Arc<Memory>,
    pub is_enabled: bool,
    call: Option<File>,
}

struct Shared<D> {
    disk: Arc<D>,
    id: String,
    state: Mutex<State>,
    /// Rings when the thread should look again.
    bell: OwnedFd,
    is_ending: AtomicBool,
}

/// A ring. Its thread ends when it is dropped.
pub struct Ring<D> {
    shared: Arc<Shared<D>>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Disk + 'static> Ring<D> {
    /// A ring that nobody serves.
    pub fn new(disk: &Arc<D>, id: &str) -> io::Result<Self> {
        let queue = Queue::new(MOST_ENTRIES).map_err(io::Error::other)?;
        let state = State { queue, memory: Arc::default(), is_enabled: false, call: None };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (disk, id, state) = (Arc::clone(disk), id.to_owned(), Mutex::new(state));
        let shared = Shared { disk, id, state, bell, is_ending: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared), thread: None })
    }

    /// What is set; while the guard is held no request is under way.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Serves the ring from now on, whenever `kick` tells of requests.
    pub fn start(&mut self, kick: File) -> io::Result<()> {
        self.stop();
        never_waits(&kick)?;
        let mut state = self.state();
        let State { queue, memory, .. } = &mut *state;
        queue.set_ready(true);
        if !queue.is_valid(&**memory) {
            queue.set_ready(false);
            return Err(io::ErrorKind::InvalidInput.into());
        }
        drop(state);
        self.shared.is_ending.store(false, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("ramfold-ring".to_owned());
        self.thread = Some(thread.spawn(move || shared.serve(&kick))?);
        // What came before the kick was there to be heard.
        self.look();
        Ok(())
    }

    /// Serves it no more. When this returns no request is under way.
    pub fn stop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.look();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.state().queue.set_ready(false);
    }

    /// Has the thread look at the ring.
    pub fn look(&self) {
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }

    /// Where the guest is told that requests have ended.
    pub fn set_call(&self, call: Option<File>) -> io::Result<()> {
        call.as_ref().map_or(Ok(()), never_waits)?;
        self.state().call = call;
        Ok(())
    }
}

impl<D> Drop for Ring<D> {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Keeps reads and writes from waiting: the other end may never answer.
fn never_waits(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?)
}

impl<D> Shared<D> {
    /// Each request ends before the lock is let go, so a panic has spoilt none but its own.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Disk> Shared<D> {
    /// The thread.
    fn serve(&self, kick: &File) {
        let mut hands = Hands::new(&*self.disk, &self.id);
        let mut awake = Awake::new(awake::RING);
        while awake.wait(|patience| self.listen(kick, patience)).is_ok() && !self.is_ending() {
            while !self.is_ending() {
                match self.batch(&mut hands) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => return,
                }
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Some when there may be something to do.
    fn listen(&self, kick: &File, patience: Patience) -> io::Result<Option<()>> {
        let is_asleep = patience == Patience::Endless;
        if self.is_ending() || self.has_more(is_asleep).map_err(io::Error::other)? {
            return Ok(Some(()));
        }
        if !is_asleep {
            return Ok(None);
        }
        self.wait(kick).map(Some)
    }

    /// Whether there are requests. Who `asks` for it, and finds none, is kicked with the next.
    fn has_more(&self, asks: bool) -> Result<bool, Error> {
        let mut state = self.state();
        let State { queue, memory, is_enabled, .. } = &mut *state;
        if !*is_enabled || !queue.ready() {
            return Ok(false);
        }
        let memory = &**memory;
        if asks {
            return queue.enable_notification(memory);
        }
        Ok(queue.avail_idx(memory, Ordering::Acquire)?.0 != queue.next_avail())
    }

    /// Returns when there may be something to do. A kick whose other end is gone is an error.
    fn wait(&self, kick: &File) -> io::Result<()> {
        let mut both =
            [PollFd::new(kick, PollFlags::IN), PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut both, None))?;
        for heard in both.iter().filter(|it| !it.revents().is_empty()) {
            let mut count = [0; 8];
            match rustix::io::read(heard, &mut count) {
                Ok(1..) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Carries out some requests, and calls the guest. Whether there are more; an error: the ring is none.
    fn batch(&self, hands: &mut Hands<'_, D>) -> Result<bool, Error> {
        let mut state = self.state();
        let State { queue, memory, is_enabled, call } = &mut *state;
        if !*is_enabled || !queue.ready() {
            return Ok(false);
        }
        let memory = &**memory;
        queue.disable_notification(memory)?;
        let mut done = 0;
        while done < BATCH {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            let head = chain.head_index();
            let written = hands.carry_out(memory, chain);
            queue.add_used(memory, head, written)?;
            done += 1;
        }
        if let Some(call) = call.as_ref().filter(|_| done > 0)
            && queue.needs_notification(memory)?
        {
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
        Ok(done == BATCH)
    }
}
