//! The NBD server and what clients may send: nothing makes it panic, or hold more memory than it should.

mod random;

use proptest::prelude::*;
use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::face::Disk;
use ramfold_disk::listen::{Channel, Patient, Stream};
use ramfold_disk::nbd::serve_client;
use ramfold_disk::volume::{Settings, Volume};
use random::bytes;
use std::io::{self, Cursor, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 1 << 20;

fn disk() -> Volume {
    let store = Config { recomp_algorithm: None, ..Config::default() };
    Volume::open(Settings { size: SIZE, mem_limit: None, store, backing: None }).unwrap()
}

/// A client that sends these bytes, and keeps what comes, and counts the pages that were lent to it.
#[derive(Clone)]
struct Client(Arc<Mutex<Cursor<Vec<u8>>>>, Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>);

impl Client {
    fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Cursor::new(bytes))), Arc::default(), Arc::default())
    }

    /// What it got, and how it ended.
    fn talk(&self, disk: &Volume) -> (Vec<u8>, io::Result<()>) {
        let end = serve_client(disk, "disk", None, self.clone(), |_| Ok(()));
        (self.1.lock().unwrap().clone(), end)
    }
}

impl Read for Client {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap().read(out)
    }
}

impl Write for Client {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.1.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// It takes at once what it has room for, which differs.
impl Channel for Client {
    const WRITES_NOW: bool = true;

    fn write_now(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        self.2.fetch_add(pieces.len() - 1, Relaxed);
        let mut kept = self.1.lock().unwrap();
        let most = [usize::MAX, 0, 10, 4096 + 50, 100_000][kept.len() % 5];
        let now: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).take(most).collect();
        kept.extend_from_slice(&now);
        now.len()
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

/// No flags but those that the server offers, and options.
fn hello(options: &[Vec<u8>]) -> Vec<u8> {
    [3_u32.to_be_bytes().to_vec(), options.concat()].concat()
}

fn go() -> Vec<u8> {
    option(7, &[0; 6])
}

/// Structured replies, base:allocation, GO.
fn with_contexts(framing: u32) -> Vec<u8> {
    let query =
        [&0_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &15_u32.to_be_bytes(), b"base:allocation"].concat();
    hello(&[option(framing, &[]), option(10, &query), go()])
}

fn request(kind: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let cookie = u64::from(kind) << 32 | u64::from(len);
    let head = [&0x2560_9513_u32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
    [&head, &cookie.to_be_bytes()[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// The errors of simple replies without data.
fn simple_errors(replies: &[u8]) -> Vec<u32> {
    replies.chunks(16).map(|reply| u32::from_be_bytes(reply[4..8].try_into().unwrap())).collect()
}

/// What follows the handshake of [`hello`] with nothing but [`go`].
fn replies(requests: &[Vec<u8>]) -> (Vec<u8>, io::Result<()>) {
    let disk = disk();
    let begun = Client::new(hello(&[go()])).talk(&disk).0.len();
    let (got, end) = Client::new([hello(&[go()]), requests.concat()].concat()).talk(&disk);
    (got[begun..].to_vec(), end)
}

#[test]
fn what_cannot_be_is_refused_with_the_error_that_the_protocol_names() {
    const INVALID: u32 = 22;
    const NO_SPACE: u32 = 28;
    let data = vec![7; PAGE_SIZE];
    let (got, end) = replies(&[
        request(0, 0, SIZE - 1, 2),
        [request(1, 0, SIZE - 1, 4096), data.clone()].concat(),
        request(6, 0, SIZE, 1),
        request(4, 0, u64::MAX, 4096),
        request(4, 0, SIZE, 1),
        request(5, 0, SIZE - 1, 2),
        request(5, 0, 100, 9000),
        request(9, 0, 0, 0),
        request(3, 1 << 9, 0, 0),
        request(7, 0, 0, 4096),
        [request(1, 1, 4096, 4096), data].concat(),
        request(3, 0, 0, 0),
        request(2, 0, 0, 0),
        request(3, 0, 0, 0),
    ]);
    end.unwrap();
    let expected =
        [INVALID, NO_SPACE, NO_SPACE, INVALID, INVALID, INVALID, 0, INVALID, INVALID, INVALID, 0, 0];
    assert_eq!(simple_errors(&got), expected, "and after DISC there is no reply");
}

#[test]
fn what_was_written_comes_back_in_each_framing() {
    let disk = disk();
    let data: Vec<u8> = (0..9000_u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    let write = [request(1, 0, 100, 9000), data.clone()].concat();
    let (got, end) = Client::new([hello(&[go()]), write, request(0, 0, 100, 9000)].concat()).talk(&disk);
    end.unwrap();
    assert!(got.ends_with(&data));
    let (got, end) = Client::new([with_contexts(8), request(0, 0, 100, 9000)].concat()).talk(&disk);
    end.unwrap();
    assert!(got.ends_with(&[&100_u64.to_be_bytes()[..], &data].concat()));
    // 64 bits for the length, and the offset in the reply.
    let mut extended = request(0, 0, 100, 0);
    extended[..4].copy_from_slice(&0x21e4_1c71_u32.to_be_bytes());
    extended.truncate(24);
    extended.extend(9000_u64.to_be_bytes());
    let (got, end) = Client::new([with_contexts(11), extended].concat()).talk(&disk);
    end.unwrap();
    assert!(got.ends_with(&[&100_u64.to_be_bytes()[..], &data].concat()));
}

/// What lies in memory as it is goes out from there, as far as the client takes it at once, and is the same.
#[test]
fn a_large_read_is_the_same_whether_its_pages_are_lent_or_copied() {
    let disk = disk();
    // Half of each byte: it compresses.
    let data: Vec<u8> = bytes(1).take(512 << 10).map(|byte| byte >> 4).collect();
    disk.write(0, &data, &mut disk.worker()).unwrap();
    let pieces = [(0, 128), (128, 64), (60, 256), (0, 256), (256, 8), (192, 320), (380, 128), (4, 508)];
    let reads: Vec<Vec<u8>> =
        pieces.iter().map(|(offset, len)| request(0, 0, offset << 10, len << 10)).collect();
    let read = |requests: &[Vec<u8>]| {
        [hello(&[go()]), with_contexts(8)].map(|hello| {
            let client = Client::new([hello, requests.concat(), request(2, 0, 0, 0)].concat());
            let (got, end) = client.talk(&disk);
            end.unwrap();
            (got, client.2.load(Relaxed))
        })
    };
    let lent = read(&reads);
    disk.set_keeps_fresh(false);
    while disk.store().settle_fresh(1000, ramfold::Which::All).pages > 0 {}
    let copied = read(&reads);
    for (lent, copied) in lent.iter().zip(&copied) {
        assert!(lent.0 == copied.0);
        assert_eq!(copied.1, 0);
    }
    // Those of 64 KiB and more that lie in one leaf of 256.
    assert_eq!(lent[0].1, 32 + 16 + 64 + 32);
    assert!(lent[0].0.windows(1 << 10).any(|found| found == &data[127 << 10..128 << 10]));
}

#[test]
fn holes_are_told() {
    let disk = disk();
    let write = [request(1, 0, 8192, 4096), vec![1; 4096]].concat();
    let (got, end) = Client::new([with_contexts(8), write, request(7, 0, 0, 1 << 20)].concat()).talk(&disk);
    end.unwrap();
    let pieces = [8192_u32, 3, 4096, 0, (1 << 20) - 12288, 3].map(u32::to_be_bytes).concat();
    assert!(got.ends_with(&pieces), "{:?}", &got[got.len() - 40..]);
}

/// Zeros that may not be a hole are written; a read of nothing has no data.
#[test]
fn zeros_may_have_to_be_there() {
    const NO_HOLE: u16 = 2;
    let disk = disk();
    let zeros = request(6, NO_HOLE, 4096, 100 << 10);
    let client =
        Client::new([with_contexts(8), zeros, request(7, 0, 0, 1 << 20), request(0, 0, 0, 0)].concat());
    let (got, end) = client.talk(&disk);
    end.unwrap();
    let pieces = [4096_u32, 3, 100 << 10, 0, (1 << 20) - (104 << 10), 3].map(u32::to_be_bytes).concat();
    let nothing = &got[got.len() - 20..];
    assert!(got[..got.len() - 20].ends_with(&pieces), "{got:?}");
    assert_eq!((&nothing[4..8], &nothing[16..]), (&[0, 1, 0, 0][..], &[0; 4][..]), "the last chunk, of none");
    assert_eq!(disk.store().stats().same_filled_pages, 25);
}

#[test]
fn a_write_without_its_data_changes_nothing() {
    let disk = disk();
    let (_, end) = Client::new([hello(&[go()]), request(1, 0, 0, 4096), vec![9; 4095]].concat()).talk(&disk);
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let (_, end) = Client::new([hello(&[go()]), request(1, 0, 0, 64 << 20)].concat()).talk(&disk);
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(disk.store().stats().stored_pages, 0);
}

/// A kernel that swaps may need what a reply frees, before it can send the data of its next request.
#[test]
fn replies_do_not_wait_for_the_data_of_a_later_request() {
    let disk = disk();
    for len in [4096, 1 << 20] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        std::thread::scope(|scope| {
            let ours = Patient::new(Stream::Unix(ours), Duration::from_secs(60));
            scope.spawn(|| serve_client(&disk, "disk", None, ours, |_| Ok(())));
            theirs.write_all(&[hello(&[go()]), request(3, 0, 0, 0), request(1, 0, 0, len)].concat()).unwrap();
            let mut got = [0; 4096];
            let mut begun = Vec::new();
            while !begun.windows(4).any(|four| four == 0x6744_6698_u32.to_be_bytes()) {
                let more = theirs.read(&mut got).expect("the reply to the flush");
                begun.extend_from_slice(&got[..more]);
            }
            theirs.write_all(&vec![9; len as usize]).unwrap();
            drop(theirs);
        });
        assert_eq!(disk.store().stats().stored_pages, u64::from(len) / PAGE_SIZE as u64);
    }
}

/// As one that talks, but a byte at a time.
#[test]
fn a_client_has_no_longer_for_its_handshake_however_slowly_it_goes_on() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let dripping = std::thread::spawn(move || {
        while theirs.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let mut patient = Patient::new(Stream::Unix(ours), Duration::from_millis(200));
    let error = patient.read_exact(&mut [0; 10_000]).unwrap_err().kind();
    assert!([io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&error), "{error}");
    patient.for_ever().unwrap();
    patient.read_exact(&mut [0; 3]).unwrap();
    drop(patient);
    dripping.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let disk = disk();
        let _ = Client::new(bytes.clone()).talk(&disk);
        let _ = Client::new([hello(&[]), bytes.clone()].concat()).talk(&disk);
        let _ = Client::new([hello(&[go()]), bytes].concat()).talk(&disk);
    }

    #[test]
    fn so_do_sessions_with_a_few_wrong_bytes(
        framing in prop_oneof![Just(8_u32), Just(11)],
        kinds in prop::collection::vec((0..9_u16, 0..64_u16, 0..2 * SIZE, 0..9000_u32), 0..8),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let requests = kinds.iter().map(|(kind, flags, offset, len)| request(*kind, *flags, *offset, *len));
        let mut bytes = [with_contexts(framing), requests.collect::<Vec<_>>().concat()].concat();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        let (got, _) = Client::new(bytes).talk(&disk());
        prop_assert!(got.len() < 8 * (9000 + 64) + 4096);
    }
}
