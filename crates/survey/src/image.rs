//! Memory that lies in files: raw pages one after another (page files, VM memory), and ELF core dumps.
//!
//! Of a core dump the contents of its PT_LOAD segments count, whole pages of them; what the kernel left out of the
//! dump (the files of file mappings, unless `coredump_filter` says otherwise) is not there to be looked at. Any other
//! file is raw, and has to be a whole number of pages.

use crate::population::{OpenError, Population, Source};
use object::read::elf::{ElfFile32, ElfFile64};
use object::{Endianness, Object, ObjectKind, ObjectSegment, ReadCache};
use ramfold::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::path::Path;

/// Adds the pages of a file to the population.
///
/// # Errors
/// [`OpenError`]: the file cannot be read, is empty, or neither a core dump nor a whole number of pages.
pub fn list(path: &Path, population: &mut Population) -> Result<(), OpenError> {
    let name = path.display().to_string();
    let failed = |error: io::Error| OpenError::File { path: name.clone(), why: error.to_string() };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(OpenError::NotAFile(name));
    }
    let (bytes, page) = (metadata.len(), PAGE_SIZE as u64);
    if bytes == 0 {
        return Err(OpenError::Empty(name));
    }
    let segments = core_segments(&file);
    if segments.is_none() && bytes % page != 0 {
        return Err(OpenError::Odd { path: name, bytes });
    }
    let place = population.place(if segments.is_some() { "core dump" } else { "file" });
    let source = population.add_source(Source::file(name.clone(), file));
    let mut left = bytes;
    for (offset, len) in segments.unwrap_or_else(|| vec![(0, bytes)]) {
        // A dump that was cut off ends with the file.
        let end = offset.saturating_add(len).min(bytes);
        let pages = end.saturating_sub(offset) / page;
        let overlap = || failed(io::Error::other("its segments overlap"));
        left = left.checked_sub(pages * page).ok_or_else(overlap)?;
        (0..pages).for_each(|index| population.add_page(source, place, offset + index * page));
    }
    Ok(())
}

/// Where the segments of a core dump lie in the file; None if it is none.
fn core_segments(file: &File) -> Option<Vec<(u64, u64)>> {
    let cache = ReadCache::new(file);
    if let Ok(core) = ElfFile64::<Endianness, _>::parse(&cache) {
        return ranges(&core);
    }
    ElfFile32::<Endianness, _>::parse(&cache).ok().and_then(|core| ranges(&core))
}

fn ranges<'data>(core: &impl Object<'data>) -> Option<Vec<(u64, u64)>> {
    let is_core = core.kind() == ObjectKind::Core;
    is_core.then(|| core.segments().map(|segment| segment.file_range()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core dump of one segment of `pages` pages at offset 4096, each filled with its number.
    fn core(pages: u8) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_SIZE];
        bytes[..16].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(16, &4u16.to_le_bytes()); // ET_CORE
        put(18, &62u16.to_le_bytes()); // x86-64
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes()); // program headers
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &1u32.to_le_bytes()); // PT_LOAD
        put(72, &(PAGE_SIZE as u64).to_le_bytes());
        put(96, &(u64::from(pages) * PAGE_SIZE as u64).to_le_bytes());
        bytes.extend((0..pages).flat_map(|number| [number; PAGE_SIZE]));
        bytes
    }

    fn listed(bytes: &[u8]) -> Result<Population, OpenError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, bytes).unwrap();
        let mut population = Population::default();
        list(&path, &mut population).map(|()| population)
    }

    #[test]
    fn a_core_dump_gives_its_segments_and_a_raw_file_all_of_it() {
        let population = listed(&core(5)).unwrap();
        let mut page = [0; PAGE_SIZE];
        assert_eq!(population.pages(), 5);
        assert!(population.read(population.at(3), &mut page).unwrap());
        assert_eq!(page, [3; PAGE_SIZE]);
        assert_eq!(listed(&[7; 3 * PAGE_SIZE]).unwrap().pages(), 3);
        let mut cut = core(5);
        cut.truncate(3 * PAGE_SIZE + 100);
        assert_eq!(listed(&cut).unwrap().pages(), 2);
    }

    #[test]
    fn a_core_dump_has_no_more_pages_than_its_file() {
        let mut twice = core(5);
        let header: [u8; 56] = twice[64..120].try_into().unwrap();
        twice[120..176].copy_from_slice(&header);
        twice[56] = 2;
        assert!(matches!(listed(&twice), Err(OpenError::File { why, .. }) if why.contains("overlap")));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        assert!(matches!(listed(&[]), Err(OpenError::Empty(_))));
        assert!(matches!(listed(&[1; 5000]), Err(OpenError::Odd { bytes: 5000, .. })));
        let mut population = Population::default();
        assert!(matches!(list(Path::new("/proc"), &mut population), Err(OpenError::NotAFile(_))));
        assert!(matches!(list(Path::new("/no/such"), &mut population), Err(OpenError::File { .. })));
    }
}
