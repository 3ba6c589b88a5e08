//! `ramfold mount`: a directory on slow storage, with a compressed cache in front of it.
//!
//! The command mounts, says so, and serves until the mount ends. The file system is in ramfold-mount.

use crate::failure::{Failure, say};
use crate::run::metrics::Address;
use crate::serve::{self, Prepared};
use crate::sharing::{self, Sharing};
use crate::{names, size};
use glob::Pattern;
use ramfold::Config;
use ramfold_budget::service::Place;
use ramfold_mount::attributes::Attributes;
use ramfold_mount::mount::{LEAST_MEMORY, Mount, MountError, Settings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What mounts without a name of their own are called, before their numbers.
const KIND: &str = "mount";

/// Shows a directory at another place, and keeps what is read of its files in compressed memory.
///
/// For directories on slow storage: what was read once is read from memory, as long as it fits, compressed, into -m.
/// The kernel's own file cache works in front of it as ever. Changes go to the source at once. Changes that others make
/// there are seen within 0.1 s, on a busy machine within a second; with --attr-timeout it may be later. As root the
/// mount is for all users, with the source's permissions; else for who mounts it. SIGTERM, Ctrl-C and
/// `fusermount3 -u MOUNTPOINT` end it, and `ramfold ctl` reads and changes what it does. Exit status: 0, 2 for wrong
/// usage, 125 if ramfold failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ramfold mount /net/data ~/data -m 2G --exclude '*.mp4'")]
pub struct Options {
    /// The directory to show
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,

    /// Where to show it: an empty directory, or SOURCE itself
    #[arg(value_name = "MOUNTPOINT")]
    pub at: PathBuf,

    /// Most memory that ramfold may take: 512M, 1.5G or a number of bytes; with --budget, all of that if not given
    #[arg(short, long = "memory", value_name = "SIZE", value_parser = size::parse)]
    #[arg(required_unless_present = "budget")]
    pub memory: Option<u64>,

    /// Of that, most for compressed pages of files below a directory of SOURCE. May be given more than once
    #[arg(long, value_name = "DIRECTORY=SIZE", value_parser = memlimit)]
    pub memlimit: Vec<(PathBuf, u64)>,

    /// Do not keep pages of such files; a pattern with a slash is for paths below SOURCE. May be given more than once
    #[arg(long, value_name = "GLOB", value_parser = pattern)]
    pub exclude: Vec<Pattern>,

    /// Allow no changes through the mount
    #[arg(long)]
    pub read_only: bool,

    /// Take away a mount at MOUNTPOINT whose server has ended
    #[arg(long)]
    pub replace: bool,

    /// Where the kernel tells of no changes behind the mount, believe names and attributes for so long, 0 to 3600.
    /// Until then reads may give what a file was
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub attr_timeout: f64,

    /// What `ramfold ctl` calls the mount; by default mount0, or the next number that is free
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Compressor, with a level if it has levels: lz4, lz4hc:9, zstd:-1, deflate:6, lzo-rle
    #[arg(long, value_name = "NAME[:LEVEL]", default_value = "zstd:1", value_parser = names::compressor)]
    pub compressor: String,

    /// Allocator of the compressed pages: zsmalloc, zbud or xvmalloc
    #[arg(long, value_name = "NAME", default_value = "zsmalloc", value_parser = names::zpool)]
    pub zpool: String,

    /// Do not keep a page that compresses to more than this share of itself
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub max_compression_ratio: u8,

    /// At the end write one JSON object to FILE, or a short table to stderr ("-")
    #[arg(long, value_name = "FILE|-")]
    pub stats: Option<PathBuf>,

    /// Serve the mount's numbers for Prometheus while it lasts: 127.0.0.1:9100, or unix:PATH for a socket
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", value_parser = Address::parse)]
    pub metrics: Option<Address>,

    #[command(flatten)]
    pub sharing: Sharing,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("it is no pattern: {error}"))
}

fn memlimit(text: &str) -> Result<(PathBuf, u64), String> {
    let (directory, size) = text.rsplit_once('=').ok_or("give DIRECTORY=SIZE, such as video=512M")?;
    Ok((directory.into(), size::parse(size)?))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it is no number of seconds from 0 to 3600".to_owned())
}

impl Options {
    fn check(&self) -> Result<(), Failure> {
        match self.memory.filter(|memory| *memory < LEAST_MEMORY) {
            Some(memory) => {
                let least = size::display(LEAST_MEMORY);
                Err(Failure::usage(format!("-m {memory}: too small to work in (give at least {least})")))
            }
            None => Ok(()),
        }
    }

    fn settings(&self, place: Place) -> Settings {
        let limit = self.memory.unwrap_or(u64::MAX).min(place.limit().unwrap_or(u64::MAX));
        let store = Config {
            compressor: self.compressor.clone(),
            zpool: self.zpool.clone(),
            max_compression_ratio: self.max_compression_ratio,
            ..Config::default()
        };
        Settings {
            source: self.source.clone(),
            at: self.at.clone(),
            limit,
            limits: self.memlimit.clone(),
            place,
            store,
            exclude: self.exclude.clone(),
            read_only: self.read_only,
            replace: self.replace,
            attr_timeout: Duration::from_secs_f64(self.attr_timeout),
        }
    }
}

fn refused(error: &MountError) -> Failure {
    let message = format!("mount: {error}");
    if error.is_usage() { Failure::usage(message) } else { Failure::failed(message) }
}

/// Serves the mount until it ends.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("mount: {error}"));
    options.check()?;
    let prepared = Prepared::new(KIND, options.stats.as_deref())?;
    let socket = serve::socket(KIND, options.name.as_deref())?;
    let (place, share) = options.sharing.place()?;
    let settings = options.settings(place);
    let limit = settings.limit;
    end_with_any_thread();
    let mount = Mount::new(settings).map_err(|error| refused(&error))?;
    let _share = sharing::start(share, || mount.offer())?;
    let (name, cache) = (socket.as_ref().map_or(KIND, |socket| socket.name()).to_owned(), mount.cache());
    let attributes = Attributes::new(Arc::clone(&cache), &options.compressor, options.max_compression_ratio);
    let control = serve::control(KIND, socket, Arc::new(attributes))?;
    let mut running = prepared.start(mount.segment(), options.metrics.as_ref(), control)?;
    let (source, at) = (options.source.display(), options.at.display());
    say(&format!("mount: {name}, {source} is at {at}, in {}", size::display(limit)));
    let (end, stop, over) = (mount.end(), running.stop(), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&over);
    let server = std::thread::Builder::new().name("ramfold-mount".to_owned());
    let server = server.spawn(move || {
        let served = mount.serve();
        ended.store(true, SeqCst);
        stop.close();
        served
    });
    let server = server.map_err(failed)?;
    running.wait();
    if !over.load(SeqCst) {
        end.end().map_err(failed)?;
        // A second signal ends it under those who have files open.
        running.wait();
        if !over.load(SeqCst) {
            return running.end(|| cache.publish());
        }
    }
    let served = server.join().unwrap_or_else(|_| Err(std::io::Error::other("its thread has ended")));
    let status = running.end(|| cache.publish())?;
    served.map_err(failed)?;
    Ok(status)
}

/// A request whose thread is gone would never be answered: better no mount at all.
fn end_with_any_thread() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::exit(125);
    }));
}
