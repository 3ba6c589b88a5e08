//! Pages that processes have in common since a fork and that no account has.
//!
//! Such a page is in one account (`segment/heirs.rs`). Where the process whose account it is writes to it past the
//! pager (static data, the linker's and ramfold's own memory), the kernel gives that process a copy. The old page is in
//! no account then, as long as two others have it: to each of them it is in common, as before. The kernel's
//! proportional sizes (proc(5), Pss) of all of them come to the memory that there is, so `ramfold run` compares the
//! sums, and what is missing counts as well.
//!
//! Price: a walk over the page tables of each process that has a page in common, in a bounded share of one processor.
//! The sizes are not told at one moment, so of the last looks the least counts: what is missing is found late rather
//! than too large. What a debugger wants in place counts as before (`segment/hold.rs`): while one is there, and for
//! [`HELD`] after, nothing is compared.

use ramfold_budget::process::{anonymous, proportional};
use ramfold_budget::segment::{Process, Segment, SlotId};
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Looks of which the least counts.
const LOOKS: usize = 2;
/// Looks in a row that find nothing since a process is ending, at most.
const PUT_OFF_AT_MOST: usize = 20;
/// How long after the last beat of a hold its memory may be in place still.
const HELD: Duration = Duration::from_secs(6);

/// What was found.
#[derive(Debug, Default)]
pub struct Uncounted {
    /// [`is_member`], by process.
    members: HashMap<u32, bool>,
    /// Bytes that were missing.
    missing: [u64; LOOKS],
    looks: usize,
    /// Looks in a row in which a process was ending.
    put_off: usize,
    /// The last beat of a hold that was seen in a slot, and when it was new.
    beats: HashMap<SlotId, (u32, Instant)>,
}

impl Uncounted {
    /// Bytes that no account has.
    pub fn look(&mut self, segment: &Segment) -> u64 {
        let (missing, one_is_ending) = self.compare(segment);
        self.put_off = if one_is_ending { self.put_off + 1 } else { 0 };
        let is_put_off = (1..=PUT_OFF_AT_MOST).contains(&self.put_off);
        self.missing[self.looks % LOOKS] = if is_put_off { 0 } else { missing };
        self.looks += 1;
        self.missing.into_iter().min().unwrap_or(0)
    }

    /// Whether somebody wants all of a member's memory in place, or did a moment ago.
    fn is_held(&mut self, slot: SlotId, beat: u32) -> bool {
        let now = Instant::now();
        let (last, since) = self.beats.entry(slot).or_insert((0, now));
        if *last != beat {
            (*last, *since) = (beat, now);
        }
        beat != 0 && since.elapsed() < HELD
    }

    /// Bytes that are missing now, and whether a process has no memory any more and is still in its account: what it
    /// had in common with others is theirs alone then, and not missing. (A process whose first thread has ended looks
    /// the same, for as long as it lives.)
    fn compare(&mut self, segment: &Segment) -> (u64, bool) {
        let mut related = segment.processes();
        related.retain(|process| segment.in_common(process.slot) > 0);
        self.members.retain(|pid, _| related.iter().any(|process| process.pid == *pid));
        if related.iter().any(|process| self.is_held(process.slot, segment.hold_beat(process.slot))) {
            related.clear();
        }
        let (mut there, mut counted, mut one_is_ending) = (0_u64, 0_u64, false);
        for Process { pid, slot } in related {
            if !*self.members.entry(pid).or_insert_with(|| is_member(pid)) {
                continue;
            }
            let before = segment.charged(slot);
            let Some(bytes) = proportional(pid) else {
                one_is_ending |= anonymous(pid) == 0;
                continue;
            };
            there += bytes;
            counted = counted.saturating_add(before.max(segment.charged(slot)));
        }
        (there.saturating_sub(counted), one_is_ending)
    }
}

/// Whether this is the process that is entered in a segment: one in a container of its own is entered under the number
/// that it has there, which may be anybody's here.
fn is_member(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains(Segment::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold_budget::segment::Gauge;

    #[test]
    fn what_is_missing_counts_when_it_was_missing_in_each_look() {
        let (_fd, segment) = Segment::create(1 << 30, 0).unwrap();
        let parent = segment.attach(&|_| ()).unwrap();
        let mut uncounted = Uncounted::default();
        assert_eq!(uncounted.look(&segment), 0, "nobody has anything in common");
        let child = segment.prepare_child(parent, 1 << 20, &|_| ()).unwrap();
        segment.end_fork();
        // The number of this process, whose memory is in no account.
        segment.adopt(child);
        let looks: Vec<u64> = (0..LOOKS).map(|_| uncounted.look(&segment)).collect();
        assert!(looks[..LOOKS - 1].iter().all(|found| *found == 0) && looks[LOOKS - 1] > 0, "{looks:?}");
        segment.charge(parent, Gauge::Own, 1 << 30);
        assert_eq!(uncounted.look(&segment), 0);
    }
}
