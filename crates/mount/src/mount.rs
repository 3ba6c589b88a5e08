//! A mount: a source, its cache under a limit, and the FUSE session that shows it.
//!
//! Guarantee: whatever is refused is told before anything is mounted. The mount ends when the session does, which a
//! signal, `fusermount3 -u` or umount(8) brings about; who has files open then is told that the mount has gone.

use crate::cache::Cache;
use crate::callers::obey_quotas;
use crate::doubt::{Doubt, be_before};
use crate::fuse::Served;
use crate::fuse::notify::Kernel;
use crate::keeper::{Keeper, LOOK};
use crate::mounts::Mounts;
use crate::parts::PartError;
use crate::stamp::SETTLED;
use crate::sys::set_up_allocator;
use crate::tree::{Excluded, Tree};
use fuser::{Config as Session, MountOption, SessionACL};
use glob::Pattern;
use ramfold::{Config, PoorPages};
use ramfold_budget::segment::Segment;
use ramfold_budget::service::{self, Place, Server, Service};
use ramfold_budget::share::Offer;
use rustix::fs::{Access, CWD, Mode, OFlags, StatVfsMountFlags, access, fstatvfs, openat, statfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The least memory that a mount works in, in bytes.
pub const LEAST_MEMORY: u64 = 8 << 20;
/// Threads that serve requests: readers wait for the source, not for each other. Each takes about half a megabyte, so
/// there are fewer where so many bytes a thread are not to be had.
const THREADS: RangeInclusive<usize> = 4..=16;
const BYTES_A_THREAD: u64 = 2 << 20;
/// Niceness of threads that serve requests, which only root can give. Whoever asks for a name holds its directory until
/// he is answered, and who has names forgotten waits for him: where many compute, that took seconds.
const ANSWERS: i32 = -15;
/// Of the limit, so many bytes for each file that something is known of.
const BYTES_A_FILE: u64 = 2048;
/// Files that something is known of, whatever the limit.
const LEAST_FILES: u64 = 1024;
/// Descriptors that root takes: one for each name that the kernel knows.
const DESCRIPTORS: u64 = 1 << 20;

/// What a mount is made of.
#[derive(Debug)]
pub struct Settings {
    /// The directory that is shown.
    pub source: PathBuf,
    /// Where.
    pub at: PathBuf,
    /// Most bytes of memory, [`LEAST_MEMORY`] or more.
    pub limit: u64,
    /// Directories below the source with limits of their own, within that.
    pub limits: Vec<(PathBuf, u64)>,
    /// Whose budget that is of.
    pub place: Place,
    /// Codec, zpool and their knobs.
    pub store: Config,
    /// Files that are read and not kept.
    pub exclude: Vec<Pattern>,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// A mount there whose server has ended is taken away.
    pub replace: bool,
    /// How long the kernel may believe names and attributes whose changes nobody tells.
    pub attr_timeout: Duration,
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// the source cannot be shown
    #[error("{}: {why} (give a directory that can be read)", .path.display())]
    Source {
        /// As it was given.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// nothing can be mounted there
    #[error("{}: {why} (give an empty directory)", .path.display())]
    Place {
        /// As it was given.
        path: PathBuf,
        /// What is wrong.
        why: io::Error,
    },
    /// the mount there is dead
    #[error("{} is a mount whose server has ended (take it away with --replace)", .0.display())]
    Dead(PathBuf),
    /// the mount would show itself
    #[error("{} lies within the source, which would then show itself (choose another place)", .0.display())]
    Within(PathBuf),
    /// there is something that the mount would hide
    #[error("{} is not empty, and the mount would hide what is there (choose an empty directory)", .0.display())]
    NotEmpty(PathBuf),
    /// a directory has no limit of its own
    #[error("--memlimit: {0}")]
    Part(#[from] PartError),
    /// a setting of the store is not to be had, or no memory
    #[error("{0}")]
    Service(#[from] service::OpenError),
    /// there is no FUSE
    #[error("{FUSE} cannot be opened: {0} (load the module fuse, or allow it in this container)")]
    NoFuse(io::Error),
    /// the system refuses it
    #[error("the system refuses it: {0}")]
    Io(#[from] io::Error),
}

const FUSE: &str = "/dev/fuse";

impl MountError {
    /// Whether another command would do: what was asked for is wrong.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::NoFuse(_) | Self::Io(_) | Self::Service(service::OpenError::Io(_)))
    }
}

/// A directory that is mounted. It is served by [`Mount::serve`].
#[derive(Debug)]
pub struct Mount {
    cache: Arc<Cache>,
    service: Service,
    session: fuser::Session<Served>,
    at: PathBuf,
    /// Ends after the session.
    doubt: Doubt,
}

static SERVER: Server = Server("mount");

impl Mount {
    /// Mounts the source.
    ///
    /// # Errors
    /// [`MountError`]; then nothing is mounted.
    pub fn new(settings: Settings) -> Result<Self, MountError> {
        let Settings {
            source,
            at,
            limit,
            limits,
            place: budget,
            store,
            exclude,
            read_only,
            replace,
            attr_timeout,
        } = settings;
        let directory = open_source(&source)?;
        let source = canonical(&source)?;
        let at = place(&source, &at, replace)?;
        // For others fusermount3 opens it.
        if geteuid().is_root() {
            access(FUSE, Access::READ_OK | Access::WRITE_OK)
                .map_err(|errno| MountError::NoFuse(errno.into()))?;
        }
        take_descriptors();
        set_up_allocator();
        let keeps_poor = store.max_compression_ratio == 100;
        let mut service = service(limit, budget, store)?;
        let files = usize::try_from((limit / BYTES_A_FILE).max(LEAST_FILES)).unwrap_or(usize::MAX);
        let cache = Arc::new(Cache::new(Arc::clone(service.member()), limit, files, SETTLED));
        let session = session(&source, &directory, limit, read_only)?;
        let excluded = Excluded::new(&source, exclude);
        let tree =
            Tree::new(directory, Arc::clone(&cache), excluded, threads(limit)).map_err(io::Error::from)?;
        limits.iter().try_for_each(|(path, limit)| cache.set_limit_of(path, Some(*limit)))?;
        cache.set_keeps_poor(keeps_poor);
        let kept = Arc::clone(&cache);
        let mut keeper = Keeper::new();
        service.keep(LOOK, move |_| keeper.look(&kept))?;
        let tree = Arc::new(tree);
        let told = Arc::new(OnceLock::new());
        let served = Served::new(Arc::clone(&tree), Arc::clone(&told), attr_timeout);
        let session = fuser::Session::new(served, &at, &session)?;
        let kernel = Kernel::of(&session).map_err(io::Error::from)?;
        let _ = told.set(kernel.clone());
        let mounts = if at == source { None } else { Some(Mounts::new(&source)?) };
        let doubt = Doubt::begin(tree, kernel, mounts, threads(limit))?;
        Ok(Self { cache, service, session, at, doubt })
    }

    /// The mount's budget, where its numbers are.
    #[must_use]
    pub fn segment(&self) -> Arc<Segment> {
        self.service.segment()
    }

    /// What others need to join the mount's budget.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn offer(&self) -> io::Result<Offer> {
        self.service.offer()
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    /// What ends the mount, from any thread.
    #[must_use]
    pub fn end(&self) -> End {
        End(self.at.clone())
    }

    /// Serves until the mount has ended.
    ///
    /// # Errors
    /// What the system answers to a server's thread.
    pub fn serve(self) -> io::Result<()> {
        // Threads that are begun from here on have both as well.
        obey_quotas()?;
        be_before(ANSWERS);
        let served = self.session.run();
        drop(self.doubt);
        served
    }
}

/// Ends a mount.
#[derive(Debug)]
pub struct End(PathBuf);

impl End {
    /// Takes the mount away from its place. Who has files open there goes on with them; the mount is served until they
    /// are closed.
    ///
    /// # Errors
    /// What the system answers.
    pub fn end(&self) -> io::Result<()> {
        match take_away(&self.0) {
            // Somebody was quicker.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }
}

fn service(limit: u64, place: Place, store: Config) -> Result<Service, MountError> {
    // The keeper lets some in that do not compress; a page that goes is lost to nobody.
    let store = Config { max_pool_bytes: limit, poor: PoorPages::Refuse, shrink_inline: true, ..store };
    let settings = service::Settings { host: &SERVER, limit, whole_process: true, store, backing: None };
    Ok(Service::open_in(settings, place, |tier| tier)?)
}

fn open_source(source: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, source, flags, Mode::empty())
        .map_err(|errno| MountError::Source { path: source.to_owned(), why: errno.into() })
}

fn canonical(source: &Path) -> Result<PathBuf, MountError> {
    fs::canonicalize(source).map_err(|why| MountError::Source { path: source.to_owned(), why })
}

/// Where the mount will be, if it can be there. `source`: as the kernel tells it.
fn place(source: &Path, at: &Path, replace: bool) -> Result<PathBuf, MountError> {
    let refused = |why| MountError::Place { path: at.to_owned(), why };
    // The kernel asks the server for no other thing than this each time.
    if statfs(at).is_err_and(|errno| errno == Errno::NOTCONN) {
        if !replace {
            return Err(MountError::Dead(at.to_owned()));
        }
        take_away(at).map_err(refused)?;
    }
    let place = fs::canonicalize(at).map_err(refused)?;
    if !place.is_dir() {
        return Err(refused(ErrorKind::NotADirectory.into()));
    }
    if place == source {
        return Ok(place);
    }
    if place.starts_with(source) {
        return Err(MountError::Within(at.to_owned()));
    }
    if fs::read_dir(&place).map_err(refused)?.next().is_some() {
        return Err(MountError::NotEmpty(at.to_owned()));
    }
    Ok(place)
}

/// Takes away a mount that nobody serves.
fn take_away(at: &Path) -> io::Result<()> {
    match unmount(at, UnmountFlags::DETACH) {
        Err(Errno::PERM) => {
            let status =
                std::process::Command::new("fusermount3").args(["-u", "-z", "--"]).arg(at).status()?;
            if status.success() { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
        }
        done => Ok(done?),
    }
}

/// Takes as many descriptors as are to be had: a name that the kernel knows takes one.
fn take_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(DESCRIPTORS, |most| most.max(DESCRIPTORS));
    // Only root may go over the hard limit, and only as far as the system lets anybody.
    for most in [Some(most), maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok() {
            return;
        }
    }
}

/// How many serve requests.
fn threads(limit: u64) -> usize {
    usize::try_from(limit / BYTES_A_THREAD)
        .map_or(*THREADS.end(), |most| most.clamp(*THREADS.start(), *THREADS.end()))
}

/// How the kernel is to treat the mount: as it treats the source.
fn session(source: &Path, directory: &OwnedFd, limit: u64, read_only: bool) -> Result<Session, MountError> {
    let flags = fstatvfs(directory).map_err(io::Error::from)?.f_flag;
    let is_root = geteuid().is_root();
    let mut options = vec![
        MountOption::FSName(source.display().to_string().replace(',', "\\,")),
        MountOption::Subtype("ramfold".to_owned()),
        MountOption::DefaultPermissions,
    ];
    let either = |is: bool, one, other| if is { one } else { other };
    let has = |flag| flags.contains(flag) || !is_root;
    options.push(either(has(StatVfsMountFlags::NOSUID), MountOption::NoSuid, MountOption::Suid));
    options.push(either(has(StatVfsMountFlags::NODEV), MountOption::NoDev, MountOption::Dev));
    options.push(either(flags.contains(StatVfsMountFlags::NOEXEC), MountOption::NoExec, MountOption::Exec));
    let is_read_only = read_only || flags.contains(StatVfsMountFlags::RDONLY);
    options.push(either(is_read_only, MountOption::RO, MountOption::RW));
    let mut session = Session::default();
    session.mount_options = options;
    session.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
    session.n_threads = Some(threads(limit));
    session.clone_fd = true;
    Ok(session)
}
