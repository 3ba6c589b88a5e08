//! Reading a core dump: memory by its addresses.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectKind, ObjectSegment};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// A core dump of a 64-bit program.
pub struct Core {
    file: Vec<u8>,
    /// Where in the file the memory is that begins at an address.
    segments: BTreeMap<u64, Range<usize>>,
}

impl Core {
    /// The one in this directory.
    pub fn in_directory(directory: &Path) -> Option<Self> {
        let is_core = |name: &OsStr| name.to_string_lossy().starts_with("core");
        let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let found = files.find(|entry| is_core(&entry.file_name()))?;
        let file = fs::read(found.path()).unwrap();
        let segments = segments_of(&file);
        Some(Self { file, segments })
    }

    /// What the core has of these addresses; empty where it leaves them out.
    pub fn memory(&self, address: u64, len: usize) -> &[u8] {
        let found = self.segments.range(..=address).next_back().and_then(|(start, range)| {
            let skipped = usize::try_from(address - start).unwrap();
            self.file[range.clone()].get(skipped..skipped + len)
        });
        found.unwrap_or(&[])
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.file.len()
    }
}

fn segments_of(file: &[u8]) -> BTreeMap<u64, Range<usize>> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(file).unwrap();
    assert_eq!(file.kind(), ObjectKind::Core);
    let part = |(offset, size): (u64, u64)| {
        let start = usize::try_from(offset).unwrap();
        start..start + usize::try_from(size).unwrap()
    };
    file.segments().map(|segment| (segment.address(), part(segment.file_range()))).collect()
}
