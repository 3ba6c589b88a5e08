//! ublk: the disk as a block device of this machine's kernel, /dev/ublkbN, for file systems.
//!
//! The kernel's driver (`ublk_drv`) hands each request to a thread here by a command of io_uring that has waited for
//! it; the command that tells its result waits for the next. The data lies in the thread's own memory. There are as
//! many queues and threads as processors, eight at most. A thread serves some slots of each queue, so that all of them
//! work for one processor that asks for much; before Linux 6.16 a queue has one thread. Read in this order: this file
//! (a device from its beginning to its end), `ring` (how the driver is spoken to), `wire` (its words).
//!
//! Price: two switches a request, and a copy of its data. Guarantee: when [`Device::stop`] returns, no request is under
//! way and the device is gone. A server that is killed leaves the device without a disk, until a server asks for the
//! same number again.

mod ring;
mod wire;

use crate::face::{Disk, DiskError};
use ring::{Control, Slots};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wire::{FUA, Info, Params, Request, Slot, control, operation};

/// Requests that a queue holds at a time.
const DEPTH: u16 = 32;
/// Bytes of a request at most.
const MOST_BYTES: u32 = 128 << 10;
/// Queues at most; else one a processor.
const MOST_QUEUES: usize = 8;
/// How long a device that was added may take to have its file.
const PATIENCE: Duration = Duration::from_secs(5);

/// The flag of open(2) that makes a block device its opener's alone.
const EXCLUSIVELY: i32 = rustix::fs::OFlags::EXCL.bits().cast_signed();

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// the kernel has no ublk driver
    #[error("the kernel has no ublk driver (load it with `modprobe ublk_drv`; Linux 6.4 or later has it)")]
    NoDriver,
    /// only root may add devices
    #[error("only root may add devices (run it as root, or use --unix with nbd-client)")]
    NotPermitted,
    /// the number is taken
    #[error("/dev/ublkb{0} is there already (choose another number)")]
    Taken(u32),
    /// the system refuses it
    #[error("{0} (is io_uring allowed here?)")]
    Io(#[from] io::Error),
}

/// A disk that is a device of this machine, until this is dropped.
#[derive(Debug)]
pub struct Device {
    control: Control,
    number: u32,
    threads: Vec<JoinHandle<()>>,
}

impl Device {
    /// Whether this machine has the driver, and lets this process use it.
    ///
    /// # Errors
    /// [`AddError::NoDriver`], [`AddError::NotPermitted`] or the system's.
    pub fn check() -> Result<(), AddError> {
        open_control().map(drop)
    }

    /// Makes the disk a device, of this number if one is asked for. A device of this number whose server has ended is
    /// taken away first.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add<D: Disk + 'static>(disk: &Arc<D>, number: Option<u32>) -> Result<Self, AddError> {
        let mut control = Control::new(open_control()?)?;
        if let Some(number) = number {
            take_away_dead(&mut control, number);
        }
        let processors = thread::available_parallelism().map_or(1, usize::from).min(MOST_QUEUES);
        let info = Info {
            // There are at most eight.
            queues: u16::try_from(processors).unwrap_or(1),
            depth: DEPTH,
            state: 0,
            most_bytes: MOST_BYTES,
            device: number.unwrap_or(Info::ANY),
            flags: Info::IOCTL_ENCODE,
        };
        let mut bytes = info.bytes();
        let added = control.command(control::ADD_DEV, info.device, 0, &mut bytes);
        added.map_err(|error| match (Errno::from_io_error(&error), number) {
            (Some(Errno::EXIST), Some(number)) => AddError::Taken(number),
            _ => AddError::Io(error),
        })?;
        let info = Info::parse(&bytes);
        let mut device = Self { control, number: info.device, threads: Vec::new() };
        device.start(disk, info)?;
        Ok(device)
    }

    fn start<D: Disk + 'static>(&mut self, disk: &Arc<D>, info: Info) -> io::Result<()> {
        let mut params = Params { size: disk.size(), most_bytes: info.most_bytes.min(MOST_BYTES) }.bytes();
        self.control.command(control::SET_PARAMS, self.number, 0, &mut params)?;
        let (begun, begins) = mpsc::channel();
        // The driver lets it be opened once.
        let queues = open_queues(self.number)?;
        for slots in shares(&info) {
            let (file, begun, disk) = (queues.try_clone()?, begun.clone(), Arc::clone(disk));
            let thread = thread::Builder::new().name("ramfold-ublk".to_owned());
            self.threads.push(thread.spawn(move || {
                let opened = Slots::open(file, &info, slots, MOST_BYTES as usize)
                    .and_then(|mut slots| slots.fetch_all().map(|()| slots));
                match opened {
                    Ok(slots) => {
                        let _ = begun.send(Ok(()));
                        drop(begun);
                        // A ring that fails takes its slots along: the kernel ends the requests with an error.
                        let _ = serve(&*disk, slots);
                    }
                    Err(error) => drop(begun.send(Err(error))),
                }
            })?);
        }
        drop(begun);
        begins.into_iter().collect::<io::Result<()>>()?;
        // The kernel reads the disk for partitions meanwhile.
        self.control.command(control::START_DEV, self.number, std::process::id().into(), &mut [])
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether something on this machine has it for itself: a file system, swap, a volume.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        let exclusively = OpenOptions::new().read(true).custom_flags(EXCLUSIVELY).open(self.path());
        exclusively.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
    }

    /// Takes the device away. What was written to it and lies in the kernel's cache comes first; who has it open gets
    /// errors from now on.
    pub fn stop(self) {}

    fn end(&mut self) {
        // One of a device that could not be started may be about to ask for requests: it is stopped once more then.
        while !self.threads.is_empty() {
            let _ = self.control.command(control::STOP_DEV, self.number, 0, &mut []);
            thread::sleep(Duration::from_millis(1));
            self.threads.retain(|thread| !thread.is_finished());
        }
        let _ = self.control.command(control::DEL_DEV, self.number, 0, &mut []);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

fn open_control() -> Result<File, AddError> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/ublk-control");
    file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => AddError::NoDriver,
        io::ErrorKind::PermissionDenied => AddError::NotPermitted,
        _ => AddError::Io(error),
    })
}

/// The device of the queues: udev may take a moment to make its file.
fn open_queues(number: u32) -> io::Result<File> {
    let (path, begin) = (format!("/dev/ublkc{number}"), Instant::now());
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && begin.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(10));
            }
            opened => return opened,
        }
    }
}

/// A device whose server has ended is there until somebody deletes it.
fn take_away_dead(control: &mut Control, number: u32) {
    let mut bytes = [0; Info::SIZE];
    let found = control.command(control::GET_DEV_INFO, number, 0, &mut bytes);
    if found.is_ok() && Info::parse(&bytes).state == wire::DEAD {
        let _ = control.command(control::DEL_DEV, number, 0, &mut []);
    }
}

/// Which slots each thread serves: those of one queue, or, if the driver can, some of each queue.
fn shares(info: &Info) -> Vec<Vec<Slot>> {
    let is_spread = info.flags & Info::PER_IO_DAEMON != 0;
    let mut shares = vec![Vec::with_capacity(info.depth.into()); info.queues.into()];
    for (queue, tag) in (0..info.queues).flat_map(|queue| (0..info.depth).map(move |tag| (queue, tag))) {
        let thread = if is_spread { (queue + tag) % info.queues } else { queue };
        shares[usize::from(thread)].push(Slot { queue, tag });
    }
    shares
}

/// Serves slots until the device is stopped.
fn serve<D: Disk>(disk: &D, mut slots: Slots) -> io::Result<()> {
    let (mut worker, mut left) = (disk.worker(), slots.len());
    let mut arrived = Vec::with_capacity(left);
    while left > 0 {
        arrived.clear();
        arrived.extend_from_slice(slots.wait()?);
        for arrival in &arrived {
            if arrival.is_request {
                let (request, buffer) = slots.request(arrival.place);
                let done = carry_out(disk, request, buffer, &mut worker);
                slots.commit(arrival.place, done.unwrap_or_else(|error| -error.raw_os_error()))?;
            } else {
                left -= 1;
            }
        }
    }
    Ok(())
}

/// Carries out a request: bytes that were read or written.
fn carry_out<D: Disk>(
    disk: &D,
    request: Request,
    buffer: Option<&mut [u8]>,
    worker: &mut D::Worker,
) -> Result<i32, Errno> {
    let Request { operation, flags, len, offset } = request;
    if operation == operation::FLUSH {
        return disk.flush().map(|()| 0).map_err(errno_of);
    }
    let on_disk = |from: &u64| from.checked_add(len).is_some_and(|end| end <= disk.size());
    let offset = offset.filter(on_disk).ok_or(Errno::IO)?;
    let done = match (operation, buffer) {
        (operation::READ, Some(buffer)) => disk.read(offset, buffer, worker),
        (operation::WRITE, Some(buffer)) => disk.write(offset, buffer, worker),
        (operation::DISCARD, _) => disk.discard(offset, len, worker),
        (operation::WRITE_ZEROES, _) => disk.zero(offset, len, worker),
        _ => return Err(Errno::OPNOTSUPP),
    };
    done.map_err(errno_of)?;
    if flags & FUA != 0 {
        disk.flush().map_err(errno_of)?;
    }
    // A request has at most 128 KiB, or, without data, 1 GiB.
    Ok(i32::try_from(len).unwrap_or(i32::MAX))
}

fn errno_of(error: DiskError) -> Errno {
    match error {
        DiskError::NoSpace => Errno::NOSPC,
        DiskError::Io => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Settings, Volume};

    fn request(operation: u8, offset: Option<u64>, len: u64) -> Request {
        Request { operation, flags: FUA, len, offset }
    }

    #[test]
    fn each_slot_is_served_by_one_thread() {
        for (queues, depth) in [(1, 32), (2, 32), (3, 32), (8, 32)] {
            let info = |flags| Info { queues, depth, state: 0, most_bytes: MOST_BYTES, device: 0, flags };
            for flags in [0, Info::PER_IO_DAEMON] {
                let shares = shares(&info(flags));
                assert_eq!(shares.len(), usize::from(queues));
                let mut all = shares.concat();
                all.sort_unstable();
                let wanted: Vec<Slot> =
                    (0..queues).flat_map(|queue| (0..depth).map(move |tag| Slot { queue, tag })).collect();
                assert_eq!(all, wanted);
                let of_queue =
                    |share: &[Slot], queue| share.iter().filter(|slot| slot.queue == queue).count();
                for (thread, share) in (0..).zip(&shares) {
                    for queue in 0..queues {
                        let count = of_queue(share, queue);
                        let least = usize::from(if flags == 0 { 0 } else { depth / queues });
                        assert!(count >= least, "thread {thread} serves {count} of queue {queue}");
                        assert!(flags != 0 || count == 0 || queue == thread);
                    }
                }
            }
        }
    }

    #[test]
    fn requests_are_carried_out() {
        let settings =
            Settings { size: 1 << 20, mem_limit: None, store: ramfold::Config::default(), backing: None };
        let disk = Volume::open(settings).expect("there is a disk");
        let mut worker = disk.worker();
        let mut ask = |request, buffer: Option<&mut [u8]>| carry_out(&disk, request, buffer, &mut worker);
        let (mut written, mut read) = ([7; 8192], [0; 8192]);
        assert_eq!(ask(request(operation::WRITE, Some(4096), 8192), Some(&mut written)), Ok(8192));
        assert_eq!(ask(request(operation::DISCARD, Some(4096), 4096), None), Ok(4096));
        assert_eq!(ask(request(operation::READ, Some(4096), 8192), Some(&mut read)), Ok(8192));
        assert_eq!((&read[..4096], &read[4096..]), (&[0; 4096][..], &[7; 4096][..]));
        assert_eq!(ask(request(operation::WRITE_ZEROES, Some(0), 1 << 20), None), Ok(1 << 20));
        assert_eq!(ask(request(operation::READ, Some(8192), 4096), Some(&mut read[..4096])), Ok(4096));
        assert_eq!(read[..4096], [0; 4096]);
        assert_eq!(ask(request(operation::FLUSH, None, 0), None), Ok(0));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let settings =
            Settings { size: 1 << 20, mem_limit: None, store: ramfold::Config::default(), backing: None };
        let disk = Volume::open(settings).expect("there is a disk");
        let mut worker = disk.worker();
        let mut ask =
            |operation, offset, len| carry_out(&disk, request(operation, offset, len), None, &mut worker);
        assert_eq!(ask(operation::DISCARD, Some(1 << 20), 4096), Err(Errno::IO));
        assert_eq!(ask(operation::DISCARD, Some(u64::MAX - 511), 4096), Err(Errno::IO));
        assert_eq!(ask(operation::WRITE_ZEROES, None, 4096), Err(Errno::IO));
        // Of more data than there is a buffer for.
        assert_eq!(ask(operation::WRITE, Some(0), 4096), Err(Errno::OPNOTSUPP));
        assert_eq!(ask(15, Some(0), 4096), Err(Errno::OPNOTSUPP));
    }
}
