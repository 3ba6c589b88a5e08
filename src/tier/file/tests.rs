//! The file tier: what it must keep, and what it must notice.

use super::super::conformance::{assert_holds, next, write};
use super::*;
use crate::tier::WriteError;
use std::io::Result as IoResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const MIB: u64 = 1 << 20;

fn file() -> File {
    tempfile::tempfile_in("/var/tmp").unwrap()
}

fn tier(bytes: u64) -> FileTier {
    let file = file();
    let extents = LocalExtents::new(bytes).punching(file.try_clone().unwrap());
    FileTier::new(file, Box::new(extents))
}

mod on_disk {
    super::super::super::conformance::tier_suite!(|bytes| Box::new(super::tier(bytes)));
}

mod in_the_page_cache {
    use super::*;

    fn tier(bytes: u64) -> FileTier {
        let memory = rustix::fs::memfd_create("tier", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        FileTier::new(memory.into(), Box::new(LocalExtents::new(bytes)))
    }

    super::super::super::conformance::tier_suite!(|bytes| Box::new(tier(bytes)));
}

/// The n-th transfer fails; a failed write has written half.
#[derive(Debug)]
struct Faulty {
    disk: Disk,
    /// Writes, or reads, until the fault; 0: no fault to come.
    write_fault: AtomicUsize,
    read_fault: AtomicUsize,
    errno: rustix::io::Errno,
}

impl Faulty {
    fn new() -> Self {
        let (write_fault, read_fault) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { disk: Disk::new(file()), write_fault, read_fault, errno: rustix::io::Errno::IO }
    }

    fn goes_off(countdown: &AtomicUsize) -> bool {
        countdown.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) == Ok(1)
    }
}

impl Device for Arc<Faulty> {
    fn read(&self, buffer: &mut [u8], at: u64) -> IoResult<usize> {
        if Faulty::goes_off(&self.read_fault) {
            return Err(self.errno.into());
        }
        self.disk.read(buffer, at)
    }

    fn write(&self, bytes: &[u8], at: u64) -> IoResult<usize> {
        if Faulty::goes_off(&self.write_fault) {
            let half = bytes.len() / 2 / BLOCK * BLOCK;
            if half > 0 {
                self.disk.write(&bytes[..half], at)?;
            }
            return Err(self.errno.into());
        }
        self.disk.write(bytes, at)
    }
}

fn faulty(bytes: u64, errno: rustix::io::Errno) -> (Arc<Faulty>, FileTier) {
    let device = Arc::new(Faulty { errno, ..Faulty::new() });
    let tier = FileTier::on_device(Box::new(Arc::clone(&device)), Box::new(LocalExtents::new(bytes)));
    (device, tier)
}

/// Discards, at random, until so many are left.
fn thin_out(tier: &FileTier, live: &mut Vec<(Slot, u64)>, left: usize, random: &mut u64) {
    while live.len() > left {
        let at = usize::try_from(next(random)).unwrap() % live.len();
        tier.discard(live.swap_remove(at).0);
    }
}

/// Brings a tier of 4 MiB to where the next writes need the cleaner.
fn worn(tier: &FileTier) -> Vec<(Slot, u64)> {
    let (mut live, mut random) = (vec![], 5);
    while let Ok(more) = write(tier, live.len() as u64..live.len() as u64 + 50) {
        live.extend(more);
    }
    thin_out(tier, &mut live, 1500, &mut random);
    live
}

#[test]
fn a_failed_write_at_any_call_hurts_nothing() {
    for errno in [rustix::io::Errno::IO, rustix::io::Errno::NOSPC] {
        for nth in 1.. {
            let (device, tier) = faulty(4 * MIB, errno);
            let mut live = worn(&tier);
            device.write_fault.store(nth, Relaxed);
            // Some runs, and a cleaning: about 1.2 MB.
            let result = write(&tier, 10_000..11_000);
            tier.tables().check();
            let fault_came = device.write_fault.swap(0, Relaxed) == 0;
            match &result {
                Err(WriteError::Full) => assert!(fault_came && errno == rustix::io::Errno::NOSPC),
                Err(WriteError::Io(error)) => {
                    assert!(fault_came && error.raw_os_error() == Some(errno.raw_os_error()), "{error}");
                }
                Ok(more) => live.extend(more),
            }
            live.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
            if !fault_came {
                assert!(nth > 5 && result.is_ok());
                break;
            }
            assert!(result.is_err());
            // It works on, and the slots of the failed batch are not in use: their numbers come again.
            thin_out(&tier, &mut live, 700, &mut 3);
            live.extend(write(&tier, 20_000..20_300).unwrap());
            tier.tables().check();
            live.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
        }
    }
}

#[test]
fn a_failed_read_at_any_call_hurts_nothing() {
    for nth in 1.. {
        let (device, tier) = faulty(4 * MIB, rustix::io::Errno::IO);
        let mut live = worn(&tier);
        device.read_fault.store(nth, Relaxed);
        let more = write(&tier, 10_000..10_900);
        let fault_came = device.read_fault.swap(0, Relaxed) == 0;
        tier.tables().check();
        // The cleaner goes to another extent if it cannot read one, so there may be less room, and no more.
        match more {
            Ok(more) => live.extend(more),
            Err(error) => assert!(fault_came && matches!(error, WriteError::Full), "{error}"),
        }
        live.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
        if !fault_came {
            assert!(nth > 2);
            break;
        }
    }
}

#[test]
fn one_failed_read_is_read_again_and_two_are_an_error() {
    let (device, tier) = faulty(4 * MIB, rustix::io::Errno::IO);
    let live = write(&tier, 0..3).unwrap();
    device.read_fault.store(1, Relaxed);
    assert_holds(&tier, live[0].0, 0);
    assert_eq!(device.read_fault.load(Relaxed), 0);
}

/// Writes over the file behind the tier's back.
fn overwrite(file: &File, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    // Not with O_DIRECT, which the tier has set: through a description of its own.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn damage_is_told_and_the_rest_is_kept_through_cleaning() {
    let file = file();
    let extents = LocalExtents::new(4 * MIB);
    let tier = FileTier::new(file.try_clone().unwrap(), Box::new(extents));
    let mut live = worn(&tier);
    let hurt = |place: Place| place.location.extent < 2 && place.location.offset.is_multiple_of(64);
    let (damaged, mut good): (Vec<_>, Vec<_>) =
        live.drain(..).partition(|(slot, _)| hurt(tier.tables().place(slot.to_bits()).unwrap()));
    assert!(damaged.len() > 20 && good.len() > 500);
    for (slot, number) in &damaged {
        let place = tier.tables().place(slot.to_bits()).unwrap();
        let byte = position(place.location.extent) + u64::from(place.location.offset);
        // The header, which the cleaner goes by, of some; the ciphertext of others.
        overwrite(&file, byte + if number % 2 == 0 { 5 } else { 8 }, &[0x55, 0xaa]);
    }
    let mut out = [0; 4096];
    for round in 0..20 {
        for (slot, _) in &damaged {
            assert!(matches!(tier.read(*slot, &mut out), Err(ReadError::Corrupt)));
        }
        good.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
        thin_out(&tier, &mut good, 500, &mut 9);
        match write(&tier, 50_000 + round * 100..50_100 + round * 100) {
            Ok(more) => good.extend(more),
            Err(error) => assert!(matches!(error, WriteError::Full), "{error}"),
        }
        tier.tables().check();
    }
    damaged.iter().for_each(|(slot, _)| tier.discard(*slot));
    tier.tables().check();
}

#[test]
fn an_older_record_in_the_place_of_a_newer_is_not_taken_for_it() {
    use std::os::unix::fs::FileExt;
    let memory: File = rustix::fs::memfd_create("tier", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    let tier = FileTier::new(memory.try_clone().unwrap(), Box::new(LocalExtents::new(MIB)));
    let mut old = vec![0; 4096];
    let slots = tier.write(&[&[1; 100]]).unwrap();
    memory.read_exact_at(&mut old, 0).unwrap();
    tier.discard(slots[0]);
    // The extent is filled to its end, given up and begun again: the same slot, place and length.
    let filler = vec![&[3u8; 4000][..]; 250];
    tier.write(&filler).unwrap().into_iter().rev().for_each(|slot| tier.discard(slot));
    let mut last = None;
    while tier.tables().place(0).is_none_or(|place| place.location.offset != 0) {
        if let Some(slot) = last.take() {
            tier.discard(slot);
        }
        last = Some(tier.write(&[&[2; 100]]).unwrap()[0]);
    }
    let slot = last.unwrap();
    assert_eq!(slot, slots[0]);
    assert_eq!(tier.read(slot, &mut [0; 100]).unwrap(), 100);
    memory.write_all_at(&old, 0).unwrap();
    assert!(matches!(tier.read(slot, &mut [0; 100]), Err(ReadError::Corrupt)));
}

#[test]
fn ciphertext_is_all_that_is_on_disk() {
    let file = file();
    let tier = FileTier::new(file.try_clone().unwrap(), Box::new(LocalExtents::new(4 * MIB)));
    let secret = b"correct horse battery staple";
    tier.write(&[secret, &[0; 4096]]).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let bytes = std::fs::read(path).unwrap();
    assert!(bytes.len() >= 4096 && !bytes.windows(8).any(|window| window == &secret[..8]));
    assert!(!bytes[..4096].windows(64).any(|window| window == [0; 64]));
}

/// A source of two tiers, as two processes would have it: an extent is free when none holds it.
#[derive(Debug, Default)]
struct Shared {
    holders: Mutex<std::collections::BTreeMap<u32, u32>>,
    next: AtomicUsize,
    bound: usize,
}

#[derive(Debug)]
struct Side(Arc<Shared>);

impl ExtentSource for Side {
    fn acquire(&self) -> Option<u32> {
        let extent =
            self.0.next.fetch_update(Relaxed, Relaxed, |next| (next < self.0.bound).then_some(next + 1));
        let extent = u32::try_from(extent.ok()?).unwrap();
        self.0.holders.lock().unwrap().insert(extent, 1);
        Some(extent)
    }

    fn release(&self, extent: u32) {
        *self.0.holders.lock().unwrap().get_mut(&extent).unwrap() -= 1;
    }

    fn is_shared(&self, extent: u32) -> bool {
        self.0.holders.lock().unwrap()[&extent] > 1
    }
}

/// A copy of the tier as a forked child has it.
fn fork(tier: &FileTier, file: &File, shared: &Arc<Shared>) -> FileTier {
    tier.before_fork();
    let quiet = tier.quiesce();
    let source = Box::new(Side(Arc::clone(shared)));
    let child = FileTier::new(file.try_clone().unwrap(), source);
    shared.holders.lock().unwrap().values_mut().filter(|count| **count > 0).for_each(|count| *count += 1);
    *child.log() = quiet._log.copy();
    *child.tables() = quiet._tables.clone();
    drop(quiet);
    child.become_child();
    child
}

#[test]
fn a_child_reads_what_it_inherited_and_writes_its_own() {
    let file = file();
    let shared = Arc::new(Shared { bound: 100, ..Shared::default() });
    let parent = FileTier::new(file.try_clone().unwrap(), Box::new(Side(Arc::clone(&shared))));
    let old = write(&parent, 0..3000).unwrap();
    let child = fork(&parent, &file, &shared);
    let parents = write(&parent, 3000..5000).unwrap();
    let childs = write(&child, 6000..8000).unwrap();
    for tier in [&parent, &child] {
        tier.tables().check();
        old.iter().for_each(|(slot, number)| assert_holds(tier, *slot, *number));
    }
    parents.iter().for_each(|(slot, number)| assert_holds(&parent, *slot, *number));
    childs.iter().for_each(|(slot, number)| assert_holds(&child, *slot, *number));
    // What the child gives up is still the parent's.
    old.iter().chain(&childs).for_each(|(slot, _)| child.discard(*slot));
    old.iter().for_each(|(slot, number)| assert_holds(&parent, *slot, *number));
    old.iter().chain(&parents).for_each(|(slot, _)| parent.discard(*slot));
    let held: u32 = shared.holders.lock().unwrap().values().sum();
    // Each tier has its open extent and its spare.
    assert_eq!(held, 4);
}

#[test]
fn what_the_parent_writes_after_a_fork_the_child_cannot_open() {
    let (file, shared) = (file(), Arc::new(Shared { bound: 100, ..Shared::default() }));
    let parent = FileTier::new(file.try_clone().unwrap(), Box::new(Side(Arc::clone(&shared))));
    let old = write(&parent, 0..10).unwrap();
    let child = fork(&parent, &file, &shared);
    let new = write(&parent, 10..20).unwrap();
    let place = |tier: &FileTier, (slot, _): (Slot, u64)| tier.tables().place(slot.to_bits()).unwrap();
    let inherited = place(&child, old[0]);
    assert!(inherited.is(&place(&parent, old[0])));
    for later in new {
        let place = place(&parent, later);
        assert_eq!(place.location.extent, inherited.location.extent, "it goes on where it was");
        let guess = Place { location: place.location, sealer: Arc::clone(&inherited.sealer) };
        let opened = child.read_at(&guess, later.0.to_bits(), false, &mut [0; 4096]);
        assert!(matches!(opened, Err(ReadError::Corrupt)));
        assert_holds(&parent, later.0, later.1);
    }
}

/// A source where a released extent cannot be had at once: its space is being given back, or another process was
/// quicker.
#[derive(Debug)]
struct Late {
    extents: LocalExtents,
    /// Extents that are not handed out though they are there.
    withheld: AtomicUsize,
}

impl ExtentSource for Arc<Late> {
    fn acquire(&self) -> Option<u32> {
        let extent = self.extents.acquire()?;
        if self.withheld.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return Some(extent);
        }
        self.extents.release(extent);
        None
    }

    fn release(&self, extent: u32) {
        self.extents.release(extent);
    }
}

#[test]
fn a_spare_that_comes_late_is_not_lost() {
    let source = Arc::new(Late { extents: LocalExtents::new(8 * MIB), withheld: AtomicUsize::new(0) });
    let tier = FileTier::new(file(), Box::new(Arc::clone(&source)));
    let mut random = 3;
    let mut live = write(&tier, 0..400).unwrap();
    while let Ok(more) = write(&tier, live.len() as u64..live.len() as u64 + 50) {
        live.extend(more);
    }
    let kept = live.len() * 2 / 3;
    thin_out(&tier, &mut live, kept, &mut random);
    for round in 0..200u64 {
        // Now and then the cleaner gets no extent for the one that it has emptied.
        if round % 20 == 0 {
            source.withheld.store(1, Relaxed);
        }
        live.extend(write(&tier, 100_000 + round * 50..100_050 + round * 50).expect("two thirds are live"));
        thin_out(&tier, &mut live, kept, &mut random);
    }
    live.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
    tier.tables().check();
}

/// A device whose writes stand still until they are let go.
#[derive(Debug)]
struct Slow {
    disk: Disk,
    writing: AtomicBool,
    go: AtomicBool,
}

impl Device for Arc<Slow> {
    fn read(&self, buffer: &mut [u8], at: u64) -> IoResult<usize> {
        self.disk.read(buffer, at)
    }

    fn write(&self, bytes: &[u8], at: u64) -> IoResult<usize> {
        self.writing.store(true, Relaxed);
        while !self.go.load(Relaxed) {
            std::thread::yield_now();
        }
        self.disk.write(bytes, at)
    }
}

#[test]
fn reads_and_discards_do_not_wait_for_a_write() {
    let slow = Slow { disk: Disk::new(file()), writing: AtomicBool::new(false), go: AtomicBool::new(true) };
    let slow = Arc::new(slow);
    let extents = Box::new(LocalExtents::new(8 * MIB));
    let tier = FileTier::on_device(Box::new(Arc::clone(&slow)), extents);
    let live = write(&tier, 0..10).unwrap();
    slow.writing.store(false, Relaxed);
    slow.go.store(false, Relaxed);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&tier, 10..2000).unwrap());
        while !slow.writing.load(Relaxed) {
            std::thread::yield_now();
        }
        // Would wait for ever.
        live.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
        tier.discard(live[9].0);
        assert!(tier.used_bytes() > 0);
        slow.go.store(true, Relaxed);
        let more = writer.join().unwrap();
        more.iter().for_each(|(slot, number)| assert_holds(&tier, *slot, *number));
    });
}

#[test]
fn a_slot_that_is_not_in_use_is_no_record() {
    let tier = tier(4 * MIB);
    assert!(matches!(tier.read(Slot::from_bits(3), &mut [0; 4096]), Err(ReadError::Corrupt)));
    let slots = write(&tier, 0..3).unwrap();
    tier.discard(slots[1].0);
    assert!(matches!(tier.read(slots[1].0, &mut [0; 4096]), Err(ReadError::Corrupt)));
}

#[test]
fn tables_cost_what_is_promised() {
    let tier = tier(64 * MIB);
    let empty = tier.meta_bytes();
    assert!(empty < 1024, "an unused tier has {empty} bytes");
    let small = [1u8; 16];
    tier.write(&vec![&small[..]; 200_000]).unwrap();
    let buffer = log::RUN_BYTES + BLOCK;
    let per_slot = (tier.meta_bytes() - buffer) as f64 / 200_000.0;
    assert!(per_slot < 8.5, "{per_slot} bytes a slot");
}

#[test]
fn sparse_extents_are_given_back_for_others_but_not_what_others_hold() {
    let file = file();
    let shared = Arc::new(Shared { bound: 100, ..Shared::default() });
    let parent = FileTier::new(file.try_clone().unwrap(), Box::new(Side(Arc::clone(&shared))));
    let old = write(&parent, 0..15000).unwrap();
    let (kept, dropped): (Vec<_>, Vec<_>) = old.into_iter().partition(|(_, number)| number % 16 == 0);
    dropped.iter().for_each(|(slot, _)| parent.discard(*slot));
    let held = || shared.holders.lock().unwrap().values().filter(|count| **count > 0).count();
    let before = held();
    let child = fork(&parent, &file, &shared);
    assert!(
        !parent.tidy().unwrap() && !child.tidy().unwrap(),
        "records would have been moved to where they are twice"
    );
    assert_eq!(held(), before);
    kept.iter().for_each(|(slot, _)| child.discard(*slot));
    let mut turns = 0;
    while parent.tidy().unwrap() {
        parent.tables().check();
        turns += 1;
    }
    assert!(turns + 3 >= before && before > 10, "{turns} of {before}");
    // The open extent, the spare, and what was not worth it.
    assert!(held() <= 4, "{} of {before}", held());
    kept.iter().for_each(|(slot, number)| assert_holds(&parent, *slot, *number));
    let more = write(&parent, 15000..17000).unwrap();
    more.iter().for_each(|(slot, number)| assert_holds(&parent, *slot, *number));
}
