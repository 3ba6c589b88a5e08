//! Several services in one process, under one limit or each within its own.
//!
//! Each is a member with an account of its own in one segment, so that whoever looks at the process sees them all. The
//! segment is mapped once for each: who ends gives back its own place and nobody else's. Under one limit all anonymous
//! memory of the process counts: what the members hold on their accounts, and the rest once, on an account of the
//! household ([`Rest`]). A household may also join the budget of another process, as that many members.
//!
//! Price: a mapping and two descriptors for each service. Guarantee: no byte of the process counts twice for longer
//! than between two looks, and none counts not at all.

use crate::segment::{OpenError, Segment};
use crate::share::{Joined, Offer};
use crate::usage::{Account, Rest};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// What several services in one process have in common.
#[derive(Debug)]
pub struct Household {
    segment: Arc<Segment>,
    /// Of the budget.
    swap: Option<File>,
    /// Under one limit.
    rest: Option<Arc<Rest>>,
    is_keeper: bool,
}

/// A place for one of them.
#[derive(Debug)]
pub struct Housed {
    pub(crate) segment: Segment,
    pub(crate) swap: Option<File>,
    pub(crate) rest: Option<Arc<Rest>>,
    pub(crate) is_keeper: bool,
}

impl Housed {
    /// Bytes that all may use together, if there is one limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.rest.as_ref().map(|_| self.segment.limit())
    }
}

impl Household {
    /// One whose services are held by what bounds each of them. It has the machine's memory for its limit.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn unlimited() -> io::Result<Self> {
        let machine = rustix::system::sysinfo();
        let memory = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        let (_, segment) = Segment::create(memory, 0)?;
        Ok(Self { segment: Arc::new(segment), swap: None, rest: None, is_keeper: true })
    }

    /// One under this limit, in bytes.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn within(limit: u64) -> io::Result<Self> {
        let (_, segment) = Segment::create(limit, 0)?;
        Self::counted(segment, None, true)
    }

    /// One in the budget of another process.
    ///
    /// # Errors
    /// The system gives no memory, or the budget no place.
    pub fn join(joined: Joined) -> io::Result<Self> {
        Self::counted(joined.segment, joined.swap, false)
    }

    fn counted(segment: Segment, swap: Option<File>, is_keeper: bool) -> io::Result<Self> {
        let segment = Arc::new(segment);
        let rest = Rest::new(Account::new(Arc::clone(&segment), segment.attach(&|_| ())?));
        Ok(Self { segment, swap, rest: Some(Arc::new(rest)), is_keeper })
    }

    /// A place for one more service.
    ///
    /// # Errors
    /// The system gives no memory or descriptor.
    pub fn place(&self) -> io::Result<Housed> {
        let again = self.segment.open_again()?;
        let segment = Segment::open(&format!("/proc/self/fd/{}", again.as_raw_fd()));
        let segment = segment.map_err(|error| match error {
            OpenError::Io(error) => error,
            error @ OpenError::NotASegment => io::Error::other(error),
        })?;
        let swap = self.swap.as_ref().map(File::try_clone).transpose()?;
        Ok(Housed { segment, swap, rest: self.rest.clone(), is_keeper: self.is_keeper })
    }

    /// Bytes that all may use together, if there is one limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.rest.as_ref().map(|_| self.segment.limit())
    }

    /// The budget, where the numbers of all are.
    #[must_use]
    pub fn segment(&self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// What others need to join.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn offer(&self) -> io::Result<Offer> {
        Offer::new(&self.segment, self.swap.as_ref().map(AsFd::as_fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Gauge;
    use crate::service::{Place, Server, Service, Settings};
    use ramfold::{Config, Key, PAGE_SIZE, PoolKind};
    use std::time::Duration;

    const LIMIT: u64 = 256 << 20;

    fn service(household: &Household) -> Service {
        let store = Config { max_pool_bytes: 32 << 20, shrink_inline: false, ..Config::default() };
        let settings =
            Settings { host: &Server("test"), limit: 0, whole_process: false, store, backing: None };
        let place = Place::Housed(Box::new(household.place().unwrap()));
        let mut service = Service::open_in(settings, place, |tier| tier).unwrap();
        service.keep(Duration::from_millis(1), |_| ()).unwrap();
        service
    }

    /// So many pages that do not compress.
    fn fill(service: &Service, pages: u64) {
        let store = service.member().store();
        let pool = store.create_pool(PoolKind::Persistent, None);
        let (mut page, mut scratch, mut random) = ([0; PAGE_SIZE], store.scratch(), 1_u64);
        for index in 0..pages {
            page.fill_with(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.to_le_bytes()[7]
            });
            store.store(Key { pool, object: 0, index }, &page, &mut scratch).unwrap();
        }
        service.publish();
    }

    #[test]
    fn the_process_counts_once_and_who_ends_gives_his_part_back() {
        let household = Household::within(LIMIT).unwrap();
        let segment = household.segment();
        let services = [(); 3].map(|()| service(&household));
        assert_eq!(segment.living(), 4, "three members, and the rest of the process");
        services.iter().for_each(|service| fill(service, 2048));
        assert!(segment.gauge_sum(Gauge::Pool) >= 24 << 20);
        counts_what_there_is(&segment);
        let [first, second, third] = services;
        drop(second);
        assert_eq!(segment.living(), 3);
        fill(&service(&household), 1);
        assert!(segment.gauge_sum(Gauge::Pool) < 20 << 20);
        counts_what_there_is(&segment);
        assert_eq!(segment.reap(&|_| ()), 0, "the others live on");
        drop((first, third));
    }

    /// Other tests allocate meanwhile.
    fn counts_what_there_is(segment: &Segment) {
        let near = || {
            let (anonymous, in_use) = (crate::process::anonymous(std::process::id()), segment.in_use());
            let is_near = in_use.abs_diff(anonymous) < 4 << 20;
            if !is_near {
                println!("{in_use} in the account, {anonymous} in the process");
                std::thread::sleep(Duration::from_millis(10));
            }
            is_near
        };
        assert!((0..1000).any(|_| near()));
    }

    #[test]
    fn without_one_limit_nobody_is_held_by_the_others() {
        let household = Household::unlimited().unwrap();
        assert_eq!(household.limit(), None);
        let services = [(); 2].map(|()| service(&household));
        services.iter().for_each(|service| fill(service, 64));
        let segment = household.segment();
        assert_eq!((segment.living(), segment.in_use()), (2, segment.gauge_sum(Gauge::Pool)));
    }
}
