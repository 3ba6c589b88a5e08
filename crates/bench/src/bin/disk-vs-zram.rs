//! What a disk takes of memory, in the kernel's zram and in `ramfold disk`: `disk-vs-zram` (as root).
//!
//! An ext4 image of a tree of real files (`mke2fs -d`, nothing is mounted) is written to a zram device of the program's
//! own, and to `ramfold disk`, with and without sharing of duplicates, which zram has not. Both have zsmalloc. Then all
//! is recompressed by denser compressors, as `ramfold ctl` asks for it, and reads of random pages are timed. Shown is
//! `mm_stat` of both, in bytes, and beside it what `mm_stat` does not count: zram's table as /proc/vmallocinfo has it,
//! ramfold's index and tables as it tells itself, and its process's anonymous memory as the kernel does.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::nbd_client::{Client, Kind, Load};
use ramfold_bench::zram::{MemoryStat, Zram};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a write.
const PIECE: usize = 128 << 10;
/// Reads that are timed.
const READS: u64 = 40_000;

#[derive(Parser)]
#[command(about = "What a disk takes of memory, in zram and in ramfold disk")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// What the image is filled with
    #[arg(long, default_value = "/usr/lib/python3")]
    tree: PathBuf,
    /// MiB of the image
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Denser compressors, by which all pages of a disk without duplicates are compressed anew
    #[arg(long, value_delimiter = ';', default_value = "zstd:3;zstd:3,dict=auto;zstd:9;zstd:9,dict=auto")]
    dense: Vec<String>,
    /// Compressors that both have
    #[arg(default_values = ["lzo-rle", "lzo", "lz4"])]
    compressors: Vec<String>,
}

/// Bytes, by zram's names.
#[derive(Debug, Default)]
struct Outcome {
    original: u64,
    compressed: u64,
    used: u64,
    /// Table or index, which is not in `used`.
    table: u64,
    /// Of the process.
    anonymous: Option<u64>,
    /// Microseconds of a read of a page.
    read: Option<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let place = tempfile::tempdir_in("/var/tmp")?;
    let image = image(&options, place.path())?;
    let pages = options.mib << 8;
    println!("{pages} pages, an ext4 image of {}", options.tree.display());
    println!(
        "{:<24} {:>12} {:>12} {:>12} {:>12} {:>10} {:>8} {:>12} {:>8}",
        "", "original", "compressed", "memory", "and table", "a byte", "of zram", "process", "read us"
    );
    for compressor in &options.compressors {
        let zram = in_zram(&image, options.mib << 20, compressor)?;
        print(&format!("zram {compressor}"), &zram, &zram);
        for (name, more) in [("ramfold", &[][..]), ("ramfold no duplicates", &["--no-duplicates"])] {
            print(name, &in_ramfold(&options, &image, place.path(), compressor, more, None)?, &zram);
        }
        for dense in &options.dense {
            let more = &["--no-duplicates"];
            let outcome = in_ramfold(&options, &image, place.path(), compressor, more, Some(dense))?;
            print(&format!("cold {dense}"), &outcome, &zram);
        }
    }
    Ok(())
}

fn print(name: &str, it: &Outcome, zram: &Outcome) {
    let per = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    println!(
        "{name:<24} {:>12} {:>12} {:>12} {:>12} {:>10.4} {:>8.3} {:>12} {:>8}",
        it.original,
        it.compressed,
        it.used,
        it.used + it.table,
        per(it.used + it.table, it.original),
        per(it.used + it.table, zram.used + zram.table),
        it.anonymous.map_or_else(String::new, |bytes| bytes.to_string()),
        it.read.map_or_else(String::new, |us| format!("{us:.1}"))
    );
}

/// An ext4 file system with the tree in it.
fn image(options: &Options, place: &Path) -> Result<PathBuf> {
    let path = place.join("image");
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-E", "lazy_itable_init=0", "-d"]).arg(&options.tree).arg(&path);
    let done = command.arg(format!("{}M", options.mib)).output().context("mke2fs")?;
    ensure!(done.status.success(), "mke2fs: {}", String::from_utf8_lossy(&done.stderr));
    Ok(path)
}

/// Bytes of tables that the kernel's zram has now, of all devices.
fn tables() -> Result<u64> {
    let areas = fs::read_to_string("/proc/vmallocinfo")?;
    let of_zram = areas.lines().filter(|line| line.contains("disksize_store") || line.contains("zram"));
    Ok(of_zram.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}

fn in_zram(image: &Path, bytes: u64, compressor: &str) -> Result<Outcome> {
    let before = tables()?;
    let device = Zram::add(compressor, bytes)?;
    let table = tables()? - before;
    let mut disk = device.open()?;
    std::io::copy(&mut File::open(image)?, &mut disk)?;
    disk.sync_all()?;
    drop(disk);
    let MemoryStat { original, compressed, used } = device.memory()?;
    ensure!(original == bytes, "not all was written: {original} of {bytes} bytes");
    Ok(Outcome { original, compressed, used, table, anonymous: None, read: None })
}

/// A server that is ended when the value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_ramfold(
    options: &Options,
    image: &Path,
    place: &Path,
    compressor: &str,
    more: &[&str],
    dense: Option<&str>,
) -> Result<Outcome> {
    let socket = place.join("disk");
    let ramfold = || {
        let mut command = Command::new(&options.ramfold);
        command.env("XDG_RUNTIME_DIR", place).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut command = ramfold();
    command.args(["disk", "--name", "it", "--comp-algorithm", compressor]);
    command.args(["--recomp-algorithm", dense.unwrap_or("none")]);
    command.arg("--size").arg(format!("{}M", options.mib)).arg("--unix").arg(&socket).args(more);
    let server = Server(command.spawn().context("ramfold")?);
    let mut client = Client::connect(&socket)?;
    fill(&mut client, image, options.mib << 20)?;
    if dense.is_some() {
        for request in [["recompress", "priority=1"], ["compact", "1"]] {
            let done = ramfold().args(["ctl", "it"]).args(request).status()?;
            ensure!(done.success(), "ctl {request:?}");
        }
    }
    let read = read_at_random(&mut client, options.mib << 8)?;
    let told = |arguments: &[&str]| -> Result<Value> {
        let told = ramfold().args(arguments).arg("--json").stdout(Stdio::piped()).output()?;
        serde_json::from_slice(&told.stdout).with_context(|| format!("{told:?}"))
    };
    // What was just written is compressed once it was left alone.
    while told(&["ctl", "it", "fresh_stat"])?["fresh_bytes"] != 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    // The tables are told by the keeper.
    std::thread::sleep(Duration::from_millis(500));
    let pid = server.0.id().to_string();
    let shown = told(&["top", &pid, "--count", "1", "--interval", "0.1"])?;
    let stat = told(&["ctl", "it", "mm_stat"])?;
    let number = |of: &Value, name: &str| of[name].as_u64().with_context(|| format!("{name}: {of}"));
    let outcome = Outcome {
        original: number(&stat, "orig_data_size")?,
        compressed: number(&stat, "compr_data_size")?,
        used: number(&stat, "mem_used_total")?,
        table: number(&shown, "meta_bytes")?,
        anonymous: Some(anonymous(&pid)?),
        read: Some(read),
    };
    fs::remove_file(&socket)?;
    Ok(outcome)
}

fn fill(client: &mut Client, image: &Path, bytes: u64) -> Result<()> {
    let (mut data, file) = (Vec::new(), File::open(image)?);
    file.take(bytes).read_to_end(&mut data)?;
    data.resize(usize::try_from(bytes)?, 0);
    let (mut offsets, mut pieces) = ((0..bytes).step_by(PIECE), data.chunks(PIECE));
    let mut next = || offsets.next().unwrap_or(0);
    let mut piece = || pieces.next().unwrap_or(&[]);
    let mut load = Load { kind: Kind::Write, len: PIECE, depth: 4, next: &mut next, data: &mut piece };
    let all = bytes / PIECE as u64;
    let done = client.drive(&mut load, |done| done + 4 > all)?;
    ensure!(done == all, "{done} of {all} pieces were written");
    Ok(())
}

/// Microseconds of a read of 4 KiB at depth 1, of pages in no order.
fn read_at_random(client: &mut Client, pages: u64) -> Result<f64> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % pages * 4096
    };
    let mut no_data = || &[][..];
    let mut load = Load { kind: Kind::Read, len: 4096, depth: 1, next: &mut next, data: &mut no_data };
    let begun = Instant::now();
    let done = client.drive(&mut load, |done| done >= READS)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6 / done as f64)
}

fn anonymous(pid: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
