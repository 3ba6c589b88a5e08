//! The kernel's side: io_uring commands, and the memory that queues have in common with the driver.
//!
//! Guarantee: a buffer is read or written here only while its slot is this side's: from the arrival of its request to
//! the commit of its result.

use super::wire::{Command, Info, Request, Slot, io_command, queue};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::slice;

/// Requests that a queue of the driver has room for: descriptions of one queue follow those of another so far apart.
const DRIVER_DEPTH: u64 = 4096;

/// The control device.
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Control {
    /// # Errors
    /// The system gives no ring.
    pub fn new(file: File) -> io::Result<Self> {
        Ok(Self { ring: IoUring::builder().build(1)?, file })
    }

    /// Gives a device a command, and waits until it is carried out. `buffer` is what the command reads, or fills.
    ///
    /// # Errors
    /// The driver's.
    pub fn command(&mut self, number: u32, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        // The buffers of commands have up to 64 bytes.
        #[allow(clippy::cast_possible_truncation)]
        let buffer = (buffer.as_mut_ptr() as u64, buffer.len() as u16);
        let command = Command { device, buffer, data }.bytes();
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), number).cmd(command).build();
        // SAFETY: the file and the buffer are there until the command has ended, which is waited for below.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The kernel may have it still, and would fill a buffer that is gone.
                    eprintln!("ramfold: disk: a command of ublk cannot be waited for: {error}");
                    std::process::abort();
                }
                Ok(_) => {
                    if let Some(done) = self.ring.completion().next() {
                        return result(done.result()).map(drop);
                    }
                }
            }
        }
    }
}

/// A number of the kernel's: an error if it is negative.
fn result(number: i32) -> io::Result<i32> {
    if number < 0 { Err(io::Error::from_raw_os_error(-number)) } else { Ok(number) }
}

/// A run of memory of its own, given back when it is dropped.
#[derive(Debug)]
struct Mapping {
    at: *mut c_void,
    len: usize,
}

// SAFETY: it is memory that nothing else names; who has it may be any thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this alone, and no reference into it outlives this.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

/// What has come of a request: the place of its slot among a thread's, and whether there is one. If not, the slot is to
/// be served no more.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub place: usize,
    pub is_request: bool,
}

/// The slots of a device that one thread serves: the memory of their requests, and a ring that tells of them. All of it
/// is of the thread that made it: the driver knows who serves a slot by the thread that asked for its first request.
pub struct Slots {
    ring: IoUring,
    /// Descriptions of each queue's requests by tag, which the driver writes.
    described: Vec<Mapping>,
    buffers: Mapping,
    most_bytes: usize,
    slots: Vec<Slot>,
    /// Whether they are this side's now.
    ours: Vec<bool>,
    arrived: Vec<Arrival>,
    device: File,
}

impl Slots {
    /// These slots of a device, for requests of up to `most_bytes` bytes. None is asked for yet.
    ///
    /// # Errors
    /// The system gives no ring or no memory.
    pub fn open(device: File, info: &Info, slots: Vec<Slot>, most_bytes: usize) -> io::Result<Self> {
        // There are at most as many as tags of all queues.
        let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let ring = IoUring::builder().setup_cqsize(2 * count).build(count)?;
        let described = |queue| descriptions(&device, queue, info.depth);
        let described = (0..info.queues).map(described).collect::<io::Result<_>>()?;
        // In memory from the start: a request that makes room must not wait for room.
        let len = slots.len() * most_bytes;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        let buffers = Mapping { at, len };
        let (ours, arrived) = (vec![true; slots.len()], Vec::with_capacity(slots.len()));
        Ok(Self { ring, described, buffers, most_bytes, slots, ours, arrived, device })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Asks for requests, for all slots.
    ///
    /// # Errors
    /// The ring's.
    pub fn fetch_all(&mut self) -> io::Result<()> {
        for place in 0..self.slots.len() {
            self.push(queue::FETCH, place, 0)?;
        }
        self.ring.submit()?;
        // Nothing comes before the device is started, but that the driver wants none of it.
        self.ring.completion().next().map_or(Ok(()), |done| result(done.result()).map(drop))
    }

    /// Tells what came of the request in this slot, in bytes or as a negative error number, and asks for the next. It
    /// goes out with the next wait.
    ///
    /// # Errors
    /// The ring's.
    pub fn commit(&mut self, place: usize, result: i32) -> io::Result<()> {
        self.push(queue::COMMIT_AND_FETCH, place, result)
    }

    fn push(&mut self, command: u32, place: usize, result: i32) -> io::Result<()> {
        assert!(std::mem::take(&mut self.ours[place]), "a slot is given up once");
        let address = self.buffer_of(place) as u64;
        let words = io_command(self.slots[place], result, address);
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), command).cmd(words).build();
        // SAFETY: file and buffer are there for as long as the ring is: fields are dropped in order.
        unsafe { self.ring.submission().push(&entry.user_data(place as u64)) }.map_err(io::Error::other)
    }

    fn buffer_of(&self, place: usize) -> *mut u8 {
        // The sum lies within the mapping.
        self.buffers.at.cast::<u8>().wrapping_add(place * self.most_bytes)
    }

    /// Sends what was committed, and waits until something has come. Their slots are this side's from now on.
    ///
    /// # Errors
    /// The ring's.
    pub fn wait(&mut self) -> io::Result<&[Arrival]> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.arrived.clear();
        for done in self.ring.completion() {
            let place = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
            if let Some(ours) = self.ours.get_mut(place) {
                *ours = true;
                self.arrived.push(Arrival { place, is_request: done.result() == 0 });
            }
        }
        Ok(&self.arrived)
    }

    /// The request in this slot, and the memory of its data. None if it has more than there is room for.
    pub fn request(&mut self, place: usize) -> (Request, Option<&mut [u8]>) {
        assert!(self.ours[place], "the request has arrived");
        let Slot { queue, tag } = self.slots[place];
        let described = &self.described[usize::from(queue)];
        let at = described.at.cast::<[u8; Request::SIZE]>().wrapping_add(tag.into());
        // SAFETY: the driver has written it before it told of it, and does not change it until the commit.
        let request = Request::parse(&unsafe { at.read_volatile() });
        let len = usize::try_from(request.len).ok().filter(|len| *len <= self.most_bytes);
        let buffer = self.buffer_of(place);
        // SAFETY: it lies in the mapping, which is of zeros first; the driver leaves it alone until the commit, which
        // takes these slots anew.
        (request, len.map(|len| unsafe { slice::from_raw_parts_mut(buffer, len) }))
    }
}

/// What the driver writes of the requests of a queue.
fn descriptions(device: &File, queue: u16, depth: u16) -> io::Result<Mapping> {
    let len = (usize::from(depth) * Request::SIZE).next_multiple_of(4096);
    let from = u64::from(queue) * DRIVER_DEPTH * Request::SIZE as u64;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at =
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, device.as_fd(), from) }?;
    Ok(Mapping { at, len })
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("slots", &self.slots).finish_non_exhaustive()
    }
}
