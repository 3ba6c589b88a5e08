//! Whether a disk grows slower as it is used: `disk-ageing` (as root).
//!
//! What seed 003 measured of zram over zsmalloc and over zbud (Vitaly Wool, 2016): a file system of ext4, half full, on
//! which fio's jobs fill the rest until there is no space, again and again. A round is that, with writes of 4 to 64 KiB
//! at depth 4, and then random reads and writes of 4 KiB in the old files; what filled the file system is removed at
//! its end. Four jobs at a time have data that compresses differently. Nothing is discarded: freed blocks are written
//! over.
//!
//! ext4 is the kernel's, on a loop device over nbdfuse (libnbd) over `ramfold disk`, which costs every side of
//! ramfold's the same; the kernel's zram has a device of its own, and its figures are compared with themselves alone.
//! The sides take turns, round by round. Beside the last rounds new disks of each kind have their first ones. Shown are
//! medians over the first rounds, the last ones and those of the new disk; the last as a part of the first; and the
//! median of each of the last as a part of the new disk's beside it: the machine may have changed since the first, but
//! hardly between an old disk's round and a new one's.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::process::{Running, processor_time};
use ramfold_bench::zram::Zram;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How much of the jobs' data is zeros, in percent.
const COMPRESSIBLE: [u32; 4] = [20, 50, 75, 90];

#[derive(Parser)]
#[command(about = "Throughput and latency of a disk over rounds of filling a half-full ext4")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// MiB of the disk
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Rounds
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Rounds at the beginning and at the end that are compared
    #[arg(long, default_value_t = 20)]
    compared: usize,
    /// Seconds of random reads and writes in a round
    #[arg(long, default_value_t = 1)]
    seconds: u64,
    /// The compressor of all sides
    #[arg(long, default_value = "lz4")]
    compressor: String,
    /// Print each round
    #[arg(long)]
    verbose: bool,
}

/// What a stage of a round came to.
#[derive(Debug, Clone, Copy)]
struct Stage {
    /// Requests a second.
    rate: f64,
    /// Microseconds of a request: the mean, and what 99 of 100 keep within (the mean of the jobs').
    mean: f64,
    most: f64,
}

#[derive(Debug, Clone, Copy)]
struct Round {
    fill: Stage,
    mixed: Stage,
    /// Microseconds of the server's processor time a request.
    server: Option<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.rounds >= 2 * options.compared && options.compared > 0, "too few --rounds to compare");
    let place = tempfile::tempdir_in("/var/tmp")?;
    let mut old = disks(&options, &place.path().join("old"))?;
    let mut new = Vec::new();
    for number in 0..options.rounds {
        if number == options.rounds - options.compared {
            new = disks(&options, &place.path().join("new"))?;
        }
        for (at, side) in old.iter_mut().enumerate() {
            side.next_round(&options, number)?;
            if let Some(new) = new.get_mut(at) {
                new.next_round(&options, number)?;
            }
        }
    }
    println!(
        "{} rounds on an ext4 of {} MiB, {}; medians of the first {3} and the last {3}, and of a new disk's beside these",
        options.rounds, options.mib, options.compressor, options.compared
    );
    print!("{}", table(&old, &new, options.compared));
    Ok(())
}

/// The disks, each half full.
fn disks(options: &Options, place: &Path) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for (name, more) in [
        ("zbud", &["--zpool", "zbud", "--no-fresh"][..]),
        ("zsmalloc", &["--zpool", "zsmalloc", "--no-fresh"]),
        ("zsmalloc, fresh", &["--zpool", "zsmalloc"]),
    ] {
        sides.push(Side::of_ramfold(name, options, &place.join(sides.len().to_string()), more)?);
    }
    sides.push(Side::of_zram(options, &place.join("zram"))?);
    for side in &sides {
        side.fill_half(options)?;
    }
    Ok(sides)
}

/// A mounted file system, and what lies under it. Dropped from the top down.
struct Side {
    name: String,
    mount: Mount,
    device: Device,
    rounds: Vec<Round>,
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        quietly(Command::new("umount").arg(&self.0));
    }
}

enum Device {
    /// The loop device, what shows the disk as a file, and where; the server.
    Ramfold {
        looped: String,
        file: PathBuf,
        shown: Running,
        server: Running,
    },
    Zram(#[allow(dead_code, reason = "is removed when dropped")] Zram),
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Self::Ramfold { looped, file, shown, .. } = self {
            quietly(Command::new("losetup").args(["-d", looped]));
            quietly(Command::new("fusermount3").arg("-u").arg(&file));
            let _ = shown.0.wait();
        }
    }
}

fn quietly(command: &mut Command) {
    if let Ok(output) = command.output().inspect_err(|error| eprintln!("{command:?}: {error}"))
        && !output.status.success()
    {
        eprintln!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
}

fn done(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::piped()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn wait_for(what: &Path) -> Result<()> {
    let begun = Instant::now();
    while !what.exists() {
        ensure!(begun.elapsed() < Duration::from_secs(60), "{} does not come", what.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Side {
    fn of_ramfold(name: &str, options: &Options, place: &Path, more: &[&str]) -> Result<Self> {
        let (socket, file) = (place.join("socket"), place.join("file"));
        fs::create_dir_all(&file)?;
        let mut command = Command::new(&options.ramfold);
        command.args(["disk", "--comp-algorithm", &options.compressor, "--no-duplicates"]).args(more);
        command.args(["--recomp-algorithm", "none", "--size", &format!("{}M", options.mib), "--unix"]);
        command.arg(&socket).env("XDG_RUNTIME_DIR", place).stderr(Stdio::null());
        let server = Running::start(&mut command)?;
        wait_for(&socket)?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let shown = Running::start(Command::new("nbdfuse").arg(&file).arg(uri).stdout(Stdio::null()))?;
        let shown_as = file.join("nbd");
        wait_for(&shown_as)?;
        let looped =
            done(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&shown_as))?;
        let device = Device::Ramfold { looped: looped.clone(), file, shown, server };
        Self::mounted(name, Path::new(&looped), place, device)
    }

    fn of_zram(options: &Options, place: &Path) -> Result<Self> {
        let zram = Zram::add(&options.compressor, options.mib << 20)?;
        let path = zram.path();
        Self::mounted("kernel's zram", &path, place, Device::Zram(zram))
    }

    fn mounted(name: &str, block: &Path, place: &Path, device: Device) -> Result<Self> {
        let mount = place.join("mount");
        fs::create_dir_all(&mount)?;
        done(
            Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(block),
        )?;
        done(Command::new("mount").arg(block).arg(&mount))?;
        Ok(Self { name: name.to_owned(), mount: Mount(mount), device, rounds: Vec::new() })
    }

    /// The files that stay.
    fn fill_half(&self, options: &Options) -> Result<()> {
        let size = options.mib / 2 / COMPRESSIBLE.len() as u64;
        self.fio(0, &sections("old", &format!("rw=write\nbs=64k\nsize={size}M\nend_fsync=1")))?;
        Ok(())
    }

    fn next_round(&mut self, options: &Options, number: usize) -> Result<()> {
        let round = self.round(options, number)?;
        if options.verbose {
            println!("{number:>3} {:<16} {round:.1?}", self.name);
        }
        self.rounds.push(round);
        Ok(())
    }

    fn round(&self, options: &Options, number: usize) -> Result<Round> {
        let before = self.served()?;
        let fill =
            self.fio(number, &sections("new", "rw=write\nbssplit=4k/60:16k/30:64k/10\nfill_device=1"))?;
        let size = options.mib / 2 / COMPRESSIBLE.len() as u64;
        let text = format!(
            "rw=randrw\nrwmixread=70\nbs=4k\nsize={size}M\ntime_based=1\nruntime={}",
            options.seconds
        );
        let mixed = self.fio(number, &sections("old", &text))?;
        let requests = fill.1 + mixed.1;
        let server = self.served()?.zip(before).map(|(now, before)| (now - before) * 1e6 / requests);
        for percent in COMPRESSIBLE {
            fs::remove_file(self.mount.0.join(format!("new{percent}")))?;
        }
        Ok(Round { fill: fill.0, mixed: mixed.0, server })
    }

    /// Runs the jobs; what they came to together, and how many requests there were.
    fn fio(&self, seed: usize, jobs: &str) -> Result<(Stage, f64)> {
        let script = self.mount.0.with_extension("fio");
        let text = format!(
            "[global]\ndirectory={}\ndirect=1\nioengine=libaio\niodepth=4\nrefill_buffers=1\nallow_file_create=1\n\
             randseed={seed}\n{jobs}",
            self.mount.0.display()
        );
        fs::write(&script, text)?;
        let told = done(Command::new("fio").arg("--output-format=json").arg(&script))?;
        // A line on ENOSPC may come before.
        let told: Value = serde_json::from_str(&told[told.find('{').context("fio told nothing")?..])?;
        let (mut requests, mut rate, mut mean, mut most) = (0.0, 0.0, 0.0, 0.0);
        for job in told["jobs"].as_array().context("no jobs")? {
            for way in ["read", "write"] {
                let number = |name: &Value| name.as_f64().unwrap_or(0.0);
                let way = &job[way];
                let count = number(&way["total_ios"]);
                requests += count;
                rate += number(&way["iops"]);
                mean += count * number(&way["clat_ns"]["mean"]) / 1e3;
                most += count * number(&way["clat_ns"]["percentile"]["99.000000"]) / 1e3;
            }
        }
        ensure!(requests > 0.0, "fio did nothing: {told}");
        Ok((Stage { rate, mean: mean / requests, most: most / requests }, requests))
    }

    /// Seconds of processor time that the server has taken.
    fn served(&self) -> Result<Option<f64>> {
        let Device::Ramfold { server, .. } = &self.device else { return Ok(None) };
        Ok(Some(processor_time(server.0.id())?.as_secs_f64()))
    }
}

/// Four jobs, each with a file and data of its own.
fn sections(file: &str, what: &str) -> String {
    COMPRESSIBLE.iter().fold(String::new(), |mut text, percent| {
        let _ = write!(
            text,
            "[{file}{percent}]\nfilename={file}{percent}\nbuffer_compress_percentage={percent}\n{what}\n"
        );
        text
    })
}

fn table(old: &[Side], new: &[Side], compared: usize) -> String {
    type Of = fn(&Round) -> Option<f64>;
    let columns: [(&str, Of); 7] = [
        ("fill, requests/s", |round| Some(round.fill.rate)),
        ("fill, us", |round| Some(round.fill.mean)),
        ("fill, us of 99", |round| Some(round.fill.most)),
        ("random, requests/s", |round| Some(round.mixed.rate)),
        ("random, us", |round| Some(round.mixed.mean)),
        ("random, us of 99", |round| Some(round.mixed.most)),
        ("server, us", |round| round.server),
    ];
    let (relative, young) = ("last / first", "last / new");
    let mut text = format!(
        "{:<16} {:<20} {:>10} {:>10} {:>10} {relative:>12} {young:>10}\n",
        "", "", "first", "last", "new"
    );
    for (side, new) in old.iter().zip(new) {
        for (name, of) in columns {
            let of_some = |rounds: &[Round]| median(rounds.iter().filter_map(of).collect());
            let last = &side.rounds[side.rounds.len() - compared..];
            let pairs = last.iter().zip(&new.rounds).filter_map(|(last, new)| Some(of(last)? / of(new)?));
            let all = of_some(&side.rounds[..compared]).zip(of_some(last)).zip(of_some(&new.rounds));
            if let Some((((first, last), new), young)) = all.zip(median(pairs.collect())) {
                let relative = last / first;
                let _ = writeln!(
                    text,
                    "{:<16} {name:<20} {first:>10.1} {last:>10.1} {new:>10.1} {relative:>12.3} {young:>10.3}",
                    side.name
                );
            }
        }
    }
    text
}

fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied()
}
