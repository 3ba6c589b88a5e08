//! ramfold's lzo beside liblzo2, and both beside what the kernel's zram makes of the same pages: `lzo-compare FILE`.
//!
//! Pages of one repeated byte and pages seen before are left out. Each round compresses all pages with one side and
//! decompresses them again, then with the other; rates are medians, of one thread's processor time. What one side
//! compressed the other has to restore. zram, where there is one, is written the same pages: it keeps as they are
//! those that it thinks too poor, so its bytes are compared with a bound and not page by page.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ramfold::codec::{Codec, by_name};
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

/// A compressor and its decompressor.
trait Side {
    fn name(&self) -> String;
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize>;
    fn decompress(&mut self, data: &[u8], page: &mut Page) -> Result<()>;
}

struct Own {
    codec: Box<dyn Codec>,
    scratch: ramfold::codec::Scratch,
}

impl Own {
    fn new(name: &str) -> Result<Self> {
        let codec = by_name(name)?;
        Ok(Self { scratch: codec.scratch(), codec })
    }
}

impl Side for Own {
    fn name(&self) -> String {
        format!("ramfold {}", self.codec.name())
    }

    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize> {
        Ok(self.codec.compress(&mut self.scratch, page, out)?)
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> Result<()> {
        Ok(self.codec.decompress(&mut self.scratch, data, page)?)
    }
}

/// `lzo1x_1_compress` and `lzo1x_decompress_safe`.
type Call = unsafe extern "C" fn(*const u8, usize, *mut u8, *mut usize, *mut c_void) -> c_int;

struct Library {
    compress: Call,
    decompress: Call,
    /// `LZO1X_1_MEM_COMPRESS`: 16384 pointers.
    work: Vec<u64>,
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
        let (compress, decompress) = (find(c"lzo1x_1_compress")?, find(c"lzo1x_decompress_safe")?);
        Ok(Self { compress, decompress, work: vec![0; 16384] })
    }

    fn call(&mut self, call: Call, from: &[u8], to: &mut [u8]) -> Result<usize> {
        let mut len = to.len();
        // SAFETY: both lengths are told; `to` has room for the worst case of a page, and `work` for what is asked.
        let error = unsafe {
            call(from.as_ptr(), from.len(), to.as_mut_ptr(), &raw mut len, self.work.as_mut_ptr().cast())
        };
        ensure!(error == 0, "liblzo2 answers {error}");
        Ok(len)
    }
}

impl Side for Library {
    fn name(&self) -> String {
        "liblzo2".into()
    }

    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Result<usize> {
        self.call(self.compress, page, out)
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> Result<()> {
        ensure!(self.call(self.decompress, data, page)? == PAGE_SIZE, "liblzo2 restores no whole page");
        Ok(())
    }
}

/// What all pages came to.
struct Turn {
    compressed: Vec<Vec<u8>>,
    compress: Duration,
    decompress: Duration,
}

fn turn(side: &mut dyn Side, pages: &[Page]) -> Result<Turn> {
    let mut out = [0; MOST];
    let mut compressed: Vec<Vec<u8>> = pages.iter().map(|_| Vec::with_capacity(MOST)).collect();
    let begun = thread_time();
    for (page, kept) in pages.iter().zip(&mut compressed) {
        let len = side.compress(page, &mut out)?;
        kept.extend_from_slice(&out[..len]);
    }
    let compress = thread_time() - begun;
    let mut page = [0; PAGE_SIZE];
    let begun = thread_time();
    compressed.iter().try_for_each(|data| side.decompress(data, &mut page))?;
    Ok(Turn { compressed, compress, decompress: thread_time() - begun })
}

/// What one side compressed the other restores.
fn check(side: &mut dyn Side, compressed: &[Vec<u8>], pages: &[Page]) -> Result<()> {
    let mut restored = [0; PAGE_SIZE];
    for (data, page) in compressed.iter().zip(pages) {
        side.decompress(data, &mut restored)?;
        if restored != *page {
            bail!("{} restores another page", side.name());
        }
    }
    Ok(())
}

fn distinct(options: &Options) -> Result<Vec<Page>> {
    let size = fs::metadata(&options.file).with_context(|| options.file.display().to_string())?.len();
    let (all, mut seen, mut found) = (Pages::open(Some(&options.file))?, HashSet::new(), vec![]);
    for number in 0..size / PAGE_SIZE as u64 {
        let mut page = [0; PAGE_SIZE];
        all.fill(number, &mut page)?;
        let is_filled = page.iter().all(|byte| *byte == page[0]);
        if found.len() < options.pages && !is_filled && seen.insert(page) {
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
    let mut sides: [Box<dyn Side>; 3] =
        [Box::new(Own::new("lzo")?), Box::new(Library::load()?), Box::new(Own::new("lzo-rle")?)];
    let mut turns: [Vec<Turn>; 3] = Default::default();
    for _ in 0..options.rounds {
        for (side, turns) in sides.iter_mut().zip(&mut turns) {
            turns.push(turn(side.as_mut(), &pages)?);
        }
    }
    check(sides[0].as_mut(), &turns[1][0].compressed, &pages)?;
    check(sides[1].as_mut(), &turns[0][0].compressed, &pages)?;
    println!("{} different pages; MB/s of processor time, medians of {}", pages.len(), options.rounds);
    println!("{:<16} {:>8} {:>10} {:>10}", "", "ratio", "compress", "decompress");
    for (side, turns) in sides.iter().zip(&turns) {
        let rate = |time: fn(&Turn) -> Duration| {
            median(turns.iter().map(|turn| original / 1e6 / time(turn).as_secs_f64()).collect())
                .unwrap_or(f64::NAN)
        };
        let bytes: usize = turns[0].compressed.iter().map(Vec::len).sum();
        let (compress, decompress) = (rate(|turn| turn.compress), rate(|turn| turn.decompress));
        println!("{:<16} {:>8.3} {compress:>10.0} {decompress:>10.0}", side.name(), original / bytes as f64);
    }
    for name in ["lzo", "lzo-rle"] {
        match in_zram(name, &pages) {
            Ok(bytes) => println!("{:<16} {:>8.3}", format!("zram {name}"), original / bytes as f64),
            Err(error) => println!("zram {name}: not compared ({error:#})"),
        }
    }
    Ok(())
}
