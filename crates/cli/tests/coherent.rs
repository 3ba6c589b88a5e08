//! A mount gives what the files hold, whoever changes them: sixteen threads read through it and change files through
//! it and behind it, in twice the memory that it has, while its limit and that of a directory change. What they may see
//! is in `coherent/book.rs`. Names that come and go have a checker of their own, `coherent/names.rs`.
//!
//! The checker itself is tried on plain directories, where it must find nothing, and with mistakes that it must find.
//! `RAMFOLD_MOUNT_SECONDS=3600 cargo test --release --test coherent through -- --nocapture` takes an hour;
//! with `RAMFOLD_MOUNT_FIXED=1` the limit stays as it is.

#[path = "coherent/book.rs"]
mod book;
#[path = "coherent/clients.rs"]
mod clients;
#[path = "coherent/clock.rs"]
mod clock;
#[path = "coherent/mapping.rs"]
mod mapping;
mod mounted;
#[path = "coherent/names.rs"]
mod names;
#[path = "coherent/random.rs"]
mod random;

use book::{CELL, CELLS};
use clients::{HALF, Mistake, Run};
use mounted::{MIB, Mounted, Place, can_mount, seconds};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// 32 MiB of files in 16 MiB.
const FILES: usize = 64;
const LIMIT: u64 = 16;
/// How late a change behind the mount may be seen through it, as docs/mount.md says.
const BOUND: Duration = Duration::from_millis(100);
/// The same on a busy machine, which sixteen threads make it.
const BUSY: Duration = Duration::from_millis(300);

/// How long the threads work until all is quiet and everything is looked at: what nobody tells of any more by then was
/// told late.
const UNTIL_QUIET: Duration = Duration::from_secs(1);

fn report(run: &Run, what: &str) {
    let kinds = ["written", "by mappings", "truncated", "appended", "renamed over", "unlinked and created"];
    let changes: Vec<u64> = run.changes.iter().map(|count| count.load(Relaxed)).collect();
    let told: Vec<String> =
        kinds.iter().zip(&changes).map(|(kind, count)| format!("{count} {kind}")).collect();
    let (checks, cells, sum) =
        (run.checks.load(Relaxed), run.cells.load(Relaxed), changes.iter().sum::<u64>());
    let again = run.again.load(Relaxed);
    eprintln!(
        "{what}: {checks} checks of {cells} cells, {sum} changes ({}), {again} asked again",
        told.join(", ")
    );
}

fn insist(run: &Run) {
    let failures = run.failures.lock().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    drop(failures);
    run.audit().unwrap();
}

#[test]
fn the_checker_finds_nothing_in_a_plain_directory() {
    let place = Place::new();
    let run = Run::new(&place.source(), &place.source(), FILES, Duration::ZERO, None);
    run.work(Duration::from_secs(seconds().min(60) / 3));
    report(&run, "plain directory");
    insist(&run);
    assert!(run.changes.iter().all(|count| count.load(Relaxed) > 0));
    assert_eq!(run.again.load(Relaxed), 0);
}

#[test]
fn the_checker_finds_mistakes() {
    use Mistake::{LostName, LostSize, LostWrite, Mixed, Stale};
    let mistakes = [Stale, Mixed, LostWrite, LostSize, LostName];
    for (mistake, bound) in mistakes.into_iter().flat_map(|it| [(it, Duration::ZERO), (it, BOUND)]) {
        let place = Place::new();
        // The same directory by another name.
        let through = place.path().join("mount/../source");
        // On few files, so that what is lost is soon looked at.
        let run = Run::new(&place.source(), &through, 4, bound, Some(mistake));
        let started = Instant::now();
        run.work(Duration::from_secs(60));
        let failures = run.failures.lock().unwrap();
        assert!(!failures.is_empty(), "{mistake:?} is not found in a minute");
        eprintln!("{mistake:?} within {bound:?} after {} ms: {}", started.elapsed().as_millis(), failures[0]);
    }
}

fn report_names(run: &names::Run, what: &str) {
    let kinds = ["created", "deleted", "renamed", "replaced"];
    let told = |at: usize| {
        let counts = kinds.iter().zip(&run.changes[at]);
        counts.map(|(kind, count)| format!("{} {kind}", count.load(Relaxed))).collect::<Vec<_>>().join(", ")
    };
    let [looks, listings, late, latest] =
        [&run.looks, &run.listings, &run.late, &run.latest].map(|count| count.load(Relaxed));
    eprintln!(
        "{what}: {looks} looks at names, {listings} at directories, {late} late by {latest} ms at most; through: {}; behind: {}",
        told(0),
        told(1)
    );
}

fn insist_on_names(run: &names::Run) {
    let failures = run.failures.lock().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    drop(failures);
    run.audit().unwrap();
    let (looks, late) = (run.looks.load(Relaxed), run.late.load(Relaxed));
    assert!(late <= 2 + looks / 500, "{late} of {looks} looks saw what had changed before the bound");
    assert!(run.changes.iter().flatten().all(|count| count.load(Relaxed) > 0));
}

#[test]
fn the_checker_of_names_finds_nothing_in_a_plain_directory_but_mistakes() {
    use names::Mistake::{Length, Listing, Negative, Positive};
    let of = |bound, mistake, length| {
        let place = Place::new();
        let through = place.path().join("mount/../source");
        let run = names::Run::new(&place.source(), &through, bound, mistake);
        run.work(Duration::from_secs(length));
        report_names(&run, &format!("plain directory, {mistake:?} within {bound:?}"));
        if mistake.is_none() {
            insist_on_names(&run);
        }
        run
    };
    of(Duration::ZERO, None, 2);
    for mistake in [Positive, Negative, Listing, Length] {
        for bound in [Duration::ZERO, BOUND] {
            let run = of(bound, Some(mistake), 60);
            let failures = run.failures.lock().unwrap();
            assert!(!failures.is_empty(), "{mistake:?} within {bound:?} is not found in a minute");
        }
    }
}

#[test]
fn nobody_sees_a_name_that_has_gone_or_misses_one_that_has_come() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(LIMIT, &[]);
    let run = names::Run::new(mounted.source(), mounted.point(), BOUND, None);
    run.work(Duration::from_secs(2 * seconds()));
    report_names(&run, "through the mount");
    insist_on_names(&run);
    mounted.stop();
}

/// Changes limits while the threads work, beginning where it ended before.
fn change_limits(run: &Run, place: &Place, mounted: &Mounted, turn: &mut usize) {
    while !run.ended.load(Relaxed) {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(50));
            if run.ended.load(Relaxed) {
                break;
            }
        }
        *turn += 1;
        mounted.memlimit("coherent", [8, 32, 12, 24, LIMIT][*turn % 5]);
        // One that has none cannot lose it.
        place.ctl(&["coherent", "memlimit", HALF, ["0", "1M", "none", "3M"][*turn % 4]]);
    }
    mounted.memlimit("coherent", LIMIT);
}

fn through(options: &[&str], length: Duration) {
    let place = Place::new();
    let mounted = place.mount(LIMIT, &[&["--name", "coherent"], options].concat());
    let run = Run::new(mounted.source(), mounted.point(), FILES, BUSY, None);
    let files = (FILES * CELLS * CELL) as u64;
    assert_eq!(files, 2 * LIMIT * MIB);
    let read_all = || {
        for name in &run.names {
            assert!(Path::new(mounted.point()).join(&name.name).exists());
        }
        mounted.descriptors()
    };
    let before = read_all();
    let (started, mut turn) = (Instant::now(), 0);
    while started.elapsed() < length {
        std::thread::scope(|scope| {
            if std::env::var_os("RAMFOLD_MOUNT_FIXED").is_none() {
                scope.spawn(|| change_limits(&run, &place, &mounted, &mut turn));
            }
            run.work(UNTIL_QUIET);
        });
        insist(&run);
    }
    let after = read_all();
    report(&run, &format!("through the mount {options:?}"));
    eprintln!("{}", place.ctl(&["coherent", "stat"]).trim().replace('\n', ", "));
    eprintln!("at most {} KiB of memory; {before} descriptors before, {after} after", mounted.most() >> 10);
    assert!(after <= before + 2 * FILES + 64, "descriptors are left open: {before} before, {after} after");
    mounted.stop();
}

#[test]
fn nobody_sees_an_old_or_mixed_page_through_the_mount() {
    if can_mount() {
        through(&[], Duration::from_secs(seconds()));
    }
}

#[test]
fn nor_with_other_compressors_and_pools() {
    if !can_mount() {
        return;
    }
    for options in
        [&["--compressor", "zstd:1", "--zpool", "zbud"], &["--zpool", "xvmalloc", "--compressor", "lzo"]]
    {
        through(options, Duration::from_secs(seconds().div_ceil(4)));
    }
}
