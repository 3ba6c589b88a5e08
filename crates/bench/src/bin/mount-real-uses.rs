//! What people do with directories, through `ramfold mount` and without it: `mount-real-uses --ramfold BINARY`.
//!
//! One tree on a disk that is made slow, of which each side has as much memory as in `mount-vs-page-cache`: files of
//! /usr/include and /usr/share in a git repository, a Python package of many modules, and C sources that include many
//! headers. Each use is done twice, the first time from a cold start and the second time after all others were done
//! once, so that something has pushed out what it read. Shown are seconds, the median of the rounds.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use ramfold_bench::cgroup::Cgroup;
use ramfold_bench::comparison::median;
use ramfold_bench::mounted::Mounted;
use ramfold_bench::process::Running;
use ramfold_bench::throttle::Throttle;

const MIB: u64 = 1 << 20;
const SIDES: [&str; 2] = ["page cache", "ramfold"];
/// Between two turns: what was written just before is not kept for five seconds.
const REST: Duration = Duration::from_secs(6);

/// By name, and what the shell is told to do in the tree.
const USES: [(&str, &str); 5] = [
    ("compile 60 C files", "for file in c/*.c; do cc -O0 -c -Iheaders -o /dev/null $file; done"),
    ("grep -r", "grep -rc 'no such words' text | wc -l >/dev/null"),
    ("import 2000 modules", "python3 -B -c 'import storm'"),
    ("git status", "git -C . status --porcelain | wc -l >/dev/null"),
    ("cat of all files", "find text -type f -exec cat {} + | cksum >/dev/null"),
];

/// What the tree is made of: told to the shell in it.
const TREE: &str = "
mkdir text c storm headers
cp -rL /usr/include/. headers/ 2>/dev/null || true
find headers -type l -delete
(cd /usr/share && find . -type f -size -256k ! -name '*.gz' ! -name '*.png' | head -c 4000000 |
    head -6000 | tar -cf - -T - 2>/dev/null) | tar -xf - -C text
for number in $(seq 60); do
    printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <math.h>\\n#include <pthread.h>\\n' >c/$number.c
    printf '#include <sys/socket.h>\\nint number_%s(void) { return %s; }\\n' $number $number >>c/$number.c
done
for number in $(seq 2000); do
    { echo \"def f(x): return x + $number\"; seq -f '# line %g of a module' 60; } >storm/m$number.py
    echo \"from . import m$number\" >>storm/__init__.py
done
git init -q . && git config gc.auto 0 && git add -A && git -c user.name=a -c user.email=a@b commit -qm tree
sync";

#[derive(Parser)]
#[command(about = "What people do with directories, through ramfold mount and without it")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// Where the files are: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// MiB of memory of each side in all
    #[arg(long, default_value_t = 128)]
    memory: u64,
    /// MiB of it that are ramfold's limit
    #[arg(long, default_value_t = 104)]
    limit: u64,
    /// Rounds, in each of which both sides have their turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Bytes and requests a second of the disk
    #[arg(long, default_value_t = 40_000_000)]
    bytes_a_second: u64,
    /// Requests a second of the disk
    #[arg(long, default_value_t = 500)]
    requests_a_second: u64,
}

/// Runs this in the tree: seconds.
fn use_it(line: &str, tree: &Path, contain: &dyn Fn(&mut Command)) -> Result<f64> {
    let mut command = Command::new("sh");
    command.args(["-euc", line]).current_dir(tree).env("GIT_OPTIONAL_LOCKS", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    contain(&mut command);
    let begun = Instant::now();
    let status = Running::start(&mut command)?.0.wait()?;
    ensure!(status.success(), "{line}: {status}");
    Ok(begun.elapsed().as_secs_f64())
}

/// Takes all files below a directory out of the page cache. Their names stay known to the kernel, for both sides.
fn cold(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            cold(&entry.path())?;
        } else if kind.is_file() {
            let file = fs::File::open(entry.path())?;
            // SAFETY: plain integers.
            let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            ensure!(error == 0, "posix_fadvise: {}", std::io::Error::from_raw_os_error(error));
        }
    }
    Ok(())
}

/// One side's turn: seconds of each use, the first and the second time.
fn round(side: &str, options: &Options, place: &Path) -> Result<Vec<[f64; 2]>> {
    std::thread::sleep(REST);
    cold(&place.join("source"))?;
    let name = format!("ramfold-bench-{}", std::process::id());
    let group = Cgroup::new(&name)?;
    group.limit(options.memory * MIB)?;
    group.forbid_swap()?;
    let disk = Throttle::new(&name, place, options.bytes_a_second, options.requests_a_second)?;
    let contain = |command: &mut Command| {
        group.contain(command);
        disk.contain(command);
    };
    let of_mount = ["-m".to_owned(), format!("{}M", options.limit)];
    let mounted = match side {
        "ramfold" => Some(Mounted::start(&options.ramfold, &of_mount, place, &contain)?),
        _ => None,
    };
    let tree = mounted.as_ref().map_or(place.join("source"), |mounted| mounted.point.clone());
    let all = || USES.iter().map(|(_, line)| use_it(line, &tree, &contain)).collect::<Result<Vec<f64>>>();
    let (first, second) = (all()?, all()?);
    ensure!(!group.ran_out()?, "{side}: out of memory");
    Ok(first.into_iter().zip(second).map(<[f64; 2]>::from).collect())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let place = tempfile::tempdir_in(&options.directory)?;
    for name in ["source", "mount"] {
        fs::create_dir(place.path().join(name))?;
    }
    let source = place.path().join("source");
    use_it(TREE, &source, &|_| {})?;
    let mut table: BTreeMap<(usize, usize, usize), Vec<f64>> = BTreeMap::new();
    for number in 0..options.rounds {
        for turn in 0..SIDES.len() {
            let side = (number + turn) % SIDES.len();
            eprintln!("round {}: {}", number + 1, SIDES[side]);
            for (row, seconds) in round(SIDES[side], &options, place.path())?.into_iter().enumerate() {
                for (time, seconds) in seconds.into_iter().enumerate() {
                    table.entry((row, time, side)).or_default().push(seconds);
                }
            }
        }
    }
    println!(
        "seconds; {} MiB of memory, ramfold's limit {}; {} rounds",
        options.memory, options.limit, options.rounds
    );
    println!("{:<22} {:<7} {:>11} {:>9} {:>6}", "", "", SIDES[0], SIDES[1], "times");
    for (row, (name, _)) in USES.iter().enumerate() {
        for (time, which) in ["first", "second"].into_iter().enumerate() {
            let middle = |side| table.get(&(row, time, side)).and_then(|seconds| median(seconds.clone()));
            let (Some(plain), Some(ramfold)) = (middle(0), middle(1)) else { continue };
            println!("{name:<22} {which:<7} {plain:>11.2} {ramfold:>9.2} {:>6.2}", plain / ramfold);
        }
    }
    Ok(())
}
