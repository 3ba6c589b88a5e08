//! Reading a core dump: memory by its addresses.

use std::fs;
use std::path::Path;

/// A part of memory in the file.
struct Part {
    address: u64,
    place: u64,
    len: u64,
}

/// A core dump of a 64-bit program.
pub struct Core {
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

impl Core {
    /// The one in this directory.
    pub fn in_directory(directory: &Path) -> Option<Self> {
        let is_core = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("core");
        let found = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap())
            .find(|entry| is_core(&entry.file_name()))?;
        let bytes = fs::read(found.path()).unwrap();
        let parts = parts(&bytes);
        Some(Self { bytes, parts })
    }

    /// What the core has of these addresses; empty where it leaves them out.
    pub fn memory(&self, address: u64, len: usize) -> &[u8] {
        let holds = |part: &&Part| part.address <= address && address + len as u64 <= part.address + part.len;
        self.parts.iter().find(holds).map_or(&[], |part| {
            let place = usize::try_from(part.place + address - part.address).unwrap();
            &self.bytes[place..place + len]
        })
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..BYTES].copy_from_slice(&bytes[at..at + BYTES]);
    u64::from_le_bytes(word)
}

/// The PT_LOAD entries of an ELF file's program headers (elf(5)).
fn parts(bytes: &[u8]) -> Vec<Part> {
    const LOAD: u64 = 1;
    assert!(bytes.starts_with(b"\x7fELF\x02"), "no core dump");
    let [table, size, count] = [number::<8>(bytes, 32), number::<2>(bytes, 54), number::<2>(bytes, 56)];
    let entry = |index| usize::try_from(table + index * size).unwrap();
    let entries = (0..count).map(entry).filter(|at| number::<4>(bytes, *at) == LOAD);
    let part = |at| Part {
        place: number::<8>(bytes, at + 8),
        address: number::<8>(bytes, at + 16),
        len: number::<8>(bytes, at + 32),
    };
    entries.map(part).collect()
}
