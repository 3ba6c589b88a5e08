//! The report of `bench pages`: one JSON object, or a table for people.

use super::corpus::Corpus;
use super::measure::Row;
use serde_json::json;
use std::fmt::Write;

/// One line.
pub fn json(corpus: &Corpus, memcpy_mb_s: f64, rows: &[Row]) -> String {
    let report = json!({
        "pages": corpus.pages,
        "same_filled": corpus.same_filled,
        "duplicates": corpus.duplicates,
        "measured_pages": corpus.unique.len(),
        "memcpy_mb_s": memcpy_mb_s,
        "rows": rows,
    });
    format!("{report}\n")
}

/// Sizes to the left, rates in the middle, latencies to the right.
pub fn table(corpus: &Corpus, memcpy_mb_s: f64, rows: &[Row]) -> String {
    let share = |part: u64| part as f64 * 100.0 / corpus.pages as f64;
    let mut text = format!(
        "{} pages: {:.1} % same-filled, {:.1} % duplicates; {} others measured; memcpy {memcpy_mb_s:.0} MB/s\n\n",
        corpus.pages,
        share(corpus.same_filled),
        share(corpus.duplicates),
        corpus.unique.len()
    );
    text += "                             pool/compressed  meta   MB/s: store  load   codec alone   us: store        load     2 threads: store codec\n";
    text += "compressor  zpool     ratio    fresh  aged   B/page                comp. decomp.    p50    p99    p50    p99\n";
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<11} {:<9} {:>5.2}    {:>5.3} {:>5.3} {:>7.1}       {:>5.0} {:>5.0}   {:>5.0}  {:>5.0}   {:>6.1} {:>6.1} {:>6.1} {:>6.1}           {:.2}x {:.2}x",
            row.compressor,
            row.zpool,
            row.ratio,
            row.pool_overhead,
            row.pool_overhead_aged,
            row.meta_bytes_per_page,
            row.store_mb_s,
            row.load_mb_s,
            row.codec_compress_mb_s,
            row.codec_decompress_mb_s,
            row.store_us.p50,
            row.store_us.p99,
            row.load_us.p50,
            row.load_us.p99,
            row.two_threads_x,
            row.codec_two_threads_x
        );
    }
    text
}
