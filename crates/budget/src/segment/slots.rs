//! Slots: which processes are managed, and what comes back when one of them ends without saying so.

use super::lease::{Description, KEEPER, Lease, lock};
use super::{Counter, Gauge, MAX_NAME, MAX_PROCESSES, Segment, Slot, SlotId, clean, extents::extent_number};
use std::io;
use std::sync::atomic::Ordering;

/// A managed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// As it numbers itself.
    pub pid: u32,
    /// Where its gauges and faults are.
    pub slot: SlotId,
}

/// What the owner of a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A managed process.
    Process,
    /// A member whose pool is all that it has to give, and not bounded by what the others' pools may have.
    Apart,
    /// No member: a run has its account there (`segment/runs.rs`).
    Run,
}

impl Slot {
    pub(super) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u32, Ordering::Relaxed);
    }

    pub(super) fn is_of(&self, kind: Kind) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as u32
    }

    /// Somebody has it, and it is a member of the budget.
    pub(super) fn is_member(&self) -> bool {
        self.pid.load(Ordering::Acquire) != 0 && !self.is_of(Kind::Run)
    }

    /// Waits for a forked child to adopt it.
    pub(super) fn is_prepared(&self) -> bool {
        self.prepared.load(Ordering::Relaxed) != 0
    }

    fn set_name(&self, name: &str) {
        let bytes = name.bytes().chain(std::iter::repeat(0));
        self.name.iter().zip(bytes).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

/// What members are called.
impl Segment {
    /// Calls the member by a name that is not its process's, of [`MAX_NAME`] bytes: a process may have several.
    pub fn set_name(&self, slot: SlotId, name: &str) {
        debug_assert!(name.len() <= MAX_NAME, "{name} is cut");
        self.slots()[slot.0].set_name(name);
    }

    /// That name, if it has one.
    #[must_use]
    pub fn name(&self, slot: SlotId) -> Option<String> {
        let name = &self.slots()[slot.0].name;
        let len = name.iter().position(|byte| byte.load(Ordering::Relaxed) == 0).unwrap_or(MAX_NAME);
        (len > 0).then(|| clean(&name[..len]))
    }
}

/// Slots.
impl Segment {
    /// Takes a slot for the calling process. One that it left behind before an `exec` is released.
    ///
    /// # Errors
    /// [`MAX_PROCESSES`] are managed already, or the system refuses a descriptor or a mapping.
    pub fn attach(&self, discard: &dyn Fn(u32)) -> io::Result<SlotId> {
        let pid = std::process::id();
        self.reap_those(discard, |slot| slot.pid.load(Ordering::Relaxed) == pid);
        let (slot, lease) = self.claim(pid, false, discard)?;
        self.own(lease);
        self.add(Counter::Processes, 1);
        Ok(slot)
    }

    /// Keeps the lease of this process, instead of any that it had.
    pub(super) fn own(&self, lease: Lease) {
        drop(Lease::from_address(self.own_lease.swap(lease.keep(), Ordering::Relaxed)));
    }

    /// A free slot, and what says that its owner lives. Where all are taken, the dead give theirs back first.
    pub(super) fn claim(
        &self,
        pid: u32,
        prepared: bool,
        discard: &dyn Fn(u32),
    ) -> io::Result<(SlotId, Lease)> {
        let description = self.description()?;
        let lease = Lease::new(&description)?;
        let claim = || (0..MAX_PROCESSES).find(|index| self.claim_one(*index, &description, pid, prepared));
        let claimed = claim().or_else(|| if self.reap(discard) > 0 { claim() } else { None });
        drop(description);
        self.restore_spare();
        let index = claimed.ok_or_else(|| io::Error::other("too many managed processes"))?;
        Ok((SlotId(index), lease))
    }

    fn claim_one(&self, index: usize, description: &Description, pid: u32, prepared: bool) -> bool {
        let slot = &self.slots()[index];
        if slot.pid.load(Ordering::Relaxed) != 0 || !description.try_lock(index) {
            return false;
        }
        if slot.pid.load(Ordering::Acquire) != 0 {
            description.unlock(index);
            return false;
        }
        slot.prepared.store(prepared.into(), Ordering::Relaxed);
        slot.hold.reset();
        slot.set_kind(Kind::Process);
        slot.set_name("");
        slot.balance.reset();
        slot.heritage.reset();
        // MAX_PROCESSES fits.
        self.header().slots_used.fetch_max(u32::try_from(index + 1).unwrap_or(u32::MAX), Ordering::Release);
        slot.pid.store(pid, Ordering::Release);
        true
    }

    /// Before a fork: takes a slot for the child, which inherits `bytes` of memory, and a count on every extent that
    /// `parent` holds, so that what the child will inherit stays readable whatever the parent does, even if it ends
    /// at once. The child's lease is inherited by the child; [`Segment::end_fork`] lets it go in the parent. From
    /// then on the slot is reaped if there is no child, or when it ends.
    ///
    /// # Errors
    /// As [`Segment::attach`].
    pub fn prepare_child(&self, parent: SlotId, bytes: u64, discard: &dyn Fn(u32)) -> io::Result<SlotId> {
        let (child, lease) = self.claim(std::process::id(), true, discard)?;
        self.childs_lease.store(lease.into_address(), Ordering::Relaxed);
        for index in self.held_by(parent) {
            self.refs()[index].fetch_add(1, Ordering::Relaxed);
            self.held(child)[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
        self.bequeath(parent, child, bytes);
        Ok(child)
    }

    /// After the fork, in the parent, and if there was none.
    pub fn end_fork(&self) {
        drop(Lease::from_address(self.childs_lease.swap(0, Ordering::Relaxed)));
    }

    /// In the forked child: makes the prepared slot its own.
    pub fn adopt(&self, child: SlotId) {
        // The parent's own lease was not inherited.
        self.own_lease.store(0, Ordering::Relaxed);
        if let Some(lease) = Lease::from_address(self.childs_lease.swap(0, Ordering::Relaxed)) {
            self.own(lease);
        }
        let slot = &self.slots()[child.0];
        slot.prepared.store(0, Ordering::Relaxed);
        slot.pid.store(std::process::id(), Ordering::Release);
        self.add(Counter::Processes, 1);
    }

    /// Gives back a slot of this process: its charges, and its counts on extents. `discard` gives back the file space
    /// of an extent that nobody holds any more.
    pub fn release(&self, slot: SlotId, discard: &dyn Fn(u32)) {
        self.clear(slot, discard);
        self.own_lease_ends();
    }

    fn own_lease_ends(&self) {
        drop(Lease::from_address(self.own_lease.swap(0, Ordering::Relaxed)));
    }

    /// Who calls it holds the slot's lease.
    fn clear(&self, id: SlotId, discard: &dyn Fn(u32)) {
        let slot = &self.slots()[id.0];
        for index in self.held_by(id) {
            self.release_extent(id, extent_number(index), discard);
        }
        // Nobody asks it for room.
        self.publish_oldest(id, None);
        // Before an heir counts it.
        for gauge in Gauge::ALL {
            self.publish(id, *gauge, 0);
        }
        self.free_parts(id);
        self.pass_on(id);
        slot.heritage.reset();
        self.header().past_faults.take(&self.faults()[id.0]);
        slot.pid.store(0, Ordering::Release);
    }

    /// The processes that are managed now.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let numbered = self.used_slots().iter().enumerate();
        let living = numbered.filter_map(|(index, slot)| {
            let pid = slot.pid.load(Ordering::Acquire);
            (slot.is_member() && !slot.is_prepared()).then_some(Process { pid, slot: SlotId(index) })
        });
        living.collect()
    }

    /// The slot's pool is all that its owner has to give: the bound of the other members' pools is not for it.
    pub fn set_apart(&self, slot: SlotId) {
        self.slots()[slot.0].set_kind(Kind::Apart);
    }

    /// Looks after the segment from now on, as long as it is mapped, if nobody does any more; false if somebody does.
    /// The sum of processes without a slot is 0 from then on: nobody would see them go.
    #[must_use]
    pub fn take_over(&self) -> bool {
        let is_taken = self.file.as_ref().is_some_and(|file| lock(&file.fd, KEEPER, libc::F_WRLCK).is_ok());
        if is_taken {
            self.set_unmanaged(0);
        }
        is_taken
    }

    /// Whether nobody looks after the segment any more. False for who cannot tell.
    fn is_orphaned(&self) -> bool {
        // Unlocked when the description is closed.
        self.description().is_ok_and(|probe| probe.try_lock(KEEPER))
    }

    /// For a process that is short of memory: as [`Segment::reap_for_the_owner`], if nobody looks after the segment
    /// any more. Who has little can get along with it for ever without finding that there is none: what the dead have
    /// left must not wait for that.
    pub fn reap_if_orphaned(&self, discard: &dyn Fn(u32)) -> bool {
        self.is_orphaned() && self.reap_for_the_owner(discard)
    }

    /// For a process that finds no memory: as [`Segment::reap`]; and if nobody looks after the segment any more, what
    /// was found of processes without a slot counts no longer, since nobody will ever see it go. Returns whether that
    /// helped.
    pub fn reap_for_the_owner(&self, discard: &dyn Fn(u32)) -> bool {
        let reaped = self.reap(discard);
        let left = self.header().unmanaged.load(Ordering::Relaxed) > 0 && self.is_orphaned();
        if left {
            self.set_unmanaged(0);
        }
        reaped > 0 || left
    }

    /// Releases the slots of processes that ended or were replaced by `exec` without saying so, and of children that
    /// never came to be. Returns how many. Any process of the run may call this at any time.
    pub fn reap(&self, discard: &dyn Fn(u32)) -> usize {
        self.reap_those(discard, |_| true)
    }

    fn reap_those(&self, discard: &dyn Fn(u32), wanted: impl Fn(&Slot) -> bool) -> usize {
        let is_taken = |slot: &Slot| slot.pid.load(Ordering::Acquire) != 0;
        let mut candidates = self
            .used_slots()
            .iter()
            .enumerate()
            .filter(|(_, slot)| is_taken(slot) && wanted(slot))
            .peekable();
        if candidates.peek().is_none() {
            return 0;
        }
        // Without one nobody is known to be dead.
        let Ok(probe) = self.description() else { return 0 };
        let mut reaped = 0;
        for (index, slot) in candidates {
            if probe.try_lock(index) {
                if is_taken(slot) {
                    self.finish_for(SlotId(index), discard);
                    self.clear(SlotId(index), discard);
                    reaped += 1;
                }
                probe.unlock(index);
            }
        }
        reaped
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segment;
    use super::*;
    use std::cell::RefCell;

    impl Segment {
        /// A slot beside those that this process has already, for as long as the process lives.
        pub(in super::super) fn attach_another(&self) -> io::Result<SlotId> {
            let (slot, lease) = self.attach_mortal()?;
            std::mem::forget(lease);
            Ok(slot)
        }

        /// A slot of somebody who lives as long as the lease.
        pub(in crate::segment) fn attach_mortal(&self) -> io::Result<(SlotId, Lease)> {
            self.claim(std::process::id(), false, &|_| ())
        }
    }

    #[test]
    fn a_dead_process_gives_everything_back() {
        let (_fd, segment) = segment(10);
        let living = segment.attach(&|_| ()).unwrap();
        segment.charge(living, Gauge::Own, 1);
        let (dead, life) = segment.attach_mortal().unwrap();
        segment.charge(dead, Gauge::Resident, 4096);
        let extent = segment.take_extent(dead).unwrap();
        assert_eq!(segment.reap(&|_| panic!("nobody ended")), 0);
        drop(life);
        let discarded = RefCell::new(vec![]);
        assert_eq!(segment.reap(&|extent| discarded.borrow_mut().push(extent)), 1);
        assert_eq!((segment.in_use(), segment.swap_used(), discarded.into_inner()), (1, 0, vec![extent]));
        assert_eq!(segment.living(), 1);
    }

    #[test]
    fn a_name_is_of_one_owner() {
        let (_fd, segment) = segment(0);
        let (slot, life) = segment.attach_mortal().unwrap();
        assert_eq!(segment.name(slot), None);
        segment.set_name(slot, "a name\u{1b}[1m");
        assert_eq!(segment.name(slot).as_deref(), Some("a name?[1m"));
        segment.set_name(slot, &"x".repeat(MAX_NAME));
        assert_eq!(segment.name(slot).map(|name| name.len()), Some(MAX_NAME));
        drop(life);
        segment.reap(&|_| ());
        assert_eq!(segment.attach(&|_| ()).unwrap(), slot);
        assert_eq!(segment.name(slot), None);
    }

    #[test]
    fn what_a_dead_owner_has_left_counts_no_longer() {
        let (fd, segment) = segment(1);
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&fd));
        let member = Segment::open(&path).unwrap();
        member.set_unmanaged(4096);
        assert!(!member.reap_for_the_owner(&|_| ()));
        assert_eq!(member.in_use(), 4096, "this process looks after it");
        assert!(!member.reap_if_orphaned(&|_| ()));
        drop((fd, segment));
        assert!(member.reap_if_orphaned(&|_| ()) && !member.reap_for_the_owner(&|_| ()));
        assert_eq!(member.in_use(), 0);
    }

    #[test]
    fn a_child_that_never_came_to_be_leaves_nothing() {
        let (_fd, segment) = segment(3);
        let parent = segment.attach(&|_| ()).unwrap();
        let extent = segment.take_extent(parent).unwrap();
        for _ in 0..MAX_PROCESSES + 10 {
            segment.prepare_child(parent, 0, &|_| ()).unwrap();
            assert!(segment.is_extent_shared(extent));
            segment.end_fork();
        }
        assert!(segment.reap(&|_| panic!("the parent has it")) > 0);
        assert!(!segment.is_extent_shared(extent));
        assert_eq!(segment.living(), 1);
    }

    #[test]
    fn a_slot_is_reaped_once_its_process_was_killed_and_not_before() {
        let (_fd, segment) = segment(1);
        let parent = segment.attach(&|_| ()).unwrap();
        segment.prepare_child(parent, 0, &|_| ()).unwrap();
        // SAFETY: the child makes one system call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a plain system call, which returns when a signal kills.
            unsafe { libc::pause() };
        }
        segment.end_fork();
        assert_eq!(segment.reap(&|_| ()), 0, "it has not adopted the slot, and lives");
        let mut status = 0;
        // SAFETY: the child is this test's own; the place is valid.
        unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, &raw mut status, 0)) };
        assert_eq!(segment.reap(&|_| ()), 1);
    }

    #[test]
    fn a_descriptor_that_the_program_took_over_is_not_believed() {
        let (_fd, segment) = segment(1);
        let slot = segment.attach(&|_| ()).unwrap();
        segment.attach_mortal().map(drop).unwrap();
        let (other, _) = super::super::tests::segment(1);
        let taken = segment.raw_fd().unwrap();
        // SAFETY: what lies under the number is the segment's to close, as before.
        let mut taken = std::mem::ManuallyDrop::new(unsafe { rustix::fd::FromRawFd::from_raw_fd(taken) });
        rustix::io::dup2(&other, &mut taken).unwrap();
        assert_eq!(segment.reap(&|_| ()), 0, "nobody can be seen to be dead");
        segment.prepare_child(slot, 0, &|_| ()).unwrap_err();
    }
}
