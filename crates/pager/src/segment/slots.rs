//! Slots: which processes are managed, and what comes back when one of them ends without saying so.

use super::{BUSY, Counter, Gauge, Segment, Slot, SlotId, extents::extent_number};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::io;
use std::sync::atomic::Ordering;

/// What tells one program image in one process from all others: `pid`, start time, and where its stack began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    start_time: u64,
    /// 0 if this process may not see it.
    start_stack: u64,
}

/// A managed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// As the `/proc` of the run numbers it.
    pub pid: u32,
    /// Where its gauges and faults are.
    pub slot: SlotId,
}

/// The start time of a slot that waits for a forked child: no process started when the machine did.
const PREPARED: u64 = 0;

impl Identity {
    /// Of the calling process.
    fn own() -> io::Result<Self> {
        let stat = std::fs::read("/proc/self/stat")?;
        Self::parse(&stat).ok_or_else(|| io::Error::other("/proc/self/stat cannot be understood"))
    }

    /// Whether the process has ended or runs another image now. Whatever is not certain is no: who lives would lose
    /// its pages.
    fn has_ended(&self) -> bool {
        match std::fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => !Self::parse(&stat).is_some_and(|now| self.is(&now)),
            Err(error) => {
                matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) && self.no_such_pid()
            }
        }
    }

    /// `/proc` may be mounted so that it hides the processes of other users (`hidepid`); a signal finds them.
    fn no_such_pid(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// `/proc/PID/stat`. None also for a process that has ended and waits for its parent.
    fn parse(stat: &[u8]) -> Option<Self> {
        // `PID (name) STATE ...`, and the name may hold anything: the rest begins with field 3 of proc_pid_stat(5).
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let pid = std::str::from_utf8(stat.split(|byte| *byte == b' ').next()?).ok()?.parse().ok()?;
        let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
        let field = |number: usize| rest.split(' ').nth(number - 3)?.parse::<u64>().ok();
        // A process whose first thread has ended looks dead, but for the number of its threads.
        let threads = field(20)?;
        if rest.starts_with('X') || (rest.starts_with('Z') && threads < 2) {
            return None;
        }
        Some(Self { pid, start_time: field(22)?, start_stack: field(28)? })
    }

    /// Whether a slot with `self` belongs to the process that is now `other`.
    fn is(&self, other: &Self) -> bool {
        let same_image =
            self.start_stack == other.start_stack || self.start_stack == 0 || other.start_stack == 0;
        self.pid == other.pid && self.start_time == other.start_time && same_image
    }
}

impl Slot {
    /// Waits for a forked child to adopt it.
    pub(super) fn is_prepared(&self) -> bool {
        self.start_time.load(Ordering::Relaxed) == PREPARED
    }
}

/// Where the stack of a process began, which an exec changes; 0 if the process has ended, or does not show it.
#[must_use]
pub fn start_stack(pid: u32) -> u64 {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    Identity::parse(&stat).map_or(0, |identity| identity.start_stack)
}

/// Tells the `/proc` that numbers the processes here from those of other PID namespaces.
fn proc_view() -> io::Result<u64> {
    Ok(rustix::fs::stat("/proc/self")?.st_dev)
}

/// Slots.
impl Segment {
    /// Takes a slot for the calling process. A slot that it left behind before an `exec` is released.
    ///
    /// # Errors
    /// `/proc` cannot be read, or [`MAX_PROCESSES`] are managed already.
    pub fn attach(&self, discard: &dyn Fn(u32)) -> io::Result<SlotId> {
        let own = Identity::own()?;
        self.release_stale(own.pid, discard);
        let slot = self.claim(own)?;
        self.add(Counter::Processes, 1);
        Ok(slot)
    }

    /// Releases slots that process `pid` left behind before an `exec`: to be called by the new program before
    /// it attaches, since its old memory is gone and its charge is not.
    pub fn release_stale(&self, pid: u32, discard: &dyn Fn(u32)) {
        for (index, slot) in self.used_slots().iter().enumerate() {
            if slot.pid.load(Ordering::Acquire) == pid && !slot.is_prepared() {
                self.release_owned(SlotId(index), pid, discard);
            }
        }
    }

    fn claim(&self, owner: Identity) -> io::Result<SlotId> {
        let view = proc_view()?;
        for (index, slot) in self.slots().iter().enumerate() {
            if slot.pid.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                slot.start_time.store(owner.start_time, Ordering::Relaxed);
                slot.start_stack.store(owner.start_stack, Ordering::Relaxed);
                slot.view.store(view, Ordering::Relaxed);
                slot.balance.reset();
                slot.heritage.reset();
                // MAX_PROCESSES fits.
                self.header()
                    .slots_used
                    .fetch_max(u32::try_from(index + 1).unwrap_or(u32::MAX), Ordering::Release);
                slot.pid.store(owner.pid, Ordering::Release);
                return Ok(SlotId(index));
            }
        }
        Err(io::Error::other("too many managed processes"))
    }

    /// Before a fork: takes a slot for the child, which inherits `bytes` of memory, and a count on every extent that `parent`
    /// holds, so that what the child will inherit stays readable whatever the parent does, even if it ends at once. The slot is under the
    /// parent's name, and never reaped, until [`Segment::adopt`]; if the fork fails or the child is killed before
    /// that, what it holds is lost to the run.
    ///
    /// # Errors
    /// As [`Segment::attach`].
    pub fn prepare_child(&self, parent: SlotId, bytes: u64) -> io::Result<SlotId> {
        let of = &self.slots()[parent.0];
        let child = self.claim(Identity {
            pid: of.pid.load(Ordering::Relaxed),
            start_time: PREPARED,
            start_stack: 0,
        })?;
        for (index, word) in self.held(parent).iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.refs()[index * 64 + bit].fetch_add(1, Ordering::Relaxed);
            }
            self.held(child)[index].store(bits, Ordering::Relaxed);
        }
        self.bequeath(parent, child, bytes);
        Ok(child)
    }

    /// In the forked child: makes the prepared slot its own.
    ///
    /// # Errors
    /// The parent ended meanwhile and the slot was reaped: what the child inherited can no longer be read.
    pub fn adopt(&self, child: SlotId) -> io::Result<()> {
        let own = Identity::own()?;
        let slot = &self.slots()[child.0];
        let parent = slot.pid.load(Ordering::Acquire);
        let taken = slot.pid.compare_exchange(parent, BUSY, Ordering::AcqRel, Ordering::Relaxed);
        if parent == 0 || parent == BUSY || taken.is_err() {
            return Err(io::Error::other("the process that forked this one ended meanwhile"));
        }
        slot.start_time.store(own.start_time, Ordering::Relaxed);
        slot.start_stack.store(own.start_stack, Ordering::Relaxed);
        slot.pid.store(own.pid, Ordering::Release);
        self.add(Counter::Processes, 1);
        Ok(())
    }

    /// Gives back a slot: its charges, and its counts on extents. `discard` gives back the file space of an
    /// extent that nobody holds any more.
    pub fn release(&self, slot: SlotId, discard: &dyn Fn(u32)) {
        let pid = self.slots()[slot.0].pid.load(Ordering::Acquire);
        self.release_owned(slot, pid, discard);
    }

    fn release_owned(&self, id: SlotId, pid: u32, discard: &dyn Fn(u32)) {
        let slot = &self.slots()[id.0];
        let ours = slot.pid.compare_exchange(pid, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if pid == 0 || pid == BUSY || !ours {
            return;
        }
        for (index, word) in self.held(id).iter().enumerate() {
            let bits = word.load(Ordering::Relaxed);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                self.release_extent(id, extent_number(index * 64 + bit), discard);
            }
        }
        self.pass_on(id);
        slot.heritage.reset();
        for gauge in Gauge::ALL {
            self.publish(id, *gauge, 0);
        }
        self.header().past_faults.take(&self.faults()[id.0]);
        slot.pid.store(0, Ordering::Release);
    }

    /// The processes that are managed now.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let numbered = self.used_slots().iter().enumerate();
        let living = numbered.filter_map(|(index, slot)| {
            let pid = slot.pid.load(Ordering::Acquire);
            (pid != 0 && pid != BUSY && !slot.is_prepared()).then_some(Process { pid, slot: SlotId(index) })
        });
        living.collect()
    }

    /// Enters the calling process as the one that looks after the segment.
    pub(super) fn become_owner(&self) -> io::Result<()> {
        let own = Identity::own()?;
        self.header().owner_view.store(proc_view()?, Ordering::Relaxed);
        self.header().owner_start_time.store(own.start_time, Ordering::Relaxed);
        self.header().owner.store(own.pid, Ordering::Relaxed);
        Ok(())
    }

    /// False also for who cannot tell, in a container of its own.
    fn owner_has_ended(&self) -> bool {
        let header = self.header();
        let view = header.owner_view.load(Ordering::Relaxed);
        let (pid, start_time) = (&header.owner, &header.owner_start_time);
        let (pid, start_time) = (pid.load(Ordering::Relaxed), start_time.load(Ordering::Relaxed));
        proc_view().is_ok_and(|own| own == view) && Identity { pid, start_time, start_stack: 0 }.has_ended()
    }

    /// For a process that is short of memory: as [`Segment::reap_for_the_owner`], if nobody looks after the segment any more.
    /// Who has little can get along with it for ever without finding that there is none: what the dead have left must not
    /// wait for that.
    pub fn reap_if_orphaned(&self, discard: &dyn Fn(u32)) -> bool {
        self.owner_has_ended() && self.reap_for_the_owner(discard)
    }

    /// For a process that finds no memory: as [`Segment::reap`]; and if nobody looks after the segment any more, what was
    /// found of processes without a slot counts no longer, since nobody will ever see it go. Returns whether that helped.
    pub fn reap_for_the_owner(&self, discard: &dyn Fn(u32)) -> bool {
        let reaped = self.reap(discard);
        let left = self.unmanaged() > 0 && self.owner_has_ended();
        if left {
            self.set_unmanaged(0);
        }
        reaped > 0 || left
    }

    /// Releases the slots of processes that ended or were replaced by `exec` without saying so. Returns how
    /// many. Any process of the run may call this at any time; slots of processes that see another `/proc` (in a
    /// container, say) are left to those.
    pub fn reap(&self, discard: &dyn Fn(u32)) -> usize {
        let Ok(view) = proc_view() else { return 0 };
        let mut reaped = 0;
        for (index, slot) in self.used_slots().iter().enumerate() {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid == 0 || pid == BUSY || slot.is_prepared() || slot.view.load(Ordering::Relaxed) != view {
                continue;
            }
            let known = Identity {
                pid,
                start_time: slot.start_time.load(Ordering::Relaxed),
                start_stack: slot.start_stack.load(Ordering::Relaxed),
            };
            if known.has_ended() && slot.pid.load(Ordering::Acquire) == pid {
                self.release_owned(SlotId(index), pid, discard);
                reaped += 1;
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
    use std::io::{Read, Write};
    use std::process::Stdio;

    #[test]
    fn a_dead_process_gives_everything_back() {
        let (_fd, segment) = segment(10);
        let living = segment.attach(&|_| ()).unwrap();
        segment.charge(living, Gauge::Own, 1);
        let mut process =
            std::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // What it answers, it answers after its exec.
        process.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        process.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let stat = std::fs::read(format!("/proc/{}/stat", process.id())).unwrap();
        let dead = segment.claim(Identity::parse(&stat).unwrap()).unwrap();
        segment.charge(dead, Gauge::Resident, 4096);
        let extent = segment.take_extent(dead).unwrap();
        assert_eq!(segment.reap(&|_| panic!("nobody ended")), 0);
        process.kill().unwrap();
        process.wait().unwrap();
        let discarded = RefCell::new(vec![]);
        assert_eq!(segment.reap(&|extent| discarded.borrow_mut().push(extent)), 1);
        assert_eq!((segment.in_use(), segment.swap_used(), discarded.into_inner()), (1, 0, vec![extent]));
        assert_eq!(segment.living(), 1);
    }

    impl Segment {
        /// A slot beside those that this process has already.
        pub(in super::super) fn attach_another(&self) -> io::Result<SlotId> {
            self.claim(Identity::own()?)
        }
    }

    #[test]
    fn what_a_dead_owner_has_left_counts_no_longer() {
        let (_fd, segment) = segment(1);
        segment.set_unmanaged(4096);
        assert!(!segment.reap_for_the_owner(&|_| ()));
        assert_eq!(segment.in_use(), 4096, "this process looks after it");
        assert!(!segment.reap_if_orphaned(&|_| ()));
        segment.header().owner_start_time.fetch_add(1, Ordering::Relaxed);
        segment.header().owner_view.fetch_add(1, Ordering::Relaxed);
        assert!(!segment.reap_for_the_owner(&|_| ()), "whether it has ended cannot be seen from here");
        segment.header().owner_view.fetch_sub(1, Ordering::Relaxed);
        assert!(segment.reap_if_orphaned(&|_| ()) && !segment.reap_for_the_owner(&|_| ()));
        assert_eq!(segment.in_use(), 0);
    }

    #[test]
    fn an_exec_shows_as_another_image_of_the_same_process() {
        let before = Identity { pid: 5, start_time: 10, start_stack: 100 };
        assert!(before.is(&before));
        assert!(!before.is(&Identity { start_stack: 200, ..before }));
        assert!(before.is(&Identity { start_stack: 0, ..before }), "hidden by the kernel: no proof");
        assert!(!before.is(&Identity { start_time: 11, ..before }));
    }

    #[test]
    fn a_slot_reaped_before_it_was_adopted_is_refused() {
        let (_fd, segment) = segment(1);
        let parent = segment.attach(&|_| ()).unwrap();
        let child = segment.prepare_child(parent, 0).unwrap();
        segment.release(child, &|_| ());
        segment.adopt(child).unwrap_err();
    }
}
