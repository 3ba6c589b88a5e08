//! Several runs within one budget.
//!
//! A run that may not be alone has a slot, though it is no member: what its processes have past the pager counts there,
//! and comes back when the run ends, however it does. A run that is alone enters it by [`Segment::set_unmanaged`].
//!
//! One of the runs is the *lookout*: it does for the processes of all of them what cannot be done twice. It has a lock
//! on a byte of the segment's file, which the kernel takes away when it ends; then another run is the lookout.

use super::lease::{LOOKOUT, lock};
use super::slots::Kind;
use super::{Gauge, Segment, SlotId};
use std::io;
use std::sync::atomic::Ordering;

impl Segment {
    /// Takes a slot for a run, for [`Segment::set_unmanaged_of`].
    ///
    /// # Errors
    /// As [`Segment::attach`].
    pub fn attach_run(&self, discard: &dyn Fn(u32)) -> io::Result<SlotId> {
        let (slot, lease) = self.claim(std::process::id(), false, discard)?;
        self.slots()[slot.0].set_kind(Kind::Run);
        self.own(lease);
        Ok(slot)
    }

    /// Enters the bytes that processes of this run have past the pager; they are charged.
    pub fn set_unmanaged_of(&self, run: SlotId, bytes: u64) {
        self.publish(run, Gauge::Own, bytes);
    }

    /// Whether this process is the lookout, from now on if there is none. One whose segment is a copy is none.
    #[must_use]
    pub fn is_lookout(&self) -> bool {
        self.file.as_ref().is_some_and(|file| lock(&file.fd, LOOKOUT, libc::F_WRLCK).is_ok())
    }

    /// Another run may be the lookout.
    pub fn leave_lookout(&self) {
        if let Some(file) = &self.file {
            let _ = lock(&file.fd, LOOKOUT, libc::F_UNLCK);
        }
    }

    /// A number for a run that begins: no other of this segment has it, nor has 0.
    #[must_use]
    pub fn begin_run(&self) -> u32 {
        self.header().runs.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;
    use rustix::fd::AsRawFd;

    #[test]
    fn what_a_run_has_past_the_pager_counts_and_goes_with_it() {
        let (fd, ours) = segment(0);
        let joined = Segment::open(&format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let run = joined.attach_run(&|_| ()).unwrap();
        ours.set_unmanaged(1 << 12);
        joined.set_unmanaged_of(run, 1 << 20);
        assert_eq!((ours.unmanaged(), ours.in_use()), (0x10_1000, 0x10_1000));
        assert_eq!((ours.living(), ours.processes().len()), (0, 0), "it is no member");
        let member = ours.attach_another().unwrap();
        ours.charge(member, Gauge::Own, 1);
        assert!(ours.has_most(member, Gauge::Own), "nor a rival");
        drop(joined);
        assert_eq!(ours.reap(&|_| ()), 1);
        assert_eq!((ours.unmanaged(), ours.in_use()), (1 << 12, 0x1001));
    }

    #[test]
    fn one_is_the_lookout_and_when_it_ends_another() {
        let (fd, ours) = segment(0);
        let joined = Segment::open(&format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        assert!(ours.is_lookout() && ours.is_lookout() && !joined.is_lookout());
        ours.leave_lookout();
        assert!(joined.is_lookout() && !ours.is_lookout());
        joined.leave_lookout();
        assert!(ours.is_lookout() && ours.begin_run() != joined.begin_run());
    }
}
