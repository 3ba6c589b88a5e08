//! Sorts more data than its memory budget: 256 MiB of records in a region that may use 96 MiB.
//!
//! `cargo run --release -p ramfold-pager --example sort [MIB] [BUDGET_MIB]`

use ramfold_pager::{Region, RegionOptions};
use std::error::Error;

/// Big-endian, so that the order of the bytes is that of the numbers.
type Record = [u8; 8];

fn main() -> Result<(), Box<dyn Error>> {
    let mut sizes = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let size = sizes.next().transpose()?.unwrap_or(256) << 20;
    let budget = sizes.next().transpose()?.unwrap_or(96) << 20;

    let mut region = Region::new(size, RegionOptions::new(budget as u64))?;
    let (records, _) = region.as_chunks_mut::<8>();
    let mut state = 1u64;
    let mut sum = 0u64;
    for record in records.iter_mut() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = state >> 40;
        sum = sum.wrapping_add(value);
        *record = value.to_be_bytes();
    }

    records.sort_unstable();

    let value = |record: &Record| u64::from_be_bytes(*record);
    assert!(records.is_sorted(), "the records are in order");
    assert_eq!(records.iter().map(value).fold(0, u64::wrapping_add), sum, "no record is lost");
    let (count, stats) = (records.len(), region.stats());
    println!("sorted {count} records ({} MiB) within {} MiB", size >> 20, budget >> 20);
    println!(
        "{} pages were compressed, {} brought back, {} written to the swap file",
        stats.stores, stats.loads, stats.written_back_pages
    );
    Ok(())
}
