//! Reading a core dump: memory by its addresses.

use object::Endianness;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
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

/// From the program headers alone: a core of 65535 mappings and more has one section, which holds their count and
/// has no name (`fill_extnum_info`, fs/binfmt_elf.c). A reader of whole ELF files refuses that.
fn segments_of(file: &[u8]) -> BTreeMap<u64, Range<usize>> {
    let header = FileHeader64::<Endianness>::parse(file).unwrap();
    let endian = header.endian().unwrap();
    assert_eq!(header.e_type(endian), elf::ET_CORE);
    let part = |segment: &ProgramHeader64<Endianness>| {
        let start = usize::try_from(segment.p_offset(endian)).unwrap();
        start..start + usize::try_from(segment.p_filesz(endian)).unwrap()
    };
    let segments = header.program_headers(endian, file).unwrap().iter();
    let loaded = segments.filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    loaded.map(|segment| (segment.p_vaddr(endian), part(segment))).collect()
}
