//! How a door joins the budget of a run: by the settings that every process of the run has in its environment.

use ramfold::{PAGE_SIZE, Page};
use ramfold_budget::Host;
use ramfold_budget::extents::open_tier;
use ramfold_budget::member::Member;
use ramfold_budget::segment::Segment;
use ramfold_budget::settings::Settings;
use ramfold_budget::usage::{Account, Usage};
use std::fs::{self, File, OpenOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A block that compresses to about two fifths.
pub fn block(number: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page[..1600].as_chunks_mut::<8>().0 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        *word = random.to_le_bytes();
    }
    page
}

struct Door;

impl Host for Door {
    fn die(&self, message: &str, _reported: bool) -> ! {
        panic!("{message}");
    }
}

/// The budget of a run.
pub struct Budget {
    segment: String,
    swap: String,
}

impl Budget {
    /// That of the `ramfold run` with this PID.
    pub fn of(run: u32) -> Self {
        let started = Instant::now();
        loop {
            if let Some(budget) = Self::named(run) {
                return budget;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{run} has no program");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn named(run: u32) -> Option<Self> {
        let child = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).ok()?;
        let settings = Settings::of_process(child.split(' ').next()?.parse().ok()?)?;
        Some(Self { segment: settings.segment?, swap: settings.swap? })
    }

    /// A new member.
    pub fn member(&self) -> Member {
        let segment = Arc::new(Segment::open(&self.segment).unwrap());
        let slot = segment.attach(&|_| ()).unwrap();
        let account = Arc::new(Account::new(Arc::clone(&segment), slot));
        let swap: File = OpenOptions::new().read(true).write(true).open(&self.swap).unwrap();
        let tier = open_tier(Some(swap), &account, &Door, &mut Vec::new()).unwrap();
        let usage = Usage::new(account, false, &Door).unwrap();
        let config = ramfold::Config { max_pool_bytes: segment.limit() / 2, ..ramfold::Config::default() };
        Member::new(&config, tier, usage).unwrap()
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        Segment::open(&self.segment).unwrap().living()
    }
}
