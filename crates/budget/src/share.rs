//! Sharing a budget: a socket at which its members-to-be get what they need.
//!
//! Who set the limit listens at a path that only its user can connect to. Whoever connects gets one message with
//! descriptors in it (`SCM_RIGHTS`): the segment's file, opened anew, and the swap file, if there is one. Then the
//! connection ends. Nothing is read, and nothing is kept of a client: the message fits into the socket's buffer, so a
//! client that never reads it delays nobody.
//!
//! Who makes or takes away such a socket holds a lock of the directory, so a socket at which nobody listens is one
//! whose server has ended; the next takes its place. Both ends look whether the other is of the same user, whatever the
//! rights at the path, and of the same version: what lies in the segment is known to nobody else.

use crate::segment::{OpenError, Segment};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, lstat, open};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the message says; the version follows, and the end of the line.
const GREETING: &str = "ramfold budget ";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Bytes that a message of whatever version has at most, and descriptors.
const MOST_BYTES: usize = 128;
const MOST_FDS: usize = 2;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that have not been answered.
const BACKLOG: i32 = 64;

/// Why a budget is not shared there.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// somebody serves there
    #[error("somebody serves there (choose another path)")]
    InUse,
    /// the file there is no socket
    #[error("the file there is no socket (choose another path)")]
    NotASocket,
    /// the system refuses it
    #[error("{0} (choose another path)")]
    Io(#[from] io::Error),
}

impl From<Errno> for ShareError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Why a budget cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// nobody shares a budget there
    #[error("nobody shares a budget there (start a run, disk or mount with --share)")]
    Nobody,
    /// it is another user's
    #[error("it is another user's budget (run both as one user)")]
    OtherUser,
    /// what serves there shares no budget
    #[error("what serves there shares no budget (give the path of --share)")]
    NotABudget,
    /// it is of another version
    #[error("it is shared by ramfold {0}, and this is {VERSION} (use one version)")]
    Version(String),
    /// it does not answer
    #[error("it does not answer")]
    Silent,
    /// the system refuses it
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for JoinError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// What is handed over.
#[derive(Debug)]
pub struct Offer {
    segment: OwnedFd,
    swap: Option<OwnedFd>,
}

impl Offer {
    /// The budget of this segment, over this swap file.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new(segment: &Segment, swap: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let swap = swap.map(|swap| swap.try_clone_to_owned()).transpose()?;
        Ok(Self { segment: segment.open_again()?, swap })
    }

    /// Hands it to who is connected, if that is the same user.
    fn hand_to(&self, client: &OwnedFd) -> Result<(), Errno> {
        if socket_peercred(client)?.uid != geteuid() {
            return Err(Errno::PERM);
        }
        let fds: Vec<BorrowedFd> =
            [Some(&self.segment), self.swap.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&fds));
        let text = format!("{GREETING}{VERSION}\n");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(client, &[IoSlice::new(text.as_bytes())], &mut rights, flags).map(drop)
    }
}

/// A socket that is listened at. The file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: OwnedFd,
    path: PathBuf,
    /// Of the file: what somebody else has put there stays.
    number: u64,
}

impl Socket {
    /// A socket at this path, for this user alone. One that a server has left behind is taken over.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn bind(path: &Path) -> Result<Self, ShareError> {
        let path = std::path::absolute(path)?;
        let _lock = lock(&path);
        match lstat(&path) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
                return Err(ShareError::NotASocket);
            }
            Ok(_) if !is_left_behind(&path) => return Err(ShareError::InUse),
            Ok(_) => std::fs::remove_file(&path)?,
            Err(_) => {}
        }
        let listener = stream_socket()?;
        // The file gets these rights at once.
        fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        match bind(&listener, &SocketAddrUnix::new(&path)?) {
            Err(Errno::ADDRINUSE) => return Err(ShareError::InUse),
            bound => bound?,
        }
        let number = lstat(&path)?.st_ino;
        let socket = Self { listener, path, number };
        listen(&socket.listener, BACKLOG)?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _lock = lock(&self.path);
        if lstat(&self.path).is_ok_and(|found| found.st_ino == self.number) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Held by who makes or takes away a socket there. Where the directory cannot be locked, they are not told apart.
fn lock(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path.parent()?, flags, Mode::empty()).ok()?;
    flock(&directory, FlockOperation::LockExclusive).ok()?;
    Some(directory)
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn is_left_behind(path: &Path) -> bool {
    let connected = stream_socket().and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    connected == Err(Errno::CONNREFUSED)
}

/// A budget that can be joined, until this is dropped.
#[derive(Debug)]
pub struct Share {
    /// Something is written there to stop.
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Share {
    /// Hands the offer to whoever comes to this socket.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn start(socket: Socket, offer: Offer) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name("ramfold-share".to_owned());
        let thread = thread.spawn(move || welcome(&socket, &stopped, &offer))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn welcome(socket: &Socket, stop: &OwnedFd, offer: &Offer) {
    loop {
        let mut both = [PollFd::new(&socket.listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut both, None).is_ok() && !both[1].revents().is_empty() {
            return;
        }
        match accept_with(&socket.listener, SocketFlags::CLOEXEC) {
            // Who is refused, or leaves, sees the end of the connection.
            Ok(client) => drop(offer.hand_to(&client)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            // No descriptor is free.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A budget that somebody shares.
#[derive(Debug)]
pub struct Joined {
    pub(crate) segment: Segment,
    pub(crate) swap: Option<File>,
}

impl Joined {
    /// Its segment and its swap file.
    #[must_use]
    pub fn into_parts(self) -> (Segment, Option<File>) {
        (self.segment, self.swap)
    }

    /// Bytes that all members may use together.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.segment.limit()
    }
}

/// Joins the budget that is shared at this path.
///
/// # Errors
/// [`JoinError`].
pub fn join(path: &Path) -> Result<Joined, JoinError> {
    let socket = stream_socket()?;
    match connect_patiently(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTSOCK) => return Err(JoinError::Nobody),
        Err(Errno::ACCESS | Errno::PERM) => return Err(JoinError::OtherUser),
        Err(Errno::AGAIN) => return Err(JoinError::Silent),
        Err(Errno::PROTOTYPE) => return Err(JoinError::NotABudget),
        connected => connected?,
    }
    if socket_peercred(&socket)?.uid != geteuid() {
        return Err(JoinError::OtherUser);
    }
    let (text, mut fds) = receive(&socket)?;
    let line = str::from_utf8(&text).ok().and_then(|text| text.strip_prefix(GREETING)?.strip_suffix('\n'));
    let version = line.filter(|version| version.bytes().all(|byte| byte.is_ascii_graphic()));
    let version = version.ok_or(JoinError::NotABudget)?;
    if version != VERSION {
        return Err(JoinError::Version(version.to_owned()));
    }
    let swap = (fds.len() > 1).then(|| fds.pop()).flatten();
    let segment = fds.pop().ok_or(JoinError::NotABudget)?;
    let segment = Segment::open(&own_path(&segment)).map_err(|error| match error {
        OpenError::Io(error) => JoinError::Io(error),
        OpenError::NotASegment => JoinError::NotABudget,
    })?;
    Ok(Joined { segment, swap: swap.map(|swap| open_swap(&swap)).transpose()? })
}

/// Others may be before this client, more than the socket keeps.
fn connect_patiently(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match connect(socket, address) {
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
            connected => return connected,
        }
    }
}

fn own_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// With a position and flags of its own.
fn open_swap(swap: &OwnedFd) -> Result<File, JoinError> {
    if FileType::from_raw_mode(fstat(swap)?.st_mode) != FileType::RegularFile {
        return Err(JoinError::NotABudget);
    }
    Ok(File::options().read(true).write(true).open(own_path(swap))?)
}

/// The one message, and the descriptors in it.
fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>), JoinError> {
    let patience = Timespec::try_from(PATIENCE).ok();
    if poll(&mut [PollFd::new(socket, PollFlags::IN)], patience.as_ref())? == 0 {
        return Err(JoinError::Silent);
    }
    let mut text = [0; MOST_BYTES];
    // One more than it should have.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS + 1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut rights, flags) {
        // Who served has ended since the connection.
        Err(Errno::CONNRESET) => return Err(JoinError::Nobody),
        Ok(received) if received.bytes == 0 => return Err(JoinError::Nobody),
        received => received?,
    };
    let mut fds = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(those) = message {
            fds.extend(those);
        }
    }
    let is_cut = received.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    if is_cut && fds.len() <= MOST_FDS {
        return Err(Errno::MFILE.into());
    }
    if is_cut || fds.len() > MOST_FDS {
        return Err(JoinError::NotABudget);
    }
    Ok((text[..received.bytes].to_vec(), fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Gauge;
    use std::io::Write;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};

    const LIMIT: u64 = 1 << 30;

    fn share(path: &Path) -> (Share, Segment, OwnedFd) {
        let (fd, segment) = Segment::create(LIMIT, 8 << 20).unwrap();
        let swap = tempfile::tempfile().unwrap();
        let offer = Offer::new(&segment, Some(swap.as_fd())).unwrap();
        (Share::start(Socket::bind(path).unwrap(), offer).unwrap(), segment, fd)
    }

    #[test]
    fn who_joins_has_the_same_segment_and_swap_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("budget");
        let (share, segment, fd) = share(&path);
        let mode = path.symlink_metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let joined = join(&path).unwrap();
        let slot = joined.segment.attach(&|_| ()).unwrap();
        joined.segment.publish(slot, Gauge::Pool, 5);
        assert_eq!((joined.limit(), segment.in_use()), (LIMIT, 5));
        assert!(joined.swap.is_some());
        assert!(!joined.segment.take_over(), "it is looked after");
        drop(share);
        assert!(!path.exists() && matches!(join(&path), Err(JoinError::Nobody)));
        drop((segment, fd));
        assert!(joined.segment.take_over(), "what was handed over holds no lock of the sharer's");
    }

    #[test]
    fn who_never_reads_delays_nobody() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("budget");
        let _shared = share(&path);
        let deaf: Vec<_> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        deaf.iter().for_each(|mut client| drop(client.write_all(b"nonsense\0\xff")));
        let begun = Instant::now();
        (0..50).for_each(|_| drop(join(&path).unwrap()));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_path_is_taken_over_from_the_dead_only() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("budget");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let taken = Socket::bind(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(ShareError::InUse)));
        drop(taken);
        std::fs::write(&path, "text").unwrap();
        assert!(matches!(Socket::bind(&path), Err(ShareError::NotASocket)));
        assert!(path.exists(), "what is not ours stays");
        assert!(matches!(Socket::bind(&path.join("x")), Err(ShareError::Io(_))));
        assert!(matches!(Socket::bind(&place.path().join("x".repeat(120))), Err(ShareError::Io(_))));
        let own = place.path().join("own");
        let socket = Socket::bind(&own).unwrap();
        std::fs::remove_file(&own).unwrap();
        let _other = UnixListener::bind(&own).unwrap();
        drop(socket);
        assert!(own.symlink_metadata().unwrap().file_type().is_socket(), "it is another's");
    }

    /// What a server says, and what is made of it.
    fn told(text: &'static [u8], fds: &[File]) -> Result<Joined, JoinError> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("wrong");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (client, _) = listener.accept().unwrap();
                let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut rights = SendAncillaryBuffer::new(&mut space);
                let _ = fds.is_empty() || rights.push(SendAncillaryMessage::ScmRights(&fds));
                sendmsg(&client, &[IoSlice::new(text)], &mut rights, SendFlags::NOSIGNAL).unwrap();
            });
            join(&path)
        })
    }

    #[test]
    fn what_is_no_budget_is_refused() {
        let file = || tempfile::tempfile().unwrap();
        let right: &[u8] = concat!("ramfold budget ", env!("CARGO_PKG_VERSION"), "\n").as_bytes();
        for (text, fds) in [
            (&b"NBDMAGICIHAVEOPT\0\x03"[..], vec![]),
            (b"ramfold budget", vec![]),
            (b"ramfold budget \x1b[2J\n", vec![]),
            (right, vec![]),
            (right, vec![file()]),
            (right, vec![file(), file()]),
            (right, vec![file(), file(), file()]),
            (right, (0..8).map(|_| file()).collect()),
        ] {
            assert!(matches!(told(text, &fds), Err(JoinError::NotABudget)), "{text:?}");
        }
        assert!(matches!(told(b"ramfold budget 9.9\n", &[]), Err(JoinError::Version(it)) if it == "9.9"));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert!(matches!(join(&path), Err(JoinError::Nobody)));
        assert!(matches!(join(&place.path().join("none")), Err(JoinError::Nobody)));
    }
}
