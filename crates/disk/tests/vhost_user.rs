//! The vhost-user server, with a front end and a guest's driver that are made here: what they may ask for, and what
//! they should not.

use ramfold::Config;
use ramfold_disk::face::{Disk, ExtentKind};
use ramfold_disk::vhost_user::serve_client;
use ramfold_disk::volume::{Settings, Volume};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

const DISK: u64 = 1 << 20;
const MEMORY: usize = 1 << 20;
const ENTRIES: u16 = 16;
/// The front end's address of the guest's address 0.
const USER: u64 = 1 << 32;
/// Where a ring's parts are, from its beginning on; each ring has so many bytes of the guest's memory.
const RING: u64 = 0x10000;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const STATUS: u64 = 0x3000;
const HEADER: u64 = 0x3010;
const TABLE: u64 = 0x4000;
const DATA: u64 = 0x80000;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

fn disk() -> Arc<Volume> {
    let store = Config { recomp_algorithm: None, ..Config::default() };
    Arc::new(Volume::open(Settings { size: DISK, mem_limit: None, store, backing: None }).unwrap())
}

/// A guest of a front end, with as many rings as it has kicks.
struct Guest {
    front: Frontend,
    memory: GuestMemoryMmap,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    taken: Vec<u16>,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

/// A descriptor: where, how long, whether the device writes there.
type Piece = (u64, u32, bool);

impl Guest {
    fn connect(disk: &Arc<Volume>, rings: usize) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let disk = Arc::clone(disk);
        let server = std::thread::spawn(move || serve_client(&disk, "serial-number", theirs));
        let file = File::from(rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(MEMORY as u64).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        let mut front = Frontend::from_stream(ours, 64);
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        let protocol = front.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK;
        assert!(protocol.contains(wanted));
        front.set_protocol_features(wanted).unwrap();
        // Without EVENT_IDX each request is told by a call.
        front.set_features(features & !(1 << 29)).unwrap();
        assert_eq!(front.get_queue_num().unwrap(), 64);
        front.set_mem_table(&[region]).unwrap();
        let range = (GuestAddress(0), MEMORY, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut guest = Self {
            front,
            memory,
            kicks: Vec::new(),
            calls: Vec::new(),
            taken: vec![0; rings],
            server: Some(server),
        };
        (0..rings).for_each(|ring| guest.start(ring));
        guest
    }

    fn start(&mut self, ring: usize) {
        let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let base = USER + RING * ring as u64;
        let addresses = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + USED,
            avail_ring_addr: base + AVAIL,
            log_addr: None,
        };
        self.front.set_vring_num(ring, ENTRIES).unwrap();
        self.front.set_vring_base(ring, self.taken[ring]).unwrap();
        self.front.set_vring_addr(ring, &addresses).unwrap();
        self.front.set_vring_call(ring, &call).unwrap();
        self.front.set_vring_kick(ring, &kick).unwrap();
        self.front.set_vring_enable(ring, true).unwrap();
        self.kicks.push(kick);
        self.calls.push(call);
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    fn get<T: vm_memory::ByteValued>(&self, at: u64) -> T {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    /// Writes a table of descriptors that follow one another.
    fn table(&self, at: u64, pieces: &[Piece]) {
        for (number, (address, len, is_written)) in pieces.iter().enumerate() {
            let (here, next) = (at + 16 * number as u64, u16::try_from(number + 1).unwrap());
            let more = u16::from(number + 1 < pieces.len());
            self.put(here, *address);
            self.put(here + 8, *len);
            self.put(here + 12, more | u16::from(*is_written) << 1);
            self.put(here + 14, next);
        }
    }

    /// Offers the chain that begins at the first descriptor, and waits until it was taken. The bytes written; None: it
    /// was not taken within a moment.
    fn offer(&mut self, ring: usize, patience: Duration) -> Option<u32> {
        let base = RING * ring as u64;
        let next = self.taken[ring].wrapping_add(1);
        self.put(base + AVAIL + 4 + 2 * u64::from(self.taken[ring] % ENTRIES), 0_u16);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.put(base + AVAIL + 2, next);
        self.kicks[ring].write(1).unwrap();
        let begun = Instant::now();
        while self.get::<u16>(base + USED + 2) != next {
            if begun.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let written = self.get(base + USED + 4 + 8 * u64::from(self.taken[ring] % ENTRIES) + 4);
        self.taken[ring] = next;
        Some(written)
    }

    /// A request by a driver that does everything right, but for what it asks. Its status, and bytes written.
    fn ask(&mut self, ring: usize, kind: u32, sector: u64, data: &[Piece]) -> (u8, u32) {
        let base = RING * ring as u64;
        self.put(base + HEADER, kind);
        self.put(base + HEADER + 8, sector);
        self.put(base + STATUS, 0xff_u8);
        let ends = [(base + HEADER, 16, false), (base + STATUS, 1, true)];
        self.table(base, &[&ends[..1], data, &ends[1..]].concat());
        let written = self.offer(ring, Duration::from_secs(20)).expect("it was served");
        (self.get(base + STATUS), written)
    }

    fn fill(&self, byte: u8, len: usize) {
        self.memory.write_slice(&vec![byte; len], GuestAddress(DATA)).unwrap();
    }

    fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
        data
    }

    /// Hangs up. What the server says.
    fn leave(mut self) -> std::io::Result<()> {
        let server = self.server.take().unwrap();
        drop(self);
        server.join().unwrap()
    }
}

const WRITES: bool = true;
const READS: bool = false;

#[test]
fn a_guest_reads_writes_flushes_discards_and_zeroes() {
    let disk = disk();
    let mut guest = Guest::connect(&disk, 2);
    guest.fill(7, 8192);
    assert_eq!(guest.ask(0, OUT, 8, &[(DATA, 8192, READS)]), (OK, 1));
    guest.fill(0, 8192);
    // Cut differently, by the other ring.
    let pieces = [(DATA, 1000, WRITES), (DATA + 1000, 3096, WRITES), (DATA + 4096, 4096, WRITES)];
    assert_eq!(guest.ask(1, IN, 8, &pieces), (OK, 8193));
    assert_eq!(guest.data(8192), [7; 8192]);
    assert_eq!(guest.ask(0, FLUSH, 0, &[]), (OK, 1));
    assert_eq!(guest.ask(0, GET_ID, 0, &[(DATA, 20, WRITES)]), (OK, 21));
    assert_eq!(guest.data(20), b"serial-number\0\0\0\0\0\0\0");
    for (kind, flags, sector) in [(DISCARD, 0, 8_u64), (WRITE_ZEROES, 1, 16), (WRITE_ZEROES, 0, 8)] {
        guest.put(DATA, sector);
        guest.put(DATA + 8, 8_u32);
        guest.put(DATA + 12, flags as u32);
        assert_eq!(guest.ask(0, kind, 0, &[(DATA, 16, READS)]), (OK, 1));
    }
    guest.fill(1, 8192);
    assert_eq!(guest.ask(0, IN, 8, &[(DATA, 8192, WRITES)]), (OK, 8193));
    assert_eq!(guest.data(8192), [0; 8192]);
    let (mut at, mut pages) = (0, Vec::new());
    disk.extents(0, disk.size(), &mut |piece| {
        if piece.kind == ExtentKind::Data {
            pages.extend((at..at + piece.len).step_by(4096).map(|at| at / 4096));
        }
        at += piece.len;
        true
    });
    assert_eq!(pages, [1], "what was zeroed without leave to unmap has its page");
    guest.leave().unwrap();
}

#[test]
fn descriptors_may_lie_in_a_table_of_their_own() {
    let disk = disk();
    let mut guest = Guest::connect(&disk, 1);
    disk.write(0, &[9; 4096], &mut disk.worker()).unwrap();
    guest.put(HEADER, IN);
    guest.put(HEADER + 8, 0_u64);
    guest.table(TABLE, &[(HEADER, 16, READS), (DATA, 4096, WRITES), (STATUS, 1, WRITES)]);
    guest.table(0, &[(TABLE, 48, READS)]);
    guest.put(12, 4_u16);
    assert_eq!(guest.offer(0, Duration::from_secs(20)), Some(4097));
    assert_eq!((guest.get::<u8>(STATUS), guest.data(4096)), (OK, vec![9; 4096]));
    guest.leave().unwrap();
}

#[test]
fn what_cannot_be_is_told_by_a_status() {
    let disk = disk();
    let mut guest = Guest::connect(&disk, 1);
    let end = DISK / 512;
    assert_eq!(guest.ask(0, IN, end - 7, &[(DATA, 4096, WRITES)]), (IO_ERROR, 1), "beyond the end");
    assert_eq!(guest.ask(0, OUT, u64::MAX / 512, &[(DATA, 4096, READS)]), (IO_ERROR, 1));
    assert_eq!(guest.ask(0, IN, u64::MAX, &[(DATA, 512, WRITES)]), (IO_ERROR, 1));
    assert_eq!(guest.ask(0, OUT, 0, &[(DATA, 100, READS)]), (IO_ERROR, 1), "a part of a sector");
    assert_eq!(guest.ask(0, 99, 0, &[]), (UNSUPPORTED, 1));
    assert_eq!(guest.ask(0, DISCARD, 0, &[(DATA, 15, READS)]), (IO_ERROR, 1));
    assert_eq!(guest.ask(0, DISCARD, 0, &[]), (IO_ERROR, 1));
    for (flags, sectors, expected) in [(1, 8_u32, UNSUPPORTED), (0, u32::MAX, IO_ERROR)] {
        guest.put(DATA, 0_u64);
        guest.put(DATA + 8, sectors);
        guest.put(DATA + 12, flags as u32);
        assert_eq!(guest.ask(0, DISCARD, 0, &[(DATA, 16, READS)]), (expected, 1));
    }
    // Memory that the guest has not: there is nowhere to tell it.
    assert_eq!(guest.ask(0, IN, 0, &[(1 << 40, 4096, WRITES)]), (0xff, 0));
    // A chain that leads back into itself, and one without a status.
    guest.table(0, &[(HEADER, 16, READS), (DATA, 512, WRITES)]);
    guest.put(16 + 12, 1_u16 | 2);
    guest.put(16 + 14, 0_u16);
    assert!(guest.offer(0, Duration::from_secs(20)).is_some());
    guest.table(0, &[(HEADER, 16, READS)]);
    assert_eq!(guest.offer(0, Duration::from_secs(20)), Some(0));
    guest.fill(3, 512);
    assert_eq!(guest.ask(0, OUT, 0, &[(DATA, 512, READS)]), (OK, 1), "it goes on");
    guest.leave().unwrap();
}

#[test]
fn a_ring_that_is_none_harms_no_other() {
    let disk = disk();
    let mut guest = Guest::connect(&disk, 2);
    // More requests than the ring has room for, as its index says.
    guest.put(AVAIL + 2, 1000_u16);
    guest.kicks[0].write(1).unwrap();
    guest.fill(5, 512);
    assert_eq!(guest.ask(1, OUT, 0, &[(DATA, 512, READS)]), (OK, 1));
    assert_eq!(guest.get::<u16>(USED + 2), 0);
    // A reset makes it one again.
    assert_eq!(guest.front.get_vring_base(0).unwrap(), 0);
    guest.put(AVAIL + 2, 0_u16);
    (guest.kicks, guest.calls) = (guest.kicks.split_off(1), guest.calls.split_off(1));
    guest.start(0);
    guest.kicks.swap(0, 1);
    assert_eq!(guest.ask(0, IN, 0, &[(DATA, 512, WRITES)]), (OK, 513));
    guest.leave().unwrap();
}

#[test]
fn a_front_end_comes_back_and_goes_on() {
    let disk = disk();
    let mut guest = Guest::connect(&disk, 1);
    guest.fill(4, 4096);
    assert_eq!(guest.ask(0, OUT, 0, &[(DATA, 4096, READS)]), (OK, 1));
    assert!(disk.close().is_none(), "the disk is in use");
    let next = guest.front.get_vring_base(0).unwrap();
    assert_eq!(next, 1);
    guest.put(AVAIL + 2, 2_u16);
    guest.kicks[0].write(1).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(guest.get::<u16>(USED + 2), 1, "nothing is served after that");
    guest.leave().unwrap();
    assert!(
        disk.close().is_some_and(|size| {
            disk.reopen(size);
            true
        }),
        "and not any more"
    );
    let mut guest = Guest::connect(&disk, 1);
    assert_eq!(guest.ask(0, IN, 0, &[(DATA, 4096, WRITES)]), (OK, 4097));
    assert_eq!(guest.data(4096), [4; 4096]);
    // Hung up on while its ring is served.
    drop(guest);
}

#[test]
fn messages_that_cannot_be_end_the_connection() {
    let wrong: [fn(&mut Guest) -> bool; 5] = [
        |guest| guest.front.set_vring_num(0, 100).is_err(),
        |guest| guest.front.set_vring_num(0, 2048).is_err(),
        |guest| guest.front.set_features(1 << 50).is_err(),
        |guest| {
            guest.front.set_vring_enable(63, true).is_ok() && guest.front.set_vring_enable(64, true).is_err()
        },
        |guest| {
            let far = USER + (MEMORY as u64);
            let addresses = VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: far,
                used_ring_addr: far,
                avail_ring_addr: far,
                log_addr: None,
            };
            guest.front.set_vring_addr(0, &addresses).is_err()
        },
    ];
    let disk = disk();
    for (number, wrong) in wrong.iter().enumerate() {
        let mut guest = Guest::connect(&disk, 1);
        guest.front.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        assert!(wrong(&mut guest), "{number}");
        let _ = guest.leave();
    }
    let mut guest = Guest::connect(&disk, 1);
    let (_, config) = guest.front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(config[..8], (DISK / 512).to_le_bytes());
    guest.leave().unwrap();
}
