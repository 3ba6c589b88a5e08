//! An NBD client that sends what the fuzzer makes up, and the control socket's requests.

use ramfold_disk::attributes::request::Request;
use ramfold_disk::face::{Disk, DiskError, Extent, ExtentKind};
use ramfold_disk::listen::Channel;
use std::io::{IoSlice, Read, Result, Write};
use std::sync::Mutex;

/// Small enough to be hit, and not a number of whole pages.
const SIZE: usize = (1 << 20) + 1000;

/// A disk of plain bytes. It panics if a range leaves it.
pub(crate) struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(vec![0; SIZE]))
    }

    fn with(&self, offset: u64, len: u64, change: impl FnOnce(&mut [u8])) {
        let offset = usize::try_from(offset).expect("checked by the server");
        let len = usize::try_from(len).expect("checked by the server");
        change(&mut self.0.lock().expect("no panic before")[offset..offset + len]);
    }
}

impl Disk for Bytes {
    type Worker = ();

    fn worker(&self) {}

    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn read(&self, offset: u64, out: &mut [u8], (): &mut ()) -> std::result::Result<(), DiskError> {
        self.with(offset, out.len() as u64, |bytes| out.copy_from_slice(bytes));
        Ok(())
    }

    fn lend(&self, offset: u64, len: u64, with: &mut dyn FnMut(&[&[u8]])) -> bool {
        let is_lent = offset % 3 != 0;
        self.with(offset, len, |bytes| {
            if is_lent {
                with(&bytes.chunks(1 + offset as usize % 5000).collect::<Vec<_>>());
            }
        });
        is_lent
    }

    fn fetch(&self, offset: u64, len: u64, (): &mut ()) -> std::result::Result<(), DiskError> {
        self.with(offset, len, |_| ());
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], (): &mut ()) -> std::result::Result<(), DiskError> {
        self.with(offset, data.len() as u64, |bytes| bytes.copy_from_slice(data));
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, (): &mut ()) -> std::result::Result<(), DiskError> {
        self.with(offset, len, |bytes| bytes.fill(0));
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, (): &mut ()) -> std::result::Result<(), DiskError> {
        self.zero(offset, len, &mut ())
    }

    fn flush(&self) -> std::result::Result<(), DiskError> {
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, each: &mut dyn FnMut(Extent) -> bool) {
        self.with(offset, len, |_| ());
        let halves = [(len / 2, ExtentKind::Data), (len - len / 2, ExtentKind::Hole)];
        let _ = halves.into_iter().filter(|(len, _)| *len > 0).all(|(len, kind)| each(Extent { len, kind }));
    }
}

impl Channel for Client<'_> {
    const WRITES_NOW: bool = true;

    /// Now and then a part.
    fn write_now(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        len / (1 + self.0.len() % 3)
    }
}

/// Gives the input, and throws away what is written.
struct Client<'a>(&'a [u8]);

impl Read for Client<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        self.0.read(out)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, data: &[u8]) -> Result<usize> {
        Ok(data.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The first byte chooses where the input begins: before the handshake, or after one of three. Only a panic is a
/// finding.
pub fn nbd(data: &[u8]) {
    let Some((start, data)) = data.split_first() else { return };
    let contexts =
        [&10u32.to_be_bytes()[..], &27u32.to_be_bytes(), &[0; 7], &[1, 0, 0, 0, 15], b"base:allocation"];
    let contexts = [b"IHAVEOPT", &contexts.concat()[..]].concat();
    let option = |number: u8| [b"IHAVEOPT", &[0, 0, 0, number, 0, 0, 0, 0][..]].concat();
    let go = [b"IHAVEOPT", &[0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0][..]].concat();
    let handshake = match start % 4 {
        0 => vec![],
        1 => [vec![0, 0, 0, 3], option(1)].concat(),
        2 => [vec![0, 0, 0, 3], option(8), contexts, option(1)].concat(),
        _ => [vec![0, 0, 0, 3], option(11), contexts, go].concat(),
    };
    let said = [&handshake, data].concat();
    let disk = Bytes::new();
    let _ = ramfold_disk::nbd::serve_client(&disk, "fuzz", None, Client(&said), |_| Ok(()));
}

/// A line of the control socket: it is understood or refused.
pub fn control(data: &[u8]) {
    let _ = Request::parse(data);
}
