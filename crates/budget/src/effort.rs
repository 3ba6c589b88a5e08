//! Making room: one turn after another until a member is under its mark, or has nothing to give.
//!
//! A turn asks the door to give pages up, and keeps the books. What the store refused is worth another try once the
//! store has written back. What was given up and is another's as well has freed nothing: then the pool gives, once
//! memory is used up. A door may pass over what it thinks warm, so only when it has looked at everything many times
//! over is there nothing to give.
//!
//! Who works without being waited for (an evictor) and who must have room now (a fault) take the same turns, and
//! differ in what they do when nothing is to be had.

use crate::door::{Door, Given};
use crate::member::{BITE, Member};
use crate::time::{now_ns, sleep};
use std::time::{Duration, Instant};

/// Bytes that the pool gives when everything was looked at and nothing is to be had. More than a bite: before the pool
/// gives again, everything is looked at again.
const SQUEEZED: u64 = 16 * BITE;
/// Times that everything is looked at before it counts as nothing to give: the heat of a page takes up to 15.
const PASSES: usize = 16;
/// How often in turn, and how long, it is left to a member with older pages to make room.
const OTHERS_TURNS: u32 = 5;
const OTHERS_TURN: Duration = Duration::from_micros(200);

/// How often a door's one thread looks, uncalled.
const LOOK: Duration = Duration::from_millis(20);
/// How long who wants a page waits for other members to give memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits while its own member gives nothing.
const STALLED: Duration = Duration::from_millis(200);
/// Between two looks, in that time, for processes that have ended.
const REAP: Duration = Duration::from_millis(200);

/// How long a fork waits for room.
const FORKS_PATIENCE_NS: u64 = 50_000_000;

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// There is more room.
    Made,
    /// There may be more room after more turns.
    Trying,
    /// The door has nothing to give.
    Spent,
}

/// Turns in a row.
#[derive(Debug, Default)]
pub struct Effort {
    looked_in_vain: usize,
    smallest: Option<Pool>,
}

/// The pool's size, and how many pages the member had given up then.
#[derive(Debug)]
struct Pool {
    bytes: u64,
    given: u64,
}

impl Effort {
    /// Takes a turn: `give` has the door give pages up.
    pub fn turn(&mut self, member: &Member, door: &impl Door, give: impl FnOnce() -> Given) -> (Turn, Given) {
        let before = member.burden(door.resident());
        let given = give();
        member.note_given(given.pages);
        member.refresh(door.resident());
        // No more at once: what the pool gives may be in common as well.
        let resident = door.resident();
        if member.was_in_vain(before, resident) && member.over_high(resident) > 0 && member.squeeze(BITE) {
            member.refresh(door.resident());
        }
        if given.pages > 0 || (given.refused > 0 && member.bite() && self.has_shrunk(member)) {
            self.looked_in_vain = 0;
            return (Turn::Made, given);
        }
        self.looked_in_vain += given.looked_at.max(1);
        let spent = self.looked_in_vain > PASSES * door.candidates();
        (if spent { Turn::Spent } else { Turn::Trying }, given)
    }

    /// Where the door has nothing to give, the pool has to. False if it has nothing either.
    pub fn squeeze(&mut self, member: &Member, door: &impl Door) -> bool {
        let squeezed = member.squeeze(SQUEEZED) && self.has_shrunk(member);
        if squeezed {
            member.refresh(door.resident());
            self.looked_in_vain = 0;
        }
        squeezed
    }

    /// Whether the pool is smaller than it has been since pages were given up. What a store that is refused takes of it
    /// for a moment comes back each time: who took that for room would go on for ever.
    fn has_shrunk(&mut self, member: &Member) -> bool {
        let now = Pool { bytes: member.store().pool_bytes(), given: member.given() };
        let shrunk =
            self.smallest.as_ref().is_none_or(|before| before.given != now.given || now.bytes < before.bytes);
        if shrunk {
            self.smallest = Some(now);
        }
        shrunk
    }
}

/// Gives up until the member is under its mark and others have what they asked for. False if nothing can be given up
/// now. For a thread that nobody waits for.
pub fn until_low(member: &Member, door: &impl Door, mut give: impl FnMut() -> Given) -> bool {
    let (mut effort, mut left_to_others) = (Effort::default(), 0);
    while !door.is_closing() {
        if left_to_others < OTHERS_TURNS && is_left_to_others(member, door) {
            left_to_others += 1;
            std::thread::sleep(OTHERS_TURN);
            continue;
        }
        left_to_others = 0;
        let _inside = door.inside();
        if !member.is_pressed(door.resident()) {
            member.set_exhausted(false);
            return true;
        }
        // What the store would refuse is not worth compressing.
        member.shrink_if_full();
        let (turn, given) = effort.turn(member, door, || {
            let given = give();
            member.usage.look_for_own();
            given
        });
        member.publish_oldest(door.oldest());
        member.answer(Some(given.pages));
        let over = || member.over_low(door.resident()) > 0;
        match turn {
            Turn::Made => member.set_exhausted(false),
            Turn::Trying => member.note_in_vain(given.looked_at),
            Turn::Spent if over() && effort.squeeze(member, door) => {}
            Turn::Spent => {
                member.set_exhausted(given.refused > 0 && over() && member.is_swap_full());
                member.note_in_vain(given.looked_at);
                member.answer(None);
                return false;
            }
        }
    }
    true
}

/// Whether another member has older pages and was asked for them.
fn is_left_to_others(member: &Member, door: &impl Door) -> bool {
    let _inside = door.inside();
    let resident = door.resident();
    member.asked() == 0 && member.over_low(resident) > 0 && door.is_wanted() && member.ask_older(resident)
}

/// Who wants a page and finds no room waits for others to make some.
#[derive(Debug)]
pub struct Wait {
    begun: Instant,
    reap: Instant,
    /// Pages that the member has given up, and since when no more have been.
    given: u64,
    since: Instant,
    /// Candidates that its evictor had looked at in vain then.
    in_vain: u64,
}

impl Wait {
    /// Begins to wait.
    #[must_use]
    pub fn new(member: &Member) -> Self {
        let now = Instant::now();
        Self { begun: now, reap: now, given: member.given(), since: now, in_vain: member.in_vain() }
    }

    /// Whether the member's other threads give nothing either.
    pub fn is_stalled(&mut self, member: &Member) -> bool {
        self.still(member) >= STALLED
    }

    /// Whether the member's evictor may have something to give yet: it has not looked at everything since. No clock
    /// tells, for it may get no processor for a while, or wait for the swap file's disk. Who is not `able` to give up
    /// anything itself has not looked either: it wants the evictor to do so as often as counts as nothing to give. To
    /// be asked only while there is an evictor that waits for nothing of the caller's.
    pub fn is_unheard(&mut self, member: &Member, door: &impl Door, able: bool) -> bool {
        self.still(member);
        let passes = if able { 1 } else { PASSES };
        member.in_vain() - self.in_vain <= (passes * door.candidates()) as u64
    }

    /// How long the member has given nothing.
    fn still(&mut self, member: &Member) -> Duration {
        let given = member.given();
        if given != self.given {
            (self.given, self.since, self.in_vain) = (given, Instant::now(), member.in_vain());
        }
        self.since.elapsed()
    }

    /// Whether to wait a little more: other members have the memory, and look every few milliseconds. False when it
    /// has been too long, or there is nobody else. What the dead have left comes back. Who is not `able` to give up
    /// anything itself waits for its evictor as long as for other members.
    pub fn goes_on(&mut self, member: &Member, able: bool) -> bool {
        if self.reap <= Instant::now() {
            self.reap = Instant::now() + REAP;
            // `ramfold run` does so as well, while it lives.
            if member.segment().reap_for_the_owner(&|_| ()) {
                return true;
            }
        }
        let enough = if able { STALLED } else { PATIENCE };
        self.still(member) < enough || (self.begun.elapsed() < PATIENCE && member.segment().living() > 1)
    }
}

/// What the one thread of a door does until that closes: keeps the books, and gives up when it is time.
pub fn serve(member: &Member, door: &impl Door, mut give: impl FnMut() -> Given) {
    while !door.is_closing() {
        member.tick(door);
        member.publish_oldest(door.oldest());
        if member.is_pressed(door.resident()) {
            until_low(member, door, &mut give);
        }
        member.event().wait(LOOK);
    }
}

/// Before a fork: has the member's evictor make the room that a child takes at once ([`Member::short_for_child`]). What
/// cannot be had in a moment is made room for when the child takes it. For a thread of the program's with no lock held.
pub fn until_child_fits(member: &Member, door: &impl Door) {
    let end = now_ns() + FORKS_PATIENCE_NS;
    let is_late = || now_ns() > end;
    let short = || {
        let _inside = door.inside();
        member.short_for_child(door.resident())
    };
    let mut given = None;
    while let bytes @ 1.. = short()
        && given != Some(member.given())
        && !is_late()
    {
        given = Some(member.given());
        member.ask_itself(bytes);
        while member.asked() > 0 && !is_late() {
            sleep(OTHERS_TURN);
        }
    }
}

/// Gives up until one more page fits; what others have that is older goes first. False if no room is to be had. For a
/// thread that wants the page.
pub fn until_fits(member: &Member, door: &impl Door, mut give: impl FnMut() -> Given) -> bool {
    let (mut effort, mut wait) = (Effort::default(), Wait::new(member));
    let mut left_to_others = 0;
    while member.over_high(door.resident()) > 0 {
        if left_to_others < OTHERS_TURNS && is_left_to_others(member, door) {
            left_to_others += 1;
            std::thread::sleep(OTHERS_TURN);
            continue;
        }
        match effort.turn(member, door, &mut give).0 {
            Turn::Trying => {}
            Turn::Made => wait = Wait::new(member),
            Turn::Spent if effort.squeeze(member, door) => wait = Wait::new(member),
            Turn::Spent if wait.goes_on(member, true) => std::thread::sleep(Duration::from_millis(1)),
            Turn::Spent => return false,
        }
    }
    true
}
