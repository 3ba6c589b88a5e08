//! The device as the front end sees it: what it can do, the guest's memory, and which rings there are.
//!
//! Each message is checked here as far as the crate vhost has not: numbers of rings, sizes, addresses that must lie in
//! the memory that was handed over. One that cannot be is answered by an error, which ends the connection. A ring
//! starts with its kick, and stops when the front end asks how far it came.

use super::Memory;
use super::request::{MOST_BYTES, MOST_RANGE, MOST_RANGES, SECTOR};
use super::ring::{MOST_ENTRIES, Ring};
use crate::face::Disk;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use virtio_queue::QueueT;
use vm_memory::{GuestAddress, GuestMemoryRegion, GuestRegionMmap};

/// Rings that a front end may ask for: it wants one for each processor of its guest.
const MOST_RINGS: usize = 64;
/// Pieces of a read or write; a ring of 128 entries, QEMU's default, has room for them, the header and the status.
const PIECES: u32 = 126;
const PAGE_SECTORS: u32 = 8;

/// Bits of VIRTIO's features (5.2.3, 6).
mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
}

const PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// What the device can do.
const FEATURES: u64 = feature::SIZE_MAX
    | feature::SEG_MAX
    | feature::BLK_SIZE
    | feature::FLUSH
    | feature::TOPOLOGY
    | feature::MQ
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::VERSION_1
    | PROTOCOL;

/// Bytes of the space that guests read about the disk.
const CONFIG: usize = 256;

/// What a guest reads about a disk of so many bytes (5.2.4).
fn config(size: u64) -> [u8; CONFIG] {
    let mut config = [0; CONFIG];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    let rings = u16::try_from(MOST_RINGS).unwrap_or(u16::MAX);
    let piece = (u32::try_from(MOST_BYTES).unwrap_or(u32::MAX) / (PIECES + 2)) & !0xfff;
    let range = u32::try_from(MOST_RANGE / SECTOR).unwrap_or(u32::MAX);
    put(0, &(size / SECTOR).to_le_bytes());
    put(8, &piece.to_le_bytes());
    put(12, &PIECES.to_le_bytes());
    put(20, &512_u32.to_le_bytes());
    // A page is changed as a whole: 2^3 sectors, which begin at one; the least and the best to ask for.
    put(24, &[3, 0]);
    put(26, &8_u16.to_le_bytes());
    put(34, &rings.to_le_bytes());
    for (at, number) in [(36, range), (40, MOST_RANGES), (44, PAGE_SECTORS), (48, range), (52, MOST_RANGES)] {
        put(at, &number.to_le_bytes());
    }
    // What is zeroed may become a hole.
    put(56, &[1]);
    config
}

/// A front end's device.
pub struct Device<D: Disk + 'static> {
    disk: Arc<D>,
    id: String,
    /// Made as they are asked for, the first ones first.
    rings: Vec<Ring<D>>,
    memory: Arc<Memory>,
    regions: Vec<VhostUserMemoryRegion>,
    features: u64,
    /// So many clients the disk has, from the first message on.
    _client: D::Worker,
}

impl<D: Disk + 'static> Device<D> {
    /// A device without memory and rings.
    pub fn new(disk: &Arc<D>, id: &str) -> Self {
        let (disk, id, client) = (Arc::clone(disk), id.to_owned(), disk.worker());
        let (rings, memory, regions) = (Vec::new(), Arc::default(), Vec::new());
        Self { disk, id, rings, memory, regions, features: 0, _client: client }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring<D>> {
        let index =
            usize::try_from(index).ok().filter(|index| *index < MOST_RINGS).ok_or(Error::InvalidParam)?;
        while self.rings.len() <= index {
            let ring = Ring::new(&self.disk, &self.id).map_err(Error::ReqHandlerError)?;
            self.set_up(&ring);
            self.rings.push(ring);
        }
        Ok(&mut self.rings[index])
    }

    /// Gives a ring what is known of all.
    fn set_up(&self, ring: &Ring<D>) {
        let mut state = ring.state();
        state.memory = Arc::clone(&self.memory);
        state.queue.set_event_idx(self.features & feature::EVENT_IDX != 0);
        // Without these features the front end has no message for it.
        state.is_enabled |= self.features != 0 && self.features & PROTOCOL == 0;
        drop(state);
        ring.look();
    }

    /// Where in the guest's memory an address of the front end's lies.
    fn guest_address(&self, address: u64) -> Result<GuestAddress> {
        let place = |region: &VhostUserMemoryRegion| {
            let within = address.checked_sub(region.user_addr).filter(|at| *at < region.memory_size)?;
            region.guest_phys_addr.checked_add(within)
        };
        self.regions.iter().find_map(place).map(GuestAddress).ok_or(Error::InvalidParam)
    }
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl<D: Disk + 'static> VhostUserBackendReqHandlerMut for Device<D> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.rings.clear();
        self.features = 0;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.rings.iter().for_each(|ring| self.set_up(ring));
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(MOST_RINGS as u64)
    }

    /// Rings keep their places: these are told in the guest's addresses.
    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut mapped = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let at = GuestAddress(region.guest_phys_addr);
            mapped.push(GuestRegionMmap::new(region.mmap_region(file)?, at).ok_or(Error::InvalidParam)?);
        }
        mapped.sort_by_key(GuestMemoryRegion::start_addr);
        let memory =
            Memory::from_regions(mapped).map_err(|error| Error::ReqHandlerError(io::Error::other(error)))?;
        self.memory = Arc::new(memory);
        self.regions = regions.to_vec();
        self.rings.iter().for_each(|ring| self.set_up(ring));
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let num = u16::try_from(num).ok().filter(|num| num.is_power_of_two() && *num <= MOST_ENTRIES);
        let num = num.ok_or(Error::InvalidParam)?;
        self.ring(index)?.state().queue.set_size(num);
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let [descriptor, available, used] =
            [self.guest_address(descriptor)?, self.guest_address(available)?, self.guest_address(used)?];
        let mut state = self.ring(index)?.state();
        let memory = Arc::clone(&state.memory);
        let queue = &mut state.queue;
        let set = queue
            .try_set_desc_table_address(descriptor)
            .and_then(|()| queue.try_set_avail_ring_address(available))
            .and_then(|()| queue.try_set_used_ring_address(used))
            .and_then(|()| queue.used_idx(&*memory, Ordering::Acquire));
        // The front end tells only what is next to be taken.
        let used = set.map_err(|_| Error::InvalidParam)?;
        queue.set_next_used(used.0);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index)?.state().queue.set_next_avail(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.ring(index)?;
        ring.stop();
        let next = ring.state().queue.next_avail();
        Ok(VhostUserVringState::new(index, next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let kick = kick.ok_or(Error::InvalidOperation("rings are not polled"))?;
        self.ring(index.into())?.start(kick).map_err(Error::ReqHandlerError)
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        self.ring(index.into())?.set_call(call).map_err(Error::ReqHandlerError)
    }

    /// Nobody is told of a ring that is none: the guest's driver made it.
    fn set_vring_err(&mut self, index: u8, _err: Option<File>) -> Result<()> {
        self.ring(index.into()).map(drop)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let ring = self.ring(index)?;
        ring.state().is_enabled = enable;
        ring.look();
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = config(self.disk.size());
        let end = offset.checked_add(size).ok_or(Error::InvalidParam)?;
        config.get(offset as usize..end as usize).map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    /// Requests end in order, so the front end knows without it which were under way.
    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        unsupported()
    }
}
