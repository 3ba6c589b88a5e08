//! ramfold's lzo beside liblzo2, and both beside what the kernel's zram makes of the same pages: `lzo-compare FILE`.
//!
//! Same-filled pages and pages seen before are left out. In each round every codec compresses all pages and
//! decompresses them again; rates are medians, of one thread's processor time. What lzo compressed liblzo2 has to
//! restore, and the other way round. zram, where there is one, is written the same pages, and tells the sum of its
//! bytes; it counts 4096 for a page that it thinks too poor.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold::codec::{Codec, CompressError, DecompressError, Scratch, by_name};
use ramfold::page::same_filled;
use ramfold::{PAGE_SIZE, Page};
use ramfold_bench::comparison::median;
use ramfold_bench::pages::Pages;
use ramfold_bench::zram::Zram;
use ramfold_survey::shelf::thread_time;
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes that a page which does not compress may take.
const MOST: usize = 2 * PAGE_SIZE;

#[derive(Parser)]
#[command(about = "ramfold's lzo beside liblzo2 and the kernel's")]
struct Options {
    /// Pages of 4096 bytes, one after another
    file: PathBuf,
    /// At most so many different pages
    #[arg(long, default_value_t = 20_000)]
    pages: usize,
    /// Rounds, in each of which every side has its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// `lzo1x_1_compress` and `lzo1x_decompress_safe`.
type Call = unsafe extern "C" fn(*const u8, usize, *mut u8, *mut usize, *mut c_void) -> c_int;

/// `LZO1X_1_MEM_COMPRESS`, in words: 16384 pointers.
const WORK: usize = 16384;

/// liblzo2 as a codec; its working memory is a vector of [`WORK`] words.
#[derive(Debug)]
struct Library {
    compress: Call,
    decompress: Call,
}

impl Library {
    fn load() -> Result<Self> {
        // SAFETY: the library's constructors do nothing that matters here; the names end in a null.
        let library = unsafe { libc::dlopen(c"liblzo2.so.2".as_ptr(), libc::RTLD_NOW) };
        ensure!(!library.is_null(), "there is no liblzo2.so.2 (Debian: liblzo2-2)");
        let find = |name: &std::ffi::CStr| -> Result<Call> {
            // SAFETY: a handle of dlopen that is never closed.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            ensure!(!found.is_null(), "liblzo2 has no {name:?}");
            // SAFETY: lzo1x.h declares both functions so.
            Ok(unsafe { std::mem::transmute::<*mut c_void, Call>(found) })
        };
        Ok(Self { compress: find(c"lzo1x_1_compress")?, decompress: find(c"lzo1x_decompress_safe")? })
    }
}

/// The length of what it made, if it could.
fn call(call: Call, from: &[u8], to: &mut [u8], scratch: &mut Scratch) -> Option<usize> {
    let (mut len, work) = (to.len(), scratch.downcast_mut::<Vec<u64>>()?);
    // SAFETY: both lengths are told; `to` has room for the worst case of a page, and `work` for what is asked.
    let error =
        unsafe { call(from.as_ptr(), from.len(), to.as_mut_ptr(), &raw mut len, work.as_mut_ptr().cast()) };
    (error == 0).then_some(len)
}

impl Codec for Library {
    fn name(&self) -> &'static str {
        "liblzo2"
    }

    fn level(&self) -> Option<i32> {
        None
    }

    fn scratch(&self) -> Scratch {
        Box::new(vec![0_u64; WORK])
    }

    fn compress(&self, scratch: &mut Scratch, page: &Page, out: &mut [u8]) -> Result<usize, CompressError> {
        call(self.compress, page, out, scratch).ok_or(CompressError::Failed)
    }

    fn decompress(&self, scratch: &mut Scratch, data: &[u8], page: &mut Page) -> Result<(), DecompressError> {
        let whole = call(self.decompress, data, page, scratch) == Some(PAGE_SIZE);
        whole.then_some(()).ok_or(DecompressError)
    }
}

/// What all pages came to.
struct Turn {
    compressed: Vec<Vec<u8>>,
    compress: Duration,
    decompress: Duration,
}

fn turn(codec: &dyn Codec, pages: &[Page]) -> Result<Turn> {
    let (mut scratch, mut out, mut page) = (codec.scratch(), [0; MOST], [0; PAGE_SIZE]);
    let mut compressed: Vec<Vec<u8>> = pages.iter().map(|_| Vec::with_capacity(MOST)).collect();
    let begun = thread_time();
    for (page, kept) in pages.iter().zip(&mut compressed) {
        let len = codec.compress(&mut scratch, page, &mut out)?;
        kept.extend_from_slice(&out[..len]);
    }
    let compress = thread_time() - begun;
    let begun = thread_time();
    compressed.iter().try_for_each(|data| codec.decompress(&mut scratch, data, &mut page))?;
    Ok(Turn { compressed, compress, decompress: thread_time() - begun })
}

/// The codec restores what another has compressed.
fn check(codec: &dyn Codec, compressed: &[Vec<u8>], pages: &[Page]) -> Result<()> {
    let (mut scratch, mut restored) = (codec.scratch(), [0; PAGE_SIZE]);
    for (data, page) in compressed.iter().zip(pages) {
        codec.decompress(&mut scratch, data, &mut restored)?;
        ensure!(restored == *page, "{} restores another page", codec.name());
    }
    Ok(())
}

fn distinct(options: &Options) -> Result<Vec<Page>> {
    let size = fs::metadata(&options.file).with_context(|| options.file.display().to_string())?.len();
    let (all, mut seen, mut found) = (Pages::open(Some(&options.file))?, HashSet::new(), vec![]);
    for number in 0..size / PAGE_SIZE as u64 {
        let mut page = [0; PAGE_SIZE];
        all.fill(number, &mut page)?;
        if found.len() < options.pages && same_filled(&page).is_none() && seen.insert(page) {
            found.push(page);
        }
    }
    ensure!(!found.is_empty(), "there is no page to compress");
    Ok(found)
}

/// Bytes that zram keeps of these pages.
fn in_zram(name: &str, pages: &[Page]) -> Result<u64> {
    let device = Zram::add(name, (pages.len() * PAGE_SIZE) as u64)?;
    let mut disk = device.open()?;
    pages.iter().try_for_each(|page| disk.write_all(page))?;
    disk.sync_all()?;
    Ok(device.memory()?.compressed)
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn main() -> Result<()> {
    let options = Options::parse();
    let pages = distinct(&options)?;
    let original = (pages.len() * PAGE_SIZE) as f64;
    let codecs: [Box<dyn Codec>; 3] = [by_name("lzo")?, Box::new(Library::load()?), by_name("lzo-rle")?];
    let mut turns: [Vec<Turn>; 3] = Default::default();
    for _ in 0..options.rounds {
        for (codec, turns) in codecs.iter().zip(&mut turns) {
            turns.push(turn(codec.as_ref(), &pages)?);
        }
    }
    check(codecs[0].as_ref(), &turns[1][0].compressed, &pages)?;
    check(codecs[1].as_ref(), &turns[0][0].compressed, &pages)?;
    println!("{} different pages; MB/s of processor time, medians of {}", pages.len(), options.rounds);
    println!("{:<16} {:>8} {:>10} {:>10}", "", "ratio", "compress", "decompress");
    for (codec, turns) in codecs.iter().zip(&turns) {
        let rate = |time: fn(&Turn) -> Duration| {
            median(turns.iter().map(|turn| original / 1e6 / time(turn).as_secs_f64()).collect())
                .unwrap_or(f64::NAN)
        };
        let bytes: usize = turns[0].compressed.iter().map(Vec::len).sum();
        let (compress, decompress) = (rate(|turn| turn.compress), rate(|turn| turn.decompress));
        println!("{:<16} {:>8.3} {compress:>10.0} {decompress:>10.0}", codec.name(), original / bytes as f64);
    }
    for name in ["lzo", "lzo-rle"] {
        match in_zram(name, &pages) {
            Ok(bytes) => println!("{:<16} {:>8.3}", format!("zram {name}"), original / bytes as f64),
            Err(error) => println!("zram {name}: not compared ({error:#})"),
        }
    }
    Ok(())
}
