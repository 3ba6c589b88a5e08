//! Who is over the limit for good, and asks for nothing.
//!
//! Nobody is asked when a program takes memory that is not managed: it is found by looking, and what is managed makes
//! room for it. Where that is not enough, who wants a managed page next finds no room ([`crate::effort`]); a program
//! that wants none would stay over the limit in silence. So who gives up without being waited for sees to that too:
//! when it has nothing left to give, for as long as a fault would wait, the member ends that has the most such memory.
//!
//! What counts of processes without a slot is nobody's here: no member ends for it. Nor does one that has little: many
//! small members may pass a tight limit by what each of them needs at least, and go on until one wants a page.

use crate::effort::Wait;
use crate::member::Member;
use crate::segment::Gauge;

/// Times in a row that everything was looked at and nothing given, at least.
const LOOKS: u32 = 8;
/// A member with less than this part of the limit has little.
const PART: u64 = 8;

/// Since when.
#[derive(Debug, Default)]
pub struct Overdrawn {
    since: Option<Wait>,
    looks: u32,
}

impl Overdrawn {
    /// To be called when all that the member could give up was looked at, and nothing given: whether it shall end. The
    /// account has just been refreshed.
    pub fn is_to_end(&mut self, member: &Member) -> bool {
        let segment = member.segment();
        let over = segment.in_use().saturating_sub(segment.unmanaged()) > segment.limit();
        let much = segment.gauge(member.slot(), Gauge::Own) > segment.limit() / PART;
        if !over || !much || !segment.has_most(member.slot(), Gauge::Own) {
            *self = Self::default();
            return false;
        }
        self.looks += 1;
        let goes_on = self.since.get_or_insert_with(|| Wait::new(member)).goes_on(member, true);
        !goes_on && self.looks >= LOOKS
    }
}
