//! The same pages in the kernel's zram and in ramfold: `zram-compare FILE [COMPRESSOR]` (as root).
//!
//! Adds a zram device of its own, writes FILE to it, prints what its `mm_stat` says, and removes it. Then stores the
//! same pages in a [`Store`] with zsmalloc, without duplicates, since zram shares none. Both count all pages of
//! memory that their zsmalloc holds; ramfold's index (zram's table likewise) is shown apart. The last line is what
//! `ramfold inspect FILE` foretells of zram, from its sample alone.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold::{Config, Key, PAGE_SIZE, Page, PoolKind, Store};
use ramfold_bench::pages::Pages;
use ramfold_bench::zram::{MemoryStat, Zram};
use ramfold_survey::kernel_pool;
use ramfold_survey::look::look;
use ramfold_survey::measure::Sizes;
use ramfold_survey::population::{Population, Target};
use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(about = "The same pages in the kernel's zram and in ramfold")]
struct Options {
    /// Pages of 4096 bytes, one after another
    file: PathBuf,
    /// As both call it
    #[arg(default_value = "lz4")]
    compressor: String,
}

/// What the pages cost, in bytes.
struct Outcome {
    original: u64,
    compressed: u64,
    used: u64,
}

fn main() -> Result<()> {
    let Options { file, compressor } = Options::parse();
    let size = fs::metadata(&file).with_context(|| file.display().to_string())?.len();
    let (count, pages) = (size / PAGE_SIZE as u64, Pages::open(Some(&file))?);
    println!("{count} pages, {compressor}");
    println!(
        "{:<10} {:>12} {:>12} {:>12} {:>8} {:>10}",
        "", "original", "compressed", "memory", "ratio", "overhead"
    );
    let zram = in_zram(&pages, count, &compressor)?;
    print("zram", &zram);
    print("ramfold", &in_ramfold(&pages, count, &compressor)?);
    let foretold = foretold(&file, &compressor)?;
    let off = (foretold / zram.used as f64 - 1.0) * 100.0;
    println!("foretold   {foretold:>38.0}   of zram's {off:+.2} %");
    Ok(())
}

fn print(name: &str, outcome: &Outcome) {
    let Outcome { original, compressed, used } = outcome;
    let per = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    let (ratio, overhead) = (per(*original, *used), per(*used, *compressed));
    println!("{name:<10} {original:>12} {compressed:>12} {used:>12} {ratio:>8.3} {overhead:>10.4}");
}

fn in_zram(pages: &Pages, count: u64, compressor: &str) -> Result<Outcome> {
    let device = Zram::add(compressor, count * PAGE_SIZE as u64)?;
    let mut disk = device.open()?;
    let mut page: Page = [0; PAGE_SIZE];
    for index in 0..count {
        pages.fill(index, &mut page)?;
        disk.write_all(&page)?;
    }
    ensure!(disk.stream_position()? == count * PAGE_SIZE as u64, "not all was written");
    disk.sync_all()?;
    drop(disk);
    let MemoryStat { compressed, used, .. } = device.memory()?;
    Ok(Outcome { original: count * PAGE_SIZE as u64, compressed, used })
}

/// Bytes of the kernel's zsmalloc, as `ramfold inspect` computes them.
fn foretold(file: &Path, compressor: &str) -> Result<f64> {
    let look = look(&Population::open(&[Target::File(file.to_owned())], false)?, |_, _| {})?;
    let sizes = Sizes::of(compressor, &look.sample)?;
    Ok(kernel_pool::pool_bytes(&sizes.bytes, look.filled_pages()))
}

fn in_ramfold(pages: &Pages, count: u64, compressor: &str) -> Result<Outcome> {
    let config = Config {
        compressor: compressor.into(),
        zpool: "zsmalloc".into(),
        max_pool_bytes: u64::MAX,
        duplicate_pages_enabled: false,
        ..Config::default()
    };
    let store = Store::new(&config, None)?;
    let pool = store.create_pool(PoolKind::Persistent, None);
    let (mut scratch, mut page) = (store.scratch(), [0; PAGE_SIZE]);
    for index in 0..count {
        pages.fill(index, &mut page)?;
        store.store(Key { pool, object: 0, index }, &page, &mut scratch)?;
    }
    let stats = store.stats();
    println!("ramfold's index and tables: {:.1} bytes a page", stats.meta_bytes as f64 / count as f64);
    Ok(Outcome {
        original: count * PAGE_SIZE as u64,
        compressed: stats.compr_data_size,
        used: stats.pool_total_size,
    })
}
