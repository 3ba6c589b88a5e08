//! What a stored page costs beside its compressed bytes.

use crate::doubles::{Bench, small_page};
use ramfold::{Config, PAGE_SIZE, PoolKind};

#[test]
fn a_dense_page_costs_at_most_24_bytes() {
    for count in [16_384, 30_000, 50_000, 90_000] {
        let mut bench = Bench::new(&Config::default(), None);
        let pool = bench.store.create_pool(PoolKind::Persistent, None);
        let mut page = [0; PAGE_SIZE];
        for index in 0..count {
            page[..200].copy_from_slice(&small_page(index)[..200]);
            bench.put(pool, index, &page).unwrap();
        }
        let (pages, meta) = (bench.stat("stored_pages"), bench.store.meta_bytes());
        println!("{count} pages: {:.2} bytes a page", meta as f64 / pages as f64);
        assert_eq!((pages, bench.stat("meta_bytes")), (count, meta));
        assert!(meta <= 24 * pages, "{meta} bytes for {pages} pages");
    }
}

#[test]
fn sparse_pages_cost_little_more() {
    let mut bench = Bench::new(&Config::default(), None);
    let pool = bench.store.create_pool(PoolKind::Persistent, None);
    (0..20_000).for_each(|number| bench.put(pool, number * 16, &small_page(number)).unwrap());
    let meta = bench.store.meta_bytes() / 20_000;
    assert!(meta <= 64, "{meta} bytes a page at every 16th index");
}
