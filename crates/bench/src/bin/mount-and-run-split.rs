//! A mount and a run under one limit, beside fixed splits of it: `mount-and-run-split --ramfold BINARY`.
//!
//! One program touches its own memory and reads a file through a mount, in turn, each by a Zipfian order (0.99) over
//! more than fits. So many steps take so long: with one limit for both, where the budget moves memory to whoever uses
//! it, and with five splits of that limit that stay as they are. Rows are programs of which few, half and most steps
//! read the file, and one that turns from the one to the other. Reads are direct (O_DIRECT), so that the kernel's page
//! cache has no part in it. Each page that is touched or read is checked. Sides take turns; shown are medians of
//! seconds, and the budget's over those of the best split.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ramfold::{PAGE_SIZE, Page};
use ramfold_bench::comparison::median;
use ramfold_bench::mounted::Mounted;
use ramfold_bench::pages::Pages;
use ramfold_bench::process::Running;
use ramfold_bench::random::{Random, Zipf, mix};
use ramfold_bench::throttle::Throttle;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// What the run has of the limit, in parts of [`PARTS`]; the mount has the rest. None: one limit for both.
const SIDES: [Option<u64>; 6] = [None, Some(8), Some(11), Some(14), Some(17), Some(20)];
const PARTS: u64 = 24;
/// The rows, and how many steps of 100 read the file, in the first half and in the second.
const ROWS: [(&str, [u64; 2]); 4] =
    [("memory", [10, 10]), ("even", [50, 50]), ("files", [90, 90]), ("turns", [90, 10])];
/// Files that are younger are not kept.
const SETTLED: Duration = Duration::from_secs(6);
/// Pages of the file have other contents than those of memory.
const OF_FILE: u64 = 1 << 40;

#[derive(Parser)]
#[command(about = "A mount and a run under one limit, beside fixed splits of it")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// Where the file is: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// The limit, in MiB
    #[arg(long, default_value_t = 48)]
    limit: u64,
    /// What the program has of memory, in MiB
    #[arg(long, default_value_t = 96)]
    memory: u64,
    /// How large the file is, in MiB
    #[arg(long, default_value_t = 128)]
    file: u64,
    /// Steps that are measured; as many come before
    #[arg(long, default_value_t = 100_000)]
    steps: u64,
    /// Rounds, in each of which all sides have their turn
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Only these rows
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Requests a second of the file's disk; 0: the disk is as quick as it is
    #[arg(long, default_value_t = 0)]
    requests_a_second: u64,
    /// Few steps, to see that everything works
    #[arg(long)]
    quick: bool,
    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,
    /// What the program is started with: a place
    #[arg(long, hide = true)]
    work: Option<PathBuf>,
    /// Steps of 100 that read the file
    #[arg(long, hide = true, num_args = 2)]
    percent: Vec<u64>,
}

/// The program's part.
struct Work {
    memory: Vec<Page>,
    file: File,
    buffer: Box<Buffer>,
    /// Pages of memory and of the file, and their orders.
    orders: [(u64, Zipf); 2],
    random: Random,
}

/// Direct reads want it aligned.
#[repr(align(4096))]
struct Buffer(Page);

/// The word of a page that is checked: neither its first nor one that helps to compress it.
const WORD: std::ops::Range<usize> = PAGE_SIZE / 2..PAGE_SIZE / 2 + 8;

/// A page's contents.
fn page(pages: &Pages, number: u64) -> Result<Page> {
    let mut page = [0; PAGE_SIZE];
    pages.fill(number, &mut page)?;
    page[WORD].copy_from_slice(&mix(number).to_le_bytes());
    Ok(page)
}

fn check(page: &Page, number: u64) -> Result<()> {
    ensure!(page[WORD] == mix(number).to_le_bytes(), "page {number:#x} has other bytes");
    Ok(())
}

impl Work {
    /// Fills memory, and waits until there is a file to read.
    fn new(options: &Options, place: &Path) -> Result<Self> {
        let (pages, count) = (Pages::open(None)?, options.memory * MIB / PAGE_SIZE as u64);
        let memory: Vec<Page> = (0..count).map(|number| page(&pages, number)).collect::<Result<_>>()?;
        while !place.join("go").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let path = place.join("mount/file");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let orders =
            [count, options.file * MIB / PAGE_SIZE as u64].map(|count| (count, Zipf::new(count, 0.99)));
        Ok(Self { memory, file, buffer: Box::new(Buffer([0; PAGE_SIZE])), orders, random: Random::new(7) })
    }

    fn step(&mut self, percent: u64) -> Result<()> {
        let reads = self.random.below(100) < percent;
        let (count, order) = &self.orders[usize::from(reads)];
        let number = mix(order.rank(&mut self.random)) % count;
        if reads {
            self.file.read_exact_at(&mut self.buffer.0, number * PAGE_SIZE as u64)?;
            return check(&self.buffer.0, OF_FILE + number);
        }
        let page = &mut self.memory[usize::try_from(number)?];
        check(page, number)?;
        if self.random.below(4) == 0 {
            page[0] = page[0].wrapping_add(1);
        }
        Ok(())
    }

    /// Prints the seconds of each half.
    fn run(mut self, options: &Options) -> Result<()> {
        let before = options.percent.last().copied().unwrap_or(50);
        (0..options.steps).try_for_each(|_| self.step(before))?;
        let mut halves = vec![];
        for percent in &options.percent {
            let begun = Instant::now();
            (0..options.steps / 2).try_for_each(|_| self.step(*percent))?;
            halves.push(begun.elapsed().as_secs_f64());
        }
        println!("{}", json!(halves));
        Ok(())
    }
}

/// The file that is read.
fn make(options: &Options, source: &Path) -> Result<()> {
    fs::create_dir(source)?;
    let (pages, file) = (Pages::open(None)?, File::create(source.join("file"))?);
    let mut out = BufWriter::with_capacity(1 << 20, &file);
    for number in 0..options.file * MIB / PAGE_SIZE as u64 {
        out.write_all(&page(&pages, OF_FILE + number)?)?;
    }
    out.flush()?;
    file.sync_all()?;
    drop_pages(&file);
    std::thread::sleep(SETTLED);
    Ok(())
}

/// The disk is read, and not the page cache.
fn drop_pages(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: plain integers.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// One turn of a side: the seconds of both halves.
fn turn(options: &Options, place: &Path, side: Option<u64>, percent: [u64; 2]) -> Result<[f64; 2]> {
    drop_pages(&File::open(place.join("source/file"))?);
    let _ = fs::remove_file(place.join("go"));
    let (socket, limit) = (place.join("budget"), options.limit * MIB);
    let of_run = side.map_or(limit, |parts| limit * parts / PARTS);
    let mut run = Command::new(&options.ramfold);
    run.args(["run", "-m", &of_run.to_string(), "--swap-size", "2G"]);
    let of_mount = match side {
        Some(_) => ["-m".to_owned(), (limit - of_run).to_string()],
        None => {
            run.arg("--share").arg(&socket);
            ["--budget".to_owned(), socket.display().to_string()]
        }
    };
    let [memory, file, steps] = [options.memory, options.file, options.steps].map(|it| it.to_string());
    run.arg("--").arg(std::env::current_exe()?).arg("--work").arg(place);
    run.args(["--memory", &memory, "--file", &file, "--steps", &steps, "--percent"]);
    run.args(percent.map(|it| it.to_string())).stdout(Stdio::piped());
    let mut program = Running::start(&mut run)?;
    let begun = Instant::now();
    while side.is_none() && !socket.exists() {
        ensure!(begun.elapsed().as_secs() < 20, "ramfold run does not share its limit");
        std::thread::sleep(Duration::from_millis(5));
    }
    let throttle = match options.requests_a_second {
        0 => None,
        most => Some(Throttle::new("ramfold-split", &options.directory, u32::MAX.into(), most)?),
    };
    let contain = |command: &mut Command| throttle.iter().for_each(|it| it.contain(command));
    let mounted = Mounted::start(&options.ramfold, &of_mount, place, &contain)?;
    fs::write(place.join("go"), "")?;
    let told = program.first_line()?;
    ensure!(program.0.wait()?.success(), "the program has failed");
    drop(mounted);
    serde_json::from_str(&told).with_context(|| format!("the program said {told:?}"))
}

fn name(side: Option<u64>, limit: u64) -> String {
    side.map_or("one limit".to_owned(), |it| {
        format!("{} + {}", limit * it / PARTS, limit - limit * it / PARTS)
    })
}

fn compare(options: &Options) -> Result<BTreeMap<&'static str, Vec<f64>>> {
    let place = tempfile::Builder::new().prefix("split.").tempdir_in(&options.directory)?;
    make(options, &place.path().join("source"))?;
    fs::create_dir(place.path().join("mount"))?;
    let mut rows = BTreeMap::new();
    for (row, percent) in ROWS {
        if !options.rows.is_empty() && !options.rows.iter().any(|it| it == row) {
            continue;
        }
        let mut seconds = SIDES.map(|_| vec![]);
        for _ in 0..options.rounds {
            for (side, all) in SIDES.into_iter().zip(&mut seconds) {
                let halves = turn(options, place.path(), side, percent)?;
                eprintln!("{row}, {}: {:.2} s and {:.2} s", name(side, options.limit), halves[0], halves[1]);
                all.push(halves[0] + halves[1]);
            }
        }
        rows.insert(row, seconds.map(|all| median(all).unwrap_or(f64::NAN)).to_vec());
    }
    Ok(rows)
}

fn show(options: &Options, rows: &BTreeMap<&'static str, Vec<f64>>) {
    let best = |seconds: &[f64]| seconds[1..].iter().copied().fold(f64::INFINITY, f64::min);
    if options.json {
        let rows: Vec<Value> =
            rows.iter().map(|(row, it)| json!({ "row": row, "seconds": it, "best": best(it) })).collect();
        return println!("{}", json!({ "limit_mib": options.limit, "rows": rows }));
    }
    let names: Vec<String> = SIDES.iter().map(|side| name(*side, options.limit)).collect();
    println!("seconds for {} steps; MiB of the run + of the mount", options.steps);
    println!("| reads of 100 | {} | one limit / best |", names.join(" | "));
    println!("|---|{}--:|", "--:|".repeat(names.len()));
    for (row, percent) in ROWS {
        let Some(seconds) = rows.get(row) else { continue };
        let told: Vec<String> = seconds.iter().map(|it| format!("{it:.2}")).collect();
        let reads = if percent[0] == percent[1] {
            percent[0].to_string()
        } else {
            format!("{}, then {}", percent[0], percent[1])
        };
        println!("| {reads} | {} | {:.2} |", told.join(" | "), seconds[0] / best(seconds));
    }
}

fn main() -> Result<()> {
    let mut options = Options::parse();
    if options.quick {
        options.steps = 4000;
    }
    if let Some(place) = &options.work {
        return Work::new(&options, place)?.run(&options);
    }
    let rows = compare(&options)?;
    show(&options, &rows);
    Ok(())
}
