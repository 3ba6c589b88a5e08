//! Shown: the time of modification that the kernel of the mount goes by, and which version its pages are of.
//!
//! The kernel drops its pages of a file when it is told another time of modification, whoever changed the file. But
//! what was written through the mount is in its pages already. So while nobody else has changed a file, the question
//! that a read(2) asks before it believes its pages (a getattr by descriptor; stat and fstat ask by inode) is answered
//! with the time that the kernel was told last. That answer holds for nothing, so that stat asks for the right time.
//!
//! Price: each such read asks. When reads of one version have asked as often as the file has pages, the truth is
//! cheaper. Guarantee: the old time is told again only if the version that it was told of has changed by nothing but
//! writes through the mount since; a kernel that missed that answer has another time, and drops its pages.

use ramfold::PAGE_SIZE;
use rustix::fs::Statx;

/// A time of modification: seconds and nanoseconds.
type Time = (i64, u32);

/// What the kernel was told of a file.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    time: Time,
    /// The version that had this time, as the store calls it: it stays the same while only the mount writes.
    object: Option<u64>,
    /// The time that the file had when the other one was told again, and how often it was.
    hidden: Time,
    times: u64,
}

fn time(told: &Statx) -> Time {
    (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec)
}

impl Shown {
    /// The kernel is about to be told this. `object` gives the version that has these attributes, if nobody else may
    /// have changed the file since.
    pub(crate) fn tell(&mut self, told: &Statx, object: impl FnOnce() -> Option<u64>) {
        if self.time != time(told) {
            *self = Self { time: time(told), object: object(), ..Self::default() };
        }
    }

    /// The mount is about to change the file, which has these attributes. The kernel was told of it before anything was
    /// read, when it was of no version that the store knew; by now it may be. A kernel that was told another time drops
    /// its pages when it is told this one.
    pub(crate) fn learn(&mut self, told: &Statx, object: impl FnOnce() -> Option<u64>) {
        *self = Self { time: time(told), object: object(), ..Self::default() };
    }

    /// Whether it is known which version the kernel was told of.
    pub(crate) fn is_of_version(&self) -> bool {
        self.object.is_some()
    }

    /// The same as [`Self::tell`], for a read that asks whether the kernel's pages are right. True if the time was put
    /// back.
    pub(crate) fn tell_read(&mut self, told: &mut Statx, object: impl FnOnce() -> Option<u64>) -> bool {
        let now = time(told);
        if self.object.is_some() && self.time == now {
            return false;
        }
        let object = object();
        if object.is_none() || self.object != object {
            *self = Self { time: now, object, ..Self::default() };
            return false;
        }
        if self.hidden != now {
            (self.hidden, self.times) = (now, 0);
        }
        self.times += 1;
        if self.times > told.stx_size / PAGE_SIZE as u64 {
            *self = Self { time: now, object, ..Self::default() };
            return false;
        }
        (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec) = self.time;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::look;

    /// What is told of a file of so many pages that was modified then.
    fn told(pages: u64, seconds: i64) -> Statx {
        let mut told = look(tempfile::tempfile().unwrap()).unwrap();
        (told.stx_size, told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec) =
            (pages * PAGE_SIZE as u64, seconds, 0);
        told
    }

    /// What a read is told of a file of eight pages.
    fn read(shown: &mut Shown, seconds: i64, object: Option<u64>) -> (i64, bool) {
        let mut told = told(8, seconds);
        let is_put_back = shown.tell_read(&mut told, || object);
        (told.stx_mtime.tv_sec, is_put_back)
    }

    #[test]
    fn a_read_is_told_the_old_time_while_only_the_mount_writes() {
        let mut shown = Shown::default();
        assert_eq!(read(&mut shown, 1, Some(5)), (1, false), "nothing was told before");
        assert_eq!(read(&mut shown, 2, Some(5)), (1, true));
        assert_eq!(read(&mut shown, 3, Some(5)), (1, true));
        assert_eq!(read(&mut shown, 4, Some(6)), (4, false), "another has changed it");
        assert_eq!(read(&mut shown, 5, None), (5, false), "another may have changed it");
        assert_eq!(read(&mut shown, 6, Some(6)), (6, false), "what was told last was of no version");
        assert_eq!(read(&mut shown, 7, Some(6)), (6, true));
        shown.tell(&told(8, 7), || Some(6));
        assert_eq!(read(&mut shown, 7, Some(6)), (7, false), "a stat was told the truth");
    }

    #[test]
    fn what_was_told_before_the_first_read_is_of_the_version_that_a_write_begins_with() {
        let mut shown = Shown::default();
        shown.tell(&told(8, 1), || None);
        shown.learn(&told(8, 1), || Some(5));
        assert!(shown.is_of_version());
        assert_eq!(read(&mut shown, 2, Some(5)), (1, true));
        let mut shown = Shown::default();
        shown.learn(&told(8, 1), || None);
        assert_eq!(read(&mut shown, 2, Some(5)), (2, false), "others may have changed it");
    }

    #[test]
    fn the_truth_is_told_when_reads_have_asked_as_often_as_there_are_pages() {
        let mut shown = Shown::default();
        read(&mut shown, 1, Some(5));
        for _ in 0..8 {
            assert_eq!(read(&mut shown, 2, Some(5)), (1, true));
        }
        assert_eq!(read(&mut shown, 2, Some(5)), (2, false));
        for turn in 3..30 {
            assert_eq!(read(&mut shown, turn, Some(5)), (2, true), "each write begins anew");
        }
    }
}
