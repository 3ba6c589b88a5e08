//! The shrinker: when others need the memory, pages go to the backing before the pool is full.
//!
//! While there is pressure ([`ramfold_budget::pressure`]), the disk is to have a part of the memory that it had when it
//! began, and the pages used least lately are written back until it has. The bound of the pool stays where it is: a
//! write never fails for want of others, only because the disk is full.
//!
//! Price: what was written back is read from the backing. Guarantee: nothing is written back where there is no
//! pressure; a backing that takes nothing is left alone for [`PAUSE`].

use ramfold::Store;
use ramfold_budget::pressure::Pressure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes that are given up at a look: the keeper has other things to do.
const TURN: u64 = 16 << 20;
const PAUSE: Duration = Duration::from_secs(1);

/// What the keeper of a disk with a backing remembers.
#[derive(Debug)]
pub(crate) struct Shrinker {
    pressure: Pressure,
    is_enabled: Arc<AtomicBool>,
    /// Bytes of the pool when there was no pressure last.
    held: u64,
    paused_until: Option<Instant>,
}

impl Shrinker {
    pub(crate) fn new(pressure: Pressure, is_enabled: Arc<AtomicBool>) -> Self {
        Self { pressure, is_enabled, held: 0, paused_until: None }
    }

    /// Writes back what is to be written back now, or a part of it.
    pub(crate) fn look(&mut self, store: &Store, now: Instant) {
        if !self.is_enabled.load(Relaxed) {
            self.pressure.release();
        }
        let pool = store.pool_bytes();
        if !self.pressure.is_felt() {
            self.held = pool;
        }
        let over = pool.saturating_sub(self.pressure.allowed(self.held, now));
        if over == 0 || self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        let shrunk = store.reclaim(over.min(TURN));
        self.paused_until = (shrunk.written_back == 0).then(|| now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::Disk;
    use crate::random::bytes;
    use crate::volume::{Settings, Volume};
    use ramfold::{Config, PAGE_SIZE};
    use std::fs;
    use std::path::Path;

    const PAGES: u64 = 2048;
    const QUARTER: Duration = Duration::from_millis(250);

    fn disk(backing_bytes: u64) -> Volume {
        let backing = Some((tempfile::tempfile_in("/var/tmp").unwrap(), backing_bytes));
        let store = Config { recomp_algorithm: None, ..Config::default() };
        let disk = Volume::open(Settings { size: PAGES * 4096, mem_limit: None, store, backing }).unwrap();
        // Of this machine's own pressure the test wants to know nothing.
        disk.set_gives_way(false);
        disk
    }

    fn noise(seed: u64) -> [u8; PAGE_SIZE] {
        let mut bytes = bytes(seed);
        std::array::from_fn(|_| bytes.next().unwrap())
    }

    fn write(disk: &Volume, seed: u64) {
        let mut worker = disk.worker();
        for page in 0..PAGES {
            disk.write(page * 4096, &noise(page + seed), &mut worker).unwrap();
        }
    }

    fn check(disk: &Volume, seed: u64) {
        let (mut worker, mut found) = (disk.worker(), [0; PAGE_SIZE]);
        for page in 0..PAGES {
            disk.read(page * 4096, &mut found, &mut worker).unwrap();
            assert!(found == noise(page + seed), "page {page}");
        }
    }

    /// A machine that is told by two files.
    struct Machine<'a> {
        at: &'a Path,
        stalled: u64,
        now: Instant,
    }

    impl<'a> Machine<'a> {
        fn new(at: &'a Path) -> Self {
            let machine = Self { at, stalled: 0, now: Instant::now() };
            machine.tell(100);
            machine
        }

        fn tell(&self, available: u64) {
            fs::write(self.at.join("psi"), format!("some avg10=0.00 total={}\n", self.stalled)).unwrap();
            let memory = format!("MemTotal: 1000 kB\nMemAvailable: {available} kB\n");
            fs::write(self.at.join("meminfo"), memory).unwrap();
        }

        fn shrinker(&self, is_enabled: bool) -> Shrinker {
            let pressure = Pressure::told_by(self.at.join("psi"), self.at.join("meminfo"));
            Shrinker::new(pressure, Arc::new(AtomicBool::new(is_enabled)))
        }

        /// Looks so often, with tasks that stand still half of the time, or not at all.
        fn looks(&mut self, shrinker: &mut Shrinker, disk: &Volume, times: usize, is_short: bool) {
            for _ in 0..times {
                self.stalled += if is_short { 125_000 } else { 0 };
                self.now += QUARTER;
                self.tell(if is_short { 50 } else { 600 });
                shrinker.look(disk.store(), self.now);
            }
        }
    }

    #[test]
    fn under_pressure_pages_leave_and_none_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let (mut machine, disk) = (Machine::new(directory.path()), disk(64 << 20));
        let mut shrinker = machine.shrinker(true);
        write(&disk, 0);
        let held = disk.store().pool_bytes();
        assert!(held >= PAGES * 4096);
        machine.looks(&mut shrinker, &disk, 20, false);
        assert_eq!(disk.store().stats().written_back_pages, 0, "nobody needs it");
        machine.looks(&mut shrinker, &disk, 2, true);
        let first = disk.store().pool_bytes();
        assert!(first <= held / 8 * 7 && first > held / 2, "{first} of {held}");
        machine.looks(&mut shrinker, &disk, 40, true);
        let least = disk.store().pool_bytes();
        assert!(least <= held / 8 && least > held / 16, "{least} of {held}");
        check(&disk, 0);
        // New pages find room, though older ones have to leave for them.
        write(&disk, 7);
        machine.looks(&mut shrinker, &disk, 2, true);
        assert!(disk.store().pool_bytes() <= held / 8);
        machine.looks(&mut shrinker, &disk, 200, false);
        write(&disk, 9);
        machine.looks(&mut shrinker, &disk, 2, false);
        assert!(disk.store().pool_bytes() >= PAGES * 4096, "it has its room again");
        check(&disk, 9);
    }

    #[test]
    fn a_disk_that_does_not_give_way_keeps_its_pages() {
        let directory = tempfile::tempdir().unwrap();
        let (mut machine, disk) = (Machine::new(directory.path()), disk(64 << 20));
        let mut shrinker = machine.shrinker(false);
        write(&disk, 0);
        machine.looks(&mut shrinker, &disk, 20, true);
        assert_eq!(disk.store().stats().written_back_pages, 0);
    }

    #[test]
    fn a_backing_that_is_full_refuses_no_write() {
        let directory = tempfile::tempdir().unwrap();
        let (mut machine, disk) = (Machine::new(directory.path()), disk(3 << 20));
        let mut shrinker = machine.shrinker(true);
        write(&disk, 0);
        machine.looks(&mut shrinker, &disk, 40, true);
        let stats = disk.store().stats();
        assert!(stats.written_back_pages > 100 && stats.pool_total_size > 4 << 20, "{stats:?}");
        write(&disk, 5);
        machine.looks(&mut shrinker, &disk, 10, true);
        check(&disk, 5);
    }
}
