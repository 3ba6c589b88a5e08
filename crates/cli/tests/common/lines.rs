//! Lines to be sorted.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// `bytes` of lines, each time the same.
pub fn write(path: &Path, bytes: u64) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let (mut word, mut written) = (1u64, 0);
    while written < bytes {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let line = format!("{:016x} a line to be sorted, number {}\n", word ^ (word >> 29), word >> 50);
        file.write_all(line.as_bytes()).unwrap();
        written += line.len() as u64;
    }
    file.flush().unwrap();
}
