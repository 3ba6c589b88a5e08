//! Units larger than a page: 16 and 64 KiB compressed as one.
//!
//! No zpool takes objects of more than a page, so this is a forecast by a stated model, not a measurement of a store:
//! a unit is what is there of an aligned group of pages, same-filled ones left out; its compressed bytes are kept in
//! pieces of at most what the zpool takes, each an object of the real zpool; a unit that does not become smaller is
//! kept as it is. Groups are those of random pages, so a group with more pages is met more often, by just the weight
//! that it has. Neighbours resemble each other: the error is computed over units, not pages.
//!
//! The price of a larger unit is in the times. To store a page takes its share of compressing the unit; to load one
//! page, all of the unit has to be decompressed. Both are processor time of the compressor alone, without the store.
//!
//! The compressors are the same that the engine's codecs call, with the same levels.

use crate::look::Look;
use crate::measure::{Row, pool_bytes};
use crate::population::{OpenError, Population};
use crate::shelf::{ShelfError, thread_time};
use crate::statistics::Estimate;
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use lz4::block::{CompressionMode, compress_bound, compress_to_buffer, decompress_to_buffer};
use ramfold::codec::{self, Codec, Lzo, Scratch};
use ramfold::page::same_filled;
use ramfold::zpool::{self, ArenaOptions};
use ramfold::{PAGE_SIZE, Page};
use std::time::Duration;
use zstd_safe::{CCtx, CParameter, DCtx};

/// Sizes of units, in KiB, beside the page.
pub const KIB: [u64; 2] = [16, 64];
/// Groups of 64 KiB that are read.
const GROUPS: usize = 384;

/// Groups of neighbours, each up to 64 KiB.
#[derive(Debug)]
pub struct Groups(Vec<Vec<Page>>);

/// A unit size, compressed.
#[derive(Debug)]
pub struct Units {
    kib: u64,
    compressor: String,
    /// Bytes before and after, of each unit.
    sizes: Vec<(usize, usize)>,
    compressing: Duration,
    decompressing: Duration,
}

impl Groups {
    /// Reads the groups around pages of the sample.
    ///
    /// # Errors
    /// [`OpenError`]: a process has ended meanwhile, or a file cannot be read.
    pub fn read(population: &Population, look: &Look) -> Result<Self, OpenError> {
        let largest = KIB[KIB.len() - 1] * 1024 / PAGE_SIZE as u64;
        let step = look.sample.len().div_ceil(GROUPS).max(1);
        let mut groups = Vec::new();
        for sampled in look.sample.iter().step_by(step) {
            let mut group = Vec::new();
            for at in population.group(sampled.rank, largest) {
                let mut page = [0; PAGE_SIZE];
                if population.read(at, &mut page)? && same_filled(&page).is_none() {
                    group.push(page);
                }
            }
            groups.push(group);
        }
        groups.retain(|group| !group.is_empty());
        Ok(Self(groups))
    }

    /// Compresses and decompresses them in units of so many KiB.
    ///
    /// # Errors
    /// [`ShelfError`]: there is no such compressor, or it does not give back what it was given.
    pub fn compress(&self, compressor: &str, kib: u64) -> Result<Units, ShelfError> {
        let mut engine = Engine::by_name(compressor)?;
        let pages = usize::try_from(kib * 1024).expect("a small number") / PAGE_SIZE;
        let mut units = Units {
            kib,
            compressor: compressor.to_owned(),
            sizes: vec![],
            compressing: Duration::ZERO,
            decompressing: Duration::ZERO,
        };
        let (mut packed, mut again) = (vec![], vec![]);
        for unit in self.0.iter().flat_map(|group| group.chunks(pages)) {
            let bytes = unit.as_flattened();
            packed.resize(engine.bound(bytes.len()), 0);
            again.resize(bytes.len(), 0);
            let started = thread_time();
            let len = engine.compress(bytes, &mut packed);
            units.compressing += thread_time() - started;
            let started = thread_time();
            engine.decompress(&packed[..len], &mut again);
            units.decompressing += thread_time() - started;
            if again != bytes {
                return Err(ShelfError::Refused(format!("{compressor} does not restore {kib} KiB")));
            }
            units.sizes.push((bytes.len(), len.min(bytes.len())));
        }
        Ok(units)
    }
}

impl Units {
    /// The row of this unit with a zpool.
    ///
    /// # Errors
    /// [`ShelfError`].
    pub fn row(&self, look: &Look, zpool: &str) -> Result<Row, ShelfError> {
        let most = zpool::by_name(zpool, &ArenaOptions::default())
            .map_err(|error| ShelfError::Name(error.to_string()))?
            .max_size();
        let pieces: Vec<u16> = self.sizes.iter().flat_map(|(_, after)| pieces(*after, most)).collect();
        let (before, after) = self.sizes.iter().fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        let (pages, units) = ((before / PAGE_SIZE).max(1) as f64, self.sizes.len().max(1) as f64);
        let objects = look.filled_pages() * pieces.len() as f64 / pages;
        let pool_bytes = pool_bytes(&pieces, objects, zpool)?;
        let raw = self.sizes.iter().filter(|(before, after)| before == after).map(|(before, _)| before);
        Ok(Row {
            compressor: self.compressor.clone(),
            unit_kib: self.kib,
            zpool: zpool.to_owned(),
            ratio: before as f64 / after.max(1) as f64,
            error_percent: self.error().percent(),
            pool_bytes,
            // A unit is shared only if all of it is repeated, which is not looked for.
            pool_bytes_shared: pool_bytes,
            incompressible: raw.sum::<usize>() as f64 / before.max(1) as f64,
            store_us: self.compressing.as_secs_f64() * 1e6 / pages,
            load_us: self.decompressing.as_secs_f64() * 1e6 / units,
        })
    }

    /// Of the bytes after compression per page, unit by unit.
    fn error(&self) -> Estimate {
        let per_page: Vec<f64> = self
            .sizes
            .iter()
            .map(|(before, after)| *after as f64 * PAGE_SIZE as f64 / *before as f64)
            .collect();
        Estimate::of(&per_page, u64::MAX)
    }
}

/// The objects that hold so many bytes.
fn pieces(bytes: usize, most: usize) -> impl Iterator<Item = u16> {
    (0..bytes.div_ceil(most)).map(move |index| {
        u16::try_from((bytes - index * most).min(most)).expect("a zpool takes at most a page")
    })
}

/// A compressor for any number of bytes, with what it needs to work.
enum Engine {
    Lz4(CompressionMode),
    Zstd { level: i32, packer: Box<CCtx<'static>>, unpacker: Box<DCtx<'static>> },
    Deflate { packer: Compressor, unpacker: Decompressor },
    Lzo { codec: Lzo, scratch: Scratch },
}

impl Engine {
    fn by_name(name: &str) -> Result<Self, ShelfError> {
        let codec = codec::by_name(name).map_err(|error| ShelfError::Name(error.to_string()))?;
        let level = codec.level().unwrap_or(1);
        let unknown = || ShelfError::Name(format!("{name} has no units larger than a page"));
        Ok(match codec.name() {
            "lz4" => Self::Lz4(CompressionMode::FAST(level)),
            "lz4hc" => Self::Lz4(CompressionMode::HIGHCOMPRESSION(level)),
            "zstd" => {
                Self::Zstd { level, packer: Box::new(CCtx::create()), unpacker: Box::new(DCtx::create()) }
            }
            "deflate" => Self::Deflate {
                packer: Compressor::new(CompressionLvl::new(level).map_err(|_| unknown())?),
                unpacker: Decompressor::new(),
            },
            "lzo" => Self::lzo(Lzo::plain()),
            "lzo-rle" => Self::lzo(Lzo::with_zeros()),
            _ => return Err(unknown()),
        })
    }

    fn lzo(codec: Lzo) -> Self {
        Self::Lzo { scratch: codec.scratch(), codec }
    }

    /// Room for any `len` bytes once compressed.
    fn bound(&mut self, len: usize) -> usize {
        match self {
            Self::Lz4(_) => compress_bound(len).unwrap_or(2 * len),
            Self::Zstd { .. } => zstd_safe::compress_bound(len),
            Self::Deflate { packer, .. } => packer.deflate_compress_bound(len),
            Self::Lzo { .. } => 2 * len,
        }
    }

    /// Bytes written to `out`; those of `bytes` if it failed, so that the unit counts as not compressible.
    fn compress(&mut self, bytes: &[u8], out: &mut [u8]) -> usize {
        let done = match self {
            Self::Lz4(mode) => compress_to_buffer(bytes, Some(*mode), false, out).ok(),
            Self::Zstd { level, packer, .. } => packer
                .set_parameter(CParameter::CompressionLevel(*level))
                .and_then(|_| packer.compress2(out, bytes))
                .ok(),
            Self::Deflate { packer, .. } => packer.deflate_compress(bytes, out).ok(),
            Self::Lzo { codec, scratch } => codec.compress_unit(scratch, bytes, out).ok(),
        };
        done.unwrap_or(bytes.len())
    }

    /// What cannot be decompressed leaves `out` as it is; the caller compares.
    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) {
        match self {
            Self::Lz4(_) => drop(decompress_to_buffer(bytes, i32::try_from(out.len()).ok(), out)),
            Self::Zstd { unpacker, .. } => drop(unpacker.decompress(out, bytes)),
            Self::Deflate { unpacker, .. } => drop(unpacker.deflate_decompress(bytes, out)),
            Self::Lzo { codec, .. } => drop(codec.decompress_unit(bytes, out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::{look, tests::file};
    use crate::population::Target;
    use crate::random::mix;

    /// Pages of which one half is like that of all others, and the other random.
    fn alike(count: u64) -> Vec<Page> {
        let word = |seed: u64, at: usize| mix(seed << 32 | at as u64).to_le_bytes();
        let page = |number: u64| {
            let mut page = [0; PAGE_SIZE];
            for (at, bytes) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *bytes = word(if at < 256 { 0 } else { number }, at);
            }
            page
        };
        (1..=count).map(page).collect()
    }

    #[test]
    fn larger_units_pack_better_and_load_slower() {
        let (_directory, path) = file(&alike(256));
        let population = Population::open(&[Target::File(path)], false).unwrap();
        let look = look(&population, |_, _| {}).unwrap();
        let groups = Groups::read(&population, &look).unwrap();
        for compressor in ["lz4", "lz4hc", "zstd:-1", "deflate:6", "lzo", "lzo-rle"] {
            let rows: Vec<Row> = KIB
                .iter()
                .map(|kib| groups.compress(compressor, *kib).unwrap().row(&look, "zsmalloc").unwrap())
                .collect();
            assert!(rows[0].ratio > 1.0 && rows[1].ratio > rows[0].ratio, "{rows:?}");
            assert!(rows[1].load_us > rows[0].load_us, "{rows:?}");
            assert!(rows[1].pool_bytes < 256.0 * 4096.0 / rows[1].ratio * 1.3, "{rows:?}");
        }
    }

    #[test]
    fn pieces_hold_all_bytes() {
        assert_eq!(pieces(10_000, 4096).collect::<Vec<_>>(), [4096, 4096, 1808]);
        assert_eq!(pieces(4096, 4096).collect::<Vec<_>>(), [4096]);
        assert_eq!(pieces(1, 4000).collect::<Vec<_>>(), [1]);
    }
}
