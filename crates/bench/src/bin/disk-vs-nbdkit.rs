//! `ramfold disk` beside nbdkit's memory disks: `disk-vs-nbdkit --ramfold BINARY`.
//!
//! Each server in turn gets the same image, and then the same requests of the same client. What is written are pages
//! of the image, at random places. Sides: ramfold; nbdkit with `allocator=sparse`, which compresses nothing; nbdkit
//! with `allocator=zstd`. Shown are medians of requests a second, of processor time of the server a request, and of
//! its resident memory once it has the image; with `--alone` before the last kind of requests.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold_bench::comparison::median;
use ramfold_bench::nbd_client::{Client, Kind, Load};
use ramfold_bench::process::processor_time;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "ramfold disk beside nbdkit's memory disks")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// The image; by default shared libraries of this machine, one after the other
    #[arg(long)]
    image: Option<PathBuf>,
    /// Rounds, in each of which every side has its turn
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds for each kind of requests
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only rows whose name has this in it
    #[arg(long, default_value = "")]
    rows: String,
    /// Seconds that ramfold's disk is left alone before each kind of requests: it compresses meanwhile
    #[arg(long, default_value_t = 0.0)]
    alone: f64,
    /// Further options of `ramfold disk`, with blanks between them
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    with: String,
    /// A small image and short runs
    #[arg(long)]
    quick: bool,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl Options {
    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| row.name.contains(&self.rows))
    }
}

const SIDES: [&str; 3] = ["ramfold", "sparse", "zstd"];

/// A kind of requests.
struct Row {
    name: &'static str,
    kind: Kind,
    len: usize,
    depth: usize,
    connections: usize,
    random: bool,
}

const ROWS: [Row; 8] = [
    Row { name: "4k read 1", kind: Kind::Read, len: 4096, depth: 1, connections: 1, random: true },
    Row { name: "4k read 16", kind: Kind::Read, len: 4096, depth: 16, connections: 1, random: true },
    Row { name: "4k read 16 x2", kind: Kind::Read, len: 4096, depth: 16, connections: 2, random: true },
    Row { name: "4k write 1", kind: Kind::Write, len: 4096, depth: 1, connections: 1, random: true },
    Row { name: "4k write 16", kind: Kind::Write, len: 4096, depth: 16, connections: 1, random: true },
    Row { name: "4k write 16 x2", kind: Kind::Write, len: 4096, depth: 16, connections: 2, random: true },
    Row { name: "128k read 4", kind: Kind::Read, len: 128 << 10, depth: 4, connections: 1, random: false },
    Row { name: "128k write 4", kind: Kind::Write, len: 128 << 10, depth: 4, connections: 1, random: false },
];

/// What one side did in one round: requests a second and microseconds of processor time a request, by row.
struct Round {
    rows: Vec<(f64, f64)>,
    /// Bytes.
    memory: f64,
}

/// A server that ends when this is dropped.
struct Server(Child);

impl Server {
    fn start(side: &str, options: &Options, size: usize, socket: &Path) -> Result<Self> {
        let mut command = if side == "ramfold" {
            let mut command = Command::new(&options.ramfold);
            command.args(["disk", "--size", &size.to_string(), "--unix"]).arg(socket);
            command.args(options.with.split_whitespace());
            command
        } else {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(socket).arg("memory");
            command.args([format!("{size}"), format!("allocator={side}")]);
            command
        };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("{side} is not there"))?))
    }

    /// Seconds of processor time so far.
    fn worked(&self) -> Result<f64> {
        Ok(processor_time(self.0.id())?.as_secs_f64())
    }

    /// Bytes resident.
    fn memory(&self) -> Result<f64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.0.id()))?;
        Ok(statm.split(' ').nth(1).context("statm")?.parse::<f64>()? * 4096.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn image(options: &Options) -> Result<Vec<u8>> {
    let size = if options.quick { 64 << 20 } else { 512 << 20 };
    let mut image = Vec::new();
    if let Some(path) = &options.image {
        image = fs::read(path)?;
    } else {
        let mut files: Vec<PathBuf> = ["/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/bin"]
            .iter()
            .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .collect();
        files.sort();
        for path in files.iter().filter(|path| path.is_file()) {
            image.extend(fs::read(path).unwrap_or_default());
            if image.len() >= size {
                break;
            }
        }
    }
    image.truncate(size);
    image.truncate(image.len() / (128 << 10) * (128 << 10));
    ensure!(!image.is_empty(), "the image is empty");
    Ok(image)
}

/// Splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Requests of one connection: how many were answered.
fn requests(socket: &Path, row: &Row, image: &[u8], seed: u64, ends: impl FnMut(u64) -> bool) -> Result<u64> {
    let pieces = (image.len() / row.len) as u64;
    let (mut places, mut sources) = (seed, !seed);
    let mut sequence = 0;
    let mut next = || {
        sequence += 1;
        let piece = if row.random { random(&mut places) } else { sequence - 1 };
        piece % pieces * row.len as u64
    };
    let mut turn = 0_u64;
    let mut data = || {
        turn += 1;
        let piece = if row.random { random(&mut sources) } else { turn - 1 } % pieces;
        let from = usize::try_from(piece).expect("small") * row.len;
        &image[from..from + row.len]
    };
    let mut load = Load { kind: row.kind, len: row.len, depth: row.depth, next: &mut next, data: &mut data };
    Client::connect(socket)?.drive(&mut load, ends)
}

/// One side's turn.
fn round(side: &str, options: &Options, image: &[u8], socket: &Path) -> Result<Round> {
    let server = Server::start(side, options, image.len(), socket)?;
    let pieces = (image.len() / (128 << 10)) as u64;
    requests(socket, &ROWS[7], image, 0, |done| done + ROWS[7].depth as u64 > pieces)?;
    let mut memory = server.memory()?;
    let mut rows = Vec::new();
    let length = Duration::from_secs_f64(if options.quick { 0.3 } else { options.seconds });
    for row in options.rows() {
        if side == "ramfold" && options.alone > 0.0 {
            thread::sleep(Duration::from_secs_f64(options.alone));
            memory = server.memory()?;
        }
        let (begun, worked) = (Instant::now(), server.worked()?);
        let answered = thread::scope(|scope| {
            let connections = (0..row.connections).map(|number| {
                let seed = number as u64 + 1;
                scope.spawn(move || requests(socket, row, image, seed, |_| begun.elapsed() >= length))
            });
            let connections: Vec<_> = connections.collect();
            connections.into_iter().map(|it| it.join().expect("no panic")).sum::<Result<u64>>()
        })?;
        let (took, worked) = (begun.elapsed().as_secs_f64(), server.worked()? - worked);
        rows.push((answered as f64 / took, worked * 1e6 / answered as f64));
    }
    drop(server);
    let _ = fs::remove_file(socket);
    Ok(Round { rows, memory })
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.rows().next().is_some(), "no row has {:?} in its name", options.rows);
    let image = image(&options)?;
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("socket");
    let mut rounds: Vec<Vec<Round>> = SIDES.iter().map(|_| Vec::new()).collect();
    for _ in 0..if options.quick { 1 } else { options.runs } {
        for (side, rounds) in SIDES.iter().zip(&mut rounds) {
            rounds.push(round(side, &options, &image, &socket)?);
        }
    }
    let middle = |side: usize, of: &dyn Fn(&Round) -> f64| {
        median(rounds[side].iter().map(of).collect()).expect("one round")
    };
    let memory: Vec<f64> = (0..SIDES.len()).map(|side| middle(side, &|round| round.memory)).collect();
    let table = options.rows().enumerate().map(|(at, row)| {
        let iops: Vec<f64> = (0..SIDES.len()).map(|side| middle(side, &|round| round.rows[at].0)).collect();
        let cpu: Vec<f64> = (0..SIDES.len()).map(|side| middle(side, &|round| round.rows[at].1)).collect();
        (row.name, iops, cpu)
    });
    if options.json {
        let rows = table.map(|(name, iops, cpu)| json!({"name": name, "iops": iops, "cpu_us": cpu}));
        let rows: Vec<_> = rows.collect();
        println!("{}", json!({"sides": SIDES, "image": image.len(), "memory": memory, "rows": rows}));
        return Ok(());
    }
    println!(
        "{:<16} {:>30} {:>22} {:>24}",
        "", "requests a second", "beside sparse, zstd", "processor us a request"
    );
    for (name, iops, cpu) in table {
        let (sparse, zstd) = (iops[0] / iops[1], iops[0] / iops[2]);
        let [a, b, c] = [iops[0], iops[1], iops[2]].map(|it| format!("{it:.0}"));
        println!(
            "{name:<16} {a:>10}{b:>10}{c:>10} {sparse:>11.2}{zstd:>11.2} {:>8.1}{:>8.1}{:>8.1}",
            cpu[0], cpu[1], cpu[2]
        );
    }
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "memory, MiB      {:>10.0}{:>10.0}{:>10.0} (image {:.0})",
        mib(memory[0]),
        mib(memory[1]),
        mib(memory[2]),
        mib(image.len() as f64)
    );
    Ok(())
}
