//! Statistics, in the columns of zram's files (Documentation/admin-guide/blockdev/zram.rst).
//!
//! Where zram counts a thing that is not there, the column says 0 and stays, so that what reads zram's files reads
//! these.

use crate::volume::Volume;
use ramfold::{Compressor, PagePlace, PageState, Stats};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

fn columns(out: &mut dyn Write, numbers: &[u64]) -> io::Result<()> {
    let texts: Vec<String> = numbers.iter().map(|number| format!("{number:8}")).collect();
    writeln!(out, "{}", texts.join(" "))
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted huge_pages
/// huge_pages_since; what counts from the beginning is told from `since` on.
pub(super) fn mm_stat(disk: &Volume, since: &Stats, out: &mut dyn Write) -> io::Result<()> {
    let stats = disk.store().stats();
    // zram's orig_data_size has what was written back too.
    let orig_data_size = (stats.stored_pages + stats.tier_pages) * ramfold::PAGE_SIZE as u64;
    disk.counts().note_used(stats.pool_total_size);
    let numbers = [
        orig_data_size,
        stats.compr_data_size,
        stats.pool_total_size,
        disk.mem_limit(),
        get(&disk.counts().mem_used_max),
        stats.same_filled_pages,
        stats.pages_compacted.saturating_sub(since.pages_compacted),
        stats.stored_incompressible_pages,
        stats.huge_pages_since.saturating_sub(since.huge_pages_since),
    ];
    columns(out, &numbers)
}

/// failed_reads failed_writes invalid_io notify_free.
pub(super) fn io_stat(disk: &Volume, out: &mut dyn Write) -> io::Result<()> {
    let counts = disk.counts();
    let all = [&counts.failed_reads, &counts.failed_writes, &counts.invalid_io, &counts.notify_free];
    columns(out, &all.map(get))
}

/// bd_count bd_reads bd_writes, in pages.
pub(super) fn bd_stat(disk: &Volume, out: &mut dyn Write) -> io::Result<()> {
    let (reads, writes) = disk.backing().map_or((0, 0), |backing| (backing.reads(), backing.writes()));
    columns(out, &[disk.store().stats().tier_pages, reads, writes])
}

/// writestall: writes that had to make room. miss_free: a free never has to be put off here.
pub(super) fn debug_stat(disk: &Volume, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "version: 1")?;
    columns(out, &[get(&disk.counts().writestall), 0])
}

/// Bytes of pages that are not compressed yet, and the most that there may be now; pages that were compressed some time
/// after they were written, so far. Not zram's.
pub(super) fn fresh_stat(disk: &Volume, out: &mut dyn Write) -> io::Result<()> {
    let store = disk.store();
    columns(out, &[store.fresh_bytes(), store.most_fresh(), store.stats().settled_pages])
}

/// A line for each page: its number, when it was used last (seconds since the system was booted), and its flags.
/// `dense`: the compressors that recompress. What the disk does meanwhile may be seen or not.
pub(super) fn block_state(disk: &Volume, dense: &[Compressor], out: &mut dyn Write) -> io::Result<()> {
    let began = boot_time().saturating_sub(disk.now());
    let mut done = Ok(());
    disk.look(disk.numbers(), &mut |page, state| {
        let age = disk.age(page);
        // zram forgets the time of a page that it writes back.
        let used =
            age.filter(|_| state.place != PagePlace::Tier).map_or(Duration::ZERO, |age| began + age.used);
        let flags = flags(&state, age.is_some_and(|age| age.is_idle), dense);
        done = writeln!(out, "{page:12} {:12}.{:06} {flags}", used.as_secs(), used.subsec_micros());
        done.is_ok()
    });
    done
}

/// same, written back, huge, idle, recompressed, none could compress it.
fn flags(state: &PageState, is_idle: bool, dense: &[Compressor]) -> String {
    let is_dense = state.compressor.is_some_and(|compressor| dense.contains(&compressor));
    let all = [
        ('s', matches!(state.place, PagePlace::Same(_))),
        ('w', state.place == PagePlace::Tier),
        ('h', state.is_huge()),
        ('i', is_idle),
        ('r', is_dense),
        ('n', state.is_incompressible),
    ];
    all.into_iter().map(|(letter, is_so)| if is_so { letter } else { '.' }).collect()
}

fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
}
