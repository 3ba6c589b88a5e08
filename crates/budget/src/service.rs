//! A door that is a server: with a budget of its own or in one that somebody shares, alone in its process or beside
//! others ([`crate::household`]).
//!
//! [`Service`] makes what such a door needs: a segment with an account, a swap file if pages are to go there, and a
//! member. It keeps them by one thread, the *keeper*, beside those that serve requests. The keeper writes back when
//! the pool is full, so that who stores seldom does; gives the memory of pages that are gone back to the system; and
//! compresses pages anew that stay for long, while nothing else is to be done. All that such a door has to give is
//! its pool ([`crate::pooled`]).
//!
//! In a budget that may have other members the keeper also gives up what they ask for, and whoever made the budget
//! takes back what members leave that end without a word. When that one has ended, the first keeper that sees it does;
//! the limit holds on.
//!
//! Price: a look at the counters every few milliseconds. Guarantee: once the service is dropped, the keeper has ended,
//! and what the member had of the budget has been given back.

use crate::Host;
use crate::door::{Door, Given};
use crate::effort::until_low;
use crate::extents::{open_tier, punch};
use crate::household::Housed;
use crate::member::Member;
use crate::pooled::Pooled;
use crate::recompress::{Recompressor, Resting};
use crate::segment::{Gauge, Segment, SlotId};
use crate::share::{Joined, Offer};
use crate::time::now_ns;
use crate::usage::{Account, Rest, Usage};
use ramfold::tier::Tier;
use ramfold::tier::file::{FileTier, LocalExtents};
use ramfold::{Config, ConfigError};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two times that the holes of pages that are gone are closed.
const CLOSE_HOLES: Duration = Duration::from_millis(250);
/// Between two looks for members that have ended.
const REAP: Duration = Duration::from_millis(200);

/// The process of a server, by the name of its command. It dies with a line and status 125.
#[derive(Debug)]
pub struct Server(pub &'static str);

impl Host for Server {
    fn die(&self, message: &str, _reported: bool) -> ! {
        eprintln!("ramfold: {}: {message}", self.0);
        std::process::exit(125)
    }
}

/// Whose budget it is.
#[derive(Debug, Default)]
pub enum Place {
    /// The service's own.
    #[default]
    Alone,
    /// The service's own, which others may join.
    Sharing,
    /// Somebody else's.
    Joined(Box<Joined>),
    /// That of a process in which there are several.
    Housed(Box<Housed>),
}

impl Place {
    /// The limit of the budget, in bytes, if it is not the service's own.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match self {
            Self::Joined(joined) => Some(joined.limit()),
            Self::Housed(housed) => housed.limit(),
            Self::Alone | Self::Sharing => None,
        }
    }

    /// Whether the members of the budget have its limit together.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Alone => false,
            Self::Housed(housed) => housed.limit().is_some(),
            Self::Sharing | Self::Joined(_) => true,
        }
    }

    /// Whether this process looks after the budget from the start.
    fn is_keeper(&self) -> bool {
        match self {
            Self::Alone | Self::Sharing => true,
            Self::Joined(_) => false,
            Self::Housed(housed) => housed.is_keeper,
        }
    }
}

/// What a service is made of.
#[derive(Debug)]
pub struct Settings {
    /// The process.
    pub host: &'static Server,
    /// Bytes of the budget, if it is the service's own.
    pub limit: u64,
    /// All anonymous memory of the process counts; else the pool alone, if nobody shares the budget.
    pub whole_process: bool,
    /// Codecs, zpool and their knobs. `max_pool_bytes` is the most that the pool may have, until
    /// [`Service::set_max_pool`] sets another.
    pub store: Config,
    /// Where pages go when the pool is full, and the most bytes that may lie there. Without it pages go to the swap
    /// file of a budget that was joined, if that has one.
    pub backing: Option<(File, u64)>,
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// a setting of the store is not to be had
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// the system refuses memory or a descriptor
    #[error("the system refuses memory or a descriptor: {0}")]
    Io(#[from] io::Error),
}

/// The budget of a server, its member and its keeper.
#[derive(Debug)]
pub struct Service {
    keeper: Option<Keeper>,
    member: Arc<Member>,
    door: Arc<Pooled>,
    segment: Arc<Segment>,
    /// Of the budget; None: there is none, or it is this service's alone.
    swap: Option<File>,
    is_keeper: bool,
    /// Dropped last: until the store is gone it may give extents back.
    _membership: Membership,
}

impl Service {
    /// A service with a budget of its own, whose pages go to what `wrap` makes of its backing's tier. It is not kept
    /// yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        settings: Settings,
        wrap: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<Self, OpenError> {
        Self::open_in(settings, Place::Alone, wrap)
    }

    /// The same, in this budget.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_in(
        settings: Settings,
        place: Place,
        wrap: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>,
    ) -> Result<Self, OpenError> {
        let Settings { host, limit, whole_process, store, backing } = settings;
        let (is_shared, is_keeper) = (place.is_shared(), place.is_keeper());
        let (segment, swap, own_backing, rest) = match place {
            Place::Alone | Place::Sharing => {
                let (swap, most) = backing.map_or((None, 0), |(file, most)| (Some(file), most));
                (Segment::create(limit, most)?.1, swap, None, None)
            }
            Place::Joined(joined) => (joined.segment, joined.swap, backing, None),
            Place::Housed(housed) => (housed.segment, housed.swap, backing, housed.rest),
        };
        let segment = Arc::new(segment);
        let slot = segment.attach(&|_| ())?;
        let mut membership =
            Membership { segment: Arc::clone(&segment), slot, swap: None, rest: rest.clone() };
        let account = Arc::new(Account::new(Arc::clone(&segment), slot));
        let usage =
            Usage::new(Arc::clone(&account), whole_process || is_shared, host).map_err(io::Error::from)?;
        let usage = usage.beside(rest);
        // What the budget knows of the file it asks the file's tier; the store writes through what was made of it.
        let mut member = Member::new(&store, None, usage)?.apart(is_shared);
        let kept = if is_shared { swap.as_ref().map(File::try_clone).transpose()? } else { None };
        membership.swap = kept.as_ref().map(File::try_clone).transpose()?;
        if let Some((file, most)) = own_backing {
            let extents = LocalExtents::new(most).punching(file.try_clone()?);
            let tier = FileTier::new(file, Box::new(extents));
            member.store().add_tier(wrap(Arc::new(tier)))?;
        } else if let Some(tier) = open_tier(swap, &account, host, &mut Vec::new())? {
            member.tier = Some(Arc::clone(&tier));
            member.store().add_tier(wrap(tier))?;
        }
        let (member, door) = (Arc::new(member), Arc::default());
        Ok(Self { keeper: None, member, door, segment, swap: kept, is_keeper, _membership: membership })
    }

    /// What others need to join.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn offer(&self) -> io::Result<Offer> {
        Offer::new(&self.segment, self.swap.as_ref().map(AsFd::as_fd))
    }

    /// Keeps the member from now on, until this is dropped. The keeper looks so often, and calls `each` with every
    /// look: after the member's books, before it waits.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn keep(&mut self, look: Duration, each: impl FnMut(&Member) + Send + 'static) -> io::Result<()> {
        let (member, door) = (Arc::clone(&self.member), Arc::clone(&self.door));
        let swap = self.swap.as_ref().map(File::try_clone).transpose()?;
        let care = Care { swap, is_keeper: self.is_keeper, next: Instant::now() };
        self.keeper = Some(Keeper::start(member, door, care, look, each)?);
        Ok(())
    }

    /// The member.
    #[must_use]
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// What the service's door gives up, and whether more fits.
    #[must_use]
    pub fn door(&self) -> &Arc<Pooled> {
        &self.door
    }

    /// The budget, where its numbers are.
    #[must_use]
    pub fn segment(&self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// Calls the member by a name: its process may have others.
    pub fn set_name(&self, name: &str) {
        self.segment.set_name(self.member.slot(), name);
    }

    /// Sets the most bytes that the pool may have. What is over it goes soon.
    pub fn set_max_pool(&self, bytes: u64) {
        self.member.set_max_pool(bytes);
        self.member.event().call();
    }

    /// Enters the numbers as they are now.
    pub fn publish(&self) {
        self.member.refresh(0);
        self.member.publish_books();
    }
}

/// A place in the budget. What is there in its name is given back when it is dropped, after the store.
#[derive(Debug)]
struct Membership {
    segment: Arc<Segment>,
    slot: SlotId,
    swap: Option<File>,
    rest: Option<Arc<Rest>>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let held = [Gauge::Pool, Gauge::Resident].map(|gauge| self.segment.gauge(self.slot, gauge));
        self.rest.iter().for_each(|rest| rest.note(held.iter().sum(), 0));
        self.segment.release(self.slot, &|extent| self.swap.iter().for_each(|swap| punch(swap, extent)));
    }
}

/// The keeper's thread, which ends when this is dropped.
#[derive(Debug)]
struct Keeper {
    member: Arc<Member>,
    door: Arc<Pooled>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(
        member: Arc<Member>,
        door: Arc<Pooled>,
        care: Care,
        look: Duration,
        each: impl FnMut(&Member) + Send + 'static,
    ) -> io::Result<Self> {
        let (kept, open) = (Arc::clone(&member), Arc::clone(&door));
        let thread = std::thread::Builder::new().name("ramfold-keeper".to_owned());
        let thread = Some(thread.spawn(move || keep(&kept, &open, care, look, each))?);
        Ok(Self { member, door, thread })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.door.close();
        self.member.event().call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a keeper does for other members.
#[derive(Debug)]
struct Care {
    swap: Option<File>,
    /// Whether this process looks after the budget.
    is_keeper: bool,
    next: Instant,
}

impl Care {
    /// Takes back what members that have ended still hold, if nobody else does.
    fn look(&mut self, member: &Member) {
        if Instant::now() < self.next {
            return;
        }
        let segment = member.segment();
        self.is_keeper = self.is_keeper || segment.take_over();
        if self.is_keeper {
            segment.reap(&|extent| self.swap.iter().for_each(|swap| punch(swap, extent)));
        }
        self.next = Instant::now() + REAP;
    }
}

fn keep(member: &Member, door: &Pooled, mut care: Care, look: Duration, mut each: impl FnMut(&Member)) {
    let (mut recompressor, mut rest) = (Recompressor::default(), Resting::default());
    let (mut closed, mut next) = (0, Instant::now());
    while !door.is_closing() {
        member.tick(door);
        each(member);
        if member.is_shared() {
            care.look(member);
            door.look(member);
            member.publish_oldest(door.oldest());
        }
        if member.is_pressed(door.resident()) {
            let give = || if member.is_shared() { door.give(member) } else { Given::default() };
            until_low(member, door, give);
        }
        let stats = member.store().stats();
        let gone = stats.invalidates + stats.dropped_pages + stats.recompressed_pages;
        if gone != closed && Instant::now() >= next {
            member.store().compact();
            (closed, next) = (gone, Instant::now() + CLOSE_HOLES);
        }
        let uses = rest.uses(stats.stores + stats.loads, stats.stored_pages, now_ns());
        recompressor.work(member, uses, || (), || door.is_closing());
        member.event().wait(look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold::{Key, PAGE_SIZE, PoolKind};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const LOOK: Duration = Duration::from_millis(1);

    fn open(backing: Option<(File, u64)>) -> Service {
        let store = Config { max_pool_bytes: 1 << 20, shrink_inline: false, ..Config::default() };
        let settings =
            Settings { host: &Server("test"), limit: 64 << 20, whole_process: false, store, backing };
        Service::open(settings, |tier| tier).unwrap()
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn the_keeper_looks_until_the_service_is_dropped() {
        let looks = Arc::new(AtomicU64::new(0));
        let mut service = open(None);
        let counted = Arc::clone(&looks);
        let count = move |_: &Member| {
            counted.fetch_add(1, Relaxed);
        };
        service.keep(LOOK, count).unwrap();
        wait_for("it looks", || looks.load(Relaxed) > 3);
        drop(service);
        assert_eq!(Arc::strong_count(&looks), 1, "the thread has ended");
    }

    #[test]
    fn what_is_over_the_bound_goes_to_the_backing() {
        let file = ramfold::tier::open_swap(None).unwrap();
        let mut service = open(Some((file, 64 << 20)));
        service.keep(LOOK, |_| ()).unwrap();
        let store = service.member().store();
        let pool = store.create_pool(PoolKind::Persistent, None);
        let (mut page, mut scratch) = ([0; PAGE_SIZE], store.scratch());
        let mut random = 1_u64;
        for index in 0..128 {
            page.fill_with(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.to_le_bytes()[7]
            });
            store.store(Key { pool, object: 0, index }, &page, &mut scratch).unwrap();
        }
        service.set_max_pool(256 << 10);
        wait_for("the pool is within its bound", || store.pool_bytes() <= 256 << 10);
        assert!(store.stats().tier_pages > 0);
    }
}
