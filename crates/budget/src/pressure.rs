//! Pressure: when others need the memory, a door has less of what it may have, and gets it back when they do not.
//!
//! Twice: of the whole machine, and of this process's control group where that has a limit (version 2). Under pressure
//! is who has both: tasks that stand still for want of memory (PSI, `some`), for a twentieth of the time and more, and
//! less than an eighth of the memory to be had without taking anonymous pages. PSI alone does not do: a reader of a
//! mount that waits for a page of a file which it has read before counts as standing still for want of memory, and a
//! cache that is smaller makes it wait more.
//!
//! Price: two small files read four times a second. Guarantee: under pressure the limit falls by an eighth with each
//! look, to an eighth of what was given; once that has been over for [`CALM`], it grows back by a 64th with each.

use crate::process::size_in;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// How long there is no pressure before the door grows.
const CALM: Duration = Duration::from_secs(5);
/// Tasks stand still for one part in so many of the time.
const STALLED: u128 = 20;
/// One part in so many of the memory is to be had.
const SCARCE: u64 = 8;
/// One part in so many that goes with a look, of what is there; and that comes back, of the whole.
const SHRINK: u64 = 8;
const GROW: u64 = 64;
/// One part in so many of the whole stays.
const LEAST: u64 = 8;

/// What is read at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// For how long tasks have stood still so far, in microseconds.
    stalled: u64,
    /// Bytes that are to be had, and that there are.
    available: u64,
    all: u64,
}

/// Where pressure is seen.
#[derive(Debug)]
enum Place {
    /// The pressure, and what is to be had.
    Machine(PathBuf, PathBuf),
    Group(PathBuf),
}

impl Place {
    /// None where the kernel does not tell, or nothing bounds the group.
    fn see(&self) -> Option<Seen> {
        let (available, all) = self.memory()?;
        let pressure = match self {
            Self::Machine(pressure, _) => fs::read_to_string(pressure),
            Self::Group(group) => fs::read_to_string(group.join("memory.pressure")),
        };
        Some(Seen { stalled: stalled(&pressure.ok()?)?, available, all })
    }

    /// Bytes that are to be had, and that there are.
    fn memory(&self) -> Option<(u64, u64)> {
        match self {
            Self::Machine(_, memory) => {
                let memory = fs::read_to_string(memory).ok()?;
                Some((size_in(&memory, "MemAvailable:")?, size_in(&memory, "MemTotal:")?))
            }
            Self::Group(group) => {
                let text = |name| fs::read_to_string(group.join(name)).ok();
                let all = text("memory.max")?.trim().parse().ok()?;
                let taken: u64 = text("memory.current")?.trim().parse().ok()?;
                let file = number(&text("memory.stat")?, "file ")?;
                Some((u64::saturating_sub(all, taken).saturating_add(file), all))
            }
        }
    }
}

/// The number behind the name that a line begins with.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// For how long some tasks have stood still, in microseconds.
fn stalled(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("some "))?.rsplit_once("total=")?.1.trim().parse().ok()
}

/// What is thought of the pressure.
#[derive(Debug)]
pub struct Pressure {
    places: Vec<(Place, Option<Seen>)>,
    looked: Instant,
    /// When there was pressure last.
    pressed: Option<Instant>,
    /// What the door may have of its bytes, in 65536ths.
    part: u64,
}

const WHOLE: u64 = 1 << 16;

impl Default for Pressure {
    fn default() -> Self {
        Self::new()
    }
}

impl Pressure {
    /// That of the machine and of the group that this process is in.
    #[must_use]
    pub fn new() -> Self {
        let mut places = vec![Place::Machine("/proc/pressure/memory".into(), "/proc/meminfo".into())];
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) {
            places.push(Place::Group(PathBuf::from("/sys/fs/cgroup").join(group)));
        }
        Self::of(places)
    }

    /// That of a machine whose pressure and memory these files tell, as those in /proc do.
    #[must_use]
    pub fn told_by(pressure: PathBuf, memory: PathBuf) -> Self {
        Self::of(vec![Place::Machine(pressure, memory)])
    }

    fn of(places: Vec<Place>) -> Self {
        let places = places.into_iter().map(|place| (place, None)).collect();
        Self { places, looked: Instant::now(), pressed: None, part: WHOLE }
    }

    /// Bytes that are to be had without taking anonymous pages of others, by what the machine and the group tell. None
    /// if neither does.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        self.places.iter().filter_map(|(place, _)| Some(place.memory()?.0)).min()
    }

    /// Whether less than all may be had.
    #[must_use]
    pub fn is_felt(&self) -> bool {
        self.part < WHOLE
    }

    /// What the door may have of so many bytes now.
    pub fn allowed(&mut self, bytes: u64, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.looked);
        if passed >= LOOK {
            self.looked = now;
            self.look(now, passed);
        }
        bytes / WHOLE * self.part + bytes % WHOLE * self.part / WHOLE
    }

    /// All that was given, whatever the pressure.
    pub fn release(&mut self) {
        (self.part, self.pressed) = (WHOLE, None);
        self.places.iter_mut().for_each(|(_, before)| *before = None);
    }

    fn look(&mut self, now: Instant, passed: Duration) {
        let mut is_pressed = false;
        for (place, before) in &mut self.places {
            let seen = place.see();
            if let (Some(before), Some(seen)) = (*before, seen) {
                let stalled = u128::from(seen.stalled.saturating_sub(before.stalled));
                let is_scarce = seen.available < seen.all / SCARCE;
                is_pressed |= is_scarce && stalled * STALLED >= passed.as_micros();
            }
            *before = seen;
        }
        if is_pressed {
            self.pressed = Some(now);
            self.part = (self.part - self.part / SHRINK).max(WHOLE / LEAST);
        } else if self.pressed.is_some_and(|pressed| now.saturating_duration_since(pressed) >= CALM) {
            self.part = (self.part + WHOLE / GROW).min(WHOLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const LIMIT: u64 = 1 << 30;

    /// A machine of 1000 KiB, of which so many are to be had, whose tasks have stood still for so many microseconds.
    fn machine(at: &Path, stalled: u64, available: u64) {
        let line = |kind| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n");
        fs::write(at.join("pressure"), line("some") + &line("full")).unwrap();
        let memory = format!("MemTotal:  1000 kB\nMemFree:  7 kB\nMemAvailable:  {available} kB\n");
        fs::write(at.join("meminfo"), memory).unwrap();
    }

    fn group(at: &Path, stalled: u64, available: u64) {
        fs::write(at.join("memory.pressure"), format!("some avg10=0.00 total={stalled}\n")).unwrap();
        fs::write(at.join("memory.max"), "1000\n").unwrap();
        fs::write(at.join("memory.current"), "990\n").unwrap();
        fs::write(at.join("memory.stat"), format!("anon 5\nfile_mapped 700\nfile {}\n", available - 10))
            .unwrap();
    }

    /// Looks so often, while tasks stand still for so many microseconds between two looks.
    fn looks(
        pressure: &mut Pressure,
        set: impl Fn(u64),
        stalled: &mut u64,
        (times, each): (u32, u64),
        now: &mut Instant,
    ) -> u64 {
        for _ in 0..times {
            *stalled += each;
            set(*stalled);
            *now += LOOK;
            pressure.allowed(LIMIT, *now);
        }
        pressure.allowed(LIMIT, *now)
    }

    #[test]
    fn under_pressure_the_limit_falls_and_it_grows_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let path = |name: &str| at.join(name);
        let of_machine = || Place::Machine(path("pressure"), path("meminfo"));
        for (place, set) in [
            (of_machine(), machine as fn(&Path, u64, u64)),
            (Place::Group(at.to_owned()), group as fn(&Path, u64, u64)),
        ] {
            let (mut pressure, mut stalled, mut now) = (Pressure::of(vec![place]), 0, Instant::now());
            let much = 200_000;
            let (scarce, plenty) = (|it| set(at, it, 100), |it| set(at, it, 600));
            assert_eq!(
                looks(&mut pressure, plenty, &mut stalled, (20, much), &mut now),
                LIMIT,
                "plenty is there"
            );
            assert_eq!(
                looks(&mut pressure, scarce, &mut stalled, (20, 100), &mut now),
                LIMIT,
                "nobody waits"
            );
            let one = looks(&mut pressure, scarce, &mut stalled, (1, much), &mut now);
            assert_eq!(one, LIMIT / 8 * 7);
            assert_eq!(
                looks(&mut pressure, scarce, &mut stalled, (99, much), &mut now),
                LIMIT / 8,
                "a part stays"
            );
            let calm = u32::try_from(CALM.as_millis() / LOOK.as_millis()).unwrap();
            assert_eq!(looks(&mut pressure, plenty, &mut stalled, (calm - 1, 0), &mut now), LIMIT / 8);
            assert_eq!(looks(&mut pressure, plenty, &mut stalled, (4, 0), &mut now), LIMIT / 8 + LIMIT / 16);
            assert_eq!(looks(&mut pressure, plenty, &mut stalled, (99, 0), &mut now), LIMIT);
        }
    }

    #[test]
    fn where_nothing_is_told_there_is_no_pressure() {
        let nowhere = PathBuf::from("/no/such/place");
        let places = vec![Place::Group(nowhere.clone()), Place::Machine(nowhere.clone(), nowhere)];
        let mut pressure = Pressure::of(places);
        assert_eq!(pressure.allowed(LIMIT, Instant::now() + LOOK * 9), LIMIT);
        let mut own = Pressure::new();
        let seen = own.places[0].0.see();
        assert!(seen.is_none_or(|seen| seen.available <= seen.all && seen.all > 1 << 20), "{seen:?}");
        let allowed = own.allowed(LIMIT, Instant::now() + LOOK);
        assert_eq!(allowed, LIMIT, "one look tells nothing");
    }
}
