//! The kernel's side: io_uring commands, and the memory that a queue has in common with the driver.
//!
//! Guarantee: a buffer is read or written here only while its tag is this side's: from the arrival of its request to
//! the commit of its result.

use super::wire::{Command, Request, io_command, queue};
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

/// What has come of a request: its tag, and whether there is one. If not, the queue is to end.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub tag: u16,
    pub is_request: bool,
}

/// A queue of a device: the memory of its requests, and a ring that tells of them. All of it is of the thread that made
/// it: the driver knows a queue's server by its thread.
pub struct Queue {
    ring: IoUring,
    /// Descriptions of requests by tag, which the driver writes.
    described: Mapping,
    buffers: Mapping,
    most_bytes: usize,
    number: u16,
    depth: u16,
    /// Tags that are this side's now.
    ours: Vec<bool>,
    arrived: Vec<Arrival>,
    device: File,
}

impl Queue {
    /// Queue `number` of a device, for `depth` requests of up to `most_bytes` bytes. None is asked for yet.
    ///
    /// # Errors
    /// The system gives no ring or no memory.
    pub fn open(device: File, number: u16, depth: u16, most_bytes: usize) -> io::Result<Self> {
        let ring = IoUring::builder().setup_cqsize(2 * u32::from(depth)).build(depth.into())?;
        let len = (usize::from(depth) * Request::SIZE).next_multiple_of(4096);
        let from = u64::from(number) * DRIVER_DEPTH * Request::SIZE as u64;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, device.as_fd(), from)
        }?;
        let described = Mapping { at, len };
        // In memory from the start: a request that makes room must not wait for room.
        let len = usize::from(depth) * most_bytes;
        // SAFETY: as above.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        let buffers = Mapping { at, len };
        let (ours, arrived) = (vec![true; depth.into()], Vec::with_capacity(depth.into()));
        Ok(Self { ring, described, buffers, most_bytes, number, depth, ours, arrived, device })
    }

    /// Asks for requests, for all tags.
    ///
    /// # Errors
    /// The ring's.
    pub fn fetch_all(&mut self) -> io::Result<()> {
        for tag in 0..self.depth {
            self.push(queue::FETCH, tag, 0)?;
        }
        self.ring.submit()?;
        // Nothing comes before the device is started, but that the driver wants none of it.
        self.ring.completion().next().map_or(Ok(()), |done| result(done.result()).map(drop))
    }

    /// Tells what came of the request with this tag, in bytes or as a negative error number, and asks for the next. It
    /// goes out with the next wait.
    ///
    /// # Errors
    /// The ring's.
    pub fn commit(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.push(queue::COMMIT_AND_FETCH, tag, result)
    }

    fn push(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        assert!(std::mem::take(&mut self.ours[usize::from(tag)]), "a tag is given up once");
        let address = self.buffer_of(tag) as u64;
        let words = io_command(self.number, tag, result, address);
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), command).cmd(words).build();
        // SAFETY: file and buffer are there for as long as the ring is: fields are dropped in order.
        unsafe { self.ring.submission().push(&entry.user_data(tag.into())) }.map_err(io::Error::other)
    }

    fn buffer_of(&self, tag: u16) -> *mut u8 {
        // The sum lies within the mapping.
        self.buffers.at.cast::<u8>().wrapping_add(usize::from(tag) * self.most_bytes)
    }

    /// Sends what was committed, and waits until something has come. Their tags are this side's from now on.
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
            let tag = u16::try_from(done.user_data()).unwrap_or(u16::MAX);
            if tag < self.depth {
                self.ours[usize::from(tag)] = true;
                self.arrived.push(Arrival { tag, is_request: done.result() == 0 });
            }
        }
        Ok(&self.arrived)
    }

    /// The request with this tag, and the memory of its data. None if it has more than there is room for.
    pub fn request(&mut self, tag: u16) -> (Request, Option<&mut [u8]>) {
        assert!(self.ours[usize::from(tag)], "the request has arrived");
        let at = self.described.at.cast::<[u8; Request::SIZE]>().wrapping_add(tag.into());
        // SAFETY: the driver has written it before it told of it, and does not change it until the commit.
        let request = Request::parse(&unsafe { at.read_volatile() });
        let len = usize::try_from(request.len).ok().filter(|len| *len <= self.most_bytes);
        let buffer = self.buffer_of(tag);
        // SAFETY: it lies in the mapping, which is of zeros first; the driver leaves it alone until the commit, which
        // takes this queue anew.
        (request, len.map(|len| unsafe { slice::from_raw_parts_mut(buffer, len) }))
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("number", &self.number).finish_non_exhaustive()
    }
}
