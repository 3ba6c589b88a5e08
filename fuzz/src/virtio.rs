//! A guest that writes into its rings what the fuzzer makes up.

use crate::nbd::Bytes;
use ramfold_disk::vhost_user::Memory;
use ramfold_disk::vhost_user::request::Hands;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes as _, GuestAddress};

/// The guest's memory: two pieces with a hole between them.
const FIRST: usize = 64 << 10;
const SECOND: (u64, usize) = (0x2_0000, 8 << 10);
/// Where the ring's parts are.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x1800;
/// Where a header is that descriptors may name.
const HEADER: u64 = 0x2000;
const ENTRIES: u16 = 16;
/// Chains that are carried out at most: one may make another by what it writes.
const MOST_CHAINS: usize = 64;

/// The first byte chooses: plain bytes for the guest's memory, or a ring that is nearly right.
pub fn virtio(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let pieces = [(GuestAddress(0), FIRST), (GuestAddress(SECOND.0), SECOND.1)];
    let memory = Memory::from_ranges(&pieces).expect("memory");
    if kind % 4 == 0 {
        let _ = memory.write(data, GuestAddress(TABLE));
    } else {
        ring(&memory, data);
    }
    let mut queue = Queue::new(ENTRIES).expect("a power of two");
    let place = |at: u64| (u32::try_from(at).ok(), Some(0));
    for set in [Queue::set_desc_table_address, Queue::set_avail_ring_address, Queue::set_used_ring_address]
        .into_iter()
        .zip([TABLE, AVAILABLE, USED])
    {
        let (low, high) = place(set.1);
        set.0(&mut queue, low, high);
    }
    queue.set_ready(true);
    let disk = Bytes::new();
    let mut hands = Hands::new(&disk, "a name that is longer than twenty bytes");
    for _ in 0..MOST_CHAINS {
        let Ok(Some(chain)) = queue.iter(&memory).map(|mut chains| chains.next()) else { return };
        let head = chain.head_index();
        let writable: Vec<(u64, u64)> = chain
            .clone()
            .filter(|part| part.is_write_only())
            .map(|part| (part.addr().0, u64::from(part.len())))
            .collect();
        let before = contents(&memory);
        let written = hands.carry_out(&memory, chain);
        let room: u64 = writable.iter().map(|(_, len)| len).sum();
        assert!(u64::from(written) <= room, "{written} of {room}");
        for ((begin, old), (_, new)) in before.iter().zip(contents(&memory)) {
            if *old != new {
                is_written(*begin, old, &new, &writable);
            }
        }
        if queue.add_used(&memory, head, written).is_err() {
            return;
        }
    }
}

/// The pieces of the guest's memory, by their addresses.
fn contents(memory: &Memory) -> [(u64, Vec<u8>); 2] {
    [(0, FIRST), SECOND].map(|(begin, len)| {
        let mut bytes = vec![0; len];
        memory.read_slice(&mut bytes, GuestAddress(begin)).expect("it is there");
        (begin, bytes)
    })
}

/// What has changed of a piece was to be written.
fn is_written(begin: u64, old: &[u8], new: &[u8], writable: &[(u64, u64)]) {
    for ((at, old), new) in (begin..).zip(old).zip(new) {
        let may_be = writable.iter().any(|(begin, len)| at >= *begin && at - begin < *len);
        assert!(old == new || may_be, "{at:#x} was not to be written");
    }
}

/// Descriptors of six bytes each: where, how long, flags, the next. One header for all, and all are made available.
fn ring(memory: &Memory, data: &[u8]) {
    let (header, data) = data.split_at(data.len().min(4));
    let byte = |at: usize| header.get(at).copied().unwrap_or(0);
    let words =
        [u32::from(byte(0)), 0, u32::from(byte(1)) | u32::from(byte(2)) << 8, u32::from(byte(3) / 255)];
    let _ = memory.write_slice(words.map(u32::to_le_bytes).as_flattened(), GuestAddress(HEADER));
    // Ranges of a discard, made of the same bytes.
    let _ = memory.write(data, GuestAddress(HEADER + 16));
    for (number, part) in (0..u64::from(ENTRIES)).zip(data.as_chunks::<6>().0) {
        let addr = match part[0] % 4 {
            0 => HEADER,
            1 => HEADER + 16,
            2 => u64::from(part[1]) << 8,
            _ => u64::from(part[1]) << 56 | u64::from(part[1]) << 12,
        };
        let len = match part[0] >> 6 {
            0 => 16,
            1 => u32::from(part[2]) * 512,
            2 => u32::from(part[2]),
            _ => u32::from(part[2]) << 24 | u32::from(part[3]),
        };
        let flags = u16::from(part[4] % 8);
        let next = u16::from(part[5] % 18);
        let bytes = [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        let _ = memory.write_slice(&bytes.concat(), GuestAddress(TABLE + 16 * number));
    }
    let available: Vec<u8> = [0, ENTRIES].into_iter().chain(0..ENTRIES).flat_map(u16::to_le_bytes).collect();
    let _ = memory.write_slice(&available, GuestAddress(AVAILABLE));
}
