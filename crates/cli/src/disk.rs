//! `ramfold disk`: compressed disks in memory, served by NBD and to virtual machines by vhost-user.
//!
//! The command makes the disk, or those of a file ([`config`]), says where they are, and waits to be told to stop. One
//! disk with all that belongs to it is [`served`]; [`disks`] has them all, and adds and removes some while it runs.
//! What a disk is, is in ramfold-disk.

mod config;
mod disks;
mod door;
mod persist;
mod served;
mod steady;

use crate::failure::{Failure, say};
use crate::run::metrics::Address;
use crate::serve::Prepared;
use crate::sharing::{self, Sharing};
use crate::{names, size};
use disks::Disks;
use door::{Door, Protocol};
use ramfold::tier::open_swap;
use ramfold::{Config, PAGE_SIZE};
use ramfold_disk::attributes::Attributes;
use ramfold_disk::attributes::request::{Algorithm, Setting, Wish};
use ramfold_disk::image::Image;
use ramfold_disk::listen::{BindError, Listener};
use ramfold_disk::nbd::tls::Certificates;
use ramfold_disk::volume::{LEAST_MEMORY, LEAST_SHARED, Settings, Volume};
use std::fmt::Display;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// What clients may call a disk without a name; the empty name leads to it too.
const NAME: &str = "disk";

/// One of these says where disks are served.
const SOCKETS: [&str; 5] = ["unix", "tcp", "vhost_user", "ublk", "config"];

/// Serves a compressed disk that lies in memory, to clients of the NBD protocol and to virtual machines.
///
/// What is written is compressed, page by page, as zram does. When --mem-limit is reached, the pages that were used
/// least lately go to --backing-dev, compressed and encrypted; without one, what does not fit is refused. The disk
/// is volatile: it ends with this process, unless --persist keeps it, with --durable at each flush. Its URI goes to
/// stdout when it can be used, and `ramfold ctl` reads and changes what it does. SIGTERM and Ctrl-C end it. Exit
/// status: 0, 2 for wrong usage, 125 if ramfold failed, --persist among it.
///
/// --config serves several: a file with a table [[disk]] for each, in which a disk's options are set by their names
/// (size = "4G", persist = true). With -m all that they take together stays under one limit. `ramfold ctl disks0
/// hot_add size=1G unix=PATH` adds one while they are served, `hot_remove NAME` removes one that has no clients, and
/// `disks` tells which there are.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: ramfold disk --size 4G --mem-limit 1G --backing-dev /var/tmp --unix /run/disk.sock
         ramfold disk --size 4G --backing-dev /srv/scratch.img --persist --unix /run/disk.sock
         ramfold disk --size 4G --backing-dev /srv/vm.img --persist --durable --unix /run/vm.sock
         ramfold disk --config /etc/ramfold/disks.toml -m 4G"
)]
#[command(group(clap::ArgGroup::new("nbd").args(["unix", "tcp"])))]
#[command(group(clap::ArgGroup::new("socket").required(true).multiple(true).args(SOCKETS)))]
pub struct Options {
    /// Bytes that the disk has room for: 512M, 1.5G or a number of bytes
    #[arg(long, value_name = "SIZE", value_parser = size::parse, required_unless_present = "config")]
    pub size: Option<u64>,

    /// Listen at a Unix socket
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,

    /// Listen at an address of this machine's own: 127.0.0.1:10809, [::1]:10809; with TLS, at any
    #[arg(long, value_name = "ADDR:PORT")]
    pub tcp: Option<SocketAddr>,

    /// Serve clients of NBD by TLS alone, with server-cert.pem and server-key.pem of this directory
    ///
    /// The files are those of QEMU and nbdkit (PEM). They are read for each client, so renewing them needs no restart.
    #[arg(long, value_name = "DIR", requires = "nbd")]
    pub tls_certificates: Option<PathBuf>,

    /// With --tls-certificates: refuse clients without a certificate that ca-cert.pem of the directory has signed, or
    /// with one that ca-crl.pem revokes. Without it anybody who reaches the socket can use the disk
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,

    /// Let --tcp be an address that others than this machine reach, without TLS: who is on the way can read and change
    /// all, and anybody who reaches the socket can use the disk
    #[arg(long, requires = "tcp", conflicts_with_all = ["tls_certificates", "unix"])]
    pub no_tls: bool,

    /// Let virtual machines use it as a virtio block device: a Unix socket for QEMU's vhost-user-blk. With --unix or
    /// --tcp beside it, clients of NBD see the same disk
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,

    /// Be a block device of this machine, /dev/ublkbN, with this number or the next that is free
    ///
    /// Wants root, Linux 6.4 or later, its driver (modprobe ublk_drv) and io_uring. Others can use the disk beside it.
    #[arg(long, value_name = "NUMBER", require_equals = true)]
    pub ublk: Option<Option<u32>>,

    /// What `ramfold ctl` and clients call the disk; by default disk0, or the next number that is free. With --config,
    /// what `ramfold ctl` calls the server; by default disks0
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Most memory that the compressed pages may take; by default what they need
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub mem_limit: Option<u64>,

    /// File or directory for the pages that leave memory: a file is made in a directory, without a name
    #[arg(long, value_name = "PATH")]
    pub backing_dev: Option<PathBuf>,

    /// Most that the backing file may take; by default twice the size of the disk
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "backing_dev")]
    pub backing_size: Option<u64>,

    /// Keep the disk in the file --backing-dev at a clean stop, and serve it again from there at the next start
    ///
    /// While it runs, what leaves memory goes to a file without a name beside it. What is kept is compressed by
    /// --comp-algorithm and not encrypted. A file that is no image of a disk, or is damaged, is refused and left as it
    /// is.
    #[arg(long, requires = "backing_dev")]
    pub persist: bool,

    /// With --persist: what a client has flushed is there after a crash of this process or of the machine
    ///
    /// A flush (or a write with FUA) is answered when what was changed is on disk, in a log behind the image, which
    /// becomes a new image when it has grown. What was not flushed may be lost by a crash, as on any disk with a cache.
    #[arg(long, requires = "persist")]
    pub durable: bool,

    /// With --persist: if the disk did not end in order the last time, serve what the last clean stop has kept
    ///
    /// Without it that is refused: what was written since then is lost.
    #[arg(long, requires = "persist")]
    pub accept_stale: bool,

    /// Compressor, with a level if it has levels: lz4, lz4hc:9, zstd:-1, deflate:6, lzo-rle
    ///
    /// zstd can have a dictionary: see --recomp-algorithm.
    #[arg(long, value_name = "NAME[:LEVEL][,dict=auto|PATH]", default_value = "lz4")]
    #[arg(value_parser = names::compressor_of_disk)]
    pub comp_algorithm: String,

    /// Compressor for pages that stay for long, when the processor has time, or "none"
    ///
    /// zstd can have a dictionary: zstd:9,dict=auto has the disk make one of its own pages when that pays;
    /// zstd:9,dict=PATH takes that of a file, as zstd --train makes it.
    #[arg(long, value_name = "NAME[:LEVEL][,dict=auto|PATH]|none", default_value = "zstd:1")]
    #[arg(value_parser = names::recompressor_of_disk)]
    pub recomp_algorithm: String,

    /// Allocator of the compressed pages: zsmalloc, zbud or xvmalloc
    #[arg(long, value_name = "NAME", default_value = "zsmalloc", value_parser = names::zpool)]
    pub zpool: String,

    /// Once --mem-limit is reached, writeback goes on until under this share of it
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub accept_threshold_percent: u8,

    /// Compress pages of one repeated word like any other
    #[arg(long)]
    pub no_same_filled: bool,

    /// Do not share memory between identical pages
    #[arg(long)]
    pub no_duplicates: bool,

    /// Compress every page when it is written, not once it was left alone for a second
    #[arg(long)]
    pub no_fresh: bool,

    /// At the end write one JSON object to FILE, or a short table to stderr ("-")
    #[arg(long, value_name = "FILE|-")]
    pub stats: Option<PathBuf>,

    /// Serve the disk's numbers for Prometheus while it lasts: 127.0.0.1:9100, or unix:PATH for a socket
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", value_parser = Address::parse)]
    pub metrics: Option<Address>,

    /// Serve the disks of a file (TOML), each a table [[disk]] with these options
    #[arg(long, value_name = "FILE", conflicts_with_all = config::OF_A_DISK)]
    #[arg(conflicts_with_all = ["nbd", "vhost_user", "ublk"])]
    pub config: Option<PathBuf>,

    /// With --config: most memory that all disks may use together, and what the server needs besides; by default each
    /// has its own --mem-limit, or what it needs
    #[arg(short = 'm', long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "budget")]
    pub memory: Option<u64>,

    /// Keep all memory of the server out of the machine's own swap
    ///
    /// Wants root, or no limit on locked memory (ulimit -l unlimited).
    #[arg(long)]
    pub lock_memory: bool,

    #[command(flatten)]
    pub sharing: Sharing,
}

impl Options {
    /// Bytes of the disk.
    fn size(&self) -> u64 {
        self.size.unwrap_or(0)
    }

    fn settings(&self) -> Result<Settings, Failure> {
        let size = self.size();
        if size == 0 || !size.is_multiple_of(PAGE_SIZE as u64) {
            let why = format!("not a multiple of {PAGE_SIZE} bytes (give a size such as 1G)");
            return Err(Failure::usage(format!("--size {size}: {why}")));
        }
        let shares = self.sharing.share.is_some();
        if shares && self.mem_limit.is_none() {
            return Err(Failure::usage("--share: there is no limit to share (give --mem-limit)"));
        }
        let least = if shares { LEAST_SHARED } else { LEAST_MEMORY };
        if let Some(limit) = self.mem_limit.filter(|limit| *limit < least) {
            let least = size::display(least);
            return Err(Failure::usage(format!(
                "--mem-limit {limit}: too small to work in (give at least {least})"
            )));
        }
        let store = Config {
            compressor: self.compressor().to_owned(),
            recomp_algorithm: self.recompressor().map(str::to_owned),
            zpool: self.zpool.clone(),
            accept_threshold_percent: self.accept_threshold_percent,
            same_filled_pages_enabled: !self.no_same_filled,
            duplicate_pages_enabled: !self.no_duplicates,
            ..Config::default()
        };
        Ok(Settings { size, mem_limit: self.mem_limit, store, backing: None })
    }

    /// The compressor, without its dictionary.
    fn compressor(&self) -> &str {
        names::apart(&self.comp_algorithm).0
    }

    /// The compressor for pages that stay, without its dictionary.
    fn recompressor(&self) -> Option<&str> {
        Some(names::apart(&self.recomp_algorithm).0).filter(|name| *name != "none")
    }

    fn attributes(&self, volume: &Arc<Volume>) -> Result<Arc<Attributes>, Failure> {
        let attributes = Attributes::new(Arc::clone(volume), self.compressor(), self.recompressor());
        let options =
            [("--comp-algorithm", &self.comp_algorithm), ("--recomp-algorithm", &self.recomp_algorithm)];
        for (priority, (option, text)) in options.into_iter().enumerate() {
            let Some(dictionary) = names::apart(text).1 else { continue };
            let setting = Setting::AlgorithmParams {
                algorithm: Algorithm::Priority(priority),
                level: None,
                dictionary: Some(Wish::from(dictionary)),
            };
            attributes.set(setting).map_err(|error| Failure::failed(format!("{option}: {error}")))?;
        }
        Ok(Arc::new(attributes))
    }

    /// Where pages go that leave memory: beside the image, if there is one.
    fn backing(&self, image: Option<&Image>) -> Result<Option<(File, u64)>, Failure> {
        let Some(path) = &self.backing_dev else { return Ok(None) };
        let place = image.map_or(&**path, |image| image.path().parent().unwrap_or(Path::new("/")));
        let file = open_swap(Some(place)).map_err(|error| {
            Failure::failed(format!(
                "--backing-dev {}: {error} (give another directory or file)",
                path.display()
            ))
        })?;
        Ok(Some((file, self.backing_size.unwrap_or(self.size().saturating_mul(2)))))
    }

    /// What clients of NBD are shown.
    fn certificates(&self) -> Result<Option<Arc<Certificates>>, Failure> {
        let Some(directory) = &self.tls_certificates else { return Ok(None) };
        let read = Certificates::read(directory, self.tls_verify_peer, say);
        let place = directory.display();
        let wrong =
            |error| Failure::failed(format!("--tls-certificates {place}: {error} (see docs/disk.md)"));
        read.map(|certificates| Some(Arc::new(certificates))).map_err(wrong)
    }

    /// Where clients will come.
    fn doors(&self) -> Result<Vec<Door>, Failure> {
        let bound = |option: &str, place: &dyn Display, listener: Result<Listener, BindError>| {
            listener.map_err(|error| Failure::failed(format!("{option} {place}: {error} (choose another)")))
        };
        let certificates = self.certificates()?;
        let mut doors = Vec::new();
        if let Some(path) = &self.unix {
            let listener = bound("--unix", &path.display(), Listener::unix(path))?;
            doors.push(Door::new(Protocol::Nbd(certificates.clone()), listener));
        }
        if let Some(address) = self.tcp {
            let listener = match Listener::tcp(address, self.no_tls || certificates.is_some()) {
                Err(error @ BindError::NotLoopback) => {
                    let what = "give --tls-certificates, or --no-tls if that is meant";
                    return Err(Failure::failed(format!("--tcp {address}: {error} ({what})")));
                }
                listener => bound("--tcp", &address, listener)?,
            };
            doors.push(Door::new(Protocol::Nbd(certificates), listener));
        }
        if let Some(path) = &self.vhost_user {
            let listener = bound("--vhost-user", &path.display(), Listener::private(path))?;
            doors.push(Door::new(Protocol::VhostUser, listener));
        }
        if let Some(number) = self.ublk {
            doors.push(Door::device(number)?);
        }
        if doors.is_empty() {
            let why = "disk: nowhere for clients to come (give --unix, --tcp, --vhost-user or --ublk)";
            return Err(Failure::usage(why));
        }
        Ok(doors)
    }
}

fn failed(error: &dyn Display) -> Failure {
    Failure::failed(format!("disk: {error}"))
}

/// Serves until a signal ends it.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    if options.memory.is_some() && options.config.is_none() {
        return Err(Failure::usage(
            "-m: it is for the disks of a file (give --config, or --mem-limit for one disk)",
        ));
    }
    let wanted = options.config.as_deref().map(config::read).transpose()?;
    let prepared = Prepared::new(NAME, options.stats.as_deref())?;
    if options.lock_memory {
        steady::lock()?;
    }
    let (disks, share) = Disks::open(options, wanted)?;
    let control = disks.control(options.name.as_deref())?;
    let mut running = prepared.start(disks.segment(), options.metrics.as_ref(), control)?;
    let _share = sharing::start(share, || disks.offer())?;
    disks.serve()?;
    running.wait();
    let mut stopped = disks.stop(false);
    if let Some(lines) = stopped.as_ref().ok().filter(|lines| !lines.is_empty()) {
        // A signal from now on is the next stop, which ends in any case what could not be kept.
        running.go_on();
        lines.iter().for_each(|line| say(line));
        running.wait();
        stopped = disks.stop(true);
    }
    let ended = running.end(|| disks.publish());
    disks.close();
    stopped.and(ended)
}
