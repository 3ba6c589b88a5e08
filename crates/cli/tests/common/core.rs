//! Reading a core dump: memory by its addresses.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectKind, ObjectSegment};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// A core dump of a 64-bit program.
pub struct Core(Vec<u8>);

impl Core {
    /// The one in this directory.
    pub fn in_directory(directory: &Path) -> Option<Self> {
        let is_core = |name: &OsStr| name.to_string_lossy().starts_with("core");
        let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let found = files.find(|entry| is_core(&entry.file_name()))?;
        Some(Self(fs::read(found.path()).unwrap()))
    }

    fn file(&self) -> ElfFile64<'_, Endianness> {
        let file = ElfFile64::parse(&*self.0).unwrap();
        assert_eq!(file.kind(), ObjectKind::Core);
        file
    }

    /// What the core has of these addresses; empty where it leaves them out.
    pub fn memory(&self, address: u64, len: usize) -> &[u8] {
        let file = self.file();
        file.segments().find_map(|segment| segment.data_range(address, len as u64).ok()?).unwrap_or(&[])
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
