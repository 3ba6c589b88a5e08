//! `ramfold mount` beside the plain page cache with as much memory: `mount-vs-page-cache --ramfold BINARY`.
//!
//! The rows of seed 002, which had them from iozone: a file is read from the first to the last byte, again, at random
//! places in small and large pieces, with a stride, and at last read and written at random. The file is a half to
//! three times as large as the memory, on a disk that is made slow (40 MB and 500 requests a second) by a blkio
//! cgroup. Both sides have a memory cgroup of the same size without swap. In it are, on the one side, the program that
//! reads and its page cache; on the other that program, the server, and the page cache of both, of the mount and of
//! the source. Each round starts cold. The sides take turns; shown are medians of MB a second, and their ratio.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use ramfold::codec::{Codec, Scratch, by_name};
use ramfold::{PAGE_SIZE, Page};
use ramfold_bench::cgroup::Cgroup;
use ramfold_bench::comparison::median;
use ramfold_bench::mounted::Mounted;
use ramfold_bench::process::{Running, anonymous_bytes};
use ramfold_bench::throttle::Throttle;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const ROWS: [&str; 6] = ["sequential", "re-read", "random 4k", "random 128k", "stride", "mixed"];
const SIDES: [&str; 2] = ["page cache", "ramfold"];

#[derive(Parser)]
#[command(about = "ramfold mount beside the plain page cache with as much memory")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// Where the files are: a directory on a disk, or on a loop device
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Memory of each side in all, as 128M, or in bytes
    #[arg(long, default_value = "128M", value_parser = size)]
    memory: u64,
    /// What of it is ramfold's limit (-m); by default 13/16, so that 104M of 128M
    #[arg(long, value_parser = size)]
    limit: Option<u64>,
    /// Sizes of the file, as parts of the memory
    #[arg(long, value_delimiter = ',', default_value = "0.5,1.5,2,3")]
    sets: Vec<f64>,
    /// Rounds, in each of which both sides have their turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds for each row that is not one pass over the file
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Random bytes in place of files of /usr
    #[arg(long)]
    incompressible: bool,
    /// Only such pieces of the files of /usr that zstd:1 makes the whole so many times smaller
    #[arg(long, conflicts_with = "incompressible")]
    ratio: Option<f64>,
    /// Bytes a second of the disk
    #[arg(long, default_value = "40000000", value_parser = size)]
    bytes_a_second: u64,
    /// Requests a second of the disk; 0: the disk is as quick as it is
    #[arg(long, default_value_t = 500)]
    requests_a_second: u64,
    /// ramfold's compressor
    #[arg(long, default_value = "zstd:1")]
    compressor: String,
    /// One more option for `ramfold mount` (may be repeated)
    #[arg(long = "ramfold-option", value_name = "OPTION", allow_hyphen_values = true)]
    ramfold_options: Vec<String>,
    /// One round of small sets, to see that everything works
    #[arg(long)]
    quick: bool,
    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,
    /// What the program that reads is started with
    #[arg(long, hide = true)]
    read: Option<PathBuf>,
}

impl Options {
    fn limit(&self) -> u64 {
        self.limit.unwrap_or(self.memory / 16 * 13)
    }

    /// What `ramfold mount` is told.
    fn of_mount(&self) -> Vec<String> {
        let limit = self.limit().to_string();
        let own = ["-m", &limit, "--compressor", &self.compressor].map(str::to_owned);
        own.into_iter().chain(self.ramfold_options.iter().cloned()).collect()
    }
}

/// `104M`, or bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix(['M', 'm']) {
        Some(number) => (number, MIB),
        None => (text, 1),
    };
    number.parse::<u64>().map(|number| number * unit).map_err(|error| format!("{text}: {error} (as 128M)"))
}

/// Between two turns: what was written just before is not kept for five seconds, on either side.
const REST: Duration = Duration::from_secs(6);

/// Splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the file that is read is made of.
enum Content {
    /// What /usr has, one file after the other.
    Usr,
    /// Of that, such pieces that the whole is so many times smaller when it is compressed.
    Chosen(f64, Box<Chosen>),
    /// What nothing can make smaller.
    Random,
}

/// What was taken so far, and what it comes to compressed.
struct Chosen {
    codec: Box<dyn Codec>,
    scratch: Scratch,
    plain: usize,
    compressed: usize,
}

impl Chosen {
    /// Whether this piece leaves all that was taken small enough, and is taken.
    fn takes(&mut self, ratio: f64, piece: &[u8]) -> bool {
        let (pages, _): (&[Page], _) = piece.as_chunks();
        let mut out = [0; PAGE_SIZE];
        let sizes = pages
            .iter()
            .map(|page| self.codec.compress(&mut self.scratch, page, &mut out).unwrap_or(PAGE_SIZE));
        let (plain, compressed) =
            (self.plain + pages.len() * PAGE_SIZE, self.compressed + sizes.sum::<usize>());
        let is_small = plain as f64 >= compressed as f64 * ratio;
        if is_small {
            (self.plain, self.compressed) = (plain, compressed);
        }
        is_small
    }
}

impl Content {
    fn new(options: &Options) -> Result<Self> {
        Ok(match options.ratio {
            _ if options.incompressible => Self::Random,
            None => Self::Usr,
            Some(ratio) => {
                let codec = by_name("zstd:1")?;
                let scratch = codec.scratch();
                Self::Chosen(ratio, Box::new(Chosen { codec, scratch, plain: 0, compressed: 0 }))
            }
        })
    }

    /// Gives pieces to `put` until it has enough.
    fn fill(&mut self, mut put: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
        const PIECE: usize = 64 << 10;
        if let Self::Random = self {
            let (mut state, mut bytes) = (1, vec![0; 1 << 20]);
            loop {
                let words = bytes.as_chunks_mut::<8>().0.iter_mut();
                words.for_each(|word| *word = random(&mut state).to_le_bytes());
                if put(&bytes)? {
                    return Ok(());
                }
            }
        }
        let mut folders = vec![PathBuf::from("/usr")];
        while let Some(folder) = folders.pop() {
            let mut entries: Vec<_> = fs::read_dir(&folder).into_iter().flatten().flatten().collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let bytes = if kind.is_file() { fs::read(entry.path()).unwrap_or_default() } else { vec![] };
                match self {
                    Self::Chosen(ratio, chosen) => {
                        for piece in bytes.chunks_exact(PIECE) {
                            if chosen.takes(*ratio, piece) && put(piece)? {
                                return Ok(());
                            }
                        }
                    }
                    _ if put(&bytes)? => return Ok(()),
                    _ => {}
                }
            }
        }
        bail!("/usr is smaller than the largest set")
    }
}

/// Writes the file that is read.
fn write_file(path: &Path, len: u64, mut content: Content) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let mut left = usize::try_from(len)?;
    content.fill(|bytes| {
        let part = &bytes[..left.min(bytes.len())];
        file.write_all(part)?;
        left -= part.len();
        Ok(left == 0)
    })?;
    file.sync_all()?;
    Ok(())
}

/// Takes a file out of the page cache, and tells the sum of its words first.
fn cold(path: &Path, len: u64) -> Result<u64> {
    let file = File::open(path)?;
    let mut bytes = vec![0; 1 << 20];
    let mut sum = 0;
    for at in (0..len).step_by(1 << 20) {
        file.read_exact_at(&mut bytes, at)?;
        sum = add(sum, &bytes);
    }
    file.sync_all()?;
    // SAFETY: plain integers.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(error == 0, "posix_fadvise: {}", std::io::Error::from_raw_os_error(error));
    Ok(sum)
}

fn add(sum: u64, bytes: &[u8]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// The program that reads: all rows, one after the other.
struct Reader {
    file: File,
    len: u64,
    length: Duration,
    random: u64,
}

impl Reader {
    /// MB a second of one pass, and the sum of all words.
    fn pass(&self) -> Result<(f64, u64)> {
        let mut bytes = vec![0; 128 << 10];
        let (mut sum, begun) = (0, Instant::now());
        for at in (0..self.len).step_by(bytes.len()) {
            self.file.read_exact_at(&mut bytes, at)?;
            sum = add(sum, &bytes);
        }
        Ok((self.len as f64 / 1e6 / begun.elapsed().as_secs_f64(), sum))
    }

    /// MB a second of requests of `len` bytes, of which so many in a hundred write.
    fn requests(&mut self, len: u64, writes: u64, mut next: impl FnMut(&mut u64) -> u64) -> Result<f64> {
        let mut bytes = vec![0; usize::try_from(len)?];
        let (mut done, begun) = (0, Instant::now());
        while begun.elapsed() < self.length {
            let at = next(&mut self.random) % (self.len / len) * len;
            // What is written is what was read last, so pages stay as compressible as they are.
            if random(&mut self.random) % 100 < writes {
                self.file.write_all_at(&bytes, at)?;
            } else {
                self.file.read_exact_at(&mut bytes, at)?;
            }
            done += len;
        }
        if writes > 0 {
            self.file.sync_data()?;
        }
        Ok(done as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    fn run(mut self) -> Result<Value> {
        let (first, sum) = self.pass()?;
        let (second, again) = self.pass()?;
        ensure!(sum == again, "two passes read different bytes");
        let small = self.requests(4096, 0, random)?;
        let large = self.requests(128 << 10, 0, random)?;
        // iozone's stride: one page of every 17.
        let mut place = 0;
        let stride = self.requests(4096, 0, |_| {
            place += 17;
            place
        })?;
        let mixed = self.requests(4096, 30, random)?;
        Ok(json!({"rows": [first, second, small, large, stride, mixed], "sum": sum}))
    }
}

/// One side's turn: MB a second by row, and the most anonymous memory that the server had.
fn round(side: &str, options: &Options, place: &Path, len: u64, slow: bool) -> Result<(Vec<f64>, u64)> {
    let path = place.join("source/file");
    std::thread::sleep(REST);
    let sum = cold(&path, len)?;
    let name = format!("ramfold-bench-{}", std::process::id());
    let group = Cgroup::new(&name)?;
    group.limit(options.memory)?;
    group.forbid_swap()?;
    let (bytes, requests) = (options.bytes_a_second, options.requests_a_second);
    let disk = slow.then(|| Throttle::new(&name, place, bytes, requests)).transpose()?;
    let contain = |command: &mut Command| {
        group.contain(command);
        disk.iter().for_each(|disk| disk.contain(command));
    };
    let mounted = match side {
        "ramfold" => Some(Mounted::start(&options.ramfold, &options.of_mount(), place, &contain)?),
        _ => None,
    };
    let file = mounted.as_ref().map_or(path, |mounted| mounted.point.join("file"));
    let mut reader = Command::new(std::env::current_exe()?);
    let seconds = options.seconds.to_string();
    reader.arg("--read").arg(file).args(["--memory", &len.to_string(), "--seconds", &seconds]);
    contain(reader.stdout(Stdio::piped()));
    let mut reader = Running::start(&mut reader)?;
    let mut most = 0;
    let status = loop {
        if let Some(status) = reader.0.try_wait()? {
            break status;
        }
        if let Some(mounted) = &mounted {
            most = most.max(anonymous_bytes(mounted.server.0.id())?);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = String::new();
    reader.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
    ensure!(status.success() && !group.ran_out()?, "{side}: {status} {text}");
    let told: Value = serde_json::from_str(&text)?;
    ensure!(told["sum"].as_u64() == Some(sum), "{side}: what was read is not what the file has");
    drop(mounted);
    let rows: Option<Vec<f64>> = told["rows"].as_array().context("rows")?.iter().map(Value::as_f64).collect();
    Ok((rows.context("no number")?, most))
}

/// By set, side and row: a number of each round.
type Table = BTreeMap<(usize, usize, usize), Vec<f64>>;

fn measure(options: &Options, place: &Path, slow: bool) -> Result<(Table, u64)> {
    let (mut table, mut most) = (Table::new(), 0);
    for (set, part) in options.sets.iter().enumerate() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let len = (options.memory as f64 * part) as u64 / MIB * MIB;
        ensure!(len > 0, "a set of {part} is too small");
        write_file(&place.join("source/file"), len, Content::new(options)?)?;
        for number in 0..options.rounds {
            for turn in 0..SIDES.len() {
                // Neither is always the first.
                let side = (number + turn) % SIDES.len();
                eprintln!("set {part}, round {}: {}", number + 1, SIDES[side]);
                let (rows, anonymous) = round(SIDES[side], options, place, len, slow)?;
                most = most.max(anonymous);
                for (row, rate) in rows.into_iter().enumerate() {
                    table.entry((set, side, row)).or_default().push(rate);
                }
            }
        }
    }
    Ok((table, most))
}

fn print(options: &Options, table: &Table, most: u64, slow: bool) {
    let middle = |set, side, row| table.get(&(set, side, row)).and_then(|rates| median(rates.clone()));
    let mut rows = vec![];
    println!(
        "MB a second; {} MiB of memory, ramfold's limit {}",
        options.memory / MIB,
        options.limit() / MIB
    );
    println!("{:>6}  {:<12} {:>12} {:>12} {:>8}", "set", "row", SIDES[0], SIDES[1], "ratio");
    for (set, part) in options.sets.iter().enumerate() {
        for (row, name) in ROWS.iter().enumerate() {
            let (Some(plain), Some(ramfold)) = (middle(set, 0, row), middle(set, 1, row)) else { continue };
            let ratio = ramfold / plain;
            println!("{part:>6}  {name:<12} {plain:>12.1} {ramfold:>12.1} {ratio:>8.2}");
            rows.push(
                json!({"set": part, "row": name, "page_cache": plain, "ramfold": ramfold, "ratio": ratio}),
            );
        }
    }
    println!("at most {} MiB of the server's memory were anonymous", most / MIB);
    if options.json {
        let (memory, limit) = (options.memory, options.limit());
        println!(
            "{}",
            json!({"memory": memory, "limit": limit, "slow": slow, "anonymous": most, "rows": rows})
        );
    }
}

fn main() -> Result<()> {
    let mut options = Options::parse();
    if let Some(path) = &options.read {
        let file = File::options().read(true).write(true).open(path)?;
        let length = Duration::from_secs_f64(options.seconds);
        println!("{}", Reader { file, len: options.memory, length, random: 1 }.run()?);
        return Ok(());
    }
    if options.quick {
        (options.rounds, options.seconds, options.sets) = (1, 0.5, vec![0.25, 1.0]);
    }
    if !options.ramfold.exists() {
        bail!("{}: there is no such command (cargo build --release)", options.ramfold.display());
    }
    let place = tempfile::tempdir_in(&options.directory)?;
    for name in ["source", "mount"] {
        fs::create_dir(place.path().join(name))?;
    }
    let name = format!("ramfold-bench-probe-{}", std::process::id());
    let slow = match options.requests_a_second {
        0 => false,
        _ => match Throttle::new(&name, place.path(), options.bytes_a_second, options.requests_a_second) {
            Ok(_) => true,
            Err(why) => {
                eprintln!("the disk is as quick as it is: {why:#}");
                false
            }
        },
    };
    let (table, most) = measure(&options, place.path(), slow)?;
    print(&options, &table, most, slow);
    Ok(())
}
