//! `ramfold bench pages` as its users see it.

mod command;

use command::{one_line, ramfold};
use std::fs;

/// 400 pages of text-like data, all different, and 20 zero pages, and 30 duplicates.
fn pages() -> Vec<u8> {
    let text = |number: u32| {
        let mut page: Vec<u8> =
            (0..300u32).flat_map(|line| format!("{} {}\n", number, line * number).into_bytes()).collect();
        page.resize(4096, b'.');
        page
    };
    let mut bytes: Vec<u8> = (1..=400).chain(1..=30).flat_map(text).collect();
    bytes.resize(bytes.len() + 20 * 4096, 0);
    bytes
}

#[test]
fn the_report_has_every_name_of_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pages");
    fs::write(&file, pages()).unwrap();
    let file = file.to_str().unwrap();
    let outcome = ramfold(&[
        "bench",
        "pages",
        "--json",
        "--compressor",
        "lz4,zstd:-1",
        "--zpool",
        "zsmalloc,zbud",
        file,
    ]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(one_line(&outcome.stdout)).unwrap();
    assert_eq!(
        (&report["pages"], &report["same_filled"], &report["duplicates"]),
        (&450.into(), &20.into(), &30.into())
    );
    assert!(report["memcpy_mb_s"].as_f64().unwrap() > 0.0);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["compressor"].as_str().unwrap(), row["zpool"].as_str().unwrap()))
        .collect();
    assert_eq!(names, [("lz4", "zsmalloc"), ("lz4", "zbud"), ("zstd:-1", "zsmalloc"), ("zstd:-1", "zbud")]);
    for row in rows {
        for name in [
            "meta_bytes_per_page",
            "store_mb_s",
            "load_mb_s",
            "codec_compress_mb_s",
            "codec_decompress_mb_s",
            "two_threads_x",
        ] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name} in {row}");
        }
        for name in ["ratio", "pool_overhead", "pool_overhead_aged"] {
            assert!(row[name].as_f64().unwrap() >= 1.0, "{name} in {row}");
        }
        for name in ["store_us", "load_us"] {
            assert!(
                row[name]["p50"].as_f64().unwrap() <= row[name]["p99"].as_f64().unwrap(),
                "{name} in {row}"
            );
        }
    }
    assert!(rows[2]["ratio"].as_f64() > rows[0]["ratio"].as_f64(), "zstd packs better than lz4");
    assert!(
        rows[1]["pool_overhead"].as_f64() > rows[0]["pool_overhead"].as_f64(),
        "zbud holds two objects a page"
    );
}

#[test]
fn people_get_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pages");
    fs::write(&file, pages()).unwrap();
    let outcome =
        ramfold(&["bench", "pages", "--compressor", "lz4", "--zpool", "zbud", file.to_str().unwrap()]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stdout.starts_with("450 pages: 4.4 % same-filled, 6.7 % duplicates; 400 others measured")
    );
    assert!(outcome.stdout.lines().any(|line| line.starts_with("lz4         zbud")), "{}", outcome.stdout);
}

#[test]
fn files_that_tell_nothing_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("zeros");
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let outcome = ramfold(&["bench", "pages", file.to_str().unwrap()]);
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("too few to measure"));
    let outcome = ramfold(&["bench", "pages", "/no/such/file"]);
    assert_eq!(outcome.code, Some(125));
    assert!(one_line(&outcome.stderr).contains("/no/such/file"));
}
