//! The words of ublk: commands of the control device and of the queues, and what they carry.
//!
//! All of it is in this machine's own byte order. Source: `include/uapi/linux/ublk_cmd.h` of Linux, with the command
//! numbers that 6.4 brought (`UBLK_F_CMD_IOCTL_ENCODE`).

/// Bytes of a sector, the unit of ranges.
pub const SECTOR: u64 = 512;
/// The page of the disk, as a power of two: the least that the kernel asks for.
const PAGE_SHIFT: u8 = 12;
/// Bytes that one request discards or zeroes at most.
const MOST_DISCARDED: u64 = 1 << 30;

/// `_IOR('u', number, bytes)`, of which the driver fills something.
const fn out(number: u32, bytes: u32) -> u32 {
    2 << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

/// `_IOWR('u', number, bytes)`.
const fn both_ways(number: u32, bytes: u32) -> u32 {
    1 << 30 | out(number, bytes)
}

/// Commands of the control device.
pub mod control {
    use super::{both_ways, out};

    /// `struct ublksrv_ctrl_cmd`.
    const BYTES: u32 = 32;

    pub const GET_DEV_INFO: u32 = out(2, BYTES);
    pub const ADD_DEV: u32 = of(4);
    pub const DEL_DEV: u32 = of(5);
    pub const START_DEV: u32 = of(6);
    pub const STOP_DEV: u32 = of(7);
    pub const SET_PARAMS: u32 = of(8);

    const fn of(number: u32) -> u32 {
        both_ways(number, BYTES)
    }
}

/// Commands of a queue.
pub mod queue {
    use super::both_ways;

    pub const FETCH: u32 = both_ways(0x20, 16);
    pub const COMMIT_AND_FETCH: u32 = both_ways(0x21, 16);
}

/// What a request wants.
pub mod operation {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;
}

/// A request's flag: it ends when what it wrote is as durable as after a flush.
pub const FUA: u32 = 1 << 13;

/// A device without a server: it was stopped, or its server has ended.
pub const DEAD: u16 = 0;

/// A command of the control device.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    pub device: u32,
    /// Address and bytes of what it reads or fills.
    pub buffer: (u64, u16),
    pub data: u64,
}

impl Command {
    /// It is for no queue.
    const NO_QUEUE: u16 = u16::MAX;

    /// As it lies in an entry of the ring.
    pub fn bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        let (address, len) = self.buffer;
        put(&mut bytes, 0, &self.device.to_ne_bytes());
        put(&mut bytes, 4, &Self::NO_QUEUE.to_ne_bytes());
        put(&mut bytes, 6, &len.to_ne_bytes());
        put(&mut bytes, 8, &address.to_ne_bytes());
        put(&mut bytes, 16, &self.data.to_ne_bytes());
        bytes
    }
}

/// What a device is: `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    /// Bytes of a request at most.
    pub most_bytes: u32,
    pub device: u32,
    /// What is asked for, and, from the driver, what it does.
    pub flags: u64,
}

impl Info {
    /// Bytes of it.
    pub const SIZE: usize = 64;
    /// As a number: the kernel chooses.
    pub const ANY: u32 = u32::MAX;
    /// A flag: commands have the numbers that tell direction and size.
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// A flag of the driver's (Linux 6.16): it knows who serves each slot of a queue, not only each queue.
    pub const PER_IO_DAEMON: u64 = 1 << 13;

    pub fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 4, &self.state.to_ne_bytes());
        put(&mut bytes, 8, &self.most_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.device.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; Self::SIZE]) -> Self {
        Self {
            queues: u16::from_ne_bytes(take(bytes, 0)),
            depth: u16::from_ne_bytes(take(bytes, 2)),
            state: u16::from_ne_bytes(take(bytes, 4)),
            most_bytes: u32::from_ne_bytes(take(bytes, 8)),
            device: u32::from_ne_bytes(take(bytes, 12)),
            flags: u64::from_ne_bytes(take(bytes, 24)),
        }
    }
}

/// What the disk of a device is like: `struct ublk_params`, its first two parts.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a request at most.
    pub most_bytes: u32,
}

impl Params {
    /// Bytes of it.
    pub const SIZE: usize = 60;
    const BASIC_AND_DISCARD: u32 = 1 | 2;
    const VOLATILE_CACHE: u32 = 1 << 2;
    const KNOWS_FUA: u32 = 1 << 3;

    pub fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        // Each is far below 2^32.
        #[allow(clippy::cast_possible_truncation)]
        let (own, discarded) = (Self::SIZE as u32, (MOST_DISCARDED / SECTOR) as u32);
        let most_sectors = self.most_bytes / 512;
        put(&mut bytes, 0, &own.to_ne_bytes());
        put(&mut bytes, 4, &Self::BASIC_AND_DISCARD.to_ne_bytes());
        put(&mut bytes, 8, &(Self::VOLATILE_CACHE | Self::KNOWS_FUA).to_ne_bytes());
        // Logical, physical, optimal and least: a page each.
        put(&mut bytes, 12, &[PAGE_SHIFT; 4]);
        put(&mut bytes, 16, &most_sectors.to_ne_bytes());
        put(&mut bytes, 24, &(self.size / SECTOR).to_ne_bytes());
        let page = 1_u32 << PAGE_SHIFT;
        put(&mut bytes, 40, &page.to_ne_bytes());
        put(&mut bytes, 44, &page.to_ne_bytes());
        put(&mut bytes, 48, &discarded.to_ne_bytes());
        put(&mut bytes, 52, &discarded.to_ne_bytes());
        put(&mut bytes, 56, &1_u16.to_ne_bytes());
        bytes
    }
}

/// A request that the kernel has for a queue: `struct ublksrv_io_desc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub operation: u8,
    pub flags: u32,
    /// Bytes, at most 2^41.
    pub len: u64,
    /// Byte that it begins at. None: none that a number can tell.
    pub offset: Option<u64>,
}

impl Request {
    /// Bytes of it.
    pub const SIZE: usize = 24;

    pub fn parse(bytes: &[u8; Self::SIZE]) -> Self {
        let [operation, ..] = take::<4>(bytes, 0);
        let flags = u32::from_ne_bytes(take(bytes, 0)) & !0xff;
        let len = u64::from(u32::from_ne_bytes(take(bytes, 4))) * SECTOR;
        let start = u64::from_ne_bytes(take(bytes, 8));
        let operation = if cfg!(target_endian = "little") { operation } else { take::<4>(bytes, 0)[3] };
        Self { operation, flags, len, offset: start.checked_mul(SECTOR) }
    }
}

/// Room for one request of a device: a tag of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub queue: u16,
    pub tag: u16,
}

/// A command of a queue: `struct ublksrv_io_cmd`. `result` is of the request that had this slot, bytes or a negative
/// error number; the next one has its data at `address`.
pub fn io_command(slot: Slot, result: i32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 0, &slot.queue.to_ne_bytes());
    put(&mut bytes, 2, &slot.tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    bytes
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has this length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_numbers() {
        // What <linux/ublk_cmd.h> of 6.12 makes of its macros.
        assert_eq!([control::GET_DEV_INFO, control::ADD_DEV], [0x8020_7502, 0xc020_7504]);
        assert_eq!([control::START_DEV, control::SET_PARAMS], [0xc020_7506, 0xc020_7508]);
        assert_eq!([queue::FETCH, queue::COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
    }

    #[test]
    fn information_comes_back() {
        let flags = Info::IOCTL_ENCODE | Info::PER_IO_DAEMON;
        let info = Info { queues: 2, depth: 64, state: 1, most_bytes: 128 << 10, device: 7, flags };
        assert_eq!(Info::parse(&info.bytes()), info);
    }

    #[test]
    fn a_request_is_read() {
        let mut bytes = [0; Request::SIZE];
        put(&mut bytes, 0, &(u32::from(operation::WRITE) | FUA).to_ne_bytes());
        put(&mut bytes, 4, &8_u32.to_ne_bytes());
        put(&mut bytes, 8, &16_u64.to_ne_bytes());
        let request = Request::parse(&bytes);
        assert_eq!((request.operation, request.flags), (operation::WRITE, FUA));
        assert_eq!((request.len, request.offset), (4096, Some(8192)));
        put(&mut bytes, 8, &u64::MAX.to_ne_bytes());
        assert_eq!(Request::parse(&bytes).offset, None);
    }
}
