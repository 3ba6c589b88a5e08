//! Stamps: what tells one version of a file from the next.
//!
//! A file that is written to gets another time of change, which no program can set. But two writes within one tick of
//! the clock may get the same, and the time is set when a write begins, not when it is over. So a version may still
//! change without a sign while it is young: it is unsettled, and nothing that was read of it is kept. Price: a system
//! call a look. Guarantee: bytes that were read between two looks at the same settled stamp are the bytes of every
//! later moment at which the file has that stamp.
//!
//! What the guarantee rests on: the file system sets the time of change with each write, and no write lasts longer than
//! a version takes to settle. A program that writes to a shared mapping of the source itself, behind the mount, is seen
//! when the kernel next has to make a page writable, which may be as late as its writeback.

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::AsFd;
use std::time::Duration;

/// How long a version takes to settle: a write that is throttled for want of memory, or that writes much, takes as
/// long.
pub const SETTLED: Duration = Duration::from_secs(5);
/// Nanoseconds within which two writes may get the same time on file systems that keep whole seconds, or two (FAT).
const COARSE_TICK: i64 = 2_500_000_000;
const SECOND: i64 = 1_000_000_000;

/// Which file it is, whatever it is called: an inode number is given again only with another birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The device.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// When the file was made, in nanoseconds; 0 where the file system does not tell.
    birth: i64,
}

/// A version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    modified: i64,
    /// Nanoseconds since 1970.
    changed: i64,
}

/// Everything that is told of a file, which may be one without a name.
///
/// # Errors
/// What the system answers.
pub fn look(file: impl AsFd) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    statx(file, c"", AtFlags::EMPTY_PATH, wanted)
}

/// Exact for the years 1678 to 2262; what lies beyond goes round, and tells versions apart as well.
fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec.wrapping_mul(SECOND).wrapping_add(i64::from(time.tv_nsec))
}

impl Identity {
    /// Of what was looked at.
    #[must_use]
    pub fn of(told: &Statx) -> Self {
        let has_birth = told.stx_mask & StatxFlags::BTIME.bits() != 0;
        Self {
            dev: rustix::fs::makedev(told.stx_dev_major, told.stx_dev_minor),
            ino: told.stx_ino,
            birth: if has_birth { nanoseconds(&told.stx_btime) } else { 0 },
        }
    }
}

impl Stamp {
    /// The version that an open file has now.
    ///
    /// # Errors
    /// What the system answers.
    pub fn now(file: impl AsFd) -> Result<Self, Errno> {
        let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Self::of(&told))
    }

    /// The version that was looked at.
    #[must_use]
    pub fn of(told: &Statx) -> Self {
        let (modified, changed) = (nanoseconds(&told.stx_mtime), nanoseconds(&told.stx_ctime));
        Self { size: told.stx_size, modified, changed }
    }

    /// Whether every later write gets another stamp, as far as this machine's clock is the file system's, and no write
    /// lasts longer than so.
    #[must_use]
    pub fn is_settled(&self, after: Duration) -> bool {
        let now = clock_gettime(ClockId::Realtime);
        self.is_settled_at(now.tv_sec.wrapping_mul(SECOND).wrapping_add(now.tv_nsec), after)
    }

    /// Whether it was so at this time, in nanoseconds since 1970.
    #[must_use]
    pub fn is_settled_at(&self, now: i64, after: Duration) -> bool {
        let is_coarse = self.changed % SECOND == 0 && self.modified % SECOND == 0;
        let least = if is_coarse { COARSE_TICK } else { 0 };
        let after = i64::try_from(after.as_nanos()).unwrap_or(i64::MAX);
        self.changed.saturating_add(least.max(after)) < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_settles_after_a_tick_of_its_file_system() {
        let stamp = |changed| Stamp { size: 1, modified: 5 * SECOND, changed };
        let after = Duration::from_secs(1);
        let fine = stamp(7 * SECOND + 1);
        assert!(!fine.is_settled_at(8 * SECOND, after) && fine.is_settled_at(9 * SECOND, after));
        let coarse = stamp(7 * SECOND);
        assert!(!coarse.is_settled_at(9 * SECOND, after) && coarse.is_settled_at(10 * SECOND, after));
        assert!(!stamp(20 * SECOND + 1).is_settled_at(10 * SECOND, after), "what lies ahead is not settled");
    }

    #[test]
    fn a_write_makes_another_version_of_the_same_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let before = look(file.as_file()).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        std::fs::write(file.path(), "more").unwrap();
        let after = look(file.as_file()).unwrap();
        assert_eq!(Identity::of(&before), Identity::of(&after));
        assert_ne!(Stamp::of(&before), Stamp::of(&after));
        assert_eq!(Stamp::now(file.as_file()), Ok(Stamp::of(&after)));
    }
}
