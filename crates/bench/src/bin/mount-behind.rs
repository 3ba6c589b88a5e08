//! How late a change behind a mount is seen through it: `mount-behind --ramfold BINARY`.
//!
//! A file is changed in the source, and read through the mount by a descriptor that was open before, until what is read
//! is new; with `--open` by one that is opened for each look. Told is how long after the change had returned the last
//! read began that gave what was there before: nothing, if the first read was right. Every other change makes the file
//! longer, the others change bytes of it, which the kernel of the mount has in memory. With `--names` a name comes,
//! goes, or becomes another file's instead, by turns, and is looked at by stat. So many threads keep the processors
//! busy meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use ramfold_bench::mounted::Mounted;

const LEN: usize = 64 << 10;

#[derive(Parser)]
#[command(about = "How late a change behind a mount is seen through it")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/ramfold")]
    ramfold: PathBuf,
    /// Where the files are: a directory on a disk
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// How many changes
    #[arg(long, default_value_t = 5000)]
    changes: usize,
    /// Threads that compute all the time
    #[arg(long, default_value_t = 0)]
    busy: usize,
    /// Changes of names, not of bytes
    #[arg(long)]
    names: bool,
    /// Open the file anew for each look
    #[arg(long, conflicts_with = "names")]
    open: bool,
}

/// Looks until it is so: how long after now the last look began at which it was not.
fn until(what: usize, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let (returned, mut late) = (Instant::now(), Duration::ZERO);
    loop {
        let begun = returned.elapsed();
        if is_so()? {
            return Ok(late);
        }
        late = begun;
        ensure!(late.as_secs() < 10, "change {what} has not been seen after ten seconds");
    }
}

/// How late this change of a name was seen.
fn lateness_of_name(source: &Path, through: &Path, number: usize) -> Result<Duration> {
    let file = |directory: &Path| fs::metadata(directory.join("name")).ok().map(|told| told.ino());
    // What is there, or is not, is believed now.
    file(through);
    match number % 3 {
        1 => fs::write(source.join("name"), "one")?,
        2 => {
            fs::write(source.join("other"), "another")?;
            fs::rename(source.join("other"), source.join("name"))?;
        }
        _ => fs::remove_file(source.join("name"))?,
    }
    let now = file(source);
    until(number, || Ok(file(through) == now))
}

/// How late this change was seen. `opened` gives the file, as the mount shows it.
fn lateness(source: &File, opened: impl Fn() -> Result<File>, number: usize) -> Result<Duration> {
    let mut all = vec![0; LEN];
    opened()?.read_exact_at(&mut all, 0)?;
    let word = number.to_le_bytes();
    let is_append = number.is_multiple_of(2);
    let at = if is_append { source.metadata()?.len() } else { (number * 4099 % (LEN - 8)) as u64 };
    source.write_all_at(&word, at)?;
    until(number, || {
        let mut seen = [0; 8];
        Ok(opened()?.read_at(&mut seen, at)? == seen.len() && seen == word)
    })
}

fn measure(options: &Options, lateness: impl Fn(usize) -> Result<Duration>) -> Result<Vec<Duration>> {
    (1..=options.changes)
        .map(|number| {
            // Each time at another moment of whatever else goes on.
            std::thread::sleep(Duration::from_micros((number * 7919 % 3000) as u64));
            lateness(number)
        })
        .collect()
}

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.changes > 0, "no changes are no measure");
    let place = tempfile::tempdir_in(&options.directory)?;
    for name in ["source", "mount"] {
        fs::create_dir(place.path().join(name))?;
    }
    let path = place.path().join("source/file");
    fs::write(&path, vec![0; LEN])?;
    let mounted =
        Mounted::start(&options.ramfold, &["-m".to_owned(), "64M".to_owned()], place.path(), &|_| {})?;
    let source = File::options().read(true).write(true).open(&path)?;
    let path = mounted.point.join("file");
    let through = File::open(&path)?;
    let opened = || Ok(if options.open { File::open(&path)? } else { through.try_clone()? });
    let ended = AtomicBool::new(false);
    let mut late = std::thread::scope(|scope| {
        for _ in 0..options.busy {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let late = if options.names {
            let source = place.path().join("source");
            measure(&options, |number| lateness_of_name(&source, &mounted.point, number))
        } else {
            measure(&options, |number| lateness(&source, opened, number))
        };
        ended.store(true, Relaxed);
        late
    })?;
    late.sort_unstable();
    let part = |hundredths: usize| late[(late.len() - 1) * hundredths / 100].as_secs_f64() * 1e3;
    println!(
        "{} changes, {} busy threads: median {:.3} ms, 99 of 100 {:.3} ms, worst {:.3} ms",
        late.len(),
        options.busy,
        part(50),
        part(99),
        part(100)
    );
    Ok(())
}
