//! The image of a disk.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::image::image(data));
